"""What EXPLAIN REFRESH tells of a view: how it is stored, how each operator is kept, and the query that would run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from freshview.algebra.nodes import Scan
from freshview.definition.analysis import Definition
from freshview.delta.forms import STORED, delta_plan
from freshview.delta.near import reduced
from freshview.delta.report import Step, lines, report, unreadable
from freshview.sql.rendering import render


def maintainability(definition: Definition) -> Step:
    """The report on a view, operator by operator."""
    if definition.lowered is None or definition.form is None:
        return unreadable(definition.reason)
    return report(definition.lowered, definition.form, dict(definition.obstacles))


def explained(
    name: str, definition: Definition, frontier: int, mode: str = "", last: Mapping[str, Sequence[int]] | None = None
) -> str:
    """The whole of it as text; `mode` is a line on the view's mode, `last` what its last job condensed."""
    found = [f"view {name}", f"  frontier: CSN {frontier}"] + [f"  {mode}"] * bool(mode)
    if definition.form is not None:
        found.append(f"  stored as: {definition.form.rule}")
    why = "" if definition.incremental else f" ({definition.reason or 'asked for'})"
    found.append(f"  maintained: {'incrementally' if definition.incremental else 'by recomputation'}{why}")
    if definition.verdict is not None:
        found.append(f"  reading: {definition.verdict}")
    found.append("  operators:")
    found += lines(maintainability(definition), "    ")
    return "\n".join([*found, *_condensing(name, definition, last or {}), *_query(name, definition)])


def _condensing(name: str, definition: Definition, last: Mapping[str, Sequence[int]]) -> list[str]:
    """Where deltas are condensed, and what that took away in the last job."""
    if not definition.incremental or definition.form is None:
        return []
    keys = {n: r.schema.key for n, r in sorted(definition.sources.items())}
    steps = [("partial", source, key, "below all joins") for source, key in keys.items()]
    found = ["  condense:"]
    for kind, on, key, place in (*steps, ("full", name, (), "before it is applied")):
        by = f"by ({', '.join(key)})" if key else "by whole rows"
        read, left = last.get(on, (0, 0))
        ran = f"; last job: {read - left} of {read} rows removed" if on in last else ""
        found.append(f"    {kind}, Δ{on} {by}, {place}{ran}")
    return found


def _query(name: str, definition: Definition) -> list[str]:
    """The one Spark SQL text of the delta."""
    if not definition.incremental or definition.form is None or definition.lowered is None:
        return []
    plan = delta_plan(definition.form, definition.lowered, set(definition.sources), definition.types)
    if plan is None:
        return []
    text = render(reduced(plan), lambda s: _source(s, name))
    return ["  when all its sources have changed, a refresh runs:", text]


def _source(scan: Scan, name: str) -> str:
    """A scan's relation and version, and which of its rows matter."""
    read = f"{name if scan.relation == STORED else scan.relation}@{scan.version}"
    if not scan.near:
        return read
    offers = []
    for near in scan.near:
        values = " or ".join(dict.fromkeys(f"{s.relation}@{s.version}.{c}" for s, c in near.sources))
        offers.append(f"{near.column} in {values}".replace(STORED, name))
    return f"{read} /* rows with {' and '.join(dict.fromkeys(offers))} */"
