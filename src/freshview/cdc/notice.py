"""Commits for new versions of external Delta tables, made before a snapshot is chosen.

A new version becomes a commit by compare-and-set on (relation, version seen last). A rearrangement of files moves the
version without a commit. A rewritten history begins a new epoch: no delta is made up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from freshview.catalog.records import Main, Relation
from freshview.catalog.writer import Catalog
from freshview.errors import CorruptWarehouse, FreshviewError
from freshview.events import Events
from freshview.relation.schema import Schema, fold
from freshview.storage.external import declared_schema, describe, is_continued, open_external
from freshview.storage.external_files import ChangedFile, changed_since, rows_in


@dataclass(frozen=True)
class Noticed:
    """The CSNs of new commits, and the errors of tables that could not be read, by relation id."""

    csns: list[int]
    failed: dict[int, FreshviewError]


def notice(catalog: Catalog, events: Events, relations: Iterable[Relation]) -> list[int]:
    """Commit new versions of these external tables; return the CSNs.

    All tables are read, even if one cannot be opened; the first error is raised afterwards.
    """
    found = look(catalog, events, relations)
    for error in found.failed.values():
        raise error
    return found.csns


def look(catalog: Catalog, events: Events, relations: Iterable[Relation]) -> Noticed:
    """Commit new versions of these external tables, and collect errors: a reader of a failed table must raise."""
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
    """Commits new versions of all external tables of a warehouse, before a snapshot is chosen.

    The error of a table that cannot be read is raised only by statements that read the table: `lost` holds these
    errors by relation id.
    """

    def __init__(self, catalog: Catalog, events: Events) -> None:
        self._catalog = catalog
        self._events = events
        self.lost: dict[int, FreshviewError] = {}

    def look(self) -> None:
        """Commit new versions of all external tables, and collect the errors in `lost`."""
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
    changed: list[ChangedFile] | None = None
    if not reset:
        changed = changed_since(seen, newest)
        if changed is None:
            reset = True
        elif not changed and schema == current.schema:
            moved = Main(seen.csn, new.delta_version, seen.schema_version, new.rows, new.size, new.fingerprint)
            catalog.record_main(current, seen, moved)
            events.emit("external.rearranged", relation=current.name, version=new.delta_version)
            return None
    events.emit("external.noticing", relation=current.name, version=new.delta_version)
    altered = schema if schema != current.schema else None
    rows = new.rows if reset else rows_in(newest, changed or [])
    csn = catalog.notice(current, seen, new, rows=rows, reset=reset, schema=altered)
    if csn is not None:
        events.emit("external.noticed", relation=current.name, version=new.delta_version, csn=csn, reset=reset)
    return csn


def _is_appended(old: Schema, new: Schema) -> bool:
    """Whether a schema only adds columns at the end, so that rows stored by place still fit."""
    same = zip(old.columns, new.columns, strict=False)
    return len(new.columns) >= len(old.columns) and all(
        fold(a.name) == fold(b.name) and a.type == b.type for a, b in same
    )
