"""Opening the tables of a source by its record: which kinds of source there are, and the options of each.

    POSTGRES                  url, capture ('tracking' | 'triggers' | 'decoding' | 'audit') and what the technique needs
    DEBEZIUM, MAXWELL, CANAL  path of a file or folder of events
    EVENTS                    path of a file or folder of rows as JSON lines, each of which is a change
    CSV, JSON, PARQUET        path of a folder with one folder of dumps per table
    DELTA                     path of a folder with one folder per Delta table

Law: options that are not known are refused when the source is created. A password or another secret is never among
them: `Server` refuses a URL that has one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from freshview.catalog.flows import SourceRecord
from freshview.cdc.canal import Canal
from freshview.cdc.debezium import Debezium
from freshview.cdc.delta_versions import DeltaVersions
from freshview.cdc.dumps import Comparing, Dumps
from freshview.cdc.event_files import EventFiles, EventFormat
from freshview.cdc.maxwell import Maxwell
from freshview.cdc.postgres.audit import Audit, AuditColumns
from freshview.cdc.postgres.decoding import Decoding
from freshview.cdc.postgres.server import Server
from freshview.cdc.postgres.tables import PostgresTable
from freshview.cdc.postgres.tracking import Tracking
from freshview.cdc.postgres.triggers import TriggerLog
from freshview.cdc.rows import RowEvents
from freshview.cdc.source import Source
from freshview.errors import InvalidStatement
from freshview.relation.schema import Schema

_EVERYWHERE = ("poll", "on error", "on schema change")
_TECHNIQUES = {
    "tracking": (),
    "triggers": ("net effect",),
    "decoding": ("net effect",),
    "audit": ("changed", "inserted", "deleted", "never"),
}
EVENTS = ("DEBEZIUM", "MAXWELL", "CANAL", "EVENTS")
DUMPS = {"CSV": (".csv",), "JSON": (".json", ".jsonl"), "PARQUET": (".parquet",)}
KINDS = ("POSTGRES", *EVENTS, *DUMPS, "DELTA")
KNOWN_COLUMNS = ("POSTGRES", "DELTA")  # kinds of source whose tables list their columns
_CHOICES = {
    "on error": ("stop", "quarantine"),
    "on schema change": ("add columns", "stop"),
    "net effect": ("precise", "cheap"),
    "old images": ("true", "false"),
}
_EVERY = re.compile(r"every\s+(\d+(?:\.\d+)?)\s*(s|seconds?|min|minutes?|h|hours?)", re.IGNORECASE)
_SECONDS = {"s": 1, "m": 60, "h": 3600}


@runtime_checkable
class Installed(Protocol):
    """A source that keeps something at its server: triggers, a log table, a replication slot."""

    def install(self) -> None: ...

    def drop(self) -> None: ...


def check_source(kind: str, options: Mapping[str, str]) -> None:
    """Raise InvalidStatement if a kind or option of a source is not known; CaptureFailed if its URL has a secret."""
    if kind not in KINDS:
        raise InvalidStatement(f"source USING {kind}", "is not known", f"Use one of {', '.join(KINDS)}.")
    needed, known = _options_of(kind, options)
    for option in options:
        if option not in known:
            choice = ", ".join(sorted(known))
            raise InvalidStatement(f"option {option!r} of {kind}", "is not known", f"Known are {choice}.")
    for option in needed:
        if not options.get(option):
            raise InvalidStatement(f"source USING {kind}", f"the option {option!r} is missing", "Add it.")
    for option, choices in _CHOICES.items():
        if option in options and options[option].lower() not in choices:
            known_values = " or ".join(map(repr, choices))
            raise InvalidStatement(f"option {option!r}", f"{options[option]!r} is not known", f"Use {known_values}.")
    poll_of(options)
    _share(options)
    if kind == "POSTGRES":
        Server(options["url"])


def _options_of(kind: str, options: Mapping[str, str]) -> tuple[tuple[str, ...], set[str]]:
    """The options that a kind of source needs, and all that it knows."""
    if kind != "POSTGRES":
        extra = ("old images",) if kind == "DEBEZIUM" else ("least", "confirmed") if kind in DUMPS else ()
        return ("path",), {"path", *extra, *_EVERYWHERE}
    technique = options.get("capture", "tracking").lower()
    if technique not in _TECHNIQUES:
        known = ", ".join(_TECHNIQUES)
        raise InvalidStatement(f"capture {options['capture']!r}", "is not known", f"Use one of {known}.")
    needed = ("url", "changed") if technique == "audit" else ("url",)
    return needed, {"url", "capture", *_TECHNIQUES[technique], *_EVERYWHERE}


def poll_of(options: Mapping[str, str]) -> timedelta | Literal["on query", "manual"]:
    """When the tables of a source are polled: after a time, before each fresh query, or by hand (the default)."""
    given = " ".join(options.get("poll", "manual").lower().split())
    if given in ("on query", "manual"):
        return given  # type: ignore[return-value]
    match = _EVERY.fullmatch(given)
    if match is None or not float(match[1]):
        raise InvalidStatement(
            f"poll {options['poll']!r}", "is not known", "Use 'every 10 seconds', 'on query' or 'manual'."
        )
    return timedelta(seconds=float(match[1]) * _SECONDS[match[2][0]])


def on_error_of(options: Mapping[str, str]) -> Literal["stop", "quarantine"]:
    """What is done with an event that cannot be read."""
    return "quarantine" if options.get("on error", "stop").lower() == "quarantine" else "stop"


def adds_columns(options: Mapping[str, str]) -> bool:
    """Whether a column that appears at the source is added here too."""
    return options.get("on schema change", "add columns").lower() == "add columns"


def open_table(
    record: SourceRecord,
    table: str,
    schema: Schema | None = None,
    owner: str = "",
    *,
    each: bool = False,
    compare: Comparing | None = None,
    reader: str = "",
    keys: Sequence[str] = (),
    position: str | None = None,
) -> Source:
    """A table of a source. `schema` has the columns and key of a table in files; a server knows its own, and of these
    only the ones of `schema` are read, if it is given.

    `owner` names the reader of the changes: what a technique installs at the server carries this name, so that two
    readers of one table do not take each other's changes. `each`: where a technique has each change, it delivers them
    all instead of their net effect. `compare` compares dumps that are too large for the driver. `reader` is the flow
    that is named in what errors advise. A Delta table knows its columns and not its key: `keys` names it, and
    `position` is the one that an error names if the table cannot be opened.
    """
    options = record.options
    if record.kind == "POSTGRES":
        names = None if schema is None else schema.names
        return _postgres(Server(options["url"]), table, options, owner, names, each=each)
    if record.kind == "DELTA":
        settings = {"each": each, "adds_columns": adds_columns(options), "reader": reader, "position": position}
        return DeltaVersions(Path(options["path"]) / table, table, keys, **settings)  # type: ignore[arg-type]
    if schema is None:
        raise InvalidStatement(
            f"table {table} of source {record.name}",
            "files do not list its columns",
            f"Name them: FROM {record.name}.{table} (id INT, …), or create the target table first.",
        )
    path = Path(options["path"])
    if record.kind in DUMPS:
        confirmed = frozenset(filter(None, map(str.strip, options.get("confirmed", "").split(","))))
        suffixes, least = DUMPS[record.kind], _share(options)
        folder = path / table
        settings = {"least": least, "confirmed": confirmed, "suffixes": suffixes, "compare": compare, "reader": reader}
        return Dumps(folder, table, schema, **settings)  # type: ignore[arg-type]
    formats: dict[str, EventFormat] = {
        "DEBEZIUM": Debezium(options.get("old images", "false").lower() == "true"),
        "MAXWELL": Maxwell(),
        "CANAL": Canal(),
        "EVENTS": RowEvents(table),
    }
    place = path / table if record.kind == "EVENTS" and (path / table).exists() else path
    return EventFiles(place, table, schema, formats[record.kind], on_error=on_error_of(options), each=each)


def _postgres(
    server: Server,
    table: str,
    options: Mapping[str, str],
    owner: str,
    columns: Sequence[str] | None,
    *,
    each: bool,
) -> PostgresTable:
    precise = options.get("net effect", "precise").lower() == "precise"
    match options.get("capture", "tracking").lower():
        case "triggers":
            return TriggerLog(server, table, precise=precise, owner=owner, each=each, columns=columns)
        case "decoding":
            return Decoding(server, table, f"fv_{owner or 'capture'}", precise=precise, each=each, columns=columns)
        case "audit":
            never = frozenset(filter(None, map(str.strip, options.get("never", "").lower().split(","))))
            times = (options["changed"], options.get("inserted"), options.get("deleted"))
            return Audit(server, table, AuditColumns(*times, never=never), columns)
    return Tracking(server, table, owner=owner, columns=columns)


def _share(options: Mapping[str, str]) -> float:
    """The share of the rows of the last dump that a dump must have, else it is held back."""
    try:
        share = float(options.get("least", "0.5"))
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise InvalidStatement(f"option 'least' {options['least']!r}", "is no share", "Use a number from 0 to 1.")
    return share
