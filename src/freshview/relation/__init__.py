"""Types, schemas, values and delta rows of relations, which all other rooms use.

Law: all functions are pure. A value is stored exactly or refused; delta rows fold by ⊕ (`delta.py`).
"""
