"""Noticing what others wrote to external Delta tables, before a snapshot is chosen.

A new version becomes a commit by compare-and-set on (relation, version seen last). A rearrangement
moves the version without a commit. A rewritten history begins a new epoch: no delta is made up.
"""

from __future__ import annotations

from collections.abc import Iterable

from freshview.catalog.records import Main, Relation
from freshview.catalog.writer import Catalog
from freshview.errors import CorruptWarehouse
from freshview.events import Events
from freshview.relation.schema import Schema, fold
from freshview.storage.external import changed_file_count, describe, external_schema, is_continued, open_external


def notice(catalog: Catalog, events: Events, relations: Iterable[Relation]) -> list[int]:
    """Look at these external tables; the CSNs of what was new."""
    found = []
    for relation in relations:
        if relation.is_external:
            csn = _notice_one(catalog, events, relation)
            if csn is not None:
                found.append(csn)
    return found


def _notice_one(catalog: Catalog, events: Events, relation: Relation) -> int | None:
    assert relation.location is not None
    seen = catalog.latest_main(relation.id)
    if seen is None:
        raise CorruptWarehouse(f"table {relation.name}", "its version is not recorded", "Drop and create it again.")
    newest = open_external(relation.location)
    continued = is_continued(seen, newest)
    if continued and newest.version() == seen.delta_version:
        return None
    new = describe(newest)
    schema = external_schema(newest, relation.schema.key)
    appended = _is_appended(relation.schema, schema)
    reset = not continued or not appended
    if not reset:
        change = changed_file_count(seen, newest)
        if change is None:
            reset = True
        elif change == 0 and schema == relation.schema:
            moved = Main(seen.csn, new.delta_version, seen.schema_version, new.rows, new.size, new.fingerprint)
            catalog.record_main(relation, seen, moved)
            events.emit("external.rearranged", relation=relation.name, version=new.delta_version)
            return None
    csn = catalog.notice(
        relation,
        seen,
        new,
        rows=abs(new.rows - seen.rows),
        reset=reset,
        schema=schema if schema != relation.schema else None,
    )
    events.emit("external.noticed", relation=relation.name, version=new.delta_version, csn=csn, reset=reset)
    return csn


def _is_appended(old: Schema, new: Schema) -> bool:
    """Only columns at the end are new: what we stored by place still fits."""
    same = zip(old.columns, new.columns, strict=False)
    return len(new.columns) >= len(old.columns) and all(
        fold(a.name) == fold(b.name) and a.type == b.type for a, b in same
    )
