"""SQL texts: statements as records, table names bound, queries lowered to algebra and algebra rendered as SQL. Pure.

Law: what Spark is to run reaches it as the user wrote it, apart from table names. What may mean something else to Spark
than to the parser used here is refused (`Unsupported`): such a query is not lowered, and its text is run instead.
"""
