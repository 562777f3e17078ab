"""Noticing external tables: what others write becomes commits in our order, a rewritten history a reset."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.internals import internals, state_in

import freshview
from freshview import Warehouse
from freshview.catalog.records import Commit, Main, Relation
from freshview.cdc import notice as notice_module
from freshview.errors import FreshviewError, InvalidStatement, NotFound, SnapshotExpired
from freshview.schedule import upkeep
from freshview.schedule.loops import Loop
from freshview.storage.external import describe, open_seen
from freshview.storage.external_files import changed_groups, only_adds, partition_groups
from freshview.storage.external_rows import changes

Open = Callable[[], Warehouse]


def write(location: Path, *keys: int, mode: Literal["append", "overwrite"] = "append", **columns: list[Any]) -> None:
    write_deltalake(str(location), pa.table({"k": list(keys), **columns}), mode=mode)


def look(wh: Warehouse) -> None:
    """What every query and transaction does first; what a reader of a lost table would be told is raised."""
    wh.transaction().rollback()
    for error in internals(wh).lost():
        raise error


def relation(wh: Warehouse, name: str = "t") -> Relation:
    return internals(wh).relation(name)


def commits(wh: Warehouse, name: str = "t") -> list[Commit]:
    return internals(wh).commits(name)


def kinds(wh: Warehouse) -> list[str]:
    return [c.kind for c in commits(wh)]


def keys_at(wh: Warehouse, csn: int) -> list[int]:
    """The keys at a CSN, through the files that a scan would read."""
    at = internals(wh).state("t", csn)
    assert at.main is not None
    table = open_seen(at.relation, at.main)
    files = [p for _, paths in partition_groups(table, at.schema) for p in paths]
    return sorted(k for p in files for k in pa.parquet.read_table(p, columns=["k"]).column("k").to_pylist())


def newest(wh: Warehouse) -> list[int]:
    look(wh)
    return keys_at(wh, internals(wh).newest_csn())


@pytest.fixture
def location(tmp_path: Path) -> Path:
    folder = tmp_path / "other" / "t"
    write(folder, 1, 2)
    return folder


@pytest.fixture
def ext(wh: Warehouse, location: Path) -> Warehouse:
    wh.sql(f"CREATE TABLE t USING DELTA LOCATION '{location}'")
    return wh


# -- versions become commits ---------------------------------------------------------------------------


def test_a_version_becomes_a_commit_when_noticed(ext: Warehouse, location: Path) -> None:
    """Law: one commit per look, however many versions others wrote; none where nothing is new."""
    assert kinds(ext) == ["create"]
    write(location, 3)
    write(location, 4)
    assert kinds(ext) == ["create"]
    look(ext)
    look(ext)
    assert kinds(ext) == ["create", "data"]
    assert newest(ext) == [1, 2, 3, 4]
    segment = internals(ext).segments("t", after=commits(ext)[0].csn)[0]
    assert segment.versions == (0, 2)
    delta = changes(relation(ext), *segment.versions)
    assert sorted(delta.column("k").to_pylist()) == [3, 4]


def test_a_commit_of_others_counts_the_rows_that_they_wrote(ext: Warehouse, location: Path) -> None:
    """An update leaves as many rows as before, and yet is as large as the files that it rewrote."""
    write(location, *range(10, 30))
    look(ext)
    DeltaTable(str(location)).update({"k": "k + 100"}, predicate="k >= 10")
    look(ext)
    added, updated = internals(ext).segments("t", after=commits(ext)[0].csn)
    assert (added.rows, updated.rows) == (20, 40)
    table, end = relation(ext), internals(ext).main("t")
    assert only_adds(table, [added], None)
    assert not only_adds(table, [updated], end)
    groups = changed_groups(table, [added, updated], end)
    assert sorted((len(g.paths), g.values, g.weight) for g in groups) == [(1, {}, 1)]  # the first file came and went


def test_noticed_versions_can_be_read_at_their_csn(ext: Warehouse, location: Path) -> None:
    """Law: time travel reads the version that was current at that CSN."""
    seen = {internals(ext).newest_csn(): [1, 2]}
    for k in (3, 4):
        write(location, k)
        look(ext)
        seen[internals(ext).newest_csn()] = list(range(1, k + 1))
    DeltaTable(str(location)).delete("k = 1")
    look(ext)
    seen[internals(ext).newest_csn()] = [2, 3, 4]
    assert {csn: keys_at(ext, csn) for csn in seen} == seen


def test_rearrangements_make_no_commit(ext: Warehouse, location: Path) -> None:
    """Law: compaction, vacuum and table properties move the version and nothing else."""
    write(location, 3)
    look(ext)
    before = internals(ext).newest_csn()
    DeltaTable(str(location)).optimize.compact()
    look(ext)
    DeltaTable(str(location)).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    DeltaTable(str(location)).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert newest(ext) == [1, 2, 3]
    assert internals(ext).newest_csn() == before
    main = internals(ext).main("t")
    assert main is not None
    assert main.delta_version == DeltaTable(str(location)).version()


def test_a_column_added_by_others_is_added_here(ext: Warehouse, location: Path) -> None:
    """Law: appended columns are a commit with a new schema version; earlier CSNs keep theirs."""
    before = internals(ext).newest_csn()
    extra = pa.table({"k": [3], "w": ["x"]})
    write_deltalake(str(location), extra, mode="append", schema_mode="merge")
    look(ext)
    assert kinds(ext) == ["create", "data"]
    assert relation(ext).schema.names == ("k", "w")
    assert relation(ext).epoch == 1
    assert internals(ext).state("t", before).schema.names == ("k",)
    assert changes(relation(ext), 0, 1).column("w").to_pylist() == ["x"]


def test_a_version_is_noticed_by_the_background_loop(ext: Warehouse, location: Path) -> None:
    """Law: the background loop notices without a query, and goes on after an error."""
    write(location, 3)
    noticed = threading.Event()
    failed = threading.Event()
    ext.events.listen(lambda e: noticed.set() if e.name == "external.noticed" else None)
    ext.events.listen(lambda e: failed.set() if e.name == "external.failed" else None)
    hidden = location.with_name("hidden")
    location.rename(hidden)
    loop = Loop("test", 0.01, internals(ext).step_of_upkeep, ext.events)
    try:
        assert failed.wait(30)
        hidden.rename(location)
        assert noticed.wait(30)
    finally:
        loop.stop()
    assert kinds(ext) == ["create", "data"]


def test_two_that_notice_at_once_make_one_commit(
    open_warehouse: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: noticing is a compare-and-set on the version seen last, on both catalogs."""
    location = tmp_path / "other"
    write(location, 1)
    first, second = open_warehouse(), open_warehouse()
    first.sql(f"CREATE TABLE t USING DELTA LOCATION '{location}'")
    write(location, 2)
    barrier = threading.Barrier(2)

    def together(table: DeltaTable) -> Main:
        barrier.wait(30)
        return describe(table)

    monkeypatch.setattr(notice_module, "describe", together)
    threads = [threading.Thread(target=look, args=(w,)) for w in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    monkeypatch.undo()
    assert kinds(first) == ["create", "data"]
    assert newest(second) == [1, 2]


def test_a_transaction_keeps_its_snapshot(ext: Warehouse, location: Path) -> None:
    """Law: noticing happens before a snapshot is chosen, never inside a transaction."""
    transaction = ext.transaction()
    write(location, 3)
    look(ext)
    at = state_in(transaction, "t")
    assert at.main is not None
    assert at.main.delta_version == 0
    transaction.rollback()


# -- history rewritten -----------------------------------------------------------------------------------


def recreate(location: Path, versions: int, **columns: list[Any]) -> None:
    shutil.rmtree(location)
    for i in range(versions):
        write(location, 100 + i, mode="append", **columns)


@pytest.mark.parametrize("versions", [1, 3, 5], ids=["lower", "same", "higher"])
@pytest.mark.parametrize("columns", [{}, {"other": ["x"]}], ids=["same schema", "other schema"])
def test_a_recreated_table_is_a_reset(
    ext: Warehouse, location: Path, versions: int, columns: dict[str, list[Any]]
) -> None:
    """Law: dropped and recreated, whatever the version number: kind 'reset', next epoch, no delta."""
    write(location, 3)
    write(location, 4)
    look(ext)
    old = internals(ext).newest_csn()
    recreate(location, versions, **columns)
    assert newest(ext) == [100 + i for i in range(versions)]
    assert kinds(ext) == ["create", "data", "reset"]
    assert relation(ext).epoch == 2
    assert internals(ext).segments("t", after=old) == []
    with pytest.raises(SnapshotExpired):
        keys_at(ext, old)
    look(ext)
    assert len(kinds(ext)) == 3


def test_a_table_put_back_from_a_backup_is_a_reset(ext: Warehouse, location: Path, tmp_path: Path) -> None:
    """Law: the same table id with a history that forks before what we saw is noticed."""
    shutil.copytree(location, tmp_path / "backup")
    write(location, 3)
    look(ext)
    shutil.rmtree(location)
    shutil.copytree(tmp_path / "backup", location)
    look(ext)
    assert kinds(ext) == ["create", "data", "reset"]
    write(location, 33)  # the same version number as the one that was lost
    assert newest(ext) == [1, 2, 33]
    assert kinds(ext) == ["create", "data", "reset", "data"]


def test_a_fork_with_the_same_version_number_is_a_reset(ext: Warehouse, location: Path, tmp_path: Path) -> None:
    """Law: a fork is noticed even if it has as many versions as we saw, or more."""
    shutil.copytree(location, tmp_path / "backup")
    write(location, 3)
    look(ext)
    for keys in ([33], [33, 34]):
        shutil.rmtree(location)
        shutil.copytree(tmp_path / "backup", location)
        for k in keys:
            write(location, k)
        assert newest(ext) == [1, 2, *keys]
    assert kinds(ext) == ["create", "data", "reset", "reset"]


def test_restore_by_delta_is_an_ordinary_change(ext: Warehouse, location: Path) -> None:
    """Law: RESTORE is a version like any other: a delta, or nothing if it restores what we saw."""
    write(location, 3)
    look(ext)
    DeltaTable(str(location)).restore(0)
    assert newest(ext) == [1, 2]
    assert kinds(ext) == ["create", "data", "data"]
    csn = internals(ext).newest_csn()
    write(location, 4)
    DeltaTable(str(location)).restore(2)
    assert newest(ext) == [1, 2]
    assert internals(ext).newest_csn() == csn


def test_a_log_cleaned_past_what_we_saw_is_a_reset(ext: Warehouse, location: Path) -> None:
    """Law: where the log no longer tells what happened since, no delta is made up."""
    for k in (3, 4, 5):
        write(location, k)
    DeltaTable(str(location)).create_checkpoint()
    for version in range(3):
        (location / "_delta_log" / f"{version:020d}.json").unlink()
    assert newest(ext) == [1, 2, 3, 4, 5]
    assert kinds(ext) == ["create", "reset"]


def test_a_log_cleaned_between_is_a_reset(ext: Warehouse, location: Path) -> None:
    """Law: the version we saw is there, but a commit after it is gone: reset."""
    for k in (3, 4, 5):
        write(location, k)
    DeltaTable(str(location)).create_checkpoint()
    (location / "_delta_log" / f"{2:020d}.json").unlink()
    assert newest(ext) == [1, 2, 3, 4, 5]
    assert kinds(ext) == ["create", "reset"]


def test_a_log_cleaned_up_to_the_newest_version_is_no_change(ext: Warehouse, location: Path) -> None:
    """Law: the same version with the same files is the same, even when its commit was cleaned away."""
    write(location, 3)
    look(ext)
    DeltaTable(str(location)).create_checkpoint()
    for entry in (location / "_delta_log").glob("0*.json"):
        entry.unlink()
    assert newest(ext) == [1, 2, 3]
    assert newest(ext) == [1, 2, 3]
    assert kinds(ext) == ["create", "data"]


def test_versions_vacuumed_by_their_writers_have_expired(ext: Warehouse, location: Path) -> None:
    """Law: an old version whose files are gone gives SnapshotExpired; the newest still reads."""
    old = internals(ext).newest_csn()
    write(location, 7, mode="overwrite")
    DeltaTable(str(location)).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert newest(ext) == [7]
    with pytest.raises(SnapshotExpired, match="vacuumed"):
        keys_at(ext, old)


def test_a_reset_that_loses_the_declared_key_says_so(wh: Warehouse, location: Path) -> None:
    """Law: a recreated table without the key column gives an error that names table, column and remedy."""
    wh.sql(f"CREATE TABLE t (PRIMARY KEY (k)) USING DELTA LOCATION '{location}'")
    shutil.rmtree(location)
    write_deltalake(str(location), pa.table({"other": [1]}))
    with pytest.raises(InvalidStatement, match=r"table t: .*column k.*Drop it and create it again"):
        look(wh)
    wh.sql("DROP TABLE t")
    look(wh)


def test_one_broken_table_does_not_hide_news_of_another(wh: Warehouse, tmp_path: Path) -> None:
    """Law: all external tables are looked at; the error of one comes after."""
    for name in ("a", "b"):
        write(tmp_path / name, 1)
        wh.sql(f"CREATE TABLE {name} USING DELTA LOCATION '{tmp_path / name}'")
    shutil.rmtree(tmp_path / "a")
    write(tmp_path / "b", 2)
    with pytest.raises(NotFound, match=r"there is none at that location"):
        look(wh)
    assert [c.kind for c in commits(wh, "b")] == ["create", "data"]


# -- what is refused ---------------------------------------------------------------------------------------


def test_external_tables_are_read_only(ext: Warehouse) -> None:
    """Law: every statement that would write it is refused, and the table's files stay as they are."""
    for statement in (
        "INSERT INTO t VALUES (9)",
        "UPDATE t SET k = 9 WHERE k = 1",
        "DELETE FROM t WHERE k = 1",
        "CHECKPOINT t",
        "ALTER TABLE t ADD COLUMN x INT",
        "ALTER TABLE t RENAME COLUMN k TO x",
    ):
        with pytest.raises(InvalidStatement, match=r"external"):
            ext.sql(statement)
    for write_ in ("insert", "upsert", "delete"):
        with ext.transaction() as tx, pytest.raises(InvalidStatement, match="read-only"):
            getattr(tx, write_)("t", [{"k": 9}])
    assert newest(ext) == [1, 2]


def test_drop_and_vacuum_leave_the_files_alone(ext: Warehouse, location: Path) -> None:
    """Law: the files belong to their writers; dropping our table and vacuuming removes none."""
    from datetime import timedelta

    before = sorted(p.name for p in location.rglob("*"))
    ext.sql("DROP TABLE t")
    ext.vacuum(timedelta(0))
    assert sorted(p.name for p in location.rglob("*")) == before


@pytest.mark.parametrize("name", ["a b", "ü日本", "50% off", "it\\'s", "a#b"])
def test_locations_may_have_spaces_and_unicode(wh: Warehouse, tmp_path: Path, name: str) -> None:
    location = tmp_path / name.replace("\\", "") / "t"
    write(location, 1)
    wh.sql(f"CREATE TABLE t USING DELTA LOCATION '{tmp_path}/{name}/t'")
    write(location, 2)
    assert newest(wh) == [1, 2]
    assert changes(relation(wh), 0, 1).column("k").to_pylist() == [2]


@pytest.mark.parametrize("name", ["a[b]", "a{b}", "a*b", "a%20b", "a^b", "a|b"])
def test_locations_that_would_be_misread_are_refused(wh: Warehouse, tmp_path: Path, name: str) -> None:
    """Law: names that delta-rs or Spark would take for a pattern or an escape give one sentence, no panic."""
    with pytest.raises(InvalidStatement, match="cannot stand in its path"):
        wh.sql(f"CREATE TABLE t USING DELTA LOCATION '{tmp_path}/{name}'")
    assert internals(wh).relations() == []


def test_a_missing_location_is_named(wh: Warehouse, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"nowhere: there is none at that location\. Check LOCATION"):
        wh.sql(f"CREATE TABLE t USING DELTA LOCATION '{tmp_path / 'nowhere'}'")
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "a.parquet").write_bytes(b"x")
    with pytest.raises(NotFound, match="plain"):
        wh.sql(f"CREATE TABLE t USING DELTA LOCATION '{tmp_path / 'plain'}'")
    (tmp_path / "file").write_text("x")
    with pytest.raises(NotFound, match="file"):
        wh.sql(f"CREATE TABLE t USING DELTA LOCATION '{tmp_path / 'file'}'")
    with pytest.raises(InvalidStatement, match="not on a local file system"):
        wh.sql("CREATE TABLE t USING DELTA LOCATION 's3://bucket/t'")
    assert internals(wh).relations() == []
    assert not (tmp_path / "nowhere").exists()


def test_a_damaged_log_is_told_in_a_sentence(wh: Warehouse, location: Path) -> None:
    (location / "_delta_log" / f"{0:020d}.json").write_text('{"add": {"pa')
    with pytest.raises(FreshviewError, match="cannot be opened") as raised:
        wh.sql(f"CREATE TABLE t USING DELTA LOCATION '{location}'")
    assert "\n" not in str(raised.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_location_without_rights_is_told_in_a_sentence(wh: Warehouse, location: Path) -> None:
    location.chmod(0)
    try:
        with pytest.raises(FreshviewError):
            wh.sql(f"CREATE TABLE t USING DELTA LOCATION '{location}'")
    finally:
        location.chmod(0o755)


def alter_log(location: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Rewrite the last log entry as another writer could have written it."""
    entry = max((location / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    for action in actions:
        change(action)
    entry.write_text("\n".join(map(json.dumps, actions)) + "\n")


def features(*names: str) -> Callable[[dict[str, Any]], None]:
    def change(action: dict[str, Any]) -> None:
        if "protocol" in action:
            action["protocol"] = {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": list(names),
                "writerFeatures": list(names),
            }

    return change


def mapped(action: dict[str, Any]) -> None:
    if "protocol" in action:
        action["protocol"] = {"minReaderVersion": 2, "minWriterVersion": 5}
    if "metaData" in action:
        action["metaData"]["configuration"] = {
            "delta.columnMapping.mode": "name",
            "delta.columnMapping.maxColumnId": "1",
        }
        schema = json.loads(action["metaData"]["schemaString"])
        for i, field in enumerate(schema["fields"], 1):
            field["metadata"] = {"delta.columnMapping.id": i, "delta.columnMapping.physicalName": f"col-{i}"}
        action["metaData"]["schemaString"] = json.dumps(schema)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (features("deletionVectors"), "deletion vectors"),
        (mapped, "column mapping"),
        (features("someFutureThing"), "someFutureThing|cannot be opened"),
    ],
    ids=["deletion vectors", "column mapping", "unknown"],
)
def test_features_we_lack_are_refused(
    wh: Warehouse, location: Path, change: Callable[[dict[str, Any]], None], told: str
) -> None:
    """Law: a table whose rows are not simply the rows of its files is refused by name, never misread."""
    alter_log(location, change)
    with pytest.raises(FreshviewError, match=told) as raised:
        wh.sql(f"CREATE TABLE t USING DELTA LOCATION '{location}'")
    assert "\n" not in str(raised.value)
    assert internals(wh).relations() == []


def test_a_feature_that_comes_later_is_refused_then(ext: Warehouse, location: Path) -> None:
    """Law: a known table that begins to use deletion vectors is not read at a stale version."""
    DeltaTable(str(location)).alter.set_table_properties({"delta.appendOnly": "false"})
    entry = max((location / "_delta_log").glob("*.json"))
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["deletionVectors"],
        "writerFeatures": ["deletionVectors"],
    }
    entry.write_text(entry.read_text().rstrip() + "\n" + json.dumps({"protocol": protocol}) + "\n")
    with pytest.raises(InvalidStatement, match="deletion vectors"):
        look(ext)
    assert kinds(ext) == ["create"]


def test_features_that_do_not_matter_are_accepted(wh: Warehouse, location: Path) -> None:
    """Law: what changes nothing about the rows is no reason to refuse."""
    alter_log(location, features("timestampNtz", "vacuumProtocolCheck"))
    wh.sql(f"CREATE TABLE t USING DELTA LOCATION '{location}'")
    assert newest(wh) == [1, 2]


def test_tables_without_rows_or_statistics_are_described(wh: Warehouse, tmp_path: Path) -> None:
    """Law: an empty table, and one whose writer kept no statistics, are tables like others."""
    DeltaTable.create(str(tmp_path / "empty"), schema=pa.schema([("k", pa.int64())]))
    wh.sql(f"CREATE TABLE e USING DELTA LOCATION '{tmp_path / 'empty'}'")
    assert wh.status().tables[0].rows_in_main == 0
    bare = tmp_path / "bare statistics"
    write(bare, 1, 2, 3)

    def forget(action: dict[str, Any]) -> None:
        action.get("add", {}).pop("stats", None)

    alter_log(bare, forget)
    wh.sql(f"CREATE TABLE b USING DELTA LOCATION '{bare}'")
    assert {t.name: t.rows_in_main for t in wh.status().tables} == {"e": 0, "b": 3}


def test_a_warehouse_opened_with_background_notices_and_checkpoints_by_itself(
    tmp_path: Path, location: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: connect(background=True) brings news of external tables and due checkpoints without a query."""
    monkeypatch.setattr(upkeep, "SECONDS", 0.05)
    monkeypatch.setattr(upkeep, "DUE_SEGMENTS", 3)
    monkeypatch.setattr(upkeep, "PATIENCE", 0.0)
    with freshview.connect(tmp_path / "own", background=True) as wh:
        noticed, folded = threading.Event(), threading.Event()
        wh.events.listen(lambda e: noticed.set() if e.name == "external.noticed" else None)
        wh.events.listen(lambda e: folded.set() if e.name == "checkpoint.done" else None)
        wh.sql(f"CREATE TABLE e USING DELTA LOCATION '{location}'")
        wh.sql("CREATE TABLE own (k INT, PRIMARY KEY (k))")
        write(location, 3)
        assert noticed.wait(30)
        for k in range(3):
            wh.sql(f"INSERT INTO own VALUES ({k})")
        assert folded.wait(30)
        assert {s.name: s.rows_in_main for s in wh.status().tables}["own"] == 3
