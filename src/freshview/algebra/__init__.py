"""Relational algebra on bags. Pure."""
