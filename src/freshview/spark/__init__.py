"""Spark sessions, scans of relations as DataFrames, plans as queries, statements evaluated and rows written.

Law: only this room loads pyspark, and errors of Spark leave it as FreshviewErrors. A scan gives exactly
main ⊕ segments at a CSN, whichever way it is computed.
"""
