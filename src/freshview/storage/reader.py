"""Reading a relation's state on the driver, without Spark: overlays, small contents, key lookups."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from cachetools import LRUCache

from freshview.catalog.records import DataFile, RelationState, Segment
from freshview.relation.delta import Overlay, key_table, overlay, positions_in, subtract, untag
from freshview.relation.schema import Column, Schema
from freshview.storage.cache import MainCache
from freshview.storage.files import Layout, check_present
from freshview.storage.main import MainStore, damage_errors, plain, quoted, read_parquet

LOCAL_ROWS = 10_000  # relations up to this size are folded on the driver
OVERLAY_ROWS = 200_000  # deltas up to this size are folded on the driver
_LITERAL_KEYS = 20_000  # more keys than this are looked up by a scan instead of an IN list
_CACHED_OVERLAYS = 16
_Shape = tuple[tuple[int, int], ...]


class StateReader:
    """Reads main ⊕ segments, as far as they fit on the driver."""

    def __init__(self, layout: Layout, mains: MainStore) -> None:
        self._layout = layout
        self._mains = mains
        self._cache = MainCache(mains.read)
        self._overlays: LRUCache[tuple[int, int, int], tuple[_Shape, Overlay]] = LRUCache(_CACHED_OVERLAYS)
        self._lock = threading.Lock()

    def segment_rows(self, segment: Segment, schema: Schema) -> pa.Table:
        """The delta rows of a segment, inline or in files."""
        if segment.is_inline:
            return segment.table(schema)
        return segment.tagged(read_parquet(segment.files, self._layout.relation(segment.relation_id)), schema)

    def segment_keys(self, segment: Segment, schema: Schema) -> pa.Table:
        """The keys that a segment of a keyed relation writes (key columns only)."""
        if segment.is_inline:
            return key_table(untag(segment.table(schema)), schema)
        folder = self._layout.relation(segment.relation_id)
        check_present(segment.files, folder, f"relation {segment.relation_id}")
        with damage_errors(folder):  # by place: the key may have had another name when the file was written
            stored = pq.read_schema(folder / segment.files[0].path).names
        rows = read_parquet(segment.files, folder, [stored[p] for p in schema.key_positions])
        names = {stored[p]: f"k{i}" for i, p in enumerate(schema.key_positions)}
        return pa.table([rows.column(n) for n in names], names=list(names.values()))

    def overlay(self, state: RelationState) -> Overlay:
        """The net effect of the segments since main; folds only the segments that are new since the last call."""
        committed = [s for s in state.segments if not s.is_pending]
        pending = [s for s in state.segments if s.is_pending]
        folded = self._committed_overlay(state, committed)
        if not pending:
            return folded
        return overlay([folded.rows, *(self.segment_rows(s, state.schema) for s in pending)], state.schema)

    def _committed_overlay(self, state: RelationState, segments: list[Segment]) -> Overlay:
        base = state.main.csn if state.main else -1
        key = (state.relation.id, base, state.relation.schema_version)
        shape = tuple((s.csn, s.seq) for s in segments)
        with self._lock:
            cached = self._overlays.get(key)
        rows: list[pa.Table] = []
        if cached is not None and shape[: len(cached[0])] == cached[0]:
            if len(shape) == len(cached[0]):
                return cached[1]
            rows.append(cached[1].rows)
            segments = segments[len(cached[0]) :]
        rows.extend(self.segment_rows(s, state.schema) for s in segments)
        result = overlay(rows, state.schema)
        with self._lock:
            self._overlays[key] = (shape, result)
        return result

    def contents(self, state: RelationState) -> pa.Table:
        """All rows of the relation."""
        return self.overlay(state).apply(self.main_rows(state))

    def main_rows(self, state: RelationState) -> pa.Table:
        """All rows of main, in the state's columns."""
        if state.main is None or state.main.rows == 0:
            return state.schema.arrow.empty_table()
        return state.schema.conform(self._mains.read(state.relation.id, state.main.delta_version))

    def lookup(self, state: RelationState, keys: pa.Table, *, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows that have one of these keys; a leading part of the key is enough.

        `keys` holds columns of the relation's key, typed as stored. With `columns`, the columns that are neither named
        there nor in the key are not read, and are NULL in the result.
        """
        schema = state.schema
        places = [schema.position(n) for n in keys.column_names]
        probe = pa.table([keys.column(i) for i in range(len(places))], names=[f"k{i}" for i in range(len(places))])
        found = self._main_lookup(state, keys, columns)
        found = found.take(positions_in(_project(found, places), probe))
        changed = self._overlay_near(state, keys, places)
        if changed.rows.num_rows:
            touched = key_table(untag(changed.rows), schema)
            found = found.take(positions_in(key_table(found, schema), touched, inside=False))
            live = changed.live
            found = pa.concat_tables([found, live.take(positions_in(_project(live, places), probe))])
        return found

    def matching(
        self, state: RelationState, column: str, values: pa.Array, *, nulls: bool, columns: Sequence[str], limit: int
    ) -> pa.Table | None:
        """The rows, in `columns` alone, whose column holds one of these values (or NULL, with `nulls`).

        None if they cannot be read cheaply: more than `limit` rows, too many values, or values without literals.
        """
        schema, place = state.schema, state.schema.position(column)
        literals = _literals(values) if len(values) <= _LITERAL_KEYS else None
        changes = sum(s.rows for s in state.segments)
        if literals is None or state.relation.is_external or changes > OVERLAY_ROWS:
            return None
        if state.main_schema is not None and place >= len(state.main_schema.columns):
            return None  # the column was added later
        changed = self.overlay(state)
        bag_shrinks = not schema.key and changed.removals.num_rows > 0
        wanted = {place, *(schema.position(c) for c in columns), *schema.key_positions}
        places = sorted(range(len(schema.columns)) if bag_shrinks else wanted)
        part = Schema(tuple(schema.columns[p] for p in places), schema.key)
        live = _matching(changed.live, place, values, nulls).select(places)
        found = self._main_near(state, place, values, literals, nulls, part, limit)
        if found.num_rows + live.num_rows > limit:
            return None
        if schema.key and changed.rows.num_rows:
            touched = key_table(untag(changed.rows), schema)
            found = found.take(positions_in(key_table(found, part), touched, inside=False))
        elif bag_shrinks:
            found = subtract(found, changed.removals, schema)
        return pa.concat_tables([found, live]).select([part.position(c) for c in columns])

    def _main_near(
        self,
        state: RelationState,
        place: int,
        values: pa.Array,
        literals: list[str],
        nulls: bool,
        part: Schema,
        limit: int,
    ) -> pa.Table:
        """Main's rows whose column holds one of the values, at most one more than the limit."""
        main, stored = state.main, state.main_schema
        if main is None or stored is None or main.rows == 0 or not (literals or nulls):
            return part.arrow.empty_table()
        kept = self._cache.rows(state.relation.id, main)
        if kept is not None:
            held = [p for p in map(state.schema.position, part.names) if p < len(stored.columns)]
            found = _matching(kept.select([place, *held]), 0, values, nulls).slice(0, limit + 1)
            return part.conform(pa.table(found.columns[1:], names=[stored.names[p] for p in held]))
        name = quoted(stored.names[place])
        conditions = [f"{name} IN ({', '.join(literals)})"] if literals else []
        conditions += [f"{name} IS NULL"] if nulls else []
        places = [state.schema.position(c) for c in part.names]
        there = [quoted(stored.names[p]) for p in places if p < len(stored.columns)]
        sql = f"SELECT {', '.join(there)} FROM t WHERE {' OR '.join(conditions)} LIMIT {limit + 1}"
        return part.conform(self._mains.query(state.relation.id, main.delta_version, sql))

    def _overlay_near(self, state: RelationState, keys: pa.Table, places: list[int]) -> Overlay:
        """The overlay or, where segments are too large for the driver, its part with these keys."""
        if sum(s.rows for s in state.segments) <= OVERLAY_ROWS:
            return self.overlay(state)
        deltas = []
        for segment in state.segments:
            if segment.is_inline:
                deltas.append(segment.table(state.schema))
            else:
                rows = self._filtered(segment.relation_id, segment.files, keys, places)
                deltas.append(segment.tagged(rows, state.schema))
        return overlay(deltas, state.schema)

    def _main_lookup(self, state: RelationState, keys: pa.Table, columns: Sequence[str] | None) -> pa.Table:
        """Candidate rows from main: exactly the matching ones for one key column, a superset for several."""
        schema, main, stored = state.schema, state.main, state.main_schema
        if main is None or stored is None or main.rows == 0 or keys.num_rows == 0:
            return schema.arrow.empty_table()
        places = [schema.position(n) for n in keys.column_names]
        asked = schema.names if columns is None else columns
        read = {schema.position(c) for c in asked} | set(schema.key_positions)
        wanted = [i for i in range(len(stored.columns)) if i in read]
        kept = self._cache.rows(state.relation.id, main)
        conditions = [_condition(stored.names[p], keys.column(i)) for i, p in enumerate(places)]
        if kept is not None:
            found = _having(kept, keys, places).select(wanted)
        elif keys.num_rows <= _LITERAL_KEYS and all(conditions):
            chosen = ", ".join(quoted(stored.names[i]) for i in wanted)
            sql = f"SELECT {chosen} FROM t WHERE {' AND '.join(c for c in conditions if c)}"
            found = self._mains.query(state.relation.id, main.delta_version, sql)
        else:
            files = self._mains.files(state.relation.id, main.delta_version)
            found = self._filtered(state.relation.id, files, keys, places, {i: stored.columns[i] for i in wanted})
        if columns is not None:
            by_place = dict(zip(wanted, found.columns, strict=True))
            arrays = [by_place.get(i, pa.nulls(found.num_rows, c.type.arrow)) for i, c in enumerate(stored.columns)]
            found = pa.table(arrays, names=list(stored.names))
        return schema.conform(found)

    def _filtered(
        self,
        relation_id: int,
        files: Sequence[DataFile],
        keys: pa.Table,
        places: list[int],
        columns: dict[int, Column] | None = None,
    ) -> pa.Table:
        """Rows of files whose key columns all match, for many keys or for types without literals.

        Columns are found by place, since names may have changed; columns added later are NULL. One row group is held
        in memory at a time, and only its keys if none matches.
        """
        folder = self._layout.relation(relation_id)
        check_present(files, folder, f"relation {relation_id}")
        wanted = [pc.unique(keys.column(i)) for i in range(len(places))]
        parts = []
        with damage_errors(folder):
            for data_file in files:
                with pq.ParquetFile(folder / data_file.path) as file:
                    stored = file.schema_arrow.names
                    kept = None if columns is None else [stored[p] for p in columns if p < len(stored)]
                    parts.append(_padded(plain(file.schema_arrow.empty_table()), kept, columns))
                    for group in range(file.num_row_groups):
                        probe = plain(file.read_row_group(group, columns=[stored[p] for p in places]))
                        matches = [
                            pc.is_in(probe.column(stored[p]), value_set=v) for p, v in zip(places, wanted, strict=True)
                        ]
                        match = reduce(pc.and_, matches)
                        if pc.any(match).as_py():
                            rows = plain(file.read_row_group(group, columns=kept)).filter(match)
                            parts.append(_padded(rows, kept, columns))
            return pa.concat_tables(parts, promote_options="permissive")


def _padded(rows: pa.Table, kept: list[str] | None, columns: dict[int, Column] | None) -> pa.Table:
    """The wanted columns of a file, with NULLs in columns that were added after the file was written."""
    if kept is None or columns is None:
        return rows
    later = list(columns.values())[len(kept) :]
    arrays = [rows.column(n) for n in kept] + [pa.nulls(rows.num_rows, c.type.arrow) for c in later]
    return pa.table(arrays, names=[c.name for c in columns.values()])


def _matching(rows: pa.Table, place: int, values: pa.Array, nulls: bool) -> pa.Table:
    held = rows.column(place)
    match = pc.is_in(held, value_set=values.cast(held.type))
    return rows.filter(pc.or_(match, pc.is_null(held)) if nulls else match)


def _having(rows: pa.Table, keys: pa.Table, places: Sequence[int]) -> pa.Table:
    """Rows whose key columns each hold one of the keys' values."""
    held = [rows.column(p) for p in places]
    wanted = [pc.unique(keys.column(i)).cast(column.type) for i, column in enumerate(held)]
    return rows.filter(reduce(pc.and_, (pc.is_in(c, value_set=v) for c, v in zip(held, wanted, strict=True))))


def _project(rows: pa.Table, places: Sequence[int]) -> pa.Table:
    return pa.table([rows.column(p) for p in places], names=[f"k{i}" for i in range(len(places))])


def _condition(name: str, values: pa.ChunkedArray) -> str | None:
    """The condition `name IN (…)` for DataFusion; None for types without exact literals."""
    literals = _literals(pc.unique(values))
    return None if literals is None else f"{quoted(name)} IN ({', '.join(literals)})"


def _literals(values: pa.Array) -> list[str] | None:
    kind = values.type
    if kind in [pa.int8(), pa.int16(), pa.int32(), pa.int64()]:
        return [str(v) for v in values.to_pylist()]
    if kind == pa.string():
        return ["'" + v.replace("'", "''") + "'" for v in values.to_pylist()]
    if kind == pa.date32():
        try:
            return [f"DATE '{v.isoformat()}'" for v in values.to_pylist()]
        except (OverflowError, ValueError, AttributeError):  # beyond the years that Python knows, or NULL
            return None
    return None
