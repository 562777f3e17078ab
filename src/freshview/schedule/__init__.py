"""Background work of an open warehouse: when views are maintained that no statement waits for.

Law: background work gives way to statements, and no task waits for ever.
"""
