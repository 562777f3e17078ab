"""DDL: a commit of its own that conflicts with open writers; old snapshots keep old names and columns."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from tests.catalog.helpers import contents, seen_by
from tests.internals import internals

from freshview import Warehouse
from freshview.errors import AlreadyExists, DuplicateKey, InvalidStatement, NotFound, WriteConflict
from freshview.storage import segments

Open = Callable[[], Warehouse]


@pytest.fixture
def wh(open_warehouse: Open) -> Warehouse:
    warehouse = open_warehouse()
    warehouse.sql("CREATE TABLE t (k INT, v STRING, PRIMARY KEY (k))")
    with warehouse.transaction() as tx:
        tx.insert("t", [{"k": 1, "v": "a"}])
    return warehouse


@pytest.mark.parametrize(
    ("ddl", "cause"),
    [
        ("DROP TABLE t", "dropped"),
        ("ALTER TABLE t ADD COLUMN w INT", "altered"),
        ("ALTER TABLE t RENAME COLUMN k TO id", "altered"),
        ("ALTER TABLE t RENAME TO u", "renamed"),
    ],
)
def test_a_definition_conflicts_with_open_writers(wh: Warehouse, ddl: str, cause: str) -> None:
    writer, reader = wh.transaction(), wh.transaction()
    writer.upsert("t", [{"k": 2, "v": "b"}])
    csn = wh.sql(ddl).csn
    assert csn == wh.status().csn
    assert seen_by(wh, writer, "t") == [{"k": 1, "v": "a"}, {"k": 2, "v": "b"}]
    with pytest.raises(WriteConflict, match=cause):
        writer.commit()
    assert wh.status().csn == csn
    assert seen_by(wh, reader, "t") == [{"k": 1, "v": "a"}]
    assert reader.commit() < csn


def test_a_writer_that_begins_its_statement_after_the_definition_conflicts_too(wh: Warehouse) -> None:
    """Its snapshot still has the old table, so what it writes has the old columns."""
    writer = wh.transaction()
    wh.sql("ALTER TABLE t ADD COLUMN w INT")
    with pytest.raises(NotFound, match="column w"):
        writer.insert("t", [{"k": 2, "w": 1}])
    writer.insert("t", [{"k": 2}])
    with pytest.raises(WriteConflict, match="altered"):
        writer.commit()


def test_a_table_dropped_and_made_again_is_another_table(wh: Warehouse) -> None:
    writer = wh.transaction()
    writer.insert("t", [{"k": 5, "v": "old"}])
    wh.sql("DROP TABLE t")
    wh.sql("CREATE TABLE t (k INT, v STRING, PRIMARY KEY (k))")
    with pytest.raises(WriteConflict, match="dropped"):
        writer.commit()
    assert contents(wh, "t") == []


def test_conflicts_are_found_before_columns_are_compared(wh: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key renamed meanwhile, and a large segment under the new name: still a WriteConflict."""
    monkeypatch.setattr(segments, "INLINE_BYTES", 0)
    writer = wh.transaction()
    writer.upsert("t", [{"k": 2, "v": "b"}])
    wh.sql("ALTER TABLE t RENAME COLUMN k TO id")
    with wh.transaction() as tx:
        tx.upsert("t", pa.table({"id": pa.array(range(200), pa.int32())}))
    with pytest.raises(WriteConflict, match="altered or renamed"):
        writer.commit()


def test_a_table_made_after_the_snapshot_is_not_there(wh: Warehouse) -> None:
    tx = wh.transaction()
    wh.sql("CREATE TABLE later (a INT)")
    with pytest.raises(NotFound, match="later"):
        tx.insert("later", [{"a": 1}])


def test_old_snapshots_keep_old_names(wh: Warehouse) -> None:
    """Two tables that swap names: each snapshot, and each writer, means the one it saw."""
    wh.sql("CREATE TABLE u (k INT, v STRING, PRIMARY KEY (k))")
    before = wh.status().csn
    old = wh.transaction()
    for a, b in (("t", "x"), ("u", "t"), ("x", "u")):
        wh.sql(f"ALTER TABLE {a} RENAME TO {b}")
    assert contents(wh, "t") == []
    assert contents(wh, "u") == [{"k": 1, "v": "a"}]
    assert seen_by(wh, old, "T") == contents(wh, "t", before) == [{"k": 1, "v": "a"}]
    assert seen_by(wh, old, "u") == contents(wh, "u", before) == []
    assert [r.name for r in internals(wh).relations(before)] == ["t", "u"]
    with pytest.raises(NotFound, match="table or view x"):
        seen_by(wh, old, "x")


def test_columns_added_and_renamed_are_as_they_were_at_every_version(wh: Warehouse) -> None:
    first = wh.status().csn
    wh.sql("ALTER TABLE t ADD COLUMN w INT")
    with wh.transaction() as tx:
        tx.insert("t", [{"k": 2, "v": "b", "w": 7}])
    second = tx.csn
    wh.sql("ALTER TABLE t RENAME COLUMN v TO x")
    wh.sql("ALTER TABLE t RENAME COLUMN w TO v")
    wh.sql("CHECKPOINT t")
    with wh.transaction() as tx:
        tx.upsert("t", [{"k": 1, "x": "z", "v": 1}])
    assert contents(wh, "t", first) == [{"k": 1, "v": "a"}]
    assert contents(wh, "t", second) == [{"k": 1, "v": "a", "w": None}, {"k": 2, "v": "b", "w": 7}]
    assert contents(wh, "t") == [{"k": 1, "x": "z", "v": 1}, {"k": 2, "x": "b", "v": 7}]


def test_a_renamed_key_still_finds_its_rows(wh: Warehouse) -> None:
    wh.sql("CHECKPOINT t")
    wh.sql("ALTER TABLE t RENAME COLUMN k TO id")
    assert wh.sql("UPDATE t SET v = 'x' WHERE id = 1").rows == 1
    wh.sql("DELETE FROM t WHERE id = 1")
    assert contents(wh, "t") == []


def test_names_are_case_insensitive_and_kept_as_written(wh: Warehouse) -> None:
    wh.sql("CREATE TABLE `Größe` (A INT)")
    with pytest.raises(AlreadyExists, match="Größe"):
        wh.sql("CREATE TABLE GRÖßE (a INT)")
    before = wh.status().csn
    assert wh.sql("CREATE TABLE IF NOT EXISTS größE (a INT)").csn == before
    assert wh.sql("CREATE TABLE grösse (a INT)").csn == before + 1  # ß is a letter of its own, as in Spark
    with wh.transaction() as tx:
        tx.insert("GRÖßE", [{"a": 1}])
    assert contents(wh, "größe") == [{"A": 1}]
    wh.sql("ALTER TABLE größe RENAME TO GRÖßE")
    assert "GRÖßE" in [t.name for t in wh.status().tables]
    with pytest.raises(AlreadyExists, match="table t"):
        wh.sql("ALTER TABLE größe RENAME TO T")


def test_unknown_names_are_not_found_with_a_hint(wh: Warehouse) -> None:
    before = wh.status()
    wh.sql("CREATE TABLE customer (a INT)")
    for statement in ("DROP TABLE custmer", "ALTER TABLE custmer ADD COLUMN b INT", "CHECKPOINT custmer"):
        with pytest.raises(NotFound, match="custmer"):
            wh.sql(statement)
    with pytest.raises(NotFound, match="Did you mean customer"), wh.transaction() as tx:
        tx.insert("custmer", [{"a": 1}])
    wh.sql("DROP TABLE IF EXISTS custmer")
    wh.sql("DROP TABLE customer")
    assert wh.status().tables == before.tables


@pytest.mark.parametrize(
    ("ddl", "error"),
    [
        ("ALTER TABLE t ADD COLUMN V INT", InvalidStatement),
        ("ALTER TABLE t ADD COLUMN `a b` INT", InvalidStatement),
        ("ALTER TABLE t RENAME COLUMN k TO v", InvalidStatement),
        ("ALTER TABLE t RENAME COLUMN nope TO x", NotFound),
        ("ALTER TABLE t RENAME TO ``", InvalidStatement),
        ("CREATE TABLE t (a INT)", AlreadyExists),
    ],
)
def test_a_refused_definition_changes_nothing(wh: Warehouse, ddl: str, error: type[Exception]) -> None:
    before = (wh.status(), internals(wh).relations())
    with pytest.raises(error):
        wh.sql(ddl)
    assert (wh.status(), internals(wh).relations()) == before


@pytest.mark.parametrize("name", ["a/b", "../up", 'q"', "it's", "a.b", "名", "x;DROP TABLE t", "C:\\x", "%", "a b"])
def test_odd_names_stay_inside_the_warehouse(wh: Warehouse, name: str) -> None:
    """Tables and columns; folders are named by number, so no name leads out of the warehouse."""
    column = "c" if set(name) & set(" ;\\") else name  # a backslash in an expression is left to Spark
    outside = sorted(wh.path.parent.iterdir())
    wh.sql(f"CREATE TABLE `{name}` (`{column}` STRING, n INT, PRIMARY KEY (`{column}`))")
    with wh.transaction() as tx:
        tx.insert(name, [{column: "x", "n": 1}, {column: name, "n": 2}])
    wh.sql(f"CHECKPOINT `{name}`")
    assert wh.sql(f"DELETE FROM `{name}` WHERE `{column}` = 'x'").rows == 1
    with wh.transaction() as tx:
        tx.delete(name, [name])
    assert contents(wh, name) == []
    wh.sql(f"DROP TABLE `{name}`")
    assert [t.name for t in wh.status().tables] == ["t"]
    assert sorted(wh.path.parent.iterdir()) == outside


def test_a_renamed_key_is_found_in_large_segments_written_before(
    wh: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments too large to fold on the driver are searched by the name that the key had when they were written."""
    monkeypatch.setattr(segments, "INLINE_BYTES", 0)
    with wh.transaction() as tx:
        tx.upsert("t", pa.table({"k": pa.array(range(200), pa.int32())}))
    wh.sql("ALTER TABLE t RENAME COLUMN k TO id")
    monkeypatch.setattr("freshview.storage.reader.OVERLAY_ROWS", 10)
    assert wh.sql("UPDATE t SET v = 'x' WHERE id = 150").rows == 1
    with pytest.raises(DuplicateKey, match="id=7"), wh.transaction() as tx:
        tx.insert("t", [{"id": 7}])
