"""What a view is: its text read, checked against Spark, and described; this room refreshes and stores no rows.

Law: a definition is maintained by delta rules only if Spark reads its text in the same way (`reading.py` asks Spark,
`selftest.py` runs both); any other definition keeps its text and is recomputed from it.
"""
