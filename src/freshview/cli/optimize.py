"""`freshview optimize` and `calibrate`: what would make refreshes of all views together cheaper, and by what prices."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from freshview.cli.output import say, table, write, write_json
from freshview.cli.place import Command, JsonOption, Place, command
from freshview.cli.progress import WorkAmount, steps, working
from freshview.errors import InvalidStatement, StorageUnavailable

if TYPE_CHECKING:
    from freshview.events import Event
    from freshview.warehouse.optimizing import Optimization

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


@command
def optimize(
    place: Place,
    svg: Annotated[Path | None, typer.Option("--svg", help="Draw the chosen plans into this file.")] = None,
    space: Annotated[
        str, typer.Option("--space", help="Bytes that stored results may take, such as 500MB or 2GB.")
    ] = "",
    changed: Annotated[
        str,
        typer.Option(
            "--changed", help="Share of each table that a refresh finds changed, such as 0.01; or pending: as it is."
        ),
    ] = "",
    queries: Annotated[
        Path | None,
        typer.Option(
            "--queries",
            help="Propose for these queries, separated by ;, each once between two refreshes; else for those that ran.",
        ),
    ] = None,
    apply: Annotated[
        bool,
        typer.Option("--apply", help="Store the proposed results as auxiliary views; maintain views over them."),
    ] = False,
    dag: Annotated[bool, typer.Option("--dag", help="Print the search space too.")] = False,
    json: JsonOption = False,
) -> None:
    """Print what would make refreshes of all views together cheaper, with costs and what lost.

    Results to store in addition, results to share in one refresh, columns to sort files by, and for each view whether
    it is incremented or recomputed. By default the changes of a refresh are those of the last day, and the queries
    those that ran most often. Nothing is created, except with --apply: auxiliary views are created, for views alone,
    and those that no view reads any more are dropped.
    """
    with place.connect() as warehouse:
        with working("Optimising"):
            report = warehouse.optimize(
                apply=apply, space=_bytes(space), changed=_share(changed), queries=_workload(queries)
            )
        if svg is not None:
            _draw(svg, report.svg)
    if json:
        write_json(_fields(report))
        return
    write(f"{report}\n\nsearch space\n{report.dag}" if dag else str(report))
    if svg is not None:
        say(f"{svg} has the picture.")


@command
def calibrate(place: Place, json: JsonOption = False) -> None:
    """Measure what single steps of both engines cost on this machine or cluster, and store these prices.

    It takes tens of seconds, best while nothing else runs. `freshview optimize` uses the prices, and so do jobs
    when they choose between delta rules and recomputing.
    """
    from freshview.optimizer.prices import Prices

    with place.connect() as warehouse, steps("Calibrating", WorkAmount(7, "steps")) as bar:

        def heard(event: Event) -> None:
            if event.name == "calibrate.step":
                bar.now(f"Measuring {event.details['step']}")
                bar.add(1 if event.details["number"] else 0)

        warehouse.events.listen(heard)
        prices = warehouse.calibrate()
        bar.add(1)
    if json:
        write_json(prices.to_dict())
        return
    before = _flat(Prices().to_dict())
    rows = [(name, f"{value:.3g}", f"{before[name]:.3g}") for name, value in _flat(prices.to_dict()).items()]
    table(("price", "measured", "default"), rows)
    say("Seconds, fixed or per row; the prices are stored.")


def _flat(prices: dict[str, Any]) -> dict[str, float]:
    """Prices by name, those of an engine under its name; factors and flags are left out."""
    found: dict[str, float] = {}
    for name, value in prices.items():
        if isinstance(value, dict):
            found |= {f"{name} {part}": price for part, price in value.items()}
        elif name not in ("is_default", "incremental", "full"):
            found[name] = value
    return found


def _bytes(text: str) -> float | None:
    if not text:
        return None
    parsed = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?B)?", text.strip().upper())
    if parsed is None:
        raise InvalidStatement(f"--space {text}", "is no size", "Write a number of bytes, or 500MB, or 2GB.")
    return float(parsed[1]) * _UNITS[parsed[2] or ""]


def _share(text: str) -> float | str | None:
    if not text or text == "pending":
        return text or None
    try:
        return float(text)
    except ValueError:
        raise InvalidStatement(f"--changed {text}", "is no share", "Write a number such as 0.01, or pending.") from None


def _workload(path: Path | None) -> dict[str, float] | None:
    """The queries of a file, each with how often it stands there; None without a file."""
    from freshview.sql.script import statements

    if path is None:
        return None
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        cause = getattr(error, "strerror", None) or str(error)
        raise InvalidStatement(
            f"file {path}", f"cannot be read ({cause})", "Name a file of SELECT statements."
        ) from error
    return dict(Counter(statements(text)))


def _draw(path: Path, picture: str) -> None:
    try:
        path.write_text(picture, encoding="utf-8")
    except OSError as error:
        raise StorageUnavailable(f"file {path}", error.strerror or str(error), "Choose another file.") from error


def _fields(report: Optimization) -> dict[str, Any]:
    """A report for JSON: what is chosen, without trees."""
    choice, proposal = report.proposal.choice, report.proposal
    names = ("auxiliaries", "shared", "sortings", "views", "alternatives")
    chosen = {n: [_plain(one) for one in getattr(choice, n)] for n in names}
    return {
        "before": choice.before,
        "after": choice.after,
        "executed": choice.executed,
        **chosen,
        "applied": [asdict(step) for step in report.applied],
        "facts": {name: asdict(facts) for name, facts in proposal.findings.facts.items()},
        "notes": proposal.findings.notes,
        "compared": [{**asdict(c), "ratio": c.ratio} for c in proposal.compared],
        "accuracy": asdict(proposal.accuracy) if proposal.accuracy is not None else None,
        "prices": proposal.prices.to_dict(),
        "left_out": dict(proposal.left_out),
    }


def _plain(one: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(one).items() if name not in ("tree", "node")}


COMMANDS = (
    Command(
        optimize,
        "Keep fresh",
        (
            "freshview optimize",
            "freshview optimize --svg plans.svg --space 2GB",
            "freshview optimize --changed 0.01 --dag",
            "freshview optimize --queries daily.sql",
            "freshview optimize --apply",
            "freshview optimize --json",
        ),
    ),
    Command(calibrate, "Keep fresh", ("freshview calibrate", "freshview calibrate --json")),
)
