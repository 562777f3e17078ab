"""How Java runs in tests: over few rows, beside other tests, and in most processes not long enough to be optimised."""

LONG = "-XX:+UseSerialGC"  # of a process that runs for minutes
SHORT = f"{LONG} -XX:TieredStopAtLevel=1"  # of one whose hot code never earns what its compilation costs
