"""Transactions: statements over one snapshot, their constraints and conflicts, the commit, and what users hold of it.

Law: a transaction reads its snapshot ⊕ its own statements. One catalog transaction makes all statements visible, or
none; of two transactions that write the same row, the first to commit wins.
"""
