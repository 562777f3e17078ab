"""How Java runs in tests: over few rows, beside other tests, and in most processes not long enough to be optimised."""

LONG = "-XX:+UseSerialGC"  # of a process that runs for hours
# Spark's classes are not verified when they are loaded: 2 to 3 of the 18 seconds that a start and a first view take.
_COLD = f"{LONG} -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
# Of the session of a test run, which runs for minutes: only loops, and what is very hot, earn what it costs to optimise
# them. As Java comes, it would optimise for a third of its time. Classes that Spark generates fill the metaspace, and
# each time that it grows all of the heap would be collected.
SESSION = (
    f"{_COLD} -Xmn400m -XX:MetaspaceSize=400m"
    " -XX:Tier4InvocationThreshold=200000 -XX:Tier4MinInvocationThreshold=24000"
    " -XX:Tier4CompileThreshold=600000 -XX:Tier4BackEdgeThreshold=400000"
)
SHORT = f"{_COLD} -XX:TieredStopAtLevel=1"  # of one whose hot code never earns what its compilation costs
