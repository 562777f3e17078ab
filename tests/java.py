"""How Java runs in tests: over few rows, beside other tests, and in most processes not long enough to be optimised."""

LONG = "-XX:+UseSerialGC"  # of a process that runs for hours
# Spark's classes are not verified when they are loaded: 2 to 3 of the 18 seconds that a start and a first view take.
_COLD = f"{LONG} -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
SHORT = f"{_COLD} -XX:TieredStopAtLevel=1"  # of one whose hot code never earns what its optimisation costs
# Of the session of a test run: its queries are all different and small. Half compiled, as Java comes, code counts its
# calls until it is optimised, which most of it never is here. Classes that Spark generates fill the metaspace, and each
# time that it grows all of the heap would be collected.
SESSION = f"{SHORT} -Xmn400m -XX:MetaspaceSize=400m"
