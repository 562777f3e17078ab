"""Benchmarks and conformance runs.

Law: every figure in the documentation is measured and written by a command of this room, never typed.
"""
