"""Reading a relation's state on the driver, without Spark: overlays, small contents, key lookups."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from functools import partial, reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from cachetools import LRUCache

from freshview.catalog.records import DataFile, Main, RelationState, Segment
from freshview.relation.conditions import Among, Compared, Condition, Conditions
from freshview.relation.delta import (
    Overlay,
    digest,
    extended,
    is_live,
    key_table,
    overlay,
    positions_in,
    subtract,
    untag,
)
from freshview.relation.schema import Column, Schema
from freshview.storage.cache import MainCache
from freshview.storage.external_rows import contents as external_contents
from freshview.storage.files import Layout, check_present
from freshview.storage.index import FEWEST, INDEXED, ColumnCache, is_fixed
from freshview.storage.main import MainStore, damage_errors, plain, quoted, read_parquet
from freshview.storage.sharing import RelationColumns, SharedRows

LOCAL_ROWS = 10_000  # relations up to this size are folded on the driver
OVERLAY_ROWS = 200_000  # deltas up to this size are folded on the driver
_LITERAL_KEYS = 20_000  # more keys than this are looked up by a scan instead of an IN list
_INDEX_KEYS = 300_000  # and up to this many by an index in memory
_PRUNING_LIST = 20  # values of a list by which DataFusion skips files and row groups
_YEARS = (-719_162, 2_932_896)  # the first and the last day that Python knows, from 1970 on
_RANGES = 8  # into which a longer list is split for that, at most
_CACHED_OVERLAYS = 16
_Shape = tuple[tuple[int, int], ...]


class StateReader:
    """Reads main ⊕ segments, as far as they fit on the driver."""

    def __init__(self, layout: Layout, mains: MainStore, lookup_memory: int | None = None) -> None:
        self._layout = layout
        self._mains = mains
        self._cache = MainCache(mains.read)
        self.columns = ColumnCache(mains.files, mains.read_file, lookup_memory)
        self._shared = SharedRows()
        self._overlays: LRUCache[tuple[int, int, int], tuple[_Shape, Overlay]] = LRUCache(_CACHED_OVERLAYS)
        # Of lookups in a version of main that met too many rows, with how many values: as many are not tried again.
        self._too_many: LRUCache[Hashable, int] = LRUCache(1000)
        self._lock = threading.Lock()

    def together(self, columns: RelationColumns) -> AbstractContextManager[None]:
        """While the block lasts, rows that several jobs look up are kept; `columns` are those that the jobs need."""
        return self._shared.together(columns)

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
        return extended(folded, [self.segment_rows(s, state.schema) for s in pending])

    def _committed_overlay(self, state: RelationState, segments: list[Segment]) -> Overlay:
        base = state.main.csn if state.main else -1
        key = (state.relation.id, base, state.relation.schema_version)
        shape = tuple((s.csn, s.seq) for s in segments)
        with self._lock:
            cached = self._overlays.get(key)
        folded = Overlay(state.schema, state.schema.segment_arrow.empty_table())
        if cached is not None and shape[: len(cached[0])] == cached[0]:
            if len(shape) == len(cached[0]):
                return cached[1]
            folded, segments = cached[1], segments[len(cached[0]) :]
        result = extended(folded, [self.segment_rows(s, state.schema) for s in segments])
        with self._lock:
            self._overlays[key] = (shape, result)
        return result

    def is_wide(self, state: RelationState) -> bool:
        """Are whole rows of main read from files by every lookup, while their keys may be kept in memory?"""
        main, schema = state.main, state.schema
        if main is None or not schema.key or state.relation.is_external or self._cache.may_keep(main):
            return False
        keys = {k: schema.column(k).type.arrow for k in schema.key}
        whole = {c.name: c.type.arrow for c in schema.columns}
        kept = all(map(is_fixed, whole.values())) and self.columns.may_keep(main, whole)
        return not kept and all(map(is_fixed, keys.values())) and self.columns.may_keep(main, keys)

    def is_in_memory(self, state: RelationState) -> bool:
        """Is main in memory, or so small that it will be, and are the segments folded on the driver?"""
        if state.main is None or state.relation.is_external or sum(s.rows for s in state.segments) > OVERLAY_ROWS:
            return False
        return self._cache.may_keep(state.main)

    def contents(self, state: RelationState) -> pa.Table:
        """All rows of the relation."""
        return self.overlay(state).apply(self.main_rows(state))

    def main_rows(self, state: RelationState) -> pa.Table:
        """All rows of main, in the state's columns."""
        if state.main is None or state.main.rows == 0:
            return state.schema.arrow.empty_table()
        if state.relation.is_external:
            return external_contents(state.relation, state.main)
        kept = self._cache.rows(state.relation.id, state.main)
        rows = kept if kept is not None else self._mains.read(state.relation.id, state.main.delta_version)
        return state.schema.conform(rows)

    def lookup(self, state: RelationState, keys: pa.Table, *, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows that have one of these keys; a part of the key's columns is enough.

        `keys` holds columns of the relation's key, typed as stored. With `columns`, the columns that are neither named
        there nor in the key are not read, and are NULL in the result. Keys that segments decide are not read in main.
        """
        schema, asked = state.schema, state.schema.names if columns is None else columns
        wanted = [schema.names[p] for p in _part(schema, asked)[1]]

        def read(some: Sequence[str]) -> pa.Table:
            return self._with_keys(state, keys, some)

        def asking() -> Hashable:
            return tuple(keys.column_names), digest(keys)

        found = self._shared.read(partial(_state_key, state, asking), state.relation.id, schema, wanted, read)
        assert found is not None
        return schema.widened(found.rename_columns(wanted))

    def _with_keys(self, state: RelationState, keys: pa.Table, columns: Sequence[str]) -> pa.Table:
        schema = state.schema
        named = [schema.position(n) for n in keys.column_names]
        part, places = _part(schema, columns)
        asked, unread = _project(keys, range(len(named))), keys
        changed = self._changes_near(state, _among(keys))
        assert changed is not None  # all conditions are on the key
        near = changed.rows.take(positions_in(_project(changed.rows, named), asked))
        if near.num_rows and len(named) == len(schema.key):
            unread = keys.take(positions_in(asked, _project(near, named), inside=False))
        found = self._main_where(state, _among(unread), part, places)
        assert found is not None  # without a limit all rows are read
        found = found.take(positions_in(_project(found, [places.index(p) for p in named]), asked))
        if near.num_rows:
            found = found.take(positions_in(key_table(found, part), key_table(near, schema), inside=False))
            found = pa.concat_tables([found, near.filter(is_live(near)).select(places)])
        return found

    def matching(
        self, state: RelationState, conditions: Conditions, *, columns: Sequence[str], limit: int
    ) -> pa.Table | None:
        """The rows, in `columns` alone, that meet all of these conditions.

        None if they cannot be read cheaply: more than `limit` rows, too many values, or values without literals.
        """

        def read(some: Sequence[str]) -> pa.Table | None:
            return self._matching(state, conditions, some, limit)

        def asking() -> Hashable:
            return limit, tuple((n, c.identity) for n, c in conditions)

        return self._shared.read(partial(_state_key, state, asking), state.relation.id, state.schema, columns, read)

    def _matching(
        self, state: RelationState, conditions: Conditions, columns: Sequence[str], limit: int
    ) -> pa.Table | None:
        schema, stored = state.schema, state.main_schema
        if state.relation.is_external or not all(is_answered(c) for _, c in conditions):
            return None
        if stored is not None and any(schema.position(n) >= len(stored.columns) for n, _ in conditions):
            return None  # a column was added later
        values = sum(len(c.values) for _, c in conditions if isinstance(c, Among))
        version = state.main.delta_version if state.main else None
        asked = (state.relation.id, version, limit, tuple(n for n, _ in conditions))
        with self._lock:
            if values and values >= self._too_many.get(asked, values + 1):
                return None
        changed = self._changes_near(state, conditions)
        if changed is None:
            return None
        bag_shrinks = not schema.key and changed.removals.num_rows > 0
        # A table without a key may be asked for columns alone that main does not have yet.
        read = schema.names if bag_shrinks else columns if schema.key else (*columns, *(n for n, _ in conditions))
        part, places = _part(schema, read)
        shown = pc.and_(is_live(changed.rows), _met(changed.rows, conditions, schema))
        live = changed.rows.select(places).filter(shown)
        found = self._main_where(state, conditions, part, places, limit)
        if found is not None and found.num_rows > limit:
            with self._lock:
                self._too_many[asked] = values
        if found is None or found.num_rows + live.num_rows > limit:
            return None
        if schema.key and changed.rows.num_rows:
            touched = key_table(untag(changed.rows), schema)
            found = found.take(positions_in(key_table(found, part), touched, inside=False))
        elif bag_shrinks:
            found = subtract(found, changed.removals, schema)
        return pa.concat_tables([found, live]).select([part.position(c) for c in columns])

    def _changes_near(self, state: RelationState, conditions: Conditions) -> Overlay | None:
        """The overlay or, where segments are too large for the driver, its part with the keys of interest.

        None if the segments are too large and no condition is on the key: only the key of a row never changes.
        """
        if sum(s.rows for s in state.segments) <= OVERLAY_ROWS:
            return self.overlay(state)
        own = [(state.schema.position(n), c) for n, c in conditions if n in state.schema.key]
        if not own:
            return None
        deltas = []
        for segment in state.segments:
            if segment.is_inline:
                deltas.append(segment.table(state.schema))
            else:
                rows = self._filtered(segment.relation_id, segment.files, own)
                deltas.append(segment.tagged(rows, state.schema))
        return overlay(deltas, state.schema)

    def _main_where(
        self, state: RelationState, conditions: Conditions, part: Schema, places: list[int], limit: int | None = None
    ) -> pa.Table | None:
        """Main's rows that meet all conditions, in the columns of a part of the schema; with a limit, one row more than
        that at most, and None if only a scan of the files finds them."""
        main, stored = state.main, state.main_schema
        if main is None or stored is None or main.rows == 0 or any(_is_empty(c) for _, c in conditions):
            return part.arrow.empty_table()
        held = [p for p in places if p < len(stored.columns)]
        kept = self._cache.rows(state.relation.id, main)
        if kept is not None:
            if kept.num_columns < len(stored.columns):  # main has columns that were added after its files were written
                kept = stored.conform(kept)
            found = self._of_kept(state, main, kept, conditions).select(held)
            return part.conform(found if limit is None else found.slice(0, limit + 1))
        by_place = [(state.schema.position(n), c) for n, c in conditions]
        indexed = self._indexed(state, by_place, stored, held, limit)
        if indexed is not None:
            return part.conform(indexed)
        tests = [condition_sql(stored.names[p], c) for p, c in by_place]
        if not all(tests):
            if limit is not None:
                return None
            files = self._mains.files(state.relation.id, main.delta_version)
            columns = {i: stored.columns[i] for i in held}
            return part.conform(self._filtered(state.relation.id, files, by_place, columns))
        chosen = ", ".join(quoted(stored.names[p]) for p in held)
        most = "" if limit is None else f" LIMIT {limit + 1}"
        sql = f"SELECT {chosen} FROM t WHERE {' AND '.join(t for t in tests if t)}{most}"
        return part.conform(self._mains.query(state.relation.id, main.delta_version, sql))

    def _of_kept(self, state: RelationState, main: Main, kept: pa.Table, conditions: Conditions) -> pa.Table:
        """The rows of a main in memory that meet all conditions: by an index for one of them, where values are few."""
        for at, (name, condition) in enumerate(conditions):
            if isinstance(condition, Among) and not condition.nulls:
                by = kept.column_names[state.schema.position(name)]
                found = self._cache.among(state.relation.id, main, kept, by, condition.values)
                if found is not None:
                    others = (*conditions[:at], *conditions[at + 1 :])
                    return found.filter(_met(found, others, state.schema)) if others else found
        return kept.filter(_met(kept, conditions, state.schema))

    def _indexed(
        self,
        state: RelationState,
        conditions: Sequence[tuple[int, Condition]],
        stored: Schema,
        held: Sequence[int],
        limit: int | None,
    ) -> pa.Table | None:
        """Main's rows by an index in memory, one more than the limit at most; None if no condition is a list of values,
        or the columns are not kept.

        The longest list is looked up; the other conditions are asked of the rows found. Of short lists, which are only
        looked up in columns that are kept, any will do.
        """
        lists = [(i, c) for i, (_, c) in enumerate(conditions) if isinstance(c, Among)]
        if state.main is None or not lists or not held or any(p >= len(stored.columns) for p, _ in conditions):
            return None
        lists.sort(key=lambda pair: len(pair[1].values), reverse=True)
        fields = [(stored.columns[p].name, stored.columns[p].type.arrow) for p in held]
        for at, chosen in lists if len(lists[0][1].values) <= FEWEST else lists[:1]:
            others = [*conditions[:at], *conditions[at + 1 :]]
            asked = [(stored.columns[p].name, stored.columns[p].type.arrow, c) for p, c in others]
            by, relation = stored.columns[conditions[at][0]].name, state.relation.id
            found = self.columns.rows(
                relation, state.main, by, chosen.values, fields, nulls=chosen.nulls, others=asked, limit=limit
            )
            if found is not None:
                return found
        return None

    def _filtered(
        self,
        relation_id: int,
        files: Sequence[DataFile],
        conditions: Sequence[tuple[int, Condition]],
        columns: dict[int, Column] | None = None,
    ) -> pa.Table:
        """Rows of files that meet conditions by place, for many values or for types without literals.

        Columns are found by place, since names may have changed; columns added later are NULL. One row group is held
        in memory at a time, and only the columns with conditions if no row meets them.
        """
        folder = self._layout.relation(relation_id)
        check_present(files, folder, f"relation {relation_id}")
        parts = []
        with damage_errors(folder):
            for data_file in files:
                with pq.ParquetFile(folder / data_file.path) as file:
                    stored = file.schema_arrow.names
                    kept = None if columns is None else [stored[p] for p in columns if p < len(stored)]
                    parts.append(_padded(plain(file.schema_arrow.empty_table()), kept, columns))
                    for group in range(file.num_row_groups):
                        if not all(_may_hold(file, group, p, c) for p, c in conditions):
                            continue
                        probe = plain(file.read_row_group(group, columns=list({stored[p] for p, _ in conditions})))
                        match = reduce(pc.and_, (c.met_by(probe.column(stored[p])) for p, c in conditions))
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


def _state_key(state: RelationState, asked: Callable[[], Hashable]) -> Hashable | None:
    """A name for what is asked of a state; None for a state that may change, or has rows that are not committed."""
    if state.relation.is_external or any(s.is_pending for s in state.segments):
        return None
    relation, version = state.relation, state.main.delta_version if state.main else None
    segments = tuple((s.csn, s.seq) for s in state.segments)
    return relation.id, relation.epoch, relation.schema_version, version, segments, asked()


def _part(schema: Schema, columns: Sequence[str]) -> tuple[Schema, list[int]]:
    """The part of a schema with these columns and the key, and the places of its columns."""
    places = sorted({*map(schema.position, columns), *schema.key_positions})
    return Schema(tuple(schema.columns[p] for p in places), schema.key), places


def _among(keys: pa.Table) -> Conditions:
    """The conditions that rows with one of these keys meet, and maybe others if the key has several columns."""
    return tuple((n, Among(pc.unique(keys.column(i)))) for i, n in enumerate(keys.column_names))


def _met(rows: pa.Table, conditions: Conditions, schema: Schema) -> pa.ChunkedArray:
    """A mask of the rows that meet all conditions."""
    return reduce(pc.and_, (c.met_by(rows.column(schema.position(n))) for n, c in conditions))


def _may_hold(file: pq.ParquetFile, group: int, place: int, condition: Condition) -> bool:
    """May a row group hold a row that meets a condition? Its statistics decide, for integers and dates."""
    kind, name = file.schema_arrow.field(place).type, file.schema_arrow.names[place]
    if not (pa.types.is_signed_integer(kind) or kind == pa.date32()) or (
        isinstance(condition, Among) and condition.nulls
    ):
        return True
    leaves = [i for i in range(file.metadata.num_columns) if file.metadata.schema.column(i).path == name]
    if len(leaves) != 1:  # a field of a struct may have the path of a column with a dot in its name
        return True
    statistics = file.metadata.row_group(group).column(leaves[0]).statistics
    if statistics is None or not statistics.has_min_max:
        return True
    try:
        return condition.is_met_within(statistics.min, statistics.max)
    except (OverflowError, ValueError):  # Python has no date beyond the year 9999
        return True


def _is_empty(condition: Condition) -> bool:
    return isinstance(condition, Among) and not condition.nulls and len(condition.values) == 0


def _project(rows: pa.Table, places: Sequence[int]) -> pa.Table:
    return pa.table([rows.column(p) for p in places], names=[f"k{i}" for i in range(len(places))])


def rows_in_files(state: RelationState) -> int:
    """The rows that Spark reads from files for a state: none of a small one, which the driver folds."""
    return 0 if state.is_small(LOCAL_ROWS) else state.rows_at_most


def is_answered(condition: Condition) -> bool:
    """May a condition be answered without a scan: by statistics of files, or by an index in memory?"""
    if isinstance(condition, Among) and len(condition.values) > _LITERAL_KEYS:
        return len(condition.values) <= _INDEX_KEYS and condition.values.type in INDEXED
    if isinstance(condition, Compared):
        return condition_sql("", condition) is not None
    return _have_literals(condition.values)


def condition_sql(name: str, condition: Condition) -> str | None:
    """A condition in the words of DataFusion; None for types without exact literals, and for too many values."""
    if isinstance(condition, Compared):
        literals = _literals(pa.array([condition.value.as_py()], condition.value.type))
        return None if literals is None else f"{quoted(name)} {condition.operator} {literals[0]}"
    if len(condition.values) > _LITERAL_KEYS or (literals := _literals(condition.values)) is None:
        return None
    tests = [f"{quoted(name)} IN ({', '.join(literals)})"] if literals else []
    if len(literals) > _PRUNING_LIST and condition.values.type != pa.string():
        ranges = ranges_of(condition.values)
        tests.append(" OR ".join(f"{quoted(name)} BETWEEN {literals[a]} AND {literals[b]}" for a, b in ranges))
    # NULL is asked for beside each test: DataFusion distributes OR over AND, and ends the process on a long list there.
    null = f"{quoted(name)} IS NULL"
    either = [f"({test} OR {null})" if condition.nulls else f"({test})" for test in tests]
    return " AND ".join(either) or f"({null})"


def ranges_of(values: pa.Array) -> list[tuple[int, int]]:
    """A few ranges that hold all values, as positions of their least and greatest values.

    DataFusion skips files, row groups and pages by ranges, and not by long lists. Several ranges are worth their
    comparisons only if they leave out much of what lies between the least value and the greatest.
    """
    numbers = values.cast(pa.int32()).cast(pa.int64()) if values.type == pa.date32() else values.cast(pa.int64())
    order = np.argsort(numbers.to_numpy(), kind="stable")
    ordered = numbers.to_numpy()[order].astype(object)  # differences may exceed 64 bits
    gaps = ordered[1:] - ordered[:-1]
    cuts = sorted(sorted(range(len(gaps)), key=lambda i: gaps[i])[-(_RANGES - 1) :])
    if 2 * sum(gaps[i] for i in cuts) < ordered[-1] - ordered[0]:
        cuts = []
    starts, ends = [0, *(i + 1 for i in cuts)], [*cuts, len(ordered) - 1]
    return [(int(order[a]), int(order[b])) for a, b in zip(starts, ends, strict=True)]


def _have_literals(values: pa.Array) -> bool:
    """Has every value a literal? None is built."""
    if values.type == pa.date32():
        ends = pc.min_max(values.cast(pa.int32()))
        least, most = ends["min"].as_py(), ends["max"].as_py()
        return not values.null_count and (least is None or (_YEARS[0] <= least and most <= _YEARS[1]))
    return values.type in [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.string()]


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
