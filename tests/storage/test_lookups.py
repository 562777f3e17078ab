"""How long lists of values are put to the reader of main: as a few ranges too, by which it skips what it can."""

from __future__ import annotations

import datetime as dt
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.internals import internals

from freshview import Warehouse
from freshview.algebra.nodes import Scan, Table
from freshview.refresh import lookups as lookups_module
from freshview.refresh.lookups import Lookups
from freshview.relation.conditions import OPERATORS, Among, Compared
from freshview.storage import cache as cache_module
from freshview.storage import reader as reader_module
from freshview.storage.reader import condition_sql, is_answered, ranges_of

WHOLE = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(0, 100))


@given(st.lists(WHOLE, min_size=1, max_size=60, unique=True))
def test_ranges_hold_all_values(values: list[int]) -> None:
    """Law: each value lies in one of a few ranges, which begin and end at values and are in order."""
    ranges = [(values[low], values[high]) for low, high in ranges_of(pa.array(values, pa.int64()))]
    assert 1 <= len(ranges) <= 8
    assert all(low <= high for low, high in ranges)
    assert all(a[1] < b[0] for a, b in pairwise(ranges))
    assert all(any(low <= v <= high for low, high in ranges) for v in values)


def test_ranges_leave_out_wide_gaps_only() -> None:
    near_two = [*range(100), *range(1_000_000, 1_000_100)]
    assert len(ranges_of(pa.array(near_two, pa.int64()))) > 1
    assert len(ranges_of(pa.array(range(0, 10_000, 7), pa.int64()))) == 1
    days = [dt.date(2020, 1, 1) + dt.timedelta(days=n) for n in range(30)]
    assert ranges_of(pa.array(days)) == [(0, 29)]


@given(
    st.one_of(
        st.lists(st.integers(-(2**31), 2**31 - 1)).map(lambda v: pa.array(v, pa.int32()).cast(pa.date32())),
        st.lists(st.integers(-719_164, -719_160)).map(lambda v: pa.array(v, pa.int32()).cast(pa.date32())),
        st.lists(st.integers(2_932_894, 2_932_899)).map(lambda v: pa.array(v, pa.int32()).cast(pa.date32())),
        st.lists(st.integers(0, 9)).map(lambda v: pa.array(v, pa.int16())),
        st.lists(st.text()).map(lambda v: pa.array(v, pa.string())),
        st.lists(st.booleans()).map(lambda v: pa.array(v, pa.bool_())),
    ),
    st.booleans(),
)
def test_a_condition_is_answered_if_it_has_literals(values: pa.Array, nulls: bool) -> None:
    """Law: which is known without building them."""
    condition = Among(values, nulls)
    assert is_answered(condition) is (condition_sql("c", condition) is not None)


def test_lookups_in_a_small_main_use_an_index(wh: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: rows and their order are those of a comparison with all rows: also by a column with NULLs, by several, and
    after a checkpoint has written another version."""
    wh.sql("CREATE TABLE t (k BIGINT, n INT, s STRING, PRIMARY KEY (k))")
    used: list[int] = []
    among = cache_module.MainCache.among

    def counted(*given: Any) -> pa.Table | None:
        found = among(*given)
        used.append(-1 if found is None else found.num_rows)
        return found

    monkeypatch.setattr(cache_module.MainCache, "among", counted)
    for turn in range(3):
        with wh.transaction() as tx:
            rows = [{"k": (i * 7) % 2000, "n": i % 90 or None, "s": str(turn)} for i in range(2000)]
            tx.upsert("t", rows)
        wh.sql("CHECKPOINT t")
        state, reader = internals(wh).state("t"), internals(wh).reader
        by_k, by_n = ("k", Among(pa.array([5, 1999, 77, 5000]))), ("n", Among(pa.array([3, 89], pa.int32())))
        below = ("k", Compared("<", pa.scalar(1000)))
        for conditions in ((by_k,), (by_n,), (by_n, by_k), (by_n, below), (("n", Among(by_n[1].values, nulls=True)),)):
            found = []
            for is_indexed in (False, True, True):
                with monkeypatch.context() as patched:
                    if not is_indexed:
                        patched.setattr(cache_module, "INDEXED", ())
                    found.append(reader.matching(state, conditions, columns=("k", "n", "s"), limit=10_000))
            assert found[0] is not None
            assert found[0].num_rows or conditions == (by_n, by_k)
            assert found[0].equals(found[1])
            assert found[0].equals(found[2])
    assert max(used) > 0


@pytest.mark.parametrize(
    ("condition", "text"),
    [
        (Among(pa.array([3, 1], pa.int32())), '("c""d" IN (3, 1))'),
        (Among(pa.array(["it's"])), "(\"c\"\"d\" IN ('it''s'))"),
        (Among(pa.array([], pa.int8()), nulls=True), '("c""d" IS NULL)'),
        (Among(pa.array([1], pa.int8()), nulls=True), '("c""d" IN (1) OR "c""d" IS NULL)'),
        (Compared("<=", pa.scalar(dt.date(2020, 1, 2))), '"c""d" <= DATE \'2020-01-02\''),
        (Compared(">", pa.scalar("b")), '"c""d" > \'b\''),
        (Compared(">", pa.scalar(1.5)), None),
        (Among(pa.array([1.5])), None),
        (Among(pa.array(range(20_001))), None),
    ],
)
def test_conditions_in_the_words_of_the_reader(condition: Among | Compared, text: str | None) -> None:
    assert condition_sql('c"d', condition) == text


def test_long_lists_are_put_as_ranges_too() -> None:
    values = [*range(15), *range(1000, 1015)]
    text = condition_sql("k", Among(pa.array(values), nulls=True))
    assert text is not None
    in_list, _, ranges = text.partition(" AND (")
    assert in_list.endswith(' OR "k" IS NULL)')
    assert ranges.startswith('"k" BETWEEN 0 AND')
    assert ranges.endswith('AND 1014 OR "k" IS NULL)')


def test_a_long_list_with_null_does_not_end_the_process(wh: Warehouse) -> None:
    """DataFusion's stack ended in a list of 10,000 values inside of (… AND …) OR …, and the process with it."""
    wh.sql("CREATE TABLE t (k BIGINT, n INT, PRIMARY KEY (k))")
    with wh.transaction() as tx:
        tx.insert("t", [{"k": k, "n": k if k % 2 else None} for k in range(60)])
    wh.sql("CHECKPOINT t")
    internals(wh).keep_in_memory(0)
    among = Among(pa.array(range(31, 20_031), pa.int32()), nulls=True)
    found = internals(wh).reader.matching(internals(wh).state("t"), (("n", among),), columns=("k",), limit=100)
    assert found is not None
    assert sorted(found.column("k").to_pylist()) == [k for k in range(60) if k % 2 == 0 or k > 30]


def test_long_lists_find_the_rows_that_hold_their_values(wh: Warehouse) -> None:
    wh.sql("CREATE TABLE t (k BIGINT, n INT, PRIMARY KEY (k))")
    with wh.transaction() as tx:
        tx.insert("t", [{"k": k * 3, "n": k} for k in range(2000)])
    wh.sql("CHECKPOINT t")
    internals(wh).keep_in_memory(0)
    state = internals(wh).state("t")
    wanted = [*range(40), *range(5000, 5050), -(2**63), 2**63 - 1]
    found = internals(wh).reader.lookup(state, pa.table({"k": pa.array(wanted, pa.int64())}))
    assert sorted(found.column("k").to_pylist()) == [w for w in wanted if 0 <= w < 6000 and w % 3 == 0]
    among = Among(pa.array(range(100, 130), pa.int32()))
    close = internals(wh).reader.matching(state, (("n", among),), columns=("k",), limit=100)
    assert close is not None
    assert sorted(close.column("k").to_pylist()) == [n * 3 for n in range(100, 130)]


def test_main_is_sorted_on_its_key_where_the_driver_writes_it(wh: Warehouse) -> None:
    """Rows that were updated do not end up behind all others; pages have an index by which readers skip them."""
    wh.sql("CREATE TABLE t (s STRING, k INT, d DECIMAL(5,2), PRIMARY KEY (k, s))")
    with wh.transaction() as tx:
        tx.insert("t", [{"s": s, "k": k, "d": k} for k in (5, 3, 9, -1) for s in ("b", "a")])
    for _ in ("adopt", "rewrite"):
        internals(wh).checkpoint("t")
        (file,) = internals(wh).main_files("t")
        path = internals(wh).folder("t") / file.path
        rows = pq.read_table(path).select(["k", "s"]).to_pylist()
        assert rows == sorted(rows, key=lambda r: (r["k"], r["s"]))
        assert len(rows) == 8
        column = pq.read_metadata(path).row_group(0).column(1)
        assert column.has_offset_index
        assert column.has_column_index
        with wh.transaction() as tx:
            tx.upsert("t", [{"s": "a", "k": k, "d": 0} for k in (-1, 3, 5)])


def test_types_without_an_order_in_arrow_are_kept_too(wh: Warehouse) -> None:
    wh.sql("CREATE TABLE t (b BINARY, f BOOLEAN, ts TIMESTAMP, m MAP<INT, INT>, PRIMARY KEY (b, f, ts))")
    with wh.transaction() as tx:
        tx.insert(
            "t",
            [
                {"b": b, "f": f, "ts": dt.datetime(2020, 1, 1, tzinfo=dt.UTC)}
                for b in (b"x", b"")
                for f in (True, False)
            ],
        )
    internals(wh).checkpoint("t")
    with wh.transaction() as tx:
        tx.delete("t", [{"b": b"x", "f": True, "ts": dt.datetime(2020, 1, 1, tzinfo=dt.UTC)}])
    internals(wh).checkpoint("t")
    assert internals(wh).rows("t").num_rows == 3


VALUES = st.lists(st.integers(-5, 5), max_size=4, unique=True)
CONDITIONS = st.one_of(
    VALUES.map(lambda v: Among(pa.array(v, pa.int32()))),
    st.builds(lambda o, v: Compared(o, pa.scalar(v, pa.int32())), st.sampled_from(list(OPERATORS)), st.integers(-5, 5)),
)


@given(CONDITIONS, st.lists(st.integers(-5, 5), min_size=1))
def test_bounds_exclude_only_rows_that_meet_no_condition(condition: Among | Compared, held: list[int]) -> None:
    """Law: a condition that some value between two bounds meets may be met within the bounds."""
    met = [
        v for v in range(min(held), max(held) + 1) if condition.met_by(pa.chunked_array([[v]], pa.int32()))[0].as_py()
    ]
    allowed = condition.is_met_within(min(held), max(held))
    assert allowed or not met
    if isinstance(condition, Compared) or len(condition.values) == 1:
        assert allowed == bool(met)


def test_row_groups_without_the_keys_are_not_read(wh: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of many new keys reads the bounds of row groups; keys that are there are found in theirs."""
    wh.sql("CREATE TABLE t (k INT, v STRING, PRIMARY KEY (k))")
    for start in (0, 1000, 2000):
        with wh.transaction() as tx:
            tx.insert("t", [{"k": k, "v": "x"} for k in range(start, start + 100)])
        wh.sql("CHECKPOINT t")
    monkeypatch.setattr(reader_module, "_LITERAL_KEYS", 3)
    internals(wh).keep_in_memory(0)
    state, groups = internals(wh).state("t"), []
    read = pq.ParquetFile.read_row_group

    def counted(self: pq.ParquetFile, *a: Any, **k: Any) -> pa.Table:
        groups.append(a)
        return read(self, *a, **k)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", counted)
    for wanted, found, reads in (
        ([*range(3000, 3010)], 0, 0),
        ([*range(1050, 1060)], 10, 2),
        ([*range(500, 510)], 0, 0),
    ):
        groups.clear()
        keys = pa.table({"k": pa.array(wanted, pa.int32())})
        assert internals(wh).reader.lookup(state, keys).num_rows == found
        assert len(groups) == reads


@pytest.mark.parametrize("most", [20_000, 0])
def test_a_field_is_not_taken_for_a_column_with_a_dot(
    wh: Warehouse, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """The bounds of `a.b`, a field of the struct a, say nothing of the key `a.b`."""
    wh.sql("CREATE TABLE t (`a.b` INT, a STRUCT<b: INT>, PRIMARY KEY (`a.b`))")
    with wh.transaction() as tx:
        tx.insert("t", [{"a.b": k, "a": {"b": 1000}} for k in range(30)])
    wh.sql("CHECKPOINT t")
    monkeypatch.setattr(reader_module, "_LITERAL_KEYS", most)
    internals(wh).keep_in_memory(0)
    keys = pa.table({"a.b": pa.array([7, 1000], pa.int32())})
    assert internals(wh).reader.lookup(internals(wh).state("t"), keys).num_rows == 1


@pytest.mark.parametrize("kept", [0, 1 << 20])
def test_columns_that_main_does_not_have_yet_are_null(wh: Warehouse, kept: int) -> None:
    wh.sql("CREATE TABLE t (k INT)")
    with wh.transaction() as tx:
        tx.insert("t", [{"k": k} for k in (1, 1, 2)])
    wh.sql("CHECKPOINT t")
    wh.sql("ALTER TABLE t ADD COLUMN n INT")
    internals(wh).keep_in_memory(kept)
    for _ in range(2):
        condition = ("k", Among(pa.array([1], pa.int32())))
        found = internals(wh).reader.matching(internals(wh).state("t"), (condition,), columns=("n",), limit=9)
        assert found is not None
        assert found.to_pylist() == [{"n": None}] * 2


@pytest.mark.parametrize("kept", [0, 1 << 20])
def test_columns_that_no_file_of_main_has_are_null(wh: Warehouse, kept: int) -> None:
    """A checkpoint that only removes a file gives main a new column, and writes it nowhere."""
    wh.sql("CREATE TABLE t (k INT, v INT, PRIMARY KEY (k))")
    for some in (range(5), range(5, 100)):
        with wh.transaction() as tx:
            tx.insert("t", [{"k": k, "v": k} for k in some])
        wh.sql("CHECKPOINT t")
    wh.sql("ALTER TABLE t ADD COLUMN n INT")
    with wh.transaction() as tx:
        tx.delete("t", list(range(5)))
    assert internals(wh).checkpoint("t").strategy == "merge"
    internals(wh).keep_in_memory(kept)
    state, reader, last = internals(wh).state("t"), internals(wh).reader, ("v", Compared(">", pa.scalar(98)))
    for _ in range(3):
        keys = pa.table({"k": pa.array([7], pa.int32())})
        assert reader.lookup(state, keys).to_pylist() == [{"k": 7, "v": 7, "n": None}]
        for conditions, found in (
            ((("k", Among(pa.array([7], pa.int32()))),), [{"n": None, "v": 7}]),
            ((("n", Among(pa.array([7], pa.int32()))),), []),
            ((("n", Among(pa.array([], pa.int32()), nulls=True)), last), [{"n": None, "v": 99}]),
        ):
            rows = reader.matching(state, conditions, columns=("n", "v"), limit=9)
            assert rows is not None
            assert rows.to_pylist() == found


def test_a_lookup_that_met_too_many_rows_is_not_tried_again(wh: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many values of the column are left to Spark at once; fewer ones are tried."""
    wh.sql("CREATE TABLE t (k BIGINT, n INT, PRIMARY KEY (k))")
    with wh.transaction() as tx:
        tx.insert("t", [{"k": k, "n": k % 10} for k in range(1000)])
    wh.sql("CHECKPOINT t")
    internals(wh).keep_in_memory(0)
    state, reader, mains = internals(wh).state("t"), internals(wh).reader, internals(wh).storage.mains
    asked: list[str] = []
    query = mains.query

    def counted(relation_id: int, version: int, sql: str) -> pa.Table:
        asked.append(sql)
        return query(relation_id, version, sql)

    monkeypatch.setattr(mains, "query", counted)

    def found(values: list[int]) -> int | None:
        rows = reader.matching(state, (("n", Among(pa.array(values, pa.int32()))),), columns=("k",), limit=250)
        return None if rows is None else rows.num_rows

    assert found([1, 2, 3]) is None
    assert found([4, 5, 6]) is None
    assert len(asked) == 1
    assert found([1, 2]) == 200
    assert len(asked) == 2


def test_a_scan_that_nothing_restricts_is_read_whole_where_main_is_in_memory(
    wh: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With changes on top. A small relation is folded later; one of too many rows, or with a large main, is Spark's."""
    wh.sql("CREATE TABLE t (k BIGINT, n INT, PRIMARY KEY (k))")
    with wh.transaction() as tx:
        tx.insert("t", [{"k": k, "n": k % 10} for k in range(12_000)])
    wh.sql("CHECKPOINT t")
    with wh.transaction() as tx:
        tx.delete("t", [5])
        tx.upsert("t", [{"k": 7, "n": 70}, {"k": 12_000, "n": None}])
    scan = Scan(Table("t"), (("n", "x"),), "new")

    def whole() -> pa.Table | None:
        state = internals(wh).state("t")
        return Lookups(internals(wh).reader, lambda _: state, {}).table(scan)

    rows = whole()
    assert rows is not None
    assert rows.column_names == ["n"]
    expected = [70 if k == 7 else k % 10 for k in range(12_000) if k != 5] + [None]
    assert sorted(rows.column("n").to_pylist(), key=str) == sorted(expected, key=str)
    for limit, value in (("LOCAL_ROWS", 20_000), ("_ROWS", 11_000)):
        with monkeypatch.context() as other:
            other.setattr(lookups_module, limit, value)
            assert whole() is None
    internals(wh).keep_in_memory(0)
    assert whole() is None
