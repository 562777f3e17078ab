"""Which options of a source may change while flows and remote tables read it, so that no position loses its meaning.

    any time             poll, 'on error', 'on schema change', least, confirmed: what is done with changes, and when
    to another address   url of the same database, path of the same files: checked against the positions
    not at all           the others: they decide which changes are captured, and positions are positions in these

Law: after a change that is allowed, the next poll of each reader goes on from its position or is refused there. So it
delivers each change once, or says that it cannot.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from freshview.catalog.flows import SourceRecord
from freshview.cdc.opening import DUMPS, EVENTS, check_source
from freshview.cdc.postgres.server import Server
from freshview.errors import InvalidStatement

_ANY_TIME = {"poll", "on error", "on schema change", "least", "confirmed"}
# What a connection string says of the database and of where unqualified names are looked up.
_SAME = ("dbname", "service", "options")


@dataclass(frozen=True)
class Follower:
    """A flow or remote table, by its label (`flow f`), the table that it reads, and its position as the source wrote
    it (None: before the first poll); `repeat` is the statement that polls it."""

    label: str
    table: str
    position: str | None
    repeat: str


def altered(record: SourceRecord, changes: Mapping[str, str], readers: Sequence[Follower]) -> dict[str, str]:
    """The options of a source after a change; InvalidStatement if they are not known, or if a reader forbids it."""
    options = {**record.options, **changes}
    check_source(record.kind, options)
    for option in changes:
        if not readers or option in _ANY_TIME or options[option] == record.options.get(option):
            continue
        if option == "url":
            _check_address(record, options["url"], readers)
        elif option == "path":
            for reader in readers:
                _check_path(record, Path(record.options["path"]), Path(options["path"]), reader)
        else:
            raise InvalidStatement(
                f"option {option!r} of source {record.name}",
                f"it decides which changes are captured, and {readers[0].label} has a position in these",
                f"Create another source with it; or drop {_listed(readers)} first (rows that flows brought stay).",
            )
    return options


def _listed(readers: Sequence[Follower]) -> str:
    return ", ".join(reader.label for reader in readers)


def _check_address(record: SourceRecord, url: str, readers: Sequence[Follower]) -> None:
    """Raise unless the url differs in the address alone, and each position names its server's history.

    By that history the next poll finds out whether the address has the server of the positions.
    """
    what = f"option 'url' of source {record.name}"
    old, new = (dict(Server(text).identity) for text in (record.options["url"], url))
    fixed = [*_SAME, *(["user"] if "dbname" not in old or any("." not in r.table for r in readers) else [])]
    for part in fixed:
        if old.get(part) != new.get(part):
            raise InvalidStatement(
                what,
                f"its {part} would be {new.get(part, 'none')!r} instead of {old.get(part, 'none')!r}, so the tables of "
                f"{_listed(readers)} might be others",
                "Change the address alone (host, port, how to connect); for another database, create another source.",
            )
    for reader in readers:
        if reader.position is not None and not json.loads(reader.position).get("server"):
            raise InvalidStatement(
                what,
                f"the position of {reader.label}, of an earlier version, does not name its server, so another one "
                "would not be noticed",
                f"Poll it at the old address first: {reader.repeat}.",
            )


def _check_path(record: SourceRecord, old: Path, new: Path, reader: Follower) -> None:
    """Raise unless the files that the position of a reader needs are at the new path too."""
    if reader.position is None:
        return
    missing = _missing(record.kind, old, new, reader)
    if missing:
        raise InvalidStatement(
            f"option 'path' of source {record.name}",
            f"{missing} of {reader.label} is not in {new}",
            "Move or copy all files there first, under the same names.",
        )


def _missing(kind: str, old: Path, new: Path, reader: Follower) -> str:
    """The first file that a position needs and that the new path does not have; an empty text if there is none."""
    data = json.loads(reader.position or "{}")
    if kind in DUMPS:
        dump = data["dump"]
        return f"dump {dump}" if dump is not None and not (new / reader.table / dump).is_file() else ""
    if kind not in EVENTS:  # a Delta table, whose history the next poll compares with the position
        return "" if (new / reader.table / "_delta_log").is_dir() else f"Delta table {reader.table}"
    if kind == "EVENTS":
        old, new = (place / reader.table if (place / reader.table).exists() else place for place in (old, new))
    known = sorted(data["files"])
    if old.exists():  # of files that were removed, all is delivered; of those that are there, something may not be
        needed = sorted(f.name for f in old.iterdir() if f.is_file()) if old.is_dir() else [old.name]
        needed = [name for name in needed if not name.startswith((".", "_"))]
    else:
        needed = known[-1:]
    there = {f.name for f in new.iterdir() if f.is_file()} if new.is_dir() else {new.name} if new.exists() else set()
    return next((f"file {name}" for name in needed if name not in there), "")
