"""Storage: main tables in Delta Lake, segment files, external tables. Only this room uses deltalake.

Law: a relation at a CSN is main ⊕ segments. Files are durable before a catalog row names them, and are removed only
when no row and no lease names them.
"""
