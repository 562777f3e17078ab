"""Transactions: snapshot isolation, statements, constraints, conflicts, commit."""
