"""`freshview views`, `tasks`, `status`, `history`: what the catalog knows, told at once and without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from freshview.cli.output import say, table, write_json
from freshview.cli.place import Command, JsonOption, Place, command

if TYPE_CHECKING:
    from freshview.catalog.views import Job
    from freshview.maintenance.overview import ViewStatus
    from freshview.standing import Status


@command
def views(place: Place, json: JsonOption = False) -> None:
    """List the materialized views: mode, frontier, pending tasks, age of the oldest, condition."""
    from freshview.maintenance.overview import overview

    with place.open_catalog() as catalog:
        found = overview(catalog)
        if json:
            write_json([_view(v) for v in found])
            return
        _show(catalog, "views", "There are no materialized views. Make one with CREATE MATERIALIZED VIEW v AS SELECT …")


@command
def tasks(place: Place, json: JsonOption = False) -> None:
    """List pending maintenance: one row per view and transaction that the view has not seen yet."""
    with place.open_catalog() as catalog:
        if json:
            write_json(_tasks(catalog))
            return
        _show(catalog, "tasks", "Nothing is pending: every view has seen every commit.")


@command
def status(place: Place, json: JsonOption = False) -> None:
    """Tell where the warehouse stands: commits, tables, views, and who holds back old versions."""
    from freshview.standing import standing

    with place.open_catalog() as catalog:
        found = standing(place.folder.absolute(), catalog)
    if json:
        write_json(_status(found))
    else:
        _print_status(found)


@command
def history(
    place: Place,
    view: Annotated[str | None, typer.Argument(help="A view; all of them if left out.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="The newest so many jobs.")] = 50,
    json: JsonOption = False,
) -> None:
    """List past maintenance jobs, oldest first: what they read, what they changed, how long they took."""
    from freshview.catalog.views import ViewCatalog
    from freshview.errors import InvalidStatement

    with place.open_catalog() as catalog:
        relation = catalog.relation(view) if view is not None else None
        if relation is not None and relation.kind != "view":
            raise InvalidStatement(f"{relation.kind} {relation.name}", "is not a materialized view", "Name a view.")
        jobs = ViewCatalog(catalog).history(relation)[-limit:]
    if json:
        write_json([job_fields(j) for j in jobs])
    elif jobs:
        print_jobs(jobs)
    else:
        say("No maintenance job has run yet.")


def job_fields(done: Job) -> dict[str, Any]:
    """A job as JSON shows it."""
    return {"view": done.view, **{k: v for k, v in asdict(done).items() if k not in ("view", "view_id")}}


def print_jobs(jobs: Sequence[Job]) -> None:
    """Jobs as a table."""
    columns = ("view", "from", "to", "strategy", "tasks", "delta rows", "view rows", "seconds", "error")
    table(columns, [_job_row(j) for j in jobs])


def _job_row(j: Job) -> tuple[Any, ...]:
    seconds, error = f"{j.seconds:.2f}", j.error or ""
    return j.view, j.from_csn, j.to_csn, j.strategy, j.tasks, j.delta_rows, j.view_rows, seconds, error


def _show(catalog: Any, what: str, nothing: str) -> None:
    from freshview.listing import show
    from freshview.sql.statements import Show

    answer = show(catalog, Show(what))
    if answer.rows:
        table(answer.columns, answer.rows)
    else:
        say(nothing)


def _tasks(catalog: Any) -> list[dict[str, Any]]:
    from freshview.catalog.views import ViewCatalog

    known, now = ViewCatalog(catalog), catalog.now()
    names, at_work = {r.id: r.name for r in catalog.relations()}, known.in_progress()
    return [
        {
            "view": names[t.view_id],
            "txsn": t.txsn,
            "csn": t.csn,
            "stmtsn": t.stmtsn,
            "tables": [names.get(i, "?") for i in t.tables],
            "rows": t.rows,
            "age_seconds": max(now - t.committed_at, 0) / 1e6,
            "status": "in progress" if t.view_id in at_work else "pending",
        }
        for t in known.tasks()
        if t.view_id in names
    ]


def _view(view: ViewStatus) -> dict[str, Any]:
    fields = asdict(view)
    age: timedelta = fields.pop("age")
    return {**fields, "age_seconds": age.total_seconds()}


def _status(found: Status) -> dict[str, Any]:
    return {
        "warehouse": found.path,
        "catalog": found.catalog,
        "csn": found.csn,
        "horizon": found.horizon,
        "tables": [asdict(t) for t in found.tables],
        "views": [_view(v) for v in found.views],
        "holders": [asdict(h) for h in found.holders],
        "held_by": found.held_by,
    }


def _print_status(found: Status) -> None:
    from freshview.maintenance.overview import told_mode

    say(f"Warehouse {found.path}, catalog {found.catalog}")
    say(f"Last commit: CSN {found.csn}; readable since CSN {found.horizon}")
    tables = [t for t in found.tables if t.kind != "view"]
    if tables:
        rows = [(t.name, t.kind, t.rows_in_main, t.pending_segments, t.pending_rows) for t in tables]
        table(("table", "kind", "rows in main", "segments", "their rows"), rows)
    if found.views:
        told = [(v.name, told_mode(v), v.frontier, v.pending_tasks, v.pending_rows, v.advice) for v in found.views]
        table(("view", "mode", "frontier", "tasks", "rows", "advice"), told)
    if found.held_by:
        say(found.held_by)


COMMANDS = (
    Command(views, "Look", ("freshview views", "freshview views --json")),
    Command(tasks, "Look", ("freshview tasks", "freshview tasks --json")),
    Command(status, "Look", ("freshview status", "freshview status -w sales --json")),
    Command(history, "Look", ("freshview history", "freshview history totals -n 5 --json")),
)
