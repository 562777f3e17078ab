"""`freshview views`, `tasks`, `status`, `history`: reports from the catalog alone, without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from freshview.cli.output import print_report, say, table, write_json
from freshview.cli.place import Command, JsonOption, Place, command
from freshview.display import table_of_jobs

if TYPE_CHECKING:
    from freshview.catalog.frontiers import Job
    from freshview.warehouse.overview import TaskStatus, ViewStatus
    from freshview.warehouse.status import Status


@command
def views(place: Place, json: JsonOption = False) -> None:
    """List the materialized views: the mode, frontier, pending tasks and age of each."""
    from freshview.warehouse.overview import overview

    with place.open_catalog() as catalog:
        if json:
            write_json([_view(v) for v in overview(catalog)])
            return
        _list(catalog, "views", "There are no materialized views. CREATE MATERIALIZED VIEW v AS SELECT … makes one.")


@command
def tasks(place: Place, json: JsonOption = False) -> None:
    """List pending maintenance: one row per view and commit that the view has not seen yet."""
    from freshview.warehouse.overview import pending_tasks

    with place.open_catalog() as catalog:
        if json:
            write_json([_task(t) for t in pending_tasks(catalog)])
            return
        _list(catalog, "tasks", "Nothing is pending: every view has seen every commit.")


@command
def status(place: Place, json: JsonOption = False) -> None:
    """Report the status of the warehouse: last commit, tables, views, and the mode that would suit each view.

    If something has kept old versions from being removed for long, the report names it.
    """
    from freshview.warehouse.status import status_of

    with place.open_catalog() as catalog:
        found = status_of(place.folder.absolute(), catalog)
    if json:
        write_json(_status(found))
    else:
        print_report(found)
        say(f"Catalog: {found.catalog}")


@command
def history(
    place: Place,
    view: Annotated[str | None, typer.Argument(help="A view; default: all views.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="The number of jobs at most, the newest.")] = 50,
    json: JsonOption = False,
) -> None:
    """List past maintenance jobs, oldest first: the rows that each read and changed, and its seconds."""
    from freshview.catalog.views import ViewCatalog

    with place.open_catalog() as catalog:
        jobs = ViewCatalog(catalog).history(catalog.view(view) if view is not None else None)[-limit:]
    if json:
        write_json([job_fields(j) for j in jobs])
    elif jobs:
        print_jobs(jobs)
    else:
        say("No maintenance job has run yet.")


def job_fields(done: Job) -> dict[str, Any]:
    """Return the fields of a job for JSON."""
    return {"view": done.view, **{k: v for k, v in asdict(done).items() if k not in ("view", "view_id")}}


def print_jobs(jobs: Sequence[Job]) -> None:
    """Print all jobs as a table."""
    drawn = table_of_jobs(jobs)
    table(drawn.columns, drawn.rows)


def _list(catalog: Any, what: str, nothing: str) -> None:
    from freshview.sql.statements import Show
    from freshview.warehouse.show import show

    answer = show(catalog, Show(what))
    if answer.rows:
        table(answer.columns, answer.rows)
    else:
        say(nothing)


def _task(found: TaskStatus) -> dict[str, Any]:
    fields = asdict(found)
    fields["age_seconds"] = fields.pop("age").total_seconds()
    del fields["in_progress"]
    return {**fields, "status": found.status}


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
        "flows": [asdict(f) for f in found.flows],
        "remote_tables": [asdict(t) for t in found.remote_tables],
    }


COMMANDS = (
    Command(views, "Look", ("freshview views", "freshview views --json")),
    Command(tasks, "Look", ("freshview tasks", "freshview tasks --json")),
    Command(status, "Look", ("freshview status", "freshview status -w sales --json")),
    Command(history, "Look", ("freshview history", "freshview history totals -n 5 --json")),
)
