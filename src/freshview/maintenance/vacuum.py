"""Vacuum: remove what no snapshot, task or retention needs, and what crashed writers left behind.

The folder is listed before the catalog is asked: a file that is in the list, in no catalog row and
under no lease can never become visible, since its writer's commit would fail for want of the lease.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from freshview.catalog.writer import Catalog
from freshview.events import Events
from freshview.storage.files import remove_tree
from freshview.storage.store import Storage

RETENTION = timedelta(hours=24)


@dataclass(frozen=True)
class VacuumReport:
    """What was removed, and the lowest CSN that can still be read."""

    files: int
    bytes: int
    horizon: int


def vacuum(catalog: Catalog, storage: Storage, events: Events, retention: timedelta = RETENTION) -> VacuumReport:
    listed = {i: _data_files(storage.layout.relation(i)) for i in storage.layout.relation_ids()}
    events.emit("vacuum.listed", relations=len(listed))
    horizon, gone = catalog.expire(int(retention.total_seconds() * 1_000_000))
    known = {r.id for r in catalog.relations()} | {i for i, _ in catalog.dropped()}
    files = size = 0
    for relation_id, paths in listed.items():
        folder = storage.layout.relation(relation_id)
        if relation_id in gone or relation_id not in known:
            doomed = paths if not catalog.leased_paths(relation_id) else []
        else:
            doomed = _unneeded(catalog, storage, relation_id, paths)
        for path in doomed:
            size += path.stat().st_size
            path.unlink()
            files += 1
        if relation_id in gone or relation_id not in known:
            remove_tree(folder)
        else:
            _remove_empty_folders(folder)
        events.emit("vacuum.relation", relation=relation_id, removed=len(doomed))
    catalog.forget(gone)
    return VacuumReport(files, size, horizon)


def _data_files(folder: Path) -> list[Path]:
    return [p for p in folder.rglob("*") if p.is_file() and "_delta_log" not in p.parts]


def _unneeded(catalog: Catalog, storage: Storage, relation_id: int, paths: list[Path]) -> list[Path]:
    """Files that no version, segment or lease holds on to."""
    leased = catalog.leased_paths(relation_id)
    if "" in leased:  # a checkpoint is at work in this folder
        return []
    folder = storage.layout.relation(relation_id)
    kept = {folder / path for path in catalog.referenced_files(relation_id)}
    versions = {m.delta_version for m in catalog.mains(relation_id)}
    latest = storage.mains.latest_version(relation_id)
    if latest is not None:  # it may be a checkpoint that waits to be adopted
        versions.add(latest)
    for version in versions:
        kept |= {folder / f.path for f in storage.mains.files(relation_id, version)}
    return [p for p in paths if p not in kept and not any(p.is_relative_to(folder / lease) for lease in leased)]


def _remove_empty_folders(folder: Path) -> None:
    for child in folder.iterdir():
        if child.is_dir() and child.name != "_delta_log" and not any(child.iterdir()):
            child.rmdir()
