"""`freshview maintain`, `refresh`, `explain`, `check`, `checkpoint`, `vacuum`: views and files are looked after."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from freshview.cli.look import job_fields, print_jobs
from freshview.cli.output import complain, say, table, write, write_json
from freshview.cli.place import Command, JsonOption, Place, command
from freshview.cli.progress import Size, steps, working
from freshview.errors import FreshviewError, InvalidStatement
from freshview.interruption import is_asked_to_stop
from freshview.relation.names import backticked

if TYPE_CHECKING:
    from freshview.catalog.frontiers import Job
    from freshview.events import Events
    from freshview.warehouse.checks import CheckReport
    from freshview.warehouse.warehouse import Warehouse

ViewNames = Annotated[list[str] | None, typer.Argument(help="Views; all of them if left out.")]


@command
def maintain(place: Place, views: ViewNames = None, json: JsonOption = False) -> None:
    """Bring views up to date now, so that the next query need not.

    A view that cannot be does not stop the others; the exit code is then 1. A deferred view is refreshed if it is
    named; if not, its changes are computed and kept aside (propagated), and it shows what it showed.
    """
    jobs: list[Job] = []
    with place.connect() as warehouse:

        def one(name: str) -> None:
            jobs.extend(warehouse.maintain([name], show=bool(views)))

        failed = _each("Maintaining", _pending(warehouse, views), one, warehouse.events)
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
    full: Annotated[bool, typer.Option("--full", help="Compute all of it anew, from the definition.")] = False,
    propagate: Annotated[
        bool, typer.Option("--propagate", help="Deferred views: compute the change, and keep it aside.")
    ] = False,
    partial: Annotated[
        bool, typer.Option("--partial", help="Deferred views: show what was propagated, at once.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Refresh views, as REFRESH MATERIALIZED VIEW does: bring each up to date, or compute it anew with --full.

    The work on a deferred view can be done in parts: --propagate at any time, since readers notice nothing; then
    --partial, which takes no time.
    """
    if full + propagate + partial > 1:
        raise InvalidStatement("--full, --propagate and --partial", "are different things", "Give one of them.")
    how = " FULL" if full else " PROPAGATE" if propagate else " PARTIAL" if partial else ""
    done: list[dict[str, Any]] = []
    with place.connect() as warehouse:
        pending = _pending(warehouse, views)
        rows = dict.fromkeys(pending, 0) if full else pending  # all rows are computed then, and nobody has counted them

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
    """Tell how a view is stored and maintained, operator by operator, and the query that a refresh runs."""
    with place.connect() as warehouse, working(f"Explaining {view}"):
        text = warehouse.explain(view)
    if json:
        write_json({"view": view, "lines": text.splitlines()})
    else:
        write(text)


@command
def check(
    place: Place,
    names: Annotated[list[str] | None, typer.Argument(help="Views and tables; all of them if left out.")] = None,
    invariant: Annotated[
        bool,
        typer.Option("--invariant", help="Views only: check too what lazy, eager or deferred maintenance promises."),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Verify what is stored: a view equals its definition, a table keeps its key. The exit code is 1 if not."""
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
    told = [(r.name, "ok" if r.ok else "NOT OK", r.missing_rows, r.extra_rows) for r in reports]
    if told:
        table(("name", "is", "missing rows", "extra rows"), told)
    for report in reports:
        for promise in report.invariants:
            say(f"{report.name}: {promise}")
        for title, rows in (("Missing from", report.missing), ("Too many in", report.extra)):
            if rows:
                shown = [tuple(row.values()) for row in rows[:10]]
                say(f"{title} {report.name} (the first {len(shown)}):")
                table(tuple(rows[0]), shown)


@command
def checkpoint(
    place: Place,
    tables: Annotated[
        list[str] | None, typer.Argument(help="Tables and views; all that have changes if left out.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Fold the changes that were stored since the last time into the Delta tables, where any Delta reader sees them."""
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
        float, typer.Option("--retain-hours", min=0, help="The last so many hours stay readable (sql --as-of).")
    ] = 24,
    json: JsonOption = False,
) -> None:
    """Remove old versions and files that nobody needs. What open transactions and stale views read is kept."""
    from freshview.events import Events
    from freshview.storage.store import Storage
    from freshview.storage.vacuum import vacuum as run

    events = Events()
    with place.open_catalog() as catalog, working("Vacuuming"):
        report = run(catalog, Storage(place.folder.absolute(), events), events, timedelta(hours=retain_hours))
    if json:
        write_json(asdict(report))
        return
    say(f"{report.files} files with {report.bytes} bytes removed; readable since CSN {report.horizon}.")
    if report.held_by:
        say(report.held_by)


def _pending(warehouse: Warehouse, asked: Iterable[str] | None) -> dict[str, int]:
    """Views with the rows that they have not seen: those that were asked for, each of which must exist; else all."""
    from freshview.relation.schema import fold

    for name in asked or ():
        warehouse.history(name)  # says what is wrong with the name
    found = {fold(v.name): v for v in warehouse.status().views}
    return {found[n].name: found[n].pending_rows for n in (map(fold, asked) if asked else found) if n in found}


def _each(what: str, rows: Mapping[str, int], act: Callable[[str], None], events: Events | None = None) -> list[str]:
    """Do it for each name, with a bar over their rows, or over the names where none has rows.

    Jobs that are done on the way, as events tell, take their rows away. Those that failed are each told in a sentence
    when all are through.
    """
    failed: dict[str, str] = {}
    left = dict(rows) if any(rows.values()) else dict.fromkeys(rows, 1)
    size = Size(sum(left.values()), "rows" if any(rows.values()) else "done")
    with steps(what, size) as bar:

        def gone(name: str, most: int) -> None:
            taken = min(left.get(name, 0), most)
            left[name] = left.get(name, 0) - taken
            bar.add(taken)

        if events is not None:
            events.listen(lambda e: gone(e.details["view"], e.details["rows"]) if e.name == "job.done" else None)
        for name in rows:
            bar.now(f"{what} {name}")
            try:
                act(name)
            except FreshviewError as error:
                if is_asked_to_stop():
                    raise
                failed[name] = str(error)
            gone(name, left[name])
    for name, told in failed.items():
        complain(told if name in told else f"{name}: {told}")
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
