"""Spark: session, scans, evaluation; the only user of pyspark."""
