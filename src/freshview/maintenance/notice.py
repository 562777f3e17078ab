"""Noticing what others wrote to external Delta tables, before a snapshot is chosen.

A new version becomes a commit by compare-and-set on (relation, version seen last). A rearrangement
moves the version without a commit. A rewritten history begins a new epoch: no delta is made up.
"""

from __future__ import annotations

from collections.abc import Iterable

from deltalake import DeltaTable

from freshview.catalog.records import Main, Relation
from freshview.catalog.writer import Catalog
from freshview.errors import CorruptWarehouse, FreshviewError, InvalidStatement, NotFound
from freshview.events import Events
from freshview.relation.schema import Schema, fold
from freshview.storage.external import changed_file_count, describe, external_schema, is_continued, open_external


def notice(catalog: Catalog, events: Events, relations: Iterable[Relation]) -> list[int]:
    """Look at these external tables; the CSNs of what was new.

    All are looked at, even if one cannot be opened; then that one's error is raised.
    """
    found: list[int] = []
    failed: FreshviewError | None = None
    for relation in relations:
        if not relation.is_external:
            continue
        try:
            csn = _notice_one(catalog, events, relation)
        except FreshviewError as error:
            events.emit("external.failed", relation=relation.name, error=str(error))
            failed = failed or error
        else:
            if csn is not None:
                found.append(csn)
    if failed is not None:
        raise failed
    return found


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
    schema = _schema(newest, current)
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


def _schema(newest: DeltaTable, relation: Relation) -> Schema:
    """Today's columns with the declared key, which must still be among them."""
    try:
        return external_schema(newest, relation.schema.key)
    except (NotFound, InvalidStatement) as error:
        raise InvalidStatement(
            f"table {relation.name}",
            f"its columns no longer fit what was declared ({error})",
            "Drop it and create it again.",
        ) from error


def _is_appended(old: Schema, new: Schema) -> bool:
    """Only columns at the end are new: what we stored by place still fits."""
    same = zip(old.columns, new.columns, strict=False)
    return len(new.columns) >= len(old.columns) and all(
        fold(a.name) == fold(b.name) and a.type == b.type for a, b in same
    )
