"""Noticing what others wrote to external Delta tables, before a snapshot is chosen.

A new version becomes a commit by compare-and-set on (relation, version seen last). A rearrangement
moves the version without a commit. A rewritten history begins a new epoch: no delta is made up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from freshview.catalog.records import Main, Relation
from freshview.catalog.writer import Catalog
from freshview.errors import CorruptWarehouse, FreshviewError
from freshview.events import Events
from freshview.relation.schema import Schema, fold
from freshview.storage.external import changed_file_count, declared_schema, describe, is_continued, open_external


@dataclass(frozen=True)
class Noticed:
    """The CSNs of what was new, and the tables (by relation id) that could not be looked at."""

    csns: list[int]
    failed: dict[int, FreshviewError]


def notice(catalog: Catalog, events: Events, relations: Iterable[Relation]) -> list[int]:
    """Look at these external tables; the CSNs of what was new.

    All are looked at, even if one cannot be opened; then that one's error is raised.
    """
    found = look(catalog, events, relations)
    for error in found.failed.values():
        raise error
    return found.csns


def look(catalog: Catalog, events: Events, relations: Iterable[Relation]) -> Noticed:
    """The same for callers that mind only some of the tables: whoever reads a failed one must raise its error."""
    found = Noticed([], {})
    for relation in relations:
        if not relation.is_external:
            continue
        try:
            csn = _notice_one(catalog, events, relation)
        except FreshviewError as error:
            events.emit("external.failed", relation=relation.name, error=str(error))
            found.failed[relation.id] = error
        else:
            found.csns.extend([] if csn is None else [csn])
    return found


class Watch:
    """Looks at all external tables of a warehouse, before a snapshot is chosen.

    A table that cannot be looked at is an error for those who read it, not for all: `lost` has it, by relation id.
    """

    def __init__(self, catalog: Catalog, events: Events) -> None:
        self._catalog = catalog
        self._events = events
        self.lost: dict[int, FreshviewError] = {}

    def look(self) -> None:
        external = self._catalog.externals()
        self.lost = look(self._catalog, self._events, external).failed if external else {}


def _notice_one(catalog: Catalog, events: Events, relation: Relation) -> int | None:
    assert relation.location is not None
    seen = catalog.latest_main(relation.id)
    # Read after `seen`: if another process notices in between, the compare-and-set on it fails.
    current = catalog.relation_by_id(relation.id)
    if current is None:
        return None  # dropped meanwhile
    if seen is None:
        raise CorruptWarehouse(f"table {current.name}", "its version is not recorded", "Drop and create it again.")
    newest = open_external(relation.location)
    continued = is_continued(seen, newest)
    if continued and newest.version() == seen.delta_version:
        return None
    new = describe(newest)
    schema = declared_schema(newest, current)
    reset = not continued or not _is_appended(current.schema, schema)
    if not reset:
        change = changed_file_count(seen, newest)
        if change is None:
            reset = True
        elif change == 0 and schema == current.schema:
            moved = Main(seen.csn, new.delta_version, seen.schema_version, new.rows, new.size, new.fingerprint)
            catalog.record_main(current, seen, moved)
            events.emit("external.rearranged", relation=current.name, version=new.delta_version)
            return None
    events.emit("external.noticing", relation=current.name, version=new.delta_version)
    csn = catalog.notice(
        current,
        seen,
        new,
        rows=abs(new.rows - seen.rows),
        reset=reset,
        schema=schema if schema != current.schema else None,
    )
    if csn is not None:
        events.emit("external.noticed", relation=current.name, version=new.delta_version, csn=csn, reset=reset)
    return csn


def _is_appended(old: Schema, new: Schema) -> bool:
    """Only columns at the end are new: what we stored by place still fits."""
    same = zip(old.columns, new.columns, strict=False)
    return len(new.columns) >= len(old.columns) and all(
        fold(a.name) == fold(b.name) and a.type == b.type for a, b in same
    )
