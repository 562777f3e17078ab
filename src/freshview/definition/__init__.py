"""What a view is: its text read, checked against Spark, and described; nothing here refreshes or stores a row.

Law: what is maintained by delta rules is what Spark reads in the text (`reading.py` asks Spark, `selftest.py` tries);
all else keeps its text and is recomputed from it.
"""
