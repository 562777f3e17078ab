"""Relational algebra on bags: trees of operators, walked, pruned of columns and cut into stages. Pure.

Law: a tree whose expressions use a column that their input does not give cannot be built; rewriting keeps the result.
"""
