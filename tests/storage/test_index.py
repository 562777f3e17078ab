"""Columns of large mains in memory: lookups by their index find what lookups in the files find."""

from __future__ import annotations

import datetime as dt
import random
import threading
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.internals import internals

import freshview
from freshview import Warehouse
from freshview.catalog.records import DataFile, Main
from freshview.errors import InvalidStatement
from freshview.relation.conditions import Among, Compared
from freshview.storage import index as index_module
from freshview.storage import reader as reader_module
from freshview.storage.index import ColumnCache, in_order, index_of

ROWS = 200
_DAY = dt.date(1970, 1, 1)
_HELD = st.lists(st.one_of(st.none(), st.integers(-40, 40), st.integers(-(2**63), 2**63 - 1)), max_size=60)
_WANTED = st.lists(st.one_of(st.integers(-40, 40), st.integers(-(2**63), 2**63 - 1)), max_size=40)


@given(_HELD, _WANTED, st.booleans())
def test_the_index_gives_the_places_of_all_values_and_of_no_other(
    held: list[int | None], wanted: list[int], ordered: bool
) -> None:
    """Law: also with NULLs, with values that are held twice or asked for twice, and whatever the order of the rows."""
    column = sorted(held, key=lambda v: (v is None, v or 0)) if ordered else held
    places = index_of(pa.array(column, pa.int64())).places(in_order(pa.array(wanted, pa.int64()))).to_pylist()
    assert places == [i for i, value in enumerate(column) if value is not None and value in wanted]


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32(), pa.date32()])
def test_narrow_integers_and_dates_have_an_index(kind: pa.DataType) -> None:
    values = [_DAY + dt.timedelta(days=n) if kind == pa.date32() else n for n in (5, -3, 5, 0)]
    assert index_of(pa.array(values, kind)).places(in_order(pa.array(values[:1], kind))).to_pylist() == [0, 2]


class Files:
    """Versions of main as files, each with the rows of one more file than the version before, and what was read."""

    def __init__(self) -> None:
        self.read: list[tuple[int, str, tuple[str, ...]]] = []
        self.wait: Callable[[Sequence[str]], object] | None = None

    def of(self, relation_id: int, version: int) -> list[DataFile]:
        return [DataFile(f"{relation_id}-{i}", 1 << 30, ROWS) for i in range(version + 1)]

    def __call__(self, relation_id: int, file: DataFile, columns: Sequence[str], most_texts: int) -> pa.Table:
        self.read.append((relation_id, file.path.split("-")[1], tuple(columns)))
        if self.wait is not None:
            self.wait(columns)
        first = ROWS * int(file.path.split("-")[1])
        numbers = [first + (7 * i) % ROWS for i in range(ROWS)]
        columns_of = {
            "k": pa.chunked_array([numbers[:50], numbers[50:]], pa.int64()),
            "d": pa.chunked_array([[Decimal(n) for n in numbers]], pa.decimal128(15, 2)),
            "s": pa.chunked_array([[str(n) for n in numbers]]).dictionary_encode(),
            "few": pa.chunked_array(
                [pa.array([_few(n) for n in part]).dictionary_encode() for part in _halves(numbers)]
            ),
            "i": pa.chunked_array([sorted(numbers)], pa.int32()),
            "day": pa.chunked_array([sorted(numbers)], pa.int32()).cast(pa.date32()),
        }
        return pa.table({c: columns_of[c] for c in columns if c in columns_of and (c != "s" or most_texts >= ROWS * 8)})

    def cached(self, **limits: int) -> ColumnCache:
        return ColumnCache(self.of, self, **limits)


def _halves(values: list[int]) -> tuple[list[int], list[int]]:
    return values[:50], values[50:]


def _few(number: int) -> str | None:
    """A text that repeats."""
    return (None, "", "a ", "ä")[number % 4]


K, D, S = ("k", pa.int64()), ("d", pa.decimal128(15, 2)), ("s", pa.string())
VALUES = pa.array(range(0, 60, 2), pa.int64())


def main(version: int = 0) -> Main:
    return Main(version, version, 1, ROWS, 1 << 30)


@pytest.fixture
def files() -> Files:
    return Files()


def test_columns_are_kept_when_rows_are_looked_up_again(files: Files) -> None:
    cache = files.cached()
    assert cache.rows(1, main(), "k", VALUES, [K, D]) is None
    for _ in range(3):
        found = cache.rows(1, main(), "k", VALUES, [D, K])
        assert found is not None
        assert found.column_names == ["d", "k"]
        assert sorted(found.column("k").to_pylist()) == VALUES.to_pylist()
        assert found.column("d").to_pylist() == [Decimal(k) for k in found.column("k").to_pylist()]
    assert files.read == [(1, "0", ("d", "k"))]


def test_a_lookup_that_wants_more_reads_only_what_is_missing(files: Files) -> None:
    cache = files.cached()
    for fields in ([K], [K], [K, D]):
        cache.rows(1, main(), "k", VALUES, fields)
    assert files.read == [(1, "0", ("k",)), (1, "0", ("d",))]


@pytest.mark.parametrize(
    ("values", "fields"),
    [
        (VALUES.slice(0, 20), [K]),  # pruned by statistics
        (VALUES.cast(pa.string()), [K]),
        (VALUES, [K, ("b", pa.binary())]),  # neither of a fixed width nor a text
        (VALUES, [K, ("a.b", pa.int64())]),  # Arrow takes it for a field
        (VALUES, [K, *[D] * 5, *((f"d{i}", D[1]) for i in range(8))]),  # wide
    ],
)
def test_other_lookups_stay_with_the_files(
    files: Files, values: pa.Array, fields: list[tuple[str, pa.DataType]]
) -> None:
    cache = files.cached()
    assert [cache.rows(1, main(), "k", values, fields) for _ in range(3)] == [None] * 3
    assert files.read == []


def test_few_values_are_looked_up_in_columns_that_are_kept(files: Files) -> None:
    """Nothing is read for them: without one column of one file they stay with the files."""
    cache = files.cached()
    few = VALUES.slice(3, 2)
    for _ in range(2):
        cache.rows(1, main(), "k", VALUES, [K])
    found = cache.rows(1, main(), "k", few, [K])
    assert found is not None
    assert sorted(found.column("k").to_pylist()) == few.to_pylist()
    assert cache.rows(1, main(), "k", few, [K, D]) is None
    assert cache.rows(1, main(1), "k", few, [K]) is None
    assert cache.rows(2, main(), "k", few, [K]) is None
    assert files.read == [(1, "0", ("k",))]


def test_texts_are_kept_whether_they_repeat_or_not(files: Files) -> None:
    cache = files.cached()
    few = ("few", pa.string())
    found = [cache.rows(1, main(), "k", VALUES, [K, S, few]) for _ in range(3)]
    assert found[0] is None
    for rows in found[1:]:
        assert rows is not None
        assert rows.schema.types == [pa.int64(), pa.string(), pa.string()]
        numbers = rows.column("k").to_pylist()
        assert sorted(numbers) == VALUES.to_pylist()
        assert rows.column("s").to_pylist() == [str(n) for n in numbers]
        assert rows.column("few").to_pylist() == [_few(n) for n in numbers]
    assert files.read == [(1, "0", ("k", "s", "few"))]


def test_texts_that_take_too_much_are_asked_for_once_and_left_to_the_files(files: Files) -> None:
    """Each is thought to have 16 bytes before; a column may take a quarter of what is kept."""
    cache = files.cached(budget=ROWS * 24)
    assert [cache.rows(1, main(), "k", VALUES, [K, S]) for _ in range(4)] == [None] * 4
    assert files.read == [(1, "0", ("k", "s"))]


@pytest.mark.parametrize("text", [lambda k: f"{k:05}" * 400, lambda k: f"{k % 20:05}" * 400], ids=["each", "few"])
def test_a_column_of_large_texts_is_not_read(
    wh: Warehouse, monkeypatch: pytest.MonkeyPatch, text: Callable[[int], str]
) -> None:
    """Law: the bytes of a column of texts are known before it is read. Texts that repeat take those of the different
    ones, in the file and in memory."""
    wh.sql("CREATE TABLE t (k BIGINT, s STRING, PRIMARY KEY (k))")
    with wh.transaction() as tx:
        tx.insert("t", [{"k": k, "s": text(k)} for k in range(2000)])
    wh.sql("CHECKPOINT t")
    internals(wh).keep_in_memory(0)
    state, reader = internals(wh).state("t"), internals(wh).reader
    reader.columns._most_texts = 1 << 20
    made: list[pa.Table] = []
    read_file = reader.columns._read

    def read(*given: Any) -> pa.Table:
        made.append(read_file(*given))
        return made[-1]

    monkeypatch.setattr(reader.columns, "_read", read)
    for _ in range(3):
        rows = reader.matching(state, (("k", Among(pa.array(range(40), pa.int64()))),), columns=("k", "s"), limit=100)
        assert rows is not None
        assert {r["k"]: r["s"] for r in rows.to_pylist()} == {k: text(k) for k in range(40)}
    assert [table.nbytes < 1 << 20 for table in made] == [True]
    assert [("s" in table.column_names) for table in made] == [text(0) == text(20)]


def test_a_column_that_no_file_has_is_left_to_the_files(files: Files) -> None:
    cache = files.cached()
    assert [cache.rows(1, main(), "k", VALUES, [K, ("later", pa.int32())]) for _ in range(3)] == [None] * 3


def test_what_does_not_fit_the_budget_is_not_read(files: Files) -> None:
    cache = files.cached(budget=ROWS * 20)
    assert [cache.rows(1, main(), "k", VALUES, [K, D]) for _ in range(3)] == [None] * 3
    assert files.read == []


def test_a_warehouse_can_be_opened_without_it(tmp_path: Path) -> None:
    with freshview.connect(tmp_path / "w", lookup_memory=0) as wh:
        assert internals(wh).storage.reader.columns.budget == 0
    with pytest.raises(InvalidStatement, match="lookup_memory -1"):
        freshview.connect(tmp_path / "v", lookup_memory=-1)
    assert not (tmp_path / "v").exists()


def test_columns_that_displace_each_other_are_left_to_the_files(files: Files) -> None:
    """A budget for one of two relations: each is read a few times, and then no more."""
    cache = files.cached(budget=ROWS * 30)
    for _ in range(10):
        found = [cache.rows(relation, main(), "k", VALUES, [K, D]) for relation in (1, 2)]
    assert len(files.read) <= 2 * 2 * 3
    assert found == [None, None]


def test_a_version_with_more_files_has_only_those_read(files: Files) -> None:
    cache = files.cached()
    wanted = pa.array(range(150, 450), pa.int64())
    for version, expected in ((0, 50), (0, 50), (1, 250), (2, 300), (1, 250)):
        found = cache.rows(1, main(version), "k", wanted, [K, S])
        if found is not None:
            assert sorted(found.column("k").to_pylist()) == list(range(150, 150 + expected))
            assert found.column("s").to_pylist() == list(map(str, found.column("k").to_pylist()))
    assert files.read == [(1, str(i), ("k", "s")) for i in range(3)]


@pytest.mark.parametrize("by", ["i", "day", "k"])
def test_what_is_kept_takes_no_more_memory_than_it_counts(files: Files, by: str) -> None:
    """Law: the buffers of columns and indexes together, each once, are within what is counted. Narrow integers that are
    in order already have an index of their own all the same, in 64 bits."""
    cache = files.cached()
    type_ = {"i": pa.int32(), "day": pa.date32(), "k": pa.int64()}[by]
    values = pa.array(range(60), pa.int32()).cast(type_)
    for _ in range(2):
        found = cache.rows(1, main(3), by, values, [(by, type_), ("few", pa.string())])
    assert found is not None
    buffers: dict[int, int] = {}
    for kept in cache._kept.values():
        if isinstance(kept, index_module.Index):
            arrays = [kept.ordered] + ([kept.rows] if kept.rows is not None else [])
            buffers |= {array.ctypes.data: array.nbytes for array in arrays}
        else:
            parts = [kept.indices, kept.dictionary] if isinstance(kept, pa.DictionaryArray) else [kept]
            buffers |= {b.address: b.size for part in parts for b in part.buffers() if b is not None}
    assert sum(buffers.values()) <= 1.01 * cache._kept.currsize


def test_lookups_in_other_columns_do_not_wait_for_one_that_is_read(files: Files) -> None:
    """A column is read by one thread; another that wants it waits, and finds it. All others go on."""
    cache = files.cached()
    for relation in (1, 2):
        for _ in range(2):
            assert cache.rows(relation, main(), "k", VALUES, [K]) is None or relation
    is_read, may_end = threading.Event(), threading.Event()

    def wait(columns: Sequence[str]) -> None:
        if "d" in columns:
            is_read.set()
            assert may_end.wait(30)

    files.wait = wait
    found: list[pa.Table | None] = []
    threads = [threading.Thread(target=lambda: found.append(cache.rows(1, main(), "k", VALUES, [D]))) for _ in "ab"]
    threads[0].start()
    assert is_read.wait(30)
    threads[1].start()
    for relation, fields in ((1, [K]), (2, [K]), (2, [S]), (1, [S])):
        other = threading.Thread(target=cache.rows, args=(relation, main(), "k", VALUES, fields))
        other.start()
        other.join(30)
        assert not other.is_alive()
    may_end.set()
    for thread in threads:
        thread.join(30)
    assert [rows.num_rows if rows is not None else None for rows in found] == [len(VALUES)] * 2
    assert files.read.count((1, "0", ("d",))) == 1


def test_no_more_rows_than_the_limit_are_taken(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """One row more tells that there are too many. Conditions on other columns are asked before rows are counted."""
    taken: list[int] = []
    take = index_module._taken

    def counted(column: pa.Array, places: pa.Array) -> pa.Array:
        taken.append(len(places))
        return take(column, places)

    monkeypatch.setattr(index_module, "_taken", counted)
    cache, values = files.cached(), pa.array(range(4 * ROWS), pa.int64())
    assert cache.rows(1, main(3), "k", values, [K], limit=10) is None
    rows = cache.rows(1, main(3), "k", values, [K], limit=250)
    assert rows is not None
    assert rows.num_rows == 251 == sum(taken)
    below = (("i", pa.int32(), Compared("<", pa.scalar(5, pa.int32()))),)
    for _ in range(2):
        rows = cache.rows(1, main(3), "k", values, [("i", pa.int32())], limit=10, others=below)
    assert rows is not None
    assert rows.column("i").to_pylist() == [0, 1, 2, 3, 4]
    taken.clear()
    rows = cache.rows(1, main(3), "k", pa.array([0] * 30 + [3 * ROWS]), [K], limit=10)
    assert rows is not None
    assert sorted(rows.column("k").to_pylist()) == [0, 3 * ROWS]


@given(_HELD, _WANTED, st.integers(0, 20))
def test_the_index_gives_no_more_places_than_are_asked_for(
    held: list[int | None], wanted: list[int], most: int
) -> None:
    index, values = index_of(pa.array(held, pa.int64())), in_order(pa.array(wanted, pa.int64()))
    places = index.places(values).to_pylist()
    some = index.places(values, most).to_pylist()
    assert len(some) == min(len(places), most)
    assert set(some) <= set(places)


def test_null_is_no_value_of_a_lookup() -> None:
    with pytest.raises(AssertionError, match="NULL"):
        in_order(pa.array([1, None], pa.int64()))


def test_a_version_of_new_files_serves_a_lookup_from_them_first(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that has written all files again does not make the next lookup read whole columns."""
    monkeypatch.setattr(files, "of", lambda _, version: [DataFile(f"1-{version}", 1 << 30, ROWS)])
    cache = files.cached()
    for version in (0, 0, 0):
        cache.rows(1, main(version), "k", VALUES, [K])
    values = pa.array(range(ROWS, ROWS + 30), pa.int64())
    found = [cache.rows(1, main(1), "k", values, [K]) for _ in range(2)]
    assert [rows is None for rows in found] == [True, False]
    assert files.read == [(1, "0", ("k",)), (1, "1", ("k",))]


def test_what_is_kept_of_files_that_are_gone_goes(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint has written other files: room is made at once, and the last readers of the old ones read them."""
    monkeypatch.setattr(files, "of", lambda _, version: [DataFile(f"1-{version}", 1 << 30, ROWS)])
    cache = files.cached(budget=ROWS * 40)
    for version in (0, 0, 1, 1, 1):
        cache.rows(1, main(version), "k", pa.array(range(2 * ROWS), pa.int64()), [K])
    assert files.read == [(1, "0", ("k",)), (1, "1", ("k",))]
    assert cache._kept.currsize <= ROWS * 8 + ROWS * 12


def test_lookups_by_any_column_find_the_same_rows_with_and_without_the_index(wh: Warehouse) -> None:
    """Over main with segments on top, a renamed and an added column: the third lookup reads no file."""
    wh.sql("CREATE TABLE t (k BIGINT, n INT, d DATE, PRIMARY KEY (k))")
    with wh.transaction() as tx:
        days = [_DAY + dt.timedelta(days=i % 50) for i in range(2000)]
        tx.insert("t", [{"k": (i * 7) % 2000, "n": i % 90 or None, "d": days[i]} for i in range(2000)])
    wh.sql("CHECKPOINT t")
    wh.sql("ALTER TABLE t RENAME COLUMN n TO m")
    wh.sql("ALTER TABLE t ADD COLUMN later INT")
    with wh.transaction() as tx:
        tx.upsert("t", [{"k": k, "m": 1, "d": _DAY, "later": 5} for k in (3, 5000)])
        tx.delete("t", [10])
    internals(wh).keep_in_memory(0)
    state, reader = internals(wh).state("t"), internals(wh).reader
    dates = [_DAY + dt.timedelta(days=n) for n in range(25)]
    for name, values in (
        ("k", pa.array(range(60), pa.int64())),
        ("m", pa.array(range(1, 40), pa.int32())),
        ("d", pa.array(dates, pa.date32())),
    ):
        found = []
        for _ in range(4):
            rows = reader.matching(state, ((name, Among(values)),), columns=("k", "m", "d"), limit=10_000)
            assert rows is not None
            found.append(sorted(rows.to_pylist(), key=lambda r: r["k"]))
        assert found[0]
        assert found[1:] == found[:1] * 3
        assert all(row[name] in values.to_pylist() for row in found[0])


def test_lookups_by_several_columns_find_the_same_rows_with_and_without_the_index(wh: Warehouse) -> None:
    """Of several conditions one list of values is looked up; the others are asked of the rows found."""
    wh.sql("CREATE TABLE t (k BIGINT, n INT, d DATE, PRIMARY KEY (k, n))")
    with wh.transaction() as tx:
        tx.insert("t", [{"k": i % 500, "n": i // 500, "d": _DAY + dt.timedelta(days=i % 50)} for i in range(2000)])
    wh.sql("CHECKPOINT t")
    internals(wh).keep_in_memory(0)
    state, reader = internals(wh).state("t"), internals(wh).reader
    conditions = (
        ("k", Among(pa.array(range(60), pa.int64()))),
        ("n", Among(pa.array([1, 3], pa.int32()))),
        ("d", Compared("<", pa.scalar(_DAY + dt.timedelta(days=30)))),
    )
    found = []
    for _ in range(4):
        rows = reader.matching(state, conditions, columns=("n",), limit=10_000)
        assert rows is not None
        assert rows.column_names == ["n"]
        found.append(sorted(rows.column(0).to_pylist()))
    assert found == [[1] * 40 + [3] * 40] * 4
    with_nulls = (("k", Among(pa.array(range(60), pa.int64()), nulls=True)), *conditions[1:])
    for _ in range(3):
        rows = reader.matching(state, with_nulls, columns=("n",), limit=10_000)
        assert rows is not None
        assert sorted(rows.column(0).to_pylist()) == found[0]
    keys = pa.table({"k": pa.array(range(30), pa.int64()), "n": pa.array([i % 5 for i in range(30)], pa.int32())})
    expected = [(i, i % 5) for i in range(30) if i % 5 < 4]
    for _ in range(3):
        assert sorted((r["k"], r["n"]) for r in reader.lookup(state, keys).to_pylist()) == expected


def test_long_lists_of_values_are_looked_up_by_the_index_alone(wh: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list that is too long for a query is answered from memory at once, or not at all where columns are not kept."""
    monkeypatch.setattr(reader_module, "_LITERAL_KEYS", 30)
    monkeypatch.setattr(index_module, "MANY", 30)
    wh.sql("CREATE TABLE t (k BIGINT, n INT, b BINARY, PRIMARY KEY (k))")
    with wh.transaction() as tx:
        tx.insert("t", [{"k": k, "n": k % 7, "b": b"x"} for k in range(2000)])
    wh.sql("CHECKPOINT t")
    wh.sql("DELETE FROM t WHERE k = 11")
    internals(wh).keep_in_memory(0)
    state, reader = internals(wh).state("t"), internals(wh).reader
    among = (("k", Among(pa.array(range(10, 110), pa.int64()))),)
    for _ in range(2):
        found = reader.matching(state, among, columns=("n",), limit=1000)
        assert found is not None
        assert sorted(found.column("n").to_pylist()) == sorted(k % 7 for k in range(10, 110) if k != 11)
        assert reader.matching(state, among, columns=("b",), limit=1000) is None
    assert reader.matching(state, among, columns=("n",), limit=50) is None


def test_null_is_looked_up_in_the_files_of_a_column_that_has_it(wh: Warehouse) -> None:
    wh.sql("CREATE TABLE t (k BIGINT, n INT, PRIMARY KEY (k))")
    with wh.transaction() as tx:
        tx.insert("t", [{"k": k, "n": k % 50 or None} for k in range(1000)])
    wh.sql("CHECKPOINT t")
    internals(wh).keep_in_memory(0)
    state, reader = internals(wh).state("t"), internals(wh).reader
    for nulls in (True, False):
        for _ in range(4):
            among = (("n", Among(pa.array(range(1, 31), pa.int32()), nulls)),)
            rows = reader.matching(state, among, columns=("k",), limit=10_000)
            assert rows is not None
            expected = [k for k in range(1000) if k % 50 in range(1, 31) or (nulls and k % 50 == 0)]
            assert sorted(rows.column(0).to_pylist()) == expected


@pytest.mark.parametrize("seed", range(3))
def test_lookups_through_versions_of_main_find_the_rows_of_a_copy(wh: Warehouse, seed: int) -> None:
    """Law: with columns kept of some files, of files that a checkpoint has replaced, and with changes on top."""
    draw = random.Random(seed)
    wh.sql("CREATE TABLE t (k BIGINT, n INT, s STRING, few STRING, PRIMARY KEY (k))")
    copy: dict[int, tuple[int | None, str | None, str | None]] = {}
    internals(wh).keep_in_memory(0)
    for _ in range(12):
        keys = draw.sample(range(3000), 300)
        with wh.transaction() as tx:
            gone = [k for k in keys[:60] if k in copy]
            if gone:
                tx.delete("t", gone)
            rows = {k: (draw.choice((None, k % 50)), draw.choice((None, f"ä {k}", "")), _few(k)) for k in keys[60:]}
            tx.upsert("t", [{"k": k, "n": n, "s": s, "few": few} for k, (n, s, few) in rows.items()])
        for k in gone:
            del copy[k]
        copy |= rows
        if draw.random() < 0.6:
            wh.sql("CHECKPOINT t")
        state, reader = internals(wh).state("t"), internals(wh).reader
        columns = tuple(draw.sample(("k", "n", "s", "few"), draw.randint(1, 4)))
        wanted = draw.sample(range(3000), 400)
        lists: list[tuple[str, pa.Array, int | None]]
        lists = [("k", pa.array(wanted[:n], pa.int64()), None) for n in (400, 15)]
        lists += [("n", pa.array(range(n), pa.int32()), 0) for n in (25, 3)]
        for name, values, at in lists:
            found = reader.matching(state, ((name, Among(values)),), columns=columns, limit=10_000)
            assert found is not None
            admitted, place = set(values.to_pylist()), {"n": 0, "s": 1, "few": 2}
            expected = [
                tuple(k if c == "k" else row[place[c]] for c in columns)
                for k, row in copy.items()
                if (k if at is None else row[at]) in admitted
            ]
            assert sorted(map(repr, zip(*found.to_pydict().values(), strict=True))) == sorted(map(repr, expected))


def test_of_two_short_lists_the_one_is_looked_up_whose_column_is_kept(
    wh: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    wh.sql("CREATE TABLE t (k BIGINT, n INT, PRIMARY KEY (k))")
    with wh.transaction() as tx:
        tx.insert("t", [{"k": k, "n": k % 50} for k in range(1000)])
    wh.sql("CHECKPOINT t")
    internals(wh).keep_in_memory(0)
    state, reader, mains = internals(wh).state("t"), internals(wh).reader, internals(wh).storage.mains
    both = ("k", Among(pa.array([7, 57, 58], pa.int64()))), ("n", Among(pa.array([1, 2, 3, 7], pa.int32())))
    many = (("k", Among(pa.array(range(30), pa.int64()))),)
    for _ in range(3):
        assert reader.matching(state, many, columns=("k", "n"), limit=99) is not None
    monkeypatch.setattr(mains, "query", lambda *_: pytest.fail("files are read"))
    rows = reader.matching(state, both, columns=("k",), limit=99)
    assert rows is not None
    assert rows.column(0).to_pylist() == [7, 57]
