"""Vacuum: remove what no snapshot, task or retention needs, and what crashed writers left behind.

Files are listed before the catalog is read: a listed file that no catalog row names and no lease covers can never
become visible, since its writer's commit would fail for want of the lease.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from freshview.catalog.reports import Reports, overdue, overdue_sentence
from freshview.catalog.views import ViewCatalog
from freshview.catalog.writer import Catalog
from freshview.errors import FreshviewError, InvalidStatement
from freshview.events import Events
from freshview.storage.files import remove_tree, storage_errors
from freshview.storage.store import Storage

RETENTION = timedelta(hours=24)
_LONGEST = timedelta(days=365_000)  # far beyond any commit, and still a number of microseconds for the catalog


def hours_retained(hours: float) -> timedelta:
    """A retention of so many hours; InvalidStatement if it is longer than times can be."""
    try:
        return timedelta(hours=hours)
    except (OverflowError, ValueError) as error:
        raise _refused(f"{hours:g} hours", "is longer than 1,000 years") from error


def checked(retention: timedelta) -> timedelta:
    """A retention; InvalidStatement if it is none."""
    if not isinstance(retention, timedelta):
        raise _refused(repr(retention), "is no timedelta")
    if retention < timedelta(0):
        raise _refused(str(retention), "is negative")
    if retention > _LONGEST:
        raise _refused(str(retention), "is longer than 1,000 years")
    return retention


def _refused(given: str, cause: str) -> InvalidStatement:
    return InvalidStatement(f"retention {given}", cause, "Give a time from 0 to 1,000 years.")


@dataclass(frozen=True)
class VacuumReport:
    """The number and bytes of removed files, and the lowest CSN that can still be read."""

    files: int
    bytes: int
    horizon: int
    held_by: str = ""  # a sentence on what keeps versions for longer than the retention, and what to do
    left: frozenset[int] = frozenset()  # relations that a part did not finish


@dataclass(frozen=True)
class VacuumPart:
    """The part of a vacuum that one round in the background does: some relations, and so many files of them."""

    relations: Collection[int]  # ids; old versions of other relations stay
    files: int
    goes_on: Callable[[], bool] = lambda: True  # asked before each file


def vacuum(
    catalog: Catalog, storage: Storage, events: Events, retention: timedelta = RETENTION, part: VacuumPart | None = None
) -> VacuumReport:
    """Forget old versions, then remove files; the error of an unreadable relation is raised after the others are done.

    Views without tasks are moved to the newest commit first: they need nothing that is older. Files that a `part`
    leaves behind are in no catalog row any more, and are found again by the next vacuum.
    """
    ids = [i for i in storage.layout.relation_ids() if part is None or i in part.relations]
    listed = {i: _data_files(storage.layout.relation(i)) for i in ids}
    events.emit("vacuum.listed", relations=len(listed))
    claimed = {i for i in listed if catalog.leased_paths(i)}  # read before `known`: a commit drops its leases
    ViewCatalog(catalog).advance(catalog.snapshot())
    horizon, gone = catalog.expire(
        int(retention.total_seconds() * 1_000_000), only=None if part is None else part.relations
    )
    events.emit("vacuum.expired", horizon=horizon, gone=len(gone))
    known = {r.id for r in catalog.relations()} | {i for i, _ in catalog.dropped()}
    files = size = 0
    left: set[int] = set()  # relations of which files stay for the next round
    failed: FreshviewError | None = None
    for relation_id, paths in listed.items():
        folder = storage.layout.relation(relation_id)
        is_gone = relation_id in gone or relation_id not in known
        if relation_id not in known and relation_id in claimed:
            continue  # a process is about to create it, or works in a folder that belongs to no relation
        try:
            doomed = paths if is_gone else _unneeded(catalog, storage, relation_id, paths)
        except FreshviewError as error:
            failed = failed or error
            continue
        for path in doomed:
            if part is not None and (files >= part.files or not part.goes_on()):
                left.add(relation_id)
                break
            freed = _remove(path)
            files, size = files + (freed is not None), size + (freed or 0)
        if relation_id in left:
            continue
        if relation_id in gone:
            remove_tree(folder)
        else:
            _remove_empty_folders(catalog, folder, relation_id)
        events.emit("vacuum.relation", relation=relation_id, removed=len(doomed))
    catalog.forget([relation_id for relation_id in gone if relation_id not in left])
    if failed is not None:
        raise failed
    held_by = _held_by(catalog, events, retention) if part is None else ""
    report = VacuumReport(files, size, horizon, held_by, frozenset(left))
    events.emit("vacuum.done", report=report)
    return report


def _held_by(catalog: Catalog, events: Events, retention: timedelta) -> str:
    """Emit an event for each holder that is older than the retention; return a sentence on the oldest."""
    late = overdue(Reports(catalog).holders(retention), retention)
    for holder in late:
        sizes = {"segments": holder.keeps.segments, "bytes": holder.keeps.bytes}
        place = {"kind": holder.kind, "holder": holder.name, "csn": holder.csn, "since": holder.since}
        events.emit("vacuum.held", **place, **sizes, told=str(holder))
    return overdue_sentence(late)


def _data_files(folder: Path) -> list[Path]:
    """All files below a folder except the Delta log; files that are removed meanwhile are left out."""
    return [Path(d) / name for d, _, names in os.walk(folder) if "_delta_log" not in Path(d).parts for name in names]


def _remove(path: Path) -> int | None:
    """Remove a file; return its size, or None if another process removed it."""
    with storage_errors(f"file {path}"):
        try:
            size = path.stat().st_size
            path.unlink()
        except FileNotFoundError:
            return None
        return size


def _unneeded(catalog: Catalog, storage: Storage, relation_id: int, paths: list[Path]) -> list[Path]:
    """The paths that no version, segment or lease needs.

    Leases, segments and versions are read in the order in which a file moves: from a lease to a segment, then to main.
    Leases are read once more after the segments: composition moves files from a segment back to a lease.
    """
    leased = set(catalog.leased_paths(relation_id))
    folder = storage.layout.relation(relation_id)
    kept = {folder / path for path in catalog.referenced_files(relation_id)}
    leased.update(catalog.leased_paths(relation_id))
    if "" in leased:  # a checkpoint runs in this folder
        return []
    for main in catalog.mains(relation_id):
        kept |= {folder / f.path for f in storage.mains.files(relation_id, main.delta_version)}
    latest = storage.mains.latest_version(relation_id)
    if latest is not None:  # it may be a checkpoint that waits to be adopted
        kept |= {folder / f.path for f in storage.mains.unknown_files(relation_id, latest)}
    return [p for p in paths if p not in kept and not any(p.is_relative_to(folder / lease) for lease in leased)]


def _remove_empty_folders(catalog: Catalog, folder: Path, relation_id: int) -> None:
    """Remove folder trees without files; leases are read last, since a writer leases its folder before it makes it."""
    trees = [Path(d) for d, _, _ in os.walk(folder, topdown=False) if "_delta_log" not in Path(d).parts]
    leased = set(catalog.leased_paths(relation_id))
    for tree in trees:
        inside = tree.relative_to(folder).parts
        if inside and inside[0] not in leased and "" not in leased:
            with suppress(OSError):  # not empty, filled or removed meanwhile
                tree.rmdir()
