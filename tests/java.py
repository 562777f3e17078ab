"""How Java runs in tests: over few rows, beside other tests, and in most processes not long enough to be optimised."""

from __future__ import annotations

from typing import Any

import pytest
from py4j.java_gateway import JavaPackage, JVMView

LONG = "-XX:+UseSerialGC"  # of a process that runs for hours
# Spark's classes are not verified when they are loaded: 2 to 3 of the 18 seconds that a start and a first view take.
_COLD = f"{LONG} -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
# Of one whose hot code never earns what its optimisation costs. Java keeps 48 MB for compiled code then, in which Spark
# has no room: two of three methods were thrown away, and compiled again.
SHORT = f"{_COLD} -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
# Of a driver, and by it of its executors: each join and grouping takes a page of memory, which Spark makes 64 MB large
# in a large heap, so that the heap is soon full.
DRIVER = f"{SHORT} -Dspark.buffer.pageSize=1m"
# Of the session of a test run: its queries are all different and small. Half compiled, as Java comes, code counts its
# calls until it is optimised, which most of it never is here. Classes that Spark generates fill the metaspace, and each
# time that it grows all of the heap would be collected; so it would be each time that the heap itself grows.
SESSION = f"{DRIVER} -XX:InitialRAMPercentage=6 -Xmn600m -XX:MetaspaceSize=400m"


def remember_names(patch: pytest.MonkeyPatch) -> None:
    """Have each name of a Java class looked up once.

    Python asks for each part of `org.apache.spark.…` whenever it is named, and Java looks for a class of that name in
    all of Spark's archives: a tenth of what the tests of a session took.
    """
    for owner in (JavaPackage, JVMView):
        patch.setattr(owner, "__getattr__", _remembering(owner.__getattr__))


def _remembering(look_up: Any) -> Any:
    known: dict[tuple[Any, ...], Any] = {}

    def remembered(of: Any, name: str) -> Any:
        inside = of.__dict__
        place = (inside["_gateway_client"], inside.get("_fqn") or inside.get("_id"), name)
        if place not in known:
            known[place] = look_up(of, name)
        return known[place]

    return remembered
