"""`freshview views`, `tasks`, `status`, `history`: what the catalog knows, told at once and without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from freshview.cli.output import say, show, table, write_json
from freshview.cli.place import Command, JsonOption, Place, command
from freshview.display import table_of_jobs

if TYPE_CHECKING:
    from freshview.catalog.frontiers import Job
    from freshview.warehouse.overview import TaskStatus, ViewStatus
    from freshview.warehouse.status import Status


@command
def views(place: Place, json: JsonOption = False) -> None:
    """List the materialized views: how each is maintained, how far it is, what is pending, and since when."""
    from freshview.warehouse.overview import overview

    with place.open_catalog() as catalog:
        found = overview(catalog)
        if json:
            write_json([_view(v) for v in found])
            return
        _list(catalog, "views", "There are no materialized views. Make one with CREATE MATERIALIZED VIEW v AS SELECT …")


@command
def tasks(place: Place, json: JsonOption = False) -> None:
    """List pending maintenance: one row per view and transaction that the view has not seen yet."""
    from freshview.warehouse.overview import pending_tasks

    with place.open_catalog() as catalog:
        if json:
            write_json([_task(t) for t in pending_tasks(catalog)])
            return
        _list(catalog, "tasks", "Nothing is pending: every view has seen every commit.")


@command
def status(place: Place, json: JsonOption = False) -> None:
    """Tell where the warehouse stands: last commit, tables, views, the mode that would suit each view.

    And who has kept old versions from being removed for long, if anybody has.
    """
    from freshview.warehouse.status import standing

    with place.open_catalog() as catalog:
        found = standing(place.folder.absolute(), catalog)
    if json:
        write_json(_status(found))
    else:
        show(found)
        say(f"Catalog: {found.catalog}")


@command
def history(
    place: Place,
    view: Annotated[str | None, typer.Argument(help="A view; all of them if left out.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many jobs at most, the newest.")] = 50,
    json: JsonOption = False,
) -> None:
    """List past maintenance jobs, oldest first: what they read, what they changed, how long they took."""
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
    """A job as JSON shows it."""
    return {"view": done.view, **{k: v for k, v in asdict(done).items() if k not in ("view", "view_id")}}


def print_jobs(jobs: Sequence[Job]) -> None:
    """Jobs as a table, all of them."""
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
    }


COMMANDS = (
    Command(views, "Look", ("freshview views", "freshview views --json")),
    Command(tasks, "Look", ("freshview tasks", "freshview tasks --json")),
    Command(status, "Look", ("freshview status", "freshview status -w sales --json")),
    Command(history, "Look", ("freshview history", "freshview history totals -n 5 --json")),
)
