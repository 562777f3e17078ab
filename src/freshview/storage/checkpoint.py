"""Checkpoint: fold segments into a new version of main, by the cheapest way that is exact.

Order of events: lease, all that is folded is durable in the catalog, Delta commit (durable), catalog commit. A crash in
between leaves a Delta version that the catalog does not know; the next checkpoint adopts or undoes that version first
(law 11.2). A checkpoint that is asked to stop does so before its Delta commit or not at all: it leaves files that no
version names, which vacuum removes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from freshview.catalog.lineage import sorted_column
from freshview.catalog.records import REMOTE, DataFile, Lease, Main, Relation, RelationState, Segment
from freshview.catalog.view_reader import ViewReader
from freshview.catalog.writer import Catalog, checkpoint_lease
from freshview.errors import CorruptWarehouse, InvalidStatement, NotFound, WriteConflict
from freshview.events import Events
from freshview.interruption import stop_if_asked
from freshview.relation.delta import INSERT, is_live, untag
from freshview.relation.schema import Schema
from freshview.relation.types import quote
from freshview.storage.main import NewMain
from freshview.storage.reader import OVERLAY_ROWS
from freshview.storage.store import Storage

LOCAL_REWRITE_ROWS = 1_000_000  # tables up to this size are rewritten on the driver
_MERGE_SHARE = 0.2  # above this share of changed rows a rewrite is cheaper than a merge


class FoldingEngine(Protocol):
    """The part of Spark that a large checkpoint needs."""

    def scan(self, state: RelationState) -> Any: ...
    def write(self, frame: Any, relation_id: int, folder: str, what: str) -> tuple[DataFile, ...]: ...


@dataclass(frozen=True)
class CheckpointReport:
    """The strategy of a checkpoint (nothing, adopt, merge or rewrite; 'busy' if another one runs), its CSN and rows."""

    name: str
    strategy: str
    csn: int
    rows: int = 0


@dataclass(frozen=True)
class Checkpointer:
    """Folds segments into main for one warehouse."""

    catalog: Catalog
    storage: Storage
    events: Events
    engine: Callable[[], FoldingEngine]

    def run(self, relation: Relation) -> CheckpointReport:
        """Fold a relation's segments up to the newest snapshot into main."""
        if relation.kind == REMOTE:
            raise InvalidStatement(f"remote table {relation.name}", "no rows of it are stored", "Name a view of it.")
        if relation.kind == "external":
            raise InvalidStatement(f"table {relation.name}", "it is external", "Its own writers keep its files.")
        lease = self.catalog.lease(relation.id, "", checkpoint_lease(relation.id))
        if lease is None:
            return CheckpointReport(relation.name, "busy", -1)
        try:
            pin = self.catalog.begin("checkpoint")
            try:
                return self._fold(relation, min(pin.csn, self.catalog.complete_to(relation)), lease)
            finally:
                self.catalog.release(pin)
        finally:
            self.catalog.drop_leases([lease.id])

    def adopt(self, relation: Relation) -> None:
        """Make the files of inserted rows part of main now, if that is all there is to do: it costs next to nothing."""
        state = self.catalog.state(relation, self.catalog.snapshot())
        if any(s.files for s in state.segments) and choose(state) == "adopt":
            self.run(relation)

    def _fold(self, relation: Relation, csn: int, lease: Lease) -> CheckpointReport:
        self._reconcile(relation)
        state = self.catalog.state(relation, csn)
        base = self.catalog.latest_main(relation.id)  # not the state's, which has none if its rows were replaced
        strategy = choose(state)
        if strategy == "nothing":
            return CheckpointReport(relation.name, strategy, base.csn if base else csn)
        self.catalog.harden()  # else a power cut could leave a version of rows that the catalog has forgotten
        complete_to = max([s.csn for s in state.segments], default=csn)
        self.events.emit("checkpoint.begun", relation=relation.name, csn=complete_to, strategy=strategy)
        try:
            new = self._write(state, base, strategy, complete_to)
        except WriteConflict:  # another checkpoint was faster; vacuum removes the files of this one
            return CheckpointReport(relation.name, "busy", complete_to)
        self.events.emit("checkpoint.written", relation=relation.name, csn=complete_to)
        done = self.catalog.record_main(relation, base, new, lease)
        self.events.emit("checkpoint.done", relation=relation.name, csn=complete_to, strategy=strategy)
        return CheckpointReport(relation.name, strategy if done else "busy", complete_to, new.rows)

    def _write(self, state: RelationState, base: Main | None, strategy: str, csn: int) -> Main:
        relation, schema, mains = state.relation, state.schema, self.storage.mains
        what = f"checkpoint of {relation.name}"
        new = NewMain(relation.id, base, schema, relation.schema_version, csn, self.catalog.moment(csn))
        if strategy == "adopt":
            files = [f for s in state.segments for f in s.files]
            small = [untag(s.table(schema)) for s in state.segments if s.is_inline]
            if small:
                folder = self.storage.layout.new_folder("bulk")
                rows = _sorted(pa.concat_tables(small), relation, schema)
                files += self.storage.write_parquet(relation.id, folder, rows)
            return mains.adopt(new, files) if state.main is not None else mains.replace(new, files)
        if strategy == "merge":
            overlay = self.storage.reader.overlay(state)
            live = is_live(overlay.rows).combine_chunks()
            stop_if_asked(what)
            return mains.merge(new, untag(overlay.rows), live)
        folder = self.storage.layout.new_folder("main")
        if state.rows_at_most <= LOCAL_REWRITE_ROWS:
            rows = _sorted(self.storage.reader.contents(state), relation, schema)
            stop_if_asked(what)
            files = list(self.storage.write_parquet(relation.id, folder, rows))
        else:
            engine, by = self.engine(), sorted_column(relation)
            rows = engine.scan(state).sort(quote(by)) if by else engine.scan(state)
            files = list(engine.write(rows, relation.id, folder, what))
        return mains.replace(new, files)

    def _reconcile(self, relation: Relation) -> None:
        """Make Delta's newest version and the catalog's the same, before anything is computed from it."""
        known = self.catalog.latest_main(relation.id)
        latest = self.storage.mains.latest_version(relation.id)
        if latest == (known.delta_version if known else None):
            return
        if latest is None or (known is not None and latest < known.delta_version):
            raise CorruptWarehouse(
                f"table {relation.name}", "the newest part of its Delta log is missing", "Restore it from a backup."
            )
        found = self.storage.mains.recover(relation.id, latest, self.catalog.moment)
        self.events.emit("checkpoint.settling", relation=relation.name, version=latest, adopt=found is not None)
        newer = found is not None and (known.csn if known else -1) < found.csn <= self.catalog.snapshot()
        if found is not None and newer and self._knows(relation, found.csn):
            self.catalog.record_main(relation, known, found)
        elif known is not None:
            version = self.storage.mains.restore(relation.id, known.delta_version)
            self.catalog.record_main(relation, known, replace(known, delta_version=version))
        # Else the catalog knows no version yet, and its first one will replace what is in the log.

    def _knows(self, relation: Relation, csn: int) -> bool:
        """Does the catalog have the rows of a CSN? That of a backup may have the commit, and no job of a view up to it:
        the job that comes would be laid over rows that have its result."""
        if relation.kind != "view":
            return True
        try:
            return ViewReader(self.catalog).has_version(relation, csn)
        except NotFound:  # it was dropped meanwhile
            return False


def _sorted(rows: pa.Table, relation: Relation, schema: Schema) -> pa.Table:
    """The rows sorted on their key, or another column: lookups of neighbouring values then read a few pages."""
    by = [schema.position(c) for c in (sorted_column(relation),) if c]
    positions = list(dict.fromkeys((*by, *schema.key_positions)))
    if not positions:
        return rows
    places = [str(p) for p in positions]  # Arrow would read a name with a dot as a path
    keys = pa.table([rows.column(p) for p in positions], names=places)
    return rows.take(pc.sort_indices(keys, [(place, "ascending") for place in places]))


def choose(state: RelationState) -> str:
    """The cheapest exact strategy: 'nothing', 'adopt', 'merge' or 'rewrite'."""
    stored = state.main_schema
    if stored is not None and stored.names != state.schema.names[: len(stored.names)]:
        return "rewrite"  # columns were renamed
    if not state.segments:
        return "nothing"
    if all(_only_inserts(s, state) for s in state.segments):
        return "adopt"
    changed = sum(s.rows for s in state.segments)
    if state.schema.key and state.main is not None and changed <= min(OVERLAY_ROWS, _MERGE_SHARE * state.main.rows):
        return "merge"
    return "rewrite"


def _only_inserts(segment: Segment, state: RelationState) -> bool:
    """Whether a segment holds inserted rows alone: their keys were new, so main can take the rows as they are."""
    if segment.schema_version != state.relation.schema_version:
        return False
    if segment.action is not None:
        return segment.action == INSERT
    if not segment.is_inline:
        return False
    actions = segment.table(state.schema).column("_action").unique().to_pylist()
    return bool(actions == [INSERT])
