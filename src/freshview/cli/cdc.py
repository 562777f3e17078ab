"""`freshview cdc`: flows that feed tables from other systems, and the events that they set aside."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from freshview.cli.output import complain, say, table, write_json
from freshview.cli.place import Command, JsonOption, Place, command
from freshview.errors import FreshviewError, InvalidStatement
from freshview.relation.names import backticked

_ACTIONS = ("list", "refresh", "quarantine", "replay", "clear")


@command
def cdc(
    place: Place,
    action: Annotated[str, typer.Argument(help=f"One of: {', '.join(_ACTIONS)}.")] = "list",
    flows: Annotated[list[str] | None, typer.Argument(help="Flows; default: all.")] = None,
    full: Annotated[
        bool, typer.Option("--full", help="refresh: read the source anew, and write the difference.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """List the flows that feed tables from other systems, poll them, and look at events that could not be read.

    list: when each flow was last polled, and what is wrong. refresh: take what changed at the sources now. quarantine:
    list the events that were set aside; replay: read them again, after their cause is gone; clear: forget them. A flow
    that fails does not stop the others; the exit code is then 1.
    """
    if action not in _ACTIONS:
        raise InvalidStatement(f"freshview cdc {action}", "is not known", f"Use one of {', '.join(_ACTIONS)}.")
    if full and action != "refresh":
        raise InvalidStatement("--full", f"does not belong to {action}", "Use it with refresh.")
    if action in ("list", "quarantine"):
        _look(place, action, flows, json)
        return
    done: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    with place.connect() as warehouse:
        for name in flows or [state.name for state in warehouse.status().flows]:
            try:
                outcome = warehouse.sql(_statement(action, name, full))
            except FreshviewError as error:
                failed[name] = str(error)
            else:
                done.append({"flow": name, "rows": outcome.rows, "csn": outcome.csn})
    if json:
        write_json({"flows": done, "failed": failed})
    elif done:
        table(("flow", "rows", "csn"), [tuple(map(str, row.values())) for row in done])
    elif not failed:
        say("There are no flows.")
    for name, cause in failed.items():
        complain(f"flow {name}: {cause}")
    if failed:
        raise typer.Exit(1)


def _statement(action: str, name: str, full: bool) -> str:
    if action == "refresh":
        return f"REFRESH FLOW {backticked(name)}{' FULL' if full else ''}"
    return f"{action.upper()} QUARANTINE {backticked(name)}"


def _look(place: Place, action: str, flows: list[str] | None, json: bool) -> None:
    """List flows or the events that they set aside, from the catalog alone."""
    from freshview.catalog.flows import FlowCatalog
    from freshview.flows.states import flow_states
    from freshview.relation.schema import fold
    from freshview.sql.statements import Show
    from freshview.warehouse.show import show

    with place.open_catalog() as catalog:
        for name in flows or ():
            FlowCatalog(catalog).flow(name)
        wanted = {fold(name) for name in flows} if flows else None
        if json and action == "list":
            write_json([asdict(f) for f in flow_states(catalog) if wanted is None or fold(f.name) in wanted])
            return
        answer = show(catalog, Show("flows" if action == "list" else "quarantine"))
        rows = [row for row in answer.rows if wanted is None or fold(row[0]) in wanted]
    if json:
        write_json([dict(zip(answer.columns, row, strict=True)) for row in rows])
    elif rows:
        table(answer.columns, rows)
    else:
        say("There are no flows. CREATE FLOW makes one." if action == "list" else "No event was set aside.")


COMMANDS = (
    Command(
        cdc,
        "Keep fresh",
        ("freshview cdc", "freshview cdc refresh customers --full", "freshview cdc quarantine --json"),
    ),
)
