"""`freshview maintain`, `refresh`, `explain`, `check`, `checkpoint`, `vacuum`: upkeep of views and files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any

import typer

from freshview.cli.look import job_fields, print_jobs
from freshview.cli.output import complain, say, table, write, write_json
from freshview.cli.place import Command, JsonOption, Place, command
from freshview.cli.progress import Bar, WorkAmount, steps, working
from freshview.errors import FreshviewError, InvalidStatement
from freshview.interruption import is_asked_to_stop
from freshview.relation.names import backticked

if TYPE_CHECKING:
    from freshview.catalog.frontiers import Job
    from freshview.events import Event, Events
    from freshview.storage.vacuum import VacuumReport
    from freshview.warehouse.checks import CheckReport
    from freshview.warehouse.warehouse import Warehouse

ViewNames = Annotated[list[str] | None, typer.Argument(help="Views; default: all.")]


@command
def maintain(place: Place, views: ViewNames = None, json: JsonOption = False) -> None:
    """Bring views up to date now, so that the next query need not.

    A view that fails does not stop the others; the exit code is then 1. A deferred view is refreshed if it is named;
    else it is propagated: its changes are computed and stored aside, and what it shows stays.
    """
    with place.connect() as warehouse:
        jobs, failed = _maintained(warehouse, _pending(warehouse, views), show=bool(views))
    if json:
        write_json({"jobs": [job_fields(j) for j in jobs], "failed": failed})
    elif jobs:
        print_jobs(jobs)
    elif not failed:
        say("Nothing was pending.")
    _exit_if(failed)


@command
def refresh(
    place: Place,
    views: Annotated[list[str], typer.Argument(help="The views.")],
    full: Annotated[bool, typer.Option("--full", help="Recompute from the definition.")] = False,
    propagate: Annotated[
        bool, typer.Option("--propagate", help="Deferred views: compute the changes, and store them aside.")
    ] = False,
    partial: Annotated[bool, typer.Option("--partial", help="Deferred views: show what was propagated.")] = False,
    json: JsonOption = False,
) -> None:
    """Refresh views, as REFRESH MATERIALIZED VIEW does: bring each up to date, or recompute it with --full.

    A deferred view can be refreshed in two steps: --propagate at any time, since what the view shows stays; then
    --partial, which takes milliseconds.
    """
    if full + propagate + partial > 1:
        raise InvalidStatement("--full, --propagate and --partial", "exclude each other", "Give one of them.")
    how = " FULL" if full else " PROPAGATE" if propagate else " PARTIAL" if partial else ""
    done: list[dict[str, Any]] = []
    with place.connect() as warehouse:
        pending = _pending(warehouse, views)
        rows = dict.fromkeys(pending, 0) if full else pending  # a recomputation reads rows that are not counted

        def one(name: str) -> None:
            outcome = warehouse.sql(f"REFRESH MATERIALIZED VIEW {backticked(name)}{how}")
            done.append({"view": name, "rows": outcome.rows, "csn": outcome.csn})

        failed = _each("Refreshing", rows, one, warehouse.events)
    if json:
        write_json({"views": done, "failed": failed})
    elif done:
        table(("view", "rows changed", "csn"), [tuple(d.values()) for d in done])
    _exit_if(failed)


@command
def explain(place: Place, view: Annotated[str, typer.Argument(help="The view.")], json: JsonOption = False) -> None:
    """Print how a view is stored and maintained, operator by operator, and the query that a refresh runs."""
    with place.connect() as warehouse, working(f"Explaining {view}"):
        text = warehouse.explain(view)
    if json:
        write_json({"view": view, "lines": text.splitlines()})
    else:
        write(text)


@command
def check(
    place: Place,
    names: Annotated[list[str] | None, typer.Argument(help="Views and tables; default: all.")] = None,
    invariant: Annotated[
        bool,
        typer.Option("--invariant", help="Views only: check the invariants of their mode too."),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Check stored rows: views against their definitions, tables against their keys. The exit code is 1 if wrong."""
    reports: list[CheckReport] = []
    with place.connect() as warehouse:
        stored = {t.name: t for t in warehouse.status().tables}
        chosen = names or [t.name for t in stored.values() if t.kind == "view" or not invariant]
        rows = {n: stored[n].rows_in_main + stored[n].pending_rows if n in stored else 0 for n in chosen}

        def one(name: str) -> None:
            reports.append(warehouse.check(name, invariant=invariant))

        failed = _each("Checking", rows, one)
    if json:
        write_json([asdict(r) for r in reports])
    else:
        _print_checks(reports)
    _exit_if(failed or not all(r.ok for r in reports))


def _print_checks(reports: list[CheckReport]) -> None:
    summary = [(r.name, "ok" if r.ok else "NOT OK", r.missing_rows, r.extra_rows) for r in reports]
    if summary:
        table(("name", "is", "missing rows", "extra rows"), summary)
    for report in reports:
        for promise in report.invariants:
            say(f"{report.name}: {promise}")
        for title, rows in (("Missing from", report.missing), ("Too many in", report.extra)):
            if rows:
                first = [tuple(row.values()) for row in rows[:10]]
                say(f"{title} {report.name} (the first {len(first)}):")
                table(tuple(rows[0]), first)


@command
def checkpoint(
    place: Place,
    tables: Annotated[list[str] | None, typer.Argument(help="Tables and views; default: all with changes.")] = None,
    json: JsonOption = False,
) -> None:
    """Fold the changes since the last checkpoint into the Delta tables, where any Delta reader sees them."""
    done: list[dict[str, Any]] = []
    with place.connect() as warehouse:
        due = {t.name: t.pending_rows for t in warehouse.status().tables if t.kind != "external" and t.pending_segments}
        rows = {name: due.get(name, 0) for name in tables} if tables else due

        def one(name: str) -> None:
            outcome = warehouse.sql(f"CHECKPOINT {backticked(name)}")
            done.append({"name": name, "rows": outcome.rows, "csn": outcome.csn})

        failed = _each("Checkpointing", rows, one)
    if json:
        write_json({"checkpoints": done, "failed": failed})
    elif done:
        table(("table", "rows", "csn"), [tuple(d.values()) for d in done])
    elif not failed:
        say("There is nothing to fold.")
    _exit_if(failed)


@command
def vacuum(
    place: Place,
    retain_hours: Annotated[
        float, typer.Option("--retain-hours", min=0, help="Hours that stay readable (sql --as-of).")
    ] = 24,
    json: JsonOption = False,
) -> None:
    """Remove old versions and unused files. Versions that open transactions and stale views read are kept."""
    from freshview.storage.vacuum import hours_retained

    reports: list[VacuumReport] = []

    def hear(event: Event) -> None:
        if event.name == "vacuum.done":
            reports.append(event.details["report"])

    with place.connect() as warehouse, working("Vacuuming"):
        warehouse.events.listen(hear)
        warehouse.vacuum(hours_retained(retain_hours))
    (report,) = reports
    if json:
        write_json(asdict(report))
        return
    say(f"{report.files} files with {report.bytes} bytes removed; readable since CSN {report.horizon}.")
    if report.held_by:
        say(report.held_by)


def _pending(warehouse: Warehouse, asked: Iterable[str] | None) -> dict[str, int]:
    """Return the pending rows of the views that were named, each of which must exist; of all views if none was."""
    from freshview.relation.schema import fold

    for name in asked or ():
        warehouse.history(name)  # raises if the name is not that of a view
    found = {fold(v.name): v for v in warehouse.status().views}
    return {found[n].name: found[n].pending_rows for n in (map(fold, asked) if asked else found) if n in found}


def _maintained(warehouse: Warehouse, rows: Mapping[str, int], *, show: bool) -> tuple[list[Job], list[str]]:
    """Maintain views side by side, under a bar over their pending rows; return the jobs and the views that failed."""
    jobs: dict[str, list[Job]] = {}
    failed: dict[str, str] = {}
    with _bar("Maintaining", rows, warehouse.events) as (_, gone):

        def hear(event: Event) -> None:
            if event.name == "maintain.done":
                jobs[event.details["view"]] = event.details["jobs"]
                gone(event.details["view"], None)
            elif event.name == "maintain.failed":
                failed[event.details["view"]] = event.details["error"]

        warehouse.events.listen(hear)
        try:
            warehouse.maintain(list(rows), show=show)
        except FreshviewError:
            if is_asked_to_stop() or not failed:
                raise
    for name in rows.keys() - jobs.keys() - failed.keys():
        failed[name] = "was not maintained: a view below it failed"
    return [job for name in rows for job in jobs.get(name, ())], _reported({n: failed[n] for n in rows if n in failed})


def _each(what: str, rows: Mapping[str, int], act: Callable[[str], None], events: Events | None = None) -> list[str]:
    """Act on each name, under a bar over their rows, or over the names if none has rows; return the names that failed.

    Failures are reported after the last name, in a sentence each.
    """
    failed: dict[str, str] = {}
    with _bar(what, rows, events) as (bar, gone):
        for name in rows:
            bar.now(f"{what} {name}")
            try:
                act(name)
            except FreshviewError as failure:
                if is_asked_to_stop():
                    raise
                failed[name] = str(failure)
            gone(name, None)
    return _reported(failed)


@contextmanager
def _bar(
    what: str, rows: Mapping[str, int], events: Events | None
) -> Iterator[tuple[Bar, Callable[[str, int | None], None]]]:
    """Draw a bar over the rows of names, or over the names if none has rows.

    The function takes so many rows of a name off the bar (None: all that are left). A finished job, reported by an
    event, takes its rows off; events may come from several threads.
    """
    left = dict(rows) if any(rows.values()) else dict.fromkeys(rows, 1)
    size, lock = WorkAmount(sum(left.values()), "rows" if any(rows.values()) else "done"), Lock()
    with steps(what, size) as bar:

        def gone(name: str, most: int | None) -> None:
            with lock:
                had = left.get(name, 0)
                left[name] = max(had - most, 0) if most is not None else 0
                bar.add(had - left[name])

        if events is not None:
            events.listen(lambda e: gone(e.details["view"], e.details["rows"]) if e.name == "job.done" else None)
        yield bar, gone


def _reported(failed: Mapping[str, str]) -> list[str]:
    """Report failures, in a sentence each; return the names that failed."""
    for name, error in failed.items():
        complain(error if name in error else f"{name}: {error}")
    return list(failed)


def _exit_if(failed: object) -> None:
    if failed:
        raise typer.Exit(1)


COMMANDS = (
    Command(maintain, "Keep fresh", ("freshview maintain", "freshview maintain totals --json")),
    Command(
        refresh,
        "Keep fresh",
        ("freshview refresh totals", "freshview refresh totals --full --json", "freshview refresh daily --propagate"),
    ),
    Command(
        check, "Keep fresh", ("freshview check", "freshview check totals orders --json", "freshview check --invariant")
    ),
    Command(explain, "Look", ("freshview explain totals", "freshview explain totals --json")),
    Command(checkpoint, "Look after files", ("freshview checkpoint", "freshview checkpoint orders --json")),
    Command(vacuum, "Look after files", ("freshview vacuum", "freshview vacuum --retain-hours 168 --json")),
)
