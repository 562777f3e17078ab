"""EXPLAIN REFRESH of a view: how it is stored, how each operator is maintained, and the plan of its next job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from freshview.algebra.nodes import Scan, Shared, Stored, Table
from freshview.catalog.frontiers import Job
from freshview.definition.analysis import Definition
from freshview.delta.condense import Condense
from freshview.delta.report import Step, lines, report, unreadable
from freshview.refresh.embedded import part_text
from freshview.refresh.plan import EMBEDDED, FULL, INCREMENTAL, NOTHING, SPARK, JobPlan, RefreshPlan, ScanPlan, sketch
from freshview.sql.rendering import render
from freshview.storage.reader import OVERLAY_ROWS

Past = tuple[
    Sequence[Job], Mapping[str, float]
]  # finished jobs, oldest first; what was learnt of the costs of each way
_WAYS = {EMBEDDED: "delta rules in the embedded engine", SPARK: "delta rules on Spark", FULL: "recomputing"}


def maintainability(definition: Definition) -> Step:
    """The report on a view, operator by operator."""
    if definition.lowered is None or definition.form is None:
        return unreadable(definition.reason)
    return report(definition.lowered, definition.form, dict(definition.obstacles))


def explained(
    name: str,
    definition: Definition,
    frontier: int,
    mode: str = "",
    past: Past = ((), {}),
    ahead: JobPlan | None = None,
    proof: str = "",
) -> str:
    """The whole report. `mode` is a line on the view's mode, `past` its jobs and what they taught, `ahead` the plan of
    its next job; without a next job the report has the query that runs when all sources have changed. `proof` is that
    of the view's rewriting."""
    found = [f"view {name}", f"  frontier: CSN {frontier}"] + [f"  {mode}"] * bool(mode)
    if definition.form is not None:
        by = f" by key ({', '.join(definition.key)})" if definition.key else ""
        found.append(f"  stored as: {definition.form.rule}{by}")
    why = "" if definition.incremental else f" ({definition.reason or 'asked for'})"
    found.append(f"  maintained: {'incrementally' if definition.incremental else 'by recomputation'}{why}")
    if definition.verdict is not None:
        found.append(f"  reading: {definition.verdict}")
    if definition.rewriting is not None:
        found += _rewritten(definition, definition.rewriting, proof)
    found.append("  operators:")
    found += lines(maintainability(definition), "    ")
    usual = sketch(definition.rewriting or definition)
    found += _condensing(name, ahead or usual, past[0])
    found += _costs(*past)
    if ahead is not None:
        found += planned(ahead)
    elif usual is not None:
        found += ["  when all its sources have changed, a refresh runs:", _query(name, usual)]
    return "\n".join(found)


def _rewritten(definition: Definition, rewriting: Definition, proof: str) -> list[str]:
    """What a view's rows are maintained from in place of its sources, and its tree over that."""
    assert rewriting.form is not None
    own = {source.id for source in definition.sources.values()}
    over = sorted(source.name for source in rewriting.sources.values() if source.id not in own)
    how = f"stored as before, maintained as {rewriting.form.rule} by:"
    found = [f"  rewritten over: {', '.join(over)} ({proof}); {how}"]
    text = render(rewriting.form.tree, lambda scan: scan.relation)
    return [*found, *(f"    {line}" for line in text.splitlines())]


def _condensing(name: str, plan: JobPlan | None, done: Sequence[Job]) -> list[str]:
    """The condense steps of a job, and how many rows each removed in the last job."""
    if plan is None:
        return []
    if plan.strategy == FULL:
        return ["  condense: none, the next job recomputes the view"]
    last = done[-1].condense if done else {}
    found = ["  condense:"]
    for change in plan.written:
        columns, step = "by whole rows of the columns used", change.condense
        by = [f"by ({', '.join(step.key)})"] * bool(step.key) + [columns] * step.cancels
        found.append(_condense_step("partial", change.source, step, f"{', then '.join(by)}, below all joins", last))
    if plan.condense is not None:
        by_key = f"by key ({', '.join(plan.condense.key)})" if plan.condense.key else "by whole rows"
        found.append(_condense_step("full", name, plan.condense, f"{by_key}, before it is applied", last))
    return found


def _condense_step(kind: str, of: str, step: Condense, how: str, last: Mapping[str, Sequence[int]]) -> str:
    if not step.runs:
        return f"    no {kind} condense of Δ{of}: {step.why}"
    read, left = last.get(of, (0, 0))
    why = f" ({step.why})" if step.why else ""
    if (e := step.expected) is not None and step.cancels:
        why += f"; expected to leave {e.left:,} of {e.rows:,} rows in {e.costs:.2g} s, which saves {e.saves:.2g} s"
    ran = f"; last job: {read - left} of {read} rows removed" if of in last else ""
    return f"    {kind}, Δ{of} {how}{why}{ran}"


def _costs(done: Sequence[Job], learnt: Mapping[str, float]) -> list[str]:
    """What past jobs taught of the view's costs, and how often the way that was not taken looks better now."""
    found = ["  costs:"]
    ways = [f"{how} {learnt[way]:.2g} times" for way, how in _WAYS.items() if way in learnt]
    found += [f"    learnt, of what was estimated: {', '.join(ways)}"] * bool(ways)
    chosen = [job for job in done if job.otherwise]
    if chosen:
        sorry = [job.regret for job in chosen if job.regret]
        found.append(
            f"    past choices: {len(chosen)} jobs; {len(sorry)} took longer than the other way was expected to, "
            f"by {sum(sorry):.2g} s in all"
        )
    return found if len(found) > 1 else []


def planned_together(name: str, plan: RefreshPlan) -> list[str]:
    """The lines that describe what a view shares with others that are refreshed with it, and the query over that."""
    jobs = dict(zip((taken.view for taken in plan.takes), plan.jobs, strict=True))
    own = jobs[name]
    if own is None:
        return ["  refreshed alone: it shares nothing with the other views that have the same changes pending"]
    members = [view for view, job in jobs.items() if job is not None and view != name]
    found = [f"  refreshed together with {', '.join(members)}"] if members else []
    names = {part.source: f"shared{i}" for i, part in enumerate(plan.parts, 1)}

    def source(scan: Scan) -> str:
        if isinstance(scan.source, Shared):
            return names[scan.source]
        read = scan.relation.split("#")[0] if isinstance(scan.source, Table) else "stored"
        return f"{read}@{scan.version}"

    for part in plan.parts:
        if name in part.users:
            how = "in the embedded engine" if part.local is not None else "on Spark, held in files"
            found.append(f"    {names[part.source]}, computed once for {', '.join(part.users)}, {how}:")
            found.append(render(part.query, source))
    return found if own.query is None else [*found, "    in this refresh it runs:", render(own.query, source)]


def planned(plan: JobPlan) -> list[str]:
    """The lines that describe the plan of a job."""
    assert plan.takes is not None
    name, start, end = plan.takes.view, plan.takes.start.csn, plan.takes.end.csn
    engine = (
        "the embedded engine" if plan.local is not None else "Spark over rows at hand" if plan.is_local else "Spark"
    )
    ways = {FULL: "recomputes the view", INCREMENTAL: f"by delta rules, on {engine}", NOTHING: "changes nothing"}
    expected = f"; expected {plan.seconds:.2g} s" if plan.estimate is not None else ""
    found = [f"  next job, CSN {start} to {end}: {ways[plan.strategy]}{expected}"]
    found += [f"    {_stored_by(plan)}"] * (plan.strategy == FULL)
    for change in plan.written:
        held = "which stay in Spark" if change.in_spark else f"of {change.read:,} that were written"
        found.append(f"    Δ{change.source}: {change.rows:,} rows, {held}")
    found += dict.fromkeys(f"    {_source(s.scan, name)}: {_rows(s)}" for s in plan.scans if _rows(s))
    held = "in files" if plan.holds_stages_in_files else "on the driver"
    stages = len(plan.stages[0]) if plan.query is not None and plan.local is None else 0
    found += [f"    parts that are computed first, and held {held}: {stages}"] * bool(stages)
    found += [f"    not in the embedded engine: {plan.why_spark}"] * bool(plan.why_spark)
    parts = plan.local.prepared if plan.local is not None else []
    found += [f"    by Spark before, without a job: {part_text(part)}" for part in parts]
    found += [f"    {plan.proviso}"] * bool(plan.proviso)
    for way in plan.rejected:
        seconds = f" ({way.seconds:.2g} s)" if way.seconds is not None else ""
        found.append(f"    not {'recomputed' if way.strategy == FULL else 'by delta rules'}: {way.why}{seconds}")
    return found if plan.query is None else [*found, "    it runs:", _query(name, plan)]


def _rows(planned: ScanPlan) -> str:
    """Where the rows of a scan come from; "" if that goes without saying."""
    if planned.from_files:
        return f"{planned.from_files:,} rows from files"
    return f"{planned.looked_up:,} rows looked up" if planned.looked_up is not None else ""


def _stored_by(plan: JobPlan) -> str:
    """How the rows of a plan that recomputes are stored."""
    if not plan.replaces:
        return "stores the rows that differ from the stored ones"
    return f"stores the rows that differ; from {OVERLAY_ROWS:,} rows on it replaces all of them: {plan.replaces}"


def _query(name: str, plan: JobPlan) -> str:
    """The Spark SQL text of a delta query."""
    assert plan.query is not None
    return render(plan.query, lambda s: _source(s, name))


def _source(scan: Scan, name: str) -> str:
    """A scan's relation and version, and which of its rows matter."""
    read = _version(scan, name)
    if not scan.semijoins:
        return read
    offers = []
    for by in scan.semijoins:
        values = " or ".join(dict.fromkeys(f"{_version(s, name)}.{c}" for s, c in by.sources))
        offers.append(f"{by.column} in {values}")
    return f"{read} /* rows with {' and '.join(dict.fromkeys(offers))} */"


def _version(scan: Scan, name: str) -> str:
    return f"{name if isinstance(scan.source, Stored) else scan.relation}@{scan.version}"
