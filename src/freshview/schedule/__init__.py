"""When views are maintained that nobody waits for.

Law: background work gives way to statements, and no task waits for ever.
"""
