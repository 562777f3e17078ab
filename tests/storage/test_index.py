"""Columns of large mains in memory: lookups by their index find what lookups in the files find."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.internals import internals

import freshview
from freshview import Warehouse
from freshview.catalog.records import Main
from freshview.errors import InvalidStatement
from freshview.relation.conditions import Among, Compared
from freshview.storage import index as index_module
from freshview.storage import reader as reader_module
from freshview.storage.index import ColumnCache, index_of

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
    places = index_of(pa.array(column, pa.int64())).places(pa.array(wanted, pa.int64())).to_pylist()
    assert places == [i for i, value in enumerate(column) if value is not None and value in wanted]


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32(), pa.date32()])
def test_narrow_integers_and_dates_have_an_index(kind: pa.DataType) -> None:
    values = [_DAY + dt.timedelta(days=n) if kind == pa.date32() else n for n in (5, -3, 5, 0)]
    assert index_of(pa.array(values, kind)).places(pa.array(values[:1], kind)).to_pylist() == [0, 2]


class Files:
    """Versions of main as files, and which columns were read."""

    def __init__(self) -> None:
        self.read: list[tuple[int, int, tuple[str, ...]]] = []

    def __call__(self, relation_id: int, version: int, columns: Sequence[str]) -> pa.Table:
        self.read.append((relation_id, version, tuple(columns)))
        numbers = [(7 * i) % ROWS for i in range(ROWS)]
        columns_of = {
            "k": pa.chunked_array([numbers[:50], numbers[50:]], pa.int64()),
            "d": pa.chunked_array([[Decimal(n) for n in numbers]], pa.decimal128(15, 2)),
            "s": pa.chunked_array([[str(n) for n in numbers]]),
        }
        return pa.table({c: columns_of[c] for c in columns if c in columns_of})


K, D, S = ("k", pa.int64()), ("d", pa.decimal128(15, 2)), ("s", pa.string())
VALUES = pa.array(range(0, 60, 2), pa.int64())


def main(version: int = 0) -> Main:
    return Main(version, version, 1, ROWS, 1 << 30)


@pytest.fixture
def files() -> Files:
    return Files()


def test_columns_are_kept_when_rows_are_looked_up_again(files: Files) -> None:
    cache = ColumnCache(files)
    assert cache.rows(1, main(), "k", VALUES, [K, D]) is None
    for _ in range(3):
        found = cache.rows(1, main(), "k", VALUES, [D, K])
        assert found is not None
        assert found.column_names == ["d", "k"]
        assert sorted(found.column("k").to_pylist()) == VALUES.to_pylist()
        assert found.column("d").to_pylist() == [Decimal(k) for k in found.column("k").to_pylist()]
    assert files.read == [(1, 0, ("d", "k"))]


def test_a_lookup_that_wants_more_reads_only_what_is_missing(files: Files) -> None:
    cache = ColumnCache(files)
    for fields in ([K], [K], [K, D]):
        cache.rows(1, main(), "k", VALUES, fields)
    assert files.read == [(1, 0, ("k",)), (1, 0, ("d",))]


@pytest.mark.parametrize(
    ("values", "fields"),
    [
        (VALUES.slice(0, 20), [K]),  # pruned by statistics
        (VALUES.cast(pa.string()), [K]),
        (VALUES, [K, S]),  # of no fixed width
        (VALUES, [K, ("a.b", pa.int64())]),  # Arrow takes it for a field
        (VALUES, [K, *[D] * 5, *((f"d{i}", D[1]) for i in range(4))]),  # wide
    ],
)
def test_other_lookups_stay_with_the_files(
    files: Files, values: pa.Array, fields: list[tuple[str, pa.DataType]]
) -> None:
    cache = ColumnCache(files)
    assert [cache.rows(1, main(), "k", values, fields) for _ in range(3)] == [None] * 3
    assert files.read == []


def test_a_column_that_no_file_has_is_left_to_the_files(files: Files) -> None:
    cache = ColumnCache(files)
    assert [cache.rows(1, main(), "k", VALUES, [K, ("later", pa.int32())]) for _ in range(3)] == [None] * 3


def test_what_does_not_fit_the_budget_is_not_read(files: Files) -> None:
    cache = ColumnCache(files, budget=ROWS * 20)
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
    cache = ColumnCache(files, budget=ROWS * 30)
    for _ in range(10):
        found = [cache.rows(relation, main(), "k", VALUES, [K, D]) for relation in (1, 2)]
    assert len(files.read) <= 2 * 2 * 3
    assert found == [None, None]


def test_a_newer_version_takes_the_place_of_an_older_one(files: Files) -> None:
    cache = ColumnCache(files, budget=ROWS * 40)
    for version in (0, 0, 1, 1, 1):
        cache.rows(1, main(version), "k", VALUES, [K])
    assert files.read == [(1, 0, ("k",)), (1, 1, ("k",))]


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
    wh.sql("CREATE TABLE t (k BIGINT, n INT, s STRING, PRIMARY KEY (k))")
    with wh.transaction() as tx:
        tx.insert("t", [{"k": k, "n": k % 7, "s": str(k)} for k in range(2000)])
    wh.sql("CHECKPOINT t")
    wh.sql("DELETE FROM t WHERE k = 11")
    internals(wh).keep_in_memory(0)
    state, reader = internals(wh).state("t"), internals(wh).reader
    among = (("k", Among(pa.array(range(10, 110), pa.int64()))),)
    for _ in range(2):
        found = reader.matching(state, among, columns=("n",), limit=1000)
        assert found is not None
        assert sorted(found.column("n").to_pylist()) == sorted(k % 7 for k in range(10, 110) if k != 11)
        assert reader.matching(state, among, columns=("s",), limit=1000) is None
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
