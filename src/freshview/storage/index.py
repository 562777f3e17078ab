"""Columns of large mains in memory, with an index: a column by which rows are looked up again and again is read once.

A lookup by many scattered values has to decode whole columns of the files, since values of every page are wanted. The
second such lookup in a main keeps the columns that it has read; from the third on it reads no file. Columns are kept by
file: a version of main that adds files to another one has only those read. Where most rows of a version are in files
that are new, its first lookup is left to the files again: it reads few of their pages.

Law: the rows are those that the same lookup finds in the files. A data file never changes, so what is kept stays right;
the least recently used columns go first when the budget is spent.

A column is read by one thread at a time. Lookups in other columns, and in columns that are kept, do not wait for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from cachetools import LRUCache

from freshview.catalog.records import DataFile, Main
from freshview.errors import InvalidStatement
from freshview.machine import memory
from freshview.relation.conditions import Condition

MOST = 4 << 30  # bytes of all columns that are kept, at most; on smaller machines an eighth of the memory
WIDEST = 128  # bytes of a row in the columns that one lookup keeps, at most
_OFFSET = 4  # bytes of the place of a text in Arrow
_TEXT = 16  # bytes of a text, before its column was read
_LARGEST_TEXTS = 1 << 30  # bytes of a column of texts that is read, at most: Arrow counts them in 31 bits
FEWEST = 20  # values for which no column is read: so few are pruned by the statistics of files and pages
MANY = 20_000  # values of a lookup; of more the files are read as a whole in any case
_OFTENEST = 3  # times that a column of one file is read for this, at most
_VERSIONS = 64  # whose files are known
_Integers: Any = np.ndarray[Any, np.dtype[np.int64]]
INDEXED = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.date32())


@dataclass(frozen=True)
class Index:
    """The values of a column in order, and the row of each of them; None: they are in the order of the rows."""

    ordered: _Integers
    rows: Any

    @property
    def nbytes(self) -> int:
        """The bytes that it takes. Values in the order of the rows may share those of the column, or be a copy of them
        in 64 bits; both count, since the column may go before the index does."""
        return int(self.ordered.nbytes) + (int(self.rows.nbytes) if self.rows is not None else 0)

    def places(self, wanted: _Integers, most: int | None = None) -> pa.Array:
        """The rows that hold one of these values, which are in order and different, in the order of the rows.

        With `most`, only so many of them, whichever: nothing is made of all.
        """
        if len(self.ordered):
            least, last = np.searchsorted(wanted, self.ordered[0]), np.searchsorted(wanted, self.ordered[-1], "right")
            wanted = wanted[least:last]
        first = np.searchsorted(self.ordered, wanted, side="left")
        counts = np.searchsorted(self.ordered, wanted, side="right") - first
        ends = np.cumsum(counts)
        if most is not None and len(ends) and ends[-1] > most:
            counts = np.clip(most - (ends - counts), 0, counts)
            ends = np.cumsum(counts)
        places = np.arange(ends[-1] if len(ends) else 0) + np.repeat(first - (ends - counts), counts)
        return pa.array(places if self.rows is None else np.sort(self.rows[places]))


def index_of(column: pa.Array) -> Index:
    """The index of a column of integers or dates. NULL has no place in it."""
    rows = None
    if column.null_count:
        rows = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        column = column.drop_null()
    values = _numbers(column)
    if not np.all(values[1:] >= values[:-1]):
        order = np.argsort(values, kind="stable")
        values, rows = values[order], order if rows is None else rows[order]
    if rows is not None and len(rows) < 1 << 31:
        rows = rows.astype(np.int32)
    return Index(values, rows)


def in_order(values: pa.Array) -> _Integers:
    """Different values, in order."""
    assert not values.null_count, "NULL is not looked up by an index"
    return np.unique(_numbers(values))


def _numbers(values: pa.Array) -> _Integers:
    plain = values.cast(pa.int32()) if values.type == pa.date32() else values
    return plain.cast(pa.int64()).to_numpy(zero_copy_only=False)


Files = Callable[[int, int], Sequence[DataFile]]  # of a relation and a version of its main
# Of a relation and a file: some columns of all rows, as far as the file has them, and texts only up to so many bytes.
ReadFile = Callable[[int, DataFile, Sequence[str], int], pa.Table]
Fields = Sequence[tuple[str, pa.DataType]]
_Column = tuple[int, str, str]  # relation, path of the file, name


class ColumnCache:
    """Caches columns of data files of mains in which rows were looked up more than once."""

    def __init__(self, files: Files, read: ReadFile, budget: int | None = None, widest: int = WIDEST) -> None:
        if budget is not None and budget < 0:
            raise InvalidStatement(f"lookup_memory {budget}", "is less than nothing", "Give a number of bytes, or 0.")
        self._files = files
        self._read = read
        self.budget = _budget() if budget is None else budget
        self._widest = widest
        self._most_texts = min(_LARGEST_TEXTS, self.budget // 4)
        self._kept: LRUCache[tuple[_Column, str], Any] = LRUCache(self.budget, lambda kept: int(kept.nbytes))
        self._asked: LRUCache[_Column, bool] = LRUCache(10_000)
        self._reads: LRUCache[_Column, int] = LRUCache(100_000)  # how often a column was read
        self._known: LRUCache[tuple[int, int], tuple[DataFile, ...]] = LRUCache(_VERSIONS)
        self._newest: LRUCache[int, int] = LRUCache(1000)  # the newest version by relation
        self._turns: WeakValueDictionary[tuple[_Column, str], _Turn] = WeakValueDictionary()
        self._lock = threading.Lock()  # of all of these; nothing is read and no index made while it is held

    def rows(
        self,
        relation_id: int,
        main: Main,
        by: str,
        values: pa.Array,
        fields: Fields,
        *,
        nulls: bool = False,
        others: Sequence[tuple[str, pa.DataType, Condition]] = (),
        limit: int | None = None,
    ) -> pa.Table | None:
        """Some columns of the rows whose column `by` holds one of the values; None if they are to be read from files.

        `fields` are the names and types of the wanted columns, as main stores them. With `nulls`, rows with NULL are
        wanted too: only a column that has none is looked up here. Rows meet the conditions on `others`. Of more rows
        than the limit, one more than that is taken.
        """
        types = dict(fields) | {name: type_ for name, type_, _ in others} | {by: values.type}
        if values.type not in INDEXED or not self.may_keep(main, types):
            return None
        are_few = len(values) <= FEWEST
        if are_few and relation_id not in self._newest:
            return None
        files = self._files_of(relation_id, main.delta_version)
        if are_few and not self._keeps(relation_id, files, by, types):
            return None
        if not are_few and len(values) <= MANY and self._is_first(relation_id, files, by):
            return None
        held = []
        for file in files:
            columns = self._columns(relation_id, file, list(types))
            if columns is None or (nulls and columns[by].null_count):
                return None
            held.append((columns, self._index(columns[by], (relation_id, file.path, by))))
        wanted, found, left = in_order(values), [pa.schema(fields).empty_table()], limit
        for columns, index in held:
            places = index.places(wanted, left + 1 if left is not None and not others else None)
            for name, _, condition in others:
                places = places.filter(condition.met_by(_taken(columns[name], places)))
            if left is not None:
                places = places.slice(0, left + 1)
                left -= len(places)
            if len(places):
                found.append(pa.table([_taken(columns[n], places) for n, _ in fields], [n for n, _ in fields]))
            if left is not None and left < 0:
                break
        return found[0] if len(found) == 1 else pa.concat_tables(found[1:], promote_options="permissive")

    def _is_first(self, relation_id: int, files: Sequence[DataFile], by: str) -> bool:
        """Are most rows in files that no lookup by this column has met? The next one finds that it has met them."""
        with self._lock:
            new = [file for file in files if (relation_id, file.path, by) not in self._asked]
            for file in new:
                self._asked[relation_id, file.path, by] = True
        return 2 * sum(file.rows for file in new) > sum(file.rows for file in files)

    def _keeps(self, relation_id: int, files: Sequence[DataFile], by: str, names: Iterable[str]) -> bool:
        """Are these columns of all files kept, with the index of `by`?"""
        wanted = [(name, "column") for name in names] + [(by, "index")]
        with self._lock:
            return all(((relation_id, file.path, name), what) in self._kept for file in files for name, what in wanted)

    def _files_of(self, relation_id: int, version: int) -> tuple[DataFile, ...]:
        """The files of a version. What is kept of others goes when a newer version is asked for: their last readers
        read files."""
        with self._lock:
            files = self._known.get((relation_id, version))
        if files is None:
            files = tuple(self._files(relation_id, version))
        with self._lock:
            self._known[relation_id, version] = files
            if version > self._newest.get(relation_id, -1):
                self._newest[relation_id] = version
                paths = {file.path for file in files}
                for key in [k for k in self._kept if k[0][0] == relation_id and k[0][1] not in paths]:
                    del self._kept[key]
        return files

    def _index(self, column: pa.Array, of: _Column) -> Index:
        key = (of, "index")
        with self._turn(key):
            with self._lock:
                index = self._kept.get(key)
            if index is None:
                index = index_of(column)
                self._keep(key, index)
        return index

    def may_keep(self, main: Main, types: Mapping[str, pa.DataType]) -> bool:
        """Are the columns numbers, dates or texts, and few enough to be kept?"""
        widths = [_width(type_) for type_ in types.values()]
        if None in widths or any("." in name for name in types):  # Arrow would read a field of a struct too
            return False
        width = sum(w for w in widths if w is not None)
        return width <= self._widest and main.rows * width <= self.budget

    def _columns(self, relation_id: int, file: DataFile, names: Sequence[str]) -> dict[str, pa.Array] | None:
        """Whole columns of a file, those that are missing read in one go; None if it does not have one of them, if one
        is too large, or if one was read often already: others take its place again and again."""
        keys = {name: (relation_id, file.path, name) for name in names}
        found = self._known_columns(keys)
        if None not in found.values():
            return found
        with ExitStack() as turns:
            for name in sorted(n for n, column in found.items() if column is None):  # in one order: no two wait in turn
                turns.enter_context(self._turn((keys[name], "column")))
            found |= self._known_columns({n: keys[n] for n, column in found.items() if column is None})
            missing = [name for name, column in found.items() if column is None]
            with self._lock:
                if any(self._reads.get(keys[name], 0) >= _OFTENEST for name in missing):
                    return None
            rows = self._read(relation_id, file, missing, self._most_texts) if missing else None
            for name in missing:
                assert rows is not None
                is_there = name in rows.column_names  # a column may have been added later
                with self._lock:
                    self._reads[keys[name]] = self._reads.get(keys[name], 0) + 1 if is_there else _OFTENEST
                if not is_there:
                    return None
                found[name] = _whole(rows.column(name))
                self._keep((keys[name], "column"), found[name])
        return found

    def _known_columns(self, keys: Mapping[str, _Column]) -> dict[str, Any]:
        with self._lock:
            return {name: self._kept.get((key, "column")) for name, key in keys.items()}

    def _turn(self, key: tuple[_Column, str]) -> _Turn:
        """What a thread holds while it makes something that is kept: one that wants the same waits for it."""
        with self._lock:
            turn = self._turns.get(key)
            if turn is None:
                turn = self._turns[key] = _Turn()
            return turn

    def _keep(self, key: tuple[_Column, str], kept: Any) -> None:
        with self._lock, suppress(ValueError):  # it is larger than all that may be kept
            self._kept[key] = kept


class _Turn:
    """A lock that goes when nobody holds it or waits for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def is_fixed(type_: pa.DataType) -> bool:
    """Have all values of a type the same number of bytes?"""
    return _width(type_) is not None and not pa.types.is_string(type_)


def _width(type_: pa.DataType) -> int | None:
    """The bytes of a value in memory, of a text at a guess; None for values that are not kept."""
    if pa.types.is_string(type_):
        return _TEXT
    try:
        return max(int(type_.bit_width) // 8, 1)
    except ValueError:
        return None


def _whole(column: pa.ChunkedArray) -> pa.Array:
    """A column as one array: texts as numbers of different texts, which come so from the file, if that takes fewer
    bytes."""
    if not pa.types.is_dictionary(column.type):
        whole = column.combine_chunks()
        return pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole
    coded = pa.concat_arrays(column.unify_dictionaries().chunks) if column.num_chunks else column.combine_chunks()
    lengths = pc.fill_null(pc.binary_length(coded.dictionary), 0)
    bytes_ = pc.sum(pc.fill_null(lengths.take(coded.indices), 0).cast(pa.int64())).as_py() or 0
    return coded if coded.nbytes <= bytes_ + _OFFSET * len(coded) else coded.dictionary_decode()


def _taken(column: pa.Array, places: pa.Array) -> pa.Array:
    taken = column.take(places)
    return taken.dictionary_decode() if isinstance(taken, pa.DictionaryArray) else taken


def _budget() -> int:
    """An eighth of the memory of this machine or container, and no more than `MOST`."""
    return min(MOST, memory() // 8)
