"""Checkpoint: folding segments into main changes no answer at any CSN, by whichever way and after any crash."""

from __future__ import annotations

import json
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.internals import apply_in, internals
from tests.storage.model import play

import freshview
from freshview import Warehouse
from freshview.events import Event
from freshview.storage import checkpoint as checkpoint_module
from freshview.storage import segments
from freshview.storage.checkpoint import CheckpointReport, choose

Bag = Counter[tuple[Any, ...]]
Contents = Callable[..., Bag]


class Killed(BaseException):
    """Stands for the end of the process: nothing after it runs."""


def run(wh: Warehouse, name: str = "t") -> CheckpointReport:
    return internals(wh).checkpoint(name)


def folder(wh: Warehouse, name: str = "t") -> Path:
    return internals(wh).folder(name)


def strategy(wh: Warehouse, name: str = "t") -> str:
    return choose(internals(wh).state(name))


def upsert(wh: Warehouse, *rows: dict[str, Any], name: str = "t") -> None:
    with wh.transaction() as tx:
        tx.upsert(name, list(rows))


def insert(wh: Warehouse, *rows: dict[str, Any], name: str = "t") -> None:
    with wh.transaction() as tx:
        tx.insert(name, list(rows))


@contextmanager
def as_files() -> Iterator[None]:
    """Statements of any size become Parquet segments."""
    before = segments.INLINE_BYTES
    segments.INLINE_BYTES = 0
    try:
        yield
    finally:
        segments.INLINE_BYTES = before


@contextmanager
def killed_at(wh: Warehouse, name: str) -> Iterator[None]:
    """The process ends when this event happens: leases and pins stay, until they are taken away by hand."""

    def listener(event: Event) -> None:
        if event.name == name:
            raise Killed(name)

    wh.events.listen(listener)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(internals(wh).catalog, "drop_leases", lambda _ids: set())
            patch.setattr(internals(wh).catalog, "release", lambda _pin: None)
            with pytest.raises(Killed):
                yield
    finally:
        wh.events._listeners.remove(listener)
        internals(wh).catalog.leave()


@pytest.fixture
def table(wh: Warehouse) -> Warehouse:
    wh.sql("CREATE TABLE t (k INT, v STRING, PRIMARY KEY (k))")
    return wh


@pytest.fixture
def big(table: Warehouse) -> Warehouse:
    """A checkpointed table of a hundred rows."""
    insert(table, *({"k": k, "v": "a"} for k in range(100)))
    assert run(table).strategy == "adopt"
    return table


# -- which way -------------------------------------------------------------------------------------------


def test_nothing_to_fold_is_nothing(table: Warehouse) -> None:
    assert run(table).strategy == "nothing"
    insert(table, {"k": 1})
    run(table)
    assert run(table).strategy == "nothing"
    assert DeltaTable(str(folder(table))).version() == 0


def test_plain_inserts_are_adopted_as_they_are(table: Warehouse, contents: Contents) -> None:
    """Law: files of inserted rows become part of main without being read or written again."""
    with as_files(), table.transaction() as tx:
        tx.insert("t", [{"k": 1, "v": "a"}])
        before = set(folder(table).rglob("*.parquet"))
    assert len(before) == 1
    assert strategy(table) == "nothing"  # a bulk load is adopted when it commits
    delta = DeltaTable(str(folder(table)))
    assert {Path(p.removeprefix("file://")) for p in delta.file_uris()} == before
    assert set(folder(table).rglob("*.parquet")) == before
    assert contents(table, "t") == Counter({("1", "'a'"): 1})


def test_many_small_inserts_become_one_file(table: Warehouse) -> None:
    """Law: adopting inline segments makes one file, not one per transaction."""
    for k in range(20):
        insert(table, {"k": k, "v": "a"})
    assert run(table).strategy == "adopt"
    assert len(DeltaTable(str(folder(table))).file_uris()) == 1


def test_few_changes_are_merged_and_many_rewritten(big: Warehouse, contents: Contents) -> None:
    upsert(big, {"k": 1, "v": "b"}, {"k": 200, "v": "c"})
    with big.transaction() as tx:
        tx.delete("t", [2, 999])
    before = contents(big, "t")
    assert strategy(big) == "merge"
    assert run(big).strategy == "merge"
    assert contents(big, "t") == before
    upsert(big, *({"k": k, "v": "d"} for k in range(50)))
    before = contents(big, "t")
    assert strategy(big) == "rewrite"
    assert run(big).strategy == "rewrite"
    assert contents(big, "t") == before


def test_a_bag_with_deletes_is_rewritten(wh: Warehouse, contents: Contents) -> None:
    """Law: without a key there is nothing to merge on."""
    wh.sql("CREATE TABLE t (v STRING)")
    insert(wh, *({"v": "a"} for _ in range(100)))
    run(wh)
    with wh.transaction() as tx:
        apply_in(tx, "t", pa.table({"v": ["a", "a"]}), None)
    assert strategy(wh) == "rewrite"
    assert run(wh).strategy == "rewrite"
    assert sum(contents(wh, "t").values()) == 98


def test_a_renamed_column_is_rewritten(big: Warehouse, contents: Contents) -> None:
    """Law: Delta readers go by name, so new names need new files, even without new rows."""
    big.sql("ALTER TABLE t RENAME COLUMN v TO value")
    before = contents(big, "t")
    assert strategy(big) == "rewrite"
    assert run(big).strategy == "rewrite"
    assert contents(big, "t") == before
    assert DeltaTable(str(folder(big))).schema().to_arrow().names == ["k", "value"]
    assert run(big).strategy == "nothing"


def test_an_added_column_is_merged(big: Warehouse, contents: Contents) -> None:
    big.sql("ALTER TABLE t ADD COLUMN n INT")
    upsert(big, {"k": 1, "v": "b", "n": 5})
    before = contents(big, "t")
    assert run(big).strategy == "merge"
    assert contents(big, "t") == before
    assert DeltaTable(str(folder(big))).schema().to_arrow().names == ["k", "v", "n"]


def test_an_added_column_is_appended(big: Warehouse, contents: Contents) -> None:
    big.sql("ALTER TABLE t ADD COLUMN n INT")
    insert(big, {"k": 1000, "v": "b", "n": 5})
    before = contents(big, "t")
    assert run(big).strategy == "adopt"
    assert contents(big, "t") == before


def test_names_that_change_places_are_not_confused(wh: Warehouse, contents: Contents) -> None:
    """Law: a column's place is its identity; two that swap names keep their values and types."""
    wh.sql("CREATE TABLE t (k INT, a INT, b STRING, PRIMARY KEY (k))")
    insert(wh, *({"k": k, "a": 1, "b": "x"} for k in range(10)))
    run(wh)
    for old, new in (("a", "c"), ("b", "a"), ("c", "b")):
        wh.sql(f"ALTER TABLE t RENAME COLUMN {old} TO {new}")
    wh.sql("ALTER TABLE t ADD COLUMN c DATE")
    before = contents(wh, "t")
    assert run(wh).strategy == "rewrite"
    assert contents(wh, "t") == before
    delta = DeltaTable(str(folder(wh)))
    told = {f.name: str(f.type.type) for f in delta.schema().fields}
    assert told == {"k": "integer", "b": "integer", "a": "string", "c": "date"}
    row = pa.table(QueryBuilder().register("t", delta).execute("SELECT * FROM t LIMIT 1")).to_pylist()[0]
    assert (row["a"], row["b"], row["c"]) == ("x", 1, None)


def test_emptied_tables_are_folded(big: Warehouse, contents: Contents) -> None:
    with big.transaction() as tx:
        tx.delete("t", list(range(100)))
    assert run(big).strategy == "rewrite"
    assert contents(big, "t") == Counter()
    assert DeltaTable(str(folder(big))).file_uris() == []
    insert(big, {"k": 1, "v": "again"})
    run(big)
    assert sum(contents(big, "t").values()) == 1


@pytest.mark.parametrize("key_type", ["BIGINT", "STRING", "DATE", "TIMESTAMP", "DECIMAL(10,2)", "BINARY", "BOOLEAN"])
def test_merge_finds_keys_of_every_type(wh: Warehouse, contents: Contents, key_type: str) -> None:
    """Law: after a merge the contents are those before it, with nested and extreme values."""
    import datetime as dt
    from decimal import Decimal

    keys: dict[str, list[Any]] = {
        "BIGINT": [2**62, -(2**62), 0],
        "STRING": ["it's", "", "ü\n"],
        "DATE": [dt.date(2020, 1, 1), dt.date(1, 1, 1), dt.date(9999, 12, 31)],
        "TIMESTAMP": [dt.datetime(2020, 1, 1, 0, 0, 0, i, tzinfo=dt.UTC) for i in (0, 1, 999_999)],
        "DECIMAL(10,2)": [Decimal("1.50"), Decimal("-2.25"), Decimal("0.00")],
        "BINARY": [b"", b"\x00\xff", b"abc"],
        "BOOLEAN": [True, False],
    }
    values = {"f": float("nan"), "a": [1, None], "s": {"x": 1, "y": "z"}, "m": [("k", 1)], "t": None}
    wh.sql(
        f"CREATE TABLE t (k {key_type}, f DOUBLE, a ARRAY<INT>, s STRUCT<x: INT, y: STRING>, m MAP<STRING, INT>, "
        "t TIMESTAMP_NTZ, PRIMARY KEY (k))"
    )
    ours = keys[key_type]
    insert(wh, *({"k": k, **values} for k in ours))
    run(wh)
    checkpoint_module_share = checkpoint_module._MERGE_SHARE
    checkpoint_module._MERGE_SHARE = 10.0
    try:
        upsert(wh, {"k": ours[0], **values, "f": -0.0, "t": dt.datetime(2021, 1, 1)})
        with wh.transaction() as tx:
            tx.delete("t", [{"k": ours[1]}])
        before = contents(wh, "t")
        assert run(wh).strategy == "merge"
    finally:
        checkpoint_module._MERGE_SHARE = checkpoint_module_share
    assert contents(wh, "t") == before
    assert sum(before.values()) == len(ours) - 1
    insert(wh, {"k": ours[1], **values})  # files of delta-rs and of our own, read together
    before = contents(wh, "t")
    assert run(wh).strategy == "adopt"
    assert contents(wh, "t") == before


@pytest.mark.parametrize("key_type", ["INT", "DECIMAL(10,0)"])
def test_rows_are_found_by_key_after_columns_were_added_and_renamed(wh: Warehouse, key_type: str) -> None:
    """Law: a key lookup reads files of every age, by place, whatever their columns were called."""
    wh.sql(f"CREATE TABLE t (k {key_type}, v STRING, PRIMARY KEY (k))")
    insert(wh, *({"k": k, "v": "a"} for k in range(50)))
    run(wh)
    wh.sql("ALTER TABLE t ADD COLUMN n INT")
    insert(wh, {"k": 100, "v": "b", "n": 1})
    run(wh)
    wh.sql("ALTER TABLE t RENAME COLUMN k TO key")
    with as_files():
        upsert(wh, {"key": 7, "v": "c", "n": 2})
    state = internals(wh).state("t")
    keys = pa.table({"key": pa.array([3, 7, 100, 999], state.schema.arrow.field(0).type)})
    for columns in (None, (), ("n",), None):  # the first time from files, then from memory
        found = internals(wh).reader.lookup(state, keys, columns=columns)
        assert sorted(int(k) for k in found.column("key").to_pylist()) == [3, 7, 100]
    found = internals(wh).reader.lookup(state, keys).sort_by("key")
    assert found.column("n").to_pylist() == [None, 2, 1]


# -- any sequence ------------------------------------------------------------------------------------------


@settings(max_examples=examples(20), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.booleans(), st.data())
def test_checkpoints_change_no_answer_at_any_csn(keyed: bool, data: st.DataObject) -> None:
    """Law: contents at every CSN are those of the model, whatever was folded in between, by whichever way."""
    with (
        tempfile.TemporaryDirectory() as place,
        freshview.connect(Path(place) / "w") as wh,
        pytest.MonkeyPatch.context() as patch,
    ):
        model = play(wh, keyed, data, patch)
        run(wh)
        for csn in model.at:
            found = internals(wh).rows("t", csn)
            assert Counter(tuple(map(repr, r.values())) for r in found.to_pylist()) == model.expected(csn), csn
        main = internals(wh).main("t")
        if main is not None:
            delta = DeltaTable(str(folder(wh)), version=main.delta_version)
            told = pa.table(QueryBuilder().register("t", delta).execute("SELECT * FROM t"))
            names = model.names()
            shown = Counter(tuple(repr(r.get(n)) for n in names) for r in told.to_pylist())
            assert shown == model.expected(max(model.at))


# -- others can read it --------------------------------------------------------------------------------------


def test_any_delta_reader_can_open_main(big: Warehouse, contents: Contents, bag_of: Callable[..., Bag]) -> None:
    """Law: plain deltalake, and DuckDB and pyarrow through its file list, read the same rows."""
    upsert(big, {"k": 1, "v": "b"}, {"k": 101, "v": None})
    run(big)
    ours = contents(big, "t")
    delta = DeltaTable(str(folder(big)))
    files = [p.removeprefix("file://") for p in delta.file_uris()]
    assert bag_of(pa.table(QueryBuilder().register("t", delta).execute("SELECT k, v FROM t"))) == ours
    assert bag_of(ds.dataset(files).to_table(columns=["k", "v"])) == ours
    assert bag_of(duckdb.sql(f"SELECT k, v FROM read_parquet({files})").to_arrow_table()) == ours


def test_a_version_carries_its_csn(big: Warehouse) -> None:
    """Law: the app transaction of a version is the CSN up to which it is complete."""
    for way in ("merge", "rewrite"):
        n = 2 if way == "merge" else 60
        upsert(big, *({"k": k, "v": way} for k in range(n)))
        assert run(big).strategy == way
        main = internals(big).main("t")
        assert main is not None
        assert main.csn == internals(big).newest_csn()
        delta = DeltaTable(str(folder(big)))
        assert delta.version() == main.delta_version
        assert delta.transaction_version("freshview") == main.csn


# -- law 11.2: crashes ---------------------------------------------------------------------------------------

EVENTS = ["checkpoint.begun", "files.written", "main.committed", "checkpoint.written"]


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("way", ["adopt", "merge", "rewrite", "first"])
def test_a_crash_before_the_catalog_commit_is_settled_by_the_next_checkpoint(
    table: Warehouse, contents: Contents, way: str, event: str
) -> None:
    """Law 11.2: crash anywhere up to the catalog commit, then redo: no row is doubled or lost."""
    if way != "first":
        insert(table, *({"k": k, "v": "a"} for k in range(100)))
        run(table)
    match way:
        case "adopt" | "first":
            insert(table, *({"k": k, "v": "new"} for k in range(200, 205)))
        case "merge":
            upsert(table, {"k": 1, "v": "b"}, {"k": 300, "v": "c"})
        case "rewrite":
            upsert(table, *({"k": k, "v": "b"} for k in range(60)))
    before = contents(table, "t")
    if way == "merge" and event == "files.written":
        pytest.skip("delta-rs writes the files of a merge")
    with killed_at(table, event):
        run(table)
    assert contents(table, "t") == before
    insert(table, {"k": 1000, "v": "after"})
    expected = before + Counter({("1000", "'after'"): 1})
    run(table)
    assert contents(table, "t") == expected
    run(table)
    assert contents(table, "t") == expected
    told = pa.table(QueryBuilder().register("t", DeltaTable(str(folder(table)))).execute("SELECT k, v FROM t"))
    assert Counter(tuple(map(repr, r.values())) for r in told.to_pylist()) == expected


@pytest.mark.parametrize("way", ["adopt", "merge"])
def test_a_crash_between_widening_and_writing_is_settled(big: Warehouse, contents: Contents, way: str) -> None:
    """Law 11.2: a version that only added columns is undone, then done again."""
    big.sql("ALTER TABLE t ADD COLUMN n INT")
    if way == "merge":
        upsert(big, {"k": 1, "v": "b", "n": 1})
    else:
        insert(big, {"k": 1000, "v": "b", "n": 1})
    before = contents(big, "t")
    with killed_at(big, "main.widened"):
        run(big)
    assert contents(big, "t") == before
    assert run(big).strategy == way
    assert contents(big, "t") == before


def test_an_adopted_version_keeps_the_names_it_was_written_under(big: Warehouse, contents: Contents) -> None:
    """Law 11.2: a crashed rewrite after a rename holds the new names, though its last row is older."""
    upsert(big, {"k": 1, "v": "b"})
    big.sql("ALTER TABLE t RENAME COLUMN v TO value")
    before = contents(big, "t")
    with killed_at(big, "checkpoint.written"):
        run(big)
    run(big)
    state = internals(big).state("t")
    assert state.main_schema is not None
    assert state.main is not None
    files = internals(big).main_files("t")
    assert tuple(pa.parquet.read_schema(folder(big) / files[0].path).names) == state.main_schema.names
    assert contents(big, "t") == before
    found = internals(big).reader.lookup(state, pa.table({"k": pa.array([1], pa.int32())}))
    assert found.column("value").to_pylist() == ["b"]


def test_a_stray_version_of_others_is_undone(big: Warehouse, contents: Contents) -> None:
    """Law 11.2: what somebody else commits to main is never folded in, and never lost rows with it."""
    before = contents(big, "t")
    write_deltalake(str(folder(big)), pa.table({"k": pa.array([7], pa.int32()), "v": ["stray"]}), mode="append")
    assert contents(big, "t") == before
    upsert(big, {"k": 1, "v": "b"})
    before = contents(big, "t")
    run(big)
    assert contents(big, "t") == before
    told = pa.table(QueryBuilder().register("t", DeltaTable(str(folder(big)))).execute("SELECT k, v FROM t"))
    assert Counter(tuple(map(repr, r.values())) for r in told.to_pylist()) == before


def test_a_stray_table_before_the_first_checkpoint_is_replaced(table: Warehouse, contents: Contents) -> None:
    insert(table, {"k": 1, "v": "a"})
    write_deltalake(str(folder(table)), pa.table({"other": [1]}))
    before = contents(table, "t")
    run(table)
    assert contents(table, "t") == before
    assert DeltaTable(str(folder(table))).schema().to_arrow().names == ["k", "v"]


@pytest.mark.parametrize("torn", ["", '{"add": {"pa', "missing file"])
def test_a_version_that_a_power_cut_tore_is_not_adopted(big: Warehouse, contents: Contents, torn: str) -> None:
    """Law 11.2: a log entry or data file that did not reach the disk is undone, not adopted."""
    upsert(big, *({"k": k, "v": "b"} for k in range(60)))
    before = contents(big, "t")
    files = set(folder(big).rglob("*.parquet"))
    with killed_at(big, "main.committed"):
        run(big)
    if torn == "missing file":
        for path in set(folder(big).rglob("*.parquet")) - files:
            path.write_bytes(b"")
    else:
        max((folder(big) / "_delta_log").glob("*.json")).write_text(torn)
    assert contents(big, "t") == before
    assert run(big).strategy == "rewrite"
    assert contents(big, "t") == before


@pytest.mark.parametrize("torn", ["", '{"add": {"pa'])
def test_a_first_version_that_a_power_cut_tore_is_replaced(table: Warehouse, contents: Contents, torn: str) -> None:
    """Law 11.2: the same where no version is known yet."""
    insert(table, {"k": 1, "v": "a"})
    before = contents(table, "t")
    with killed_at(table, "main.committed"):
        run(table)
    (folder(table) / "_delta_log" / f"{0:020d}.json").write_text(torn)
    assert run(table).strategy == "adopt"
    assert contents(table, "t") == before


def test_a_checkpoint_ahead_of_a_restored_catalog_is_undone(big: Warehouse, contents: Contents) -> None:
    """Law 11.2: a version that holds commits the catalog does not know is never adopted."""
    entry = folder(big) / "_delta_log" / f"{1:020d}.json"
    before = contents(big, "t")
    write_deltalake(str(folder(big)), pa.table({"k": pa.array([7], pa.int32()), "v": ["x"]}), mode="append")
    stamps = [{"txn": {"appId": a, "version": v}} for a, v in (("freshview", 999), ("freshview.schema", 1))]
    entry.write_text(entry.read_text().rstrip() + "\n" + "\n".join(map(json.dumps, stamps)) + "\n")
    run(big)
    assert contents(big, "t") == before
    assert DeltaTable(str(folder(big))).version() == 2


# -- two at once ---------------------------------------------------------------------------------------------


def test_of_two_checkpointers_one_is_busy(big: Warehouse, contents: Contents) -> None:
    """Law: a checkpoint is exclusive per table; the second reports 'busy' and does nothing."""
    upsert(big, {"k": 1, "v": "b"})
    before = contents(big, "t")
    with freshview.connect(big.path) as other:
        inner: list[str] = []
        big.events.listen(lambda e: inner.append(run(other).strategy) if e.name == "checkpoint.written" else None)
        assert run(big).strategy == "merge"
    assert inner == ["busy"]
    assert contents(big, "t") == before


@pytest.mark.parametrize("event", ["checkpoint.begun", "checkpoint.written"])
@pytest.mark.parametrize("way", ["adopt", "merge", "rewrite"])
def test_a_checkpointer_that_lost_its_lease_does_no_harm(
    big: Warehouse, contents: Contents, way: str, event: str
) -> None:
    """Law 11.2: if another one takes over in the middle, no row is doubled or lost."""
    match way:
        case "adopt":
            insert(big, {"k": 1000, "v": "new"})
        case "merge":
            upsert(big, {"k": 1, "v": "b"})
        case "rewrite":
            upsert(big, *({"k": k, "v": "b"} for k in range(60)))
    before = contents(big, "t")
    with freshview.connect(big.path) as other:
        inner: list[str] = []

        def takes_over(e: Event) -> None:
            if e.name == event and not inner:
                internals(big).catalog.leave()  # as if the lease had expired
                inner.append(run(other).strategy)

        big.events.listen(takes_over)
        report = run(big)
        assert inner in ([way], ["nothing"])
        assert report.strategy in ("busy", way)
        assert contents(big, "t") == before
        run(other)
        assert contents(other, "t") == before


def test_checkpoints_race_commits_without_harm(table: Warehouse, contents: Contents) -> None:
    """Law: folding while others commit loses and doubles nothing."""
    done = threading.Event()
    failures: list[BaseException] = []

    def fold() -> None:
        try:
            with freshview.connect(table.path) as other:
                while not done.is_set():
                    run(other)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=fold) for _ in range(2)]
    for thread in threads:
        thread.start()
    for i in range(40):
        upsert(table, {"k": i % 7, "v": str(i)}, {"k": 100 + i, "v": "n"})
    done.set()
    for thread in threads:
        thread.join()
    assert failures == []
    run(table)
    expected = {i % 7: str(i) for i in range(40)} | {100 + i: "n" for i in range(40)}
    assert contents(table, "t") == Counter({(repr(k), repr(v)): 1 for k, v in expected.items()})


def test_a_date_that_python_does_not_have_is_a_key_like_others(wh: Warehouse) -> None:
    """Spark has dates after the year 9999; Python has none, so main gets no bounds for them."""
    wh.sql("CREATE TABLE far (d DATE, n INT, PRIMARY KEY (d))")
    days = pa.array([0, 5_000_000], pa.int32()).cast(pa.date32())
    with wh.transaction() as tx:
        tx.insert("far", pa.table({"d": days, "n": pa.array([1, 2], pa.int32())}))
    assert run(wh, "far").rows == 2
    rooms = internals(wh)
    assert rooms.storage.reader.contents(rooms.state("far")).column("n").to_pylist() == [1, 2]
