"""The command line: one small function per command.

Law: a command parses its options, calls the warehouse or its catalog, and prints the events and reports they return.
"""
