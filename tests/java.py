"""How Java runs in tests: over few rows, beside other tests, and in most processes not long enough to be optimised."""

LONG = "-XX:+UseSerialGC"  # of a process that runs for hours
# Of the session of a test run, which runs for minutes: only loops, and what is very hot, earn what it costs to optimise
# them. As Java comes, it would optimise for a third of its time.
SESSION = (
    f"{LONG} -XX:Tier4InvocationThreshold=200000 -XX:Tier4MinInvocationThreshold=24000"
    " -XX:Tier4CompileThreshold=600000 -XX:Tier4BackEdgeThreshold=400000"
)
SHORT = f"{LONG} -XX:TieredStopAtLevel=1"  # of one whose hot code never earns what its compilation costs
