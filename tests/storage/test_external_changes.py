"""Delta rows of external tables: for any two versions they are the exact difference, as bags."""

from __future__ import annotations

import datetime as dt
import json
import tempfile
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.effort import examples

from freshview.catalog.records import Relation
from freshview.errors import SnapshotExpired
from freshview.relation.delta import INSERT, Overlay, overlay
from freshview.relation.schema import Schema
from freshview.storage import external_rows
from freshview.storage.external import describe, external_schema, open_external
from freshview.storage.external_files import changed_files, partition_groups
from freshview.storage.external_rows import changes

FEED = {"delta.enableChangeDataFeed": "true"}
PARTITIONS = ["01", "1", None, "a b", "50%", "x/y", "a%2Fb", "ü{1}*", "k=v", "#?"]
SCHEMA = pa.schema([("k", pa.int64()), ("p", pa.string()), ("v", pa.string())])


def rows_of(location: Path, version: int | None = None) -> Counter[tuple[Any, ...]]:
    """The bag that delta-rs itself reads, columns in name order."""
    result = pa.table(
        QueryBuilder().register("t", DeltaTable(str(location), version=version)).execute("SELECT * FROM t")
    )
    return bag(result)


def bag(table: pa.Table) -> Counter[tuple[Any, ...]]:
    """Rows without NULL columns, so that a column added later does not matter."""
    return Counter(tuple((n, r[n]) for n in sorted(r) if r[n] is not None) for r in table.to_pylist())


def relation_of(location: Path, version: int | None = None) -> Relation:
    schema = external_schema(open_external(str(location), version), ())
    return Relation(1, "t", "external", 1, 1, schema, 1, str(location))


def difference(location: Path, after: int, upto: int) -> tuple[Counter[Any], Counter[Any]]:
    """(inserted, deleted) as `changes` tells."""
    delta = changes(relation_of(location, upto), after, upto)
    live = pa.array([a >= INSERT for a in delta.column("_action").to_pylist()], pa.bool_())
    plain = delta.drop_columns(["_stmtsn", "_action"])
    dead = pa.array([not x for x in live.to_pylist()], pa.bool_())
    return bag(plain.filter(live)), bag(plain.filter(dead))


def assert_exact(location: Path, after: int, upto: int, old: Counter[Any], new: Counter[Any]) -> None:
    inserted, deleted = difference(location, after, upto)
    assert inserted == new - old
    assert deleted == old - new


rows = st.lists(
    st.fixed_dictionaries(
        {
            "k": st.integers(0, 5),
            "p": st.sampled_from(PARTITIONS),
            "v": st.sampled_from(["a", "b", None, "ü", ""]),
        }
    ),
    min_size=1,
    max_size=6,
)
operations = st.one_of(
    st.tuples(st.just("append"), rows),
    st.tuples(st.just("append"), rows),
    st.tuples(st.just("overwrite"), rows),
    st.tuples(st.just("delete"), st.integers(0, 5)),
    st.tuples(st.just("update"), st.integers(0, 5)),
    st.tuples(st.just("merge"), rows),
    st.tuples(st.sampled_from(["compact", "zorder", "feed", "no feed", "widen", "restore", "vacuum"]), st.none()),
)


def run(location: Path, operation: tuple[str, Any], number: int) -> None:
    """One operation of some other writer."""
    kind, given_ = operation
    table = DeltaTable(str(location))
    match kind:
        case "append":
            write_deltalake(table, pa.Table.from_pylist(given_, SCHEMA), mode="append", schema_mode="merge")
        case "overwrite":
            write_deltalake(table, pa.Table.from_pylist(given_, SCHEMA), mode="overwrite", schema_mode="merge")
        case "delete":
            table.delete(f"k = {given_}")
        case "update":
            table.update({"v": f"'new {number}'"}, predicate=f"k = {given_}")
        case "merge":
            unique = list({r["k"]: r for r in given_}.values())
            (
                table.merge(pa.Table.from_pylist(unique, SCHEMA), "t.k = s.k", source_alias="s", target_alias="t")
                .when_matched_update({"v": "s.v"})
                .when_not_matched_insert({"k": "s.k", "p": "s.p", "v": "s.v"})
                .execute()
            )
        case "compact":
            table.optimize.compact()
        case "zorder":
            table.optimize.z_order(["k"])
        case "feed":
            table.alter.set_table_properties(FEED)
        case "no feed":
            table.alter.set_table_properties({"delta.enableChangeDataFeed": "false"})
        case "widen":
            extra = pa.table({"k": [7], "p": ["01"], "v": ["w"], f"w{number}": pa.array([number], pa.int32())})
            write_deltalake(table, extra, mode="append", schema_mode="merge")
        case "restore" if table.version() > 0:
            table.restore(max(0, table.version() - 2))
        case "vacuum":
            table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


@settings(max_examples=examples(20), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.booleans(), st.booleans(), rows, st.lists(operations, min_size=1, max_size=7), st.data())
def test_changes_are_the_difference_of_any_two_versions(
    partitioned: bool, feed: bool, first: list[dict[str, Any]], script: list[tuple[str, Any]], data: st.DataObject
) -> None:
    """Law: version a ⊕ changes(a, b) = version b, with no row on both sides, or SnapshotExpired after a vacuum."""
    with tempfile.TemporaryDirectory() as folder:
        location = Path(folder) / "t"
        write_deltalake(
            str(location),
            pa.Table.from_pylist(first, SCHEMA),
            partition_by=["p"] if partitioned else None,
            configuration=FEED if feed else None,
        )
        seen = {0: rows_of(location)}
        for number, operation in enumerate(script):
            run(location, operation, number)
            version = DeltaTable(str(location)).version()
            for between in range(max(seen) + 1, version):
                seen[between] = rows_of(location, between)
            seen[version] = rows_of(location)
        after = data.draw(st.sampled_from(sorted(seen)), label="after")
        upto = data.draw(st.sampled_from([v for v in seen if v >= after]), label="upto")
        before, then = (set(relation_of(location, v).schema.names) for v in (after, upto))
        assume(before <= then)  # columns that a restore takes away make another table of it
        try:
            assert_exact(location, after, upto, seen[after], seen[upto])
        except SnapshotExpired:
            assert any(kind == "vacuum" for kind, _ in script)


@pytest.mark.parametrize("feed", [True, False])
def test_compaction_changes_nothing(tmp_path: Path, feed: bool) -> None:
    """Law: dataChange=false tells of no change, whatever happened to the files."""
    location = tmp_path / "t"
    for i in range(4):
        write_deltalake(str(location), pa.table({"k": [i]}), mode="append", configuration=FEED if feed else None)
    before = DeltaTable(str(location)).version()
    DeltaTable(str(location)).optimize.compact()
    after = DeltaTable(str(location)).version()
    assert after == before + 1
    assert changed_files(open_external(str(location)), before, after) == []
    assert changes(relation_of(location), before, after).num_rows == 0


def test_a_row_changed_after_a_compaction_is_one_change(tmp_path: Path) -> None:
    """Law: files that a rearrangement made count when they are removed by a change."""
    location = tmp_path / "t"
    for i in range(4):
        write_deltalake(str(location), pa.table({"k": [i], "v": ["a"]}), mode="append")
    old = rows_of(location, 2)
    DeltaTable(str(location)).optimize.compact()
    DeltaTable(str(location)).update({"v": "'b'"}, predicate="k = 1")
    new = rows_of(location)
    assert_exact(location, 2, 5, old, new)
    inserted, deleted = difference(location, 2, 5)
    assert sum(inserted.values()) == 2  # k = 3 came with version 3
    assert sum(deleted.values()) == 1


def test_the_feed_is_read_where_a_commit_has_one(tmp_path: Path) -> None:
    """Law: of a commit that wrote a feed only the feed's files are read, not the rewritten data."""
    location = tmp_path / "t"
    write_deltalake(str(location), pa.table({"k": list(range(1000))}), configuration=FEED)
    DeltaTable(str(location)).update({"k": "k + 10000"}, predicate="k = 5")
    table = open_external(str(location))
    told = changed_files(table, 0, 1)
    assert told
    assert all(f.weight == 0 and "_change_data" in f.path for f in told)
    assert_exact(location, 0, 1, rows_of(location, 0), rows_of(location))


def test_partition_values_of_all_types_come_back_exactly(tmp_path: Path) -> None:
    """Law: partition values are typed from the log: '01' stays text, NULL stays NULL (law 11.16)."""
    location = tmp_path / "t"
    first = pa.table(
        {
            "k": pa.array([1, 2], pa.int64()),
            "b": pa.array([True, None]),
            "i": pa.array([-7, None], pa.int32()),
            "d": pa.array([dt.date(1969, 12, 31), None]),
            "t": pa.array([dt.datetime(2020, 1, 2, 3, 4, 5, 6), None], pa.timestamp("us", "UTC")),
            "n": pa.array([dt.datetime(2020, 1, 2, 3, 4, 5), None], pa.timestamp("us")),
            "m": pa.array([Decimal("1.50"), None], pa.decimal128(9, 2)),
            "f": pa.array([0.1, None], pa.float64()),
            "s": pa.array(["01", None]),
        }
    )
    write_deltalake(str(location), first, partition_by=["b", "i", "d", "t", "n", "m", "f", "s"])
    DeltaTable(str(location)).delete()
    delta = changes(relation_of(location), 0, 1)
    assert bag(delta.drop_columns(["_stmtsn", "_action"])) == bag(first)
    write_deltalake(str(location), first, mode="append")
    assert_exact(location, 0, 2, bag(first), bag(first))


def test_an_empty_partition_value_is_null(tmp_path: Path) -> None:
    """Law: the Delta protocol writes NULL as '' too; contents and changes agree on that."""
    location = tmp_path / "t"
    write_deltalake(str(location), pa.table({"k": [1], "p": [""]}), partition_by=["p"])
    write_deltalake(str(location), pa.table({"k": [2], "p": [""]}), mode="append")
    relation = relation_of(location)
    groups = list(partition_groups(open_external(str(location)), relation.schema))
    assert [values for values, _ in groups] == [{"p": None}]
    assert changes(relation, 0, 1).column("p").to_pylist() == [None]


def test_removes_without_partition_values_are_understood(tmp_path: Path) -> None:
    """Law: a remove need not tell partition values; the version before does."""
    location = tmp_path / "t"
    write_deltalake(str(location), pa.table({"k": [1, 2], "p": ["x", "y"]}), partition_by=["p"])
    old = rows_of(location)
    DeltaTable(str(location)).delete("p = 'x'")
    entry = location / "_delta_log" / f"{1:020d}.json"
    lines = [json.loads(line) for line in entry.read_text().splitlines()]
    for line in lines:
        line.get("remove", {}).pop("partitionValues", None)
    entry.write_text("\n".join(map(json.dumps, lines)))
    assert_exact(location, 0, 1, old, rows_of(location))


def test_vacuumed_files_in_between_do_not_matter(tmp_path: Path) -> None:
    """Law: as long as both versions can be read, their difference can be told."""
    location = tmp_path / "t"
    write_deltalake(str(location), pa.table({"k": [1, 2, 3]}))
    write_deltalake(str(location), pa.table({"k": [4]}), mode="append")
    one, four = rows_of(location, 0), rows_of(location)
    DeltaTable(str(location)).optimize.compact()
    gone = next(p for p in location.glob("*.parquet") if pa.parquet.read_metadata(p).num_rows == 1)
    gone.unlink()
    assert_exact(location, 0, 2, one, four)


def test_what_can_no_longer_be_told_has_expired(tmp_path: Path) -> None:
    """Law: where a needed file is gone or damaged, SnapshotExpired says so and names it."""
    location = tmp_path / "t"
    write_deltalake(str(location), pa.table({"k": [1]}))
    write_deltalake(str(location), pa.table({"k": [2]}), mode="overwrite")
    DeltaTable(str(location)).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    with pytest.raises(SnapshotExpired, match="vacuumed"):
        changes(relation_of(location), 0, 1)
    kept = next(location.glob("*.parquet"))
    kept.write_bytes(b"PAR1 nonsense")
    before = DeltaTable(str(location)).version()
    write_deltalake(str(location), pa.table({"k": [3]}), mode="overwrite")
    with pytest.raises(SnapshotExpired, match="damaged"):
        changes(relation_of(location), before, before + 1)


def test_changes_of_a_rewritten_history_have_expired(tmp_path: Path) -> None:
    """Law: given what was seen, a table that was recreated with the same version numbers tells no delta."""
    location = tmp_path / "t"
    for k in (1, 2):
        write_deltalake(str(location), pa.table({"k": [k]}), mode="append")
    seen = describe(open_external(str(location)))
    relation = relation_of(location)
    assert changes(relation, 0, 1, seen).num_rows == 1
    for path in sorted(location.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    for k in (8, 9):
        write_deltalake(str(location), pa.table({"k": [k]}), mode="append")
    assert changes(relation, 0, 1).num_rows == 1
    with pytest.raises(SnapshotExpired, match="rewritten"):
        changes(relation, 0, 1, seen)


def test_rewritten_files_do_not_pile_up_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: rows that were only rewritten cancel as files are read; what is held stays near one partition."""
    monkeypatch.setattr(external_rows, "_FOLD_ROWS", 100)
    location = tmp_path / "t"
    for i in range(8):
        part = pa.table({"k": list(range(i * 100, i * 100 + 100)), "p": [f"{i}"] * 100, "v": ["a"] * 100})
        write_deltalake(str(location), part, mode="append", partition_by=["p"])
    old = rows_of(location)
    DeltaTable(str(location)).update({"v": "'b'"}, predicate="k % 100 = 7")
    held = []

    def watched(deltas: list[pa.Table], schema: Schema) -> Overlay:
        held.append(sum(d.num_rows for d in deltas))
        return overlay(deltas, schema)

    monkeypatch.setattr(external_rows, "overlay", watched)
    delta = changes(relation_of(location), 7, 8)
    assert delta.num_rows == 16
    assert max(held) <= 400
    monkeypatch.undo()
    assert_exact(location, 7, 8, old, rows_of(location))


def test_int96_timestamps_of_old_spark_writers_are_exact(tmp_path: Path) -> None:
    """Law: Spark's INT96 timestamps come back as microseconds, also outside the range of nanoseconds."""
    location = tmp_path / "t"
    moments = [dt.datetime(1, 1, 1), dt.datetime(2020, 1, 1, 0, 0, 0, 7), dt.datetime(9999, 12, 31, 23, 59, 59)]
    write_deltalake(str(location), pa.table({"t": pa.array(moments, pa.timestamp("us", "UTC"))}))
    file = next(location.glob("*.parquet"))
    pa.parquet.write_table(pa.parquet.read_table(file), file, use_deprecated_int96_timestamps=True)
    found = changes(relation_of(location), -1, 0).column("t").to_pylist()
    assert sorted(m.replace(tzinfo=None) for m in found) == moments


def test_a_commit_that_used_deletion_vectors_has_no_changes_to_read(tmp_path: Path) -> None:
    """Its file is removed and added again, with a vector: as bags the two cancel. The feature may be gone by now."""
    write_deltalake(str(tmp_path), pa.table({"k": pa.array([1, 2], pa.int64())}))
    (file,) = pa.table(DeltaTable(str(tmp_path)).get_add_actions()).to_pylist()
    vector = {"storageType": "u", "pathOrInlineDv": "x", "offset": 1, "sizeInBytes": 1, "cardinality": 1}
    action = {"path": file["path"], "partitionValues": {}, "dataChange": True}
    actions = [
        {"remove": {**action, "deletionTimestamp": 0}},
        {"add": {**action, "size": file["size_bytes"], "modificationTime": 0, "deletionVector": vector}},
    ]
    commit = tmp_path / "_delta_log" / f"{1:020}.json"
    commit.write_text("\n".join(map(json.dumps, actions)))
    with pytest.raises(SnapshotExpired, match=r"version 1.*deletion vectors"):
        changed_files(DeltaTable(str(tmp_path), version=1), 0, 1)
