"""Benchmarks: every figure that the documentation shows is printed by a command in here."""
