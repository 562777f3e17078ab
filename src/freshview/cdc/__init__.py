"""Change capture: changes that other tools make to external tables become commits of the warehouse.

Law: a change and its origin are recorded in one catalog transaction: exactly once, whatever process dies.
"""
