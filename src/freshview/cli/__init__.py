"""The command line: one small function per command; what it prints are events and reports of the warehouse."""
