"""External Delta tables through Spark: what others wrote, exactly, at every CSN, and never a stale or wrong row."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import AddAction
from tests.internals import internals
from tests.spark.sessions import rows

from freshview import Warehouse
from freshview.errors import FreshviewError, SnapshotExpired
from freshview.refresh import embedded

pytestmark = pytest.mark.spark


def write(location: Path, *keys: int, **options: Any) -> None:
    write_deltalake(str(location), pa.table({"k": list(keys)}), mode=options.pop("mode", "append"), **options)


def keys(wh: Warehouse, text: str = "SELECT k FROM t") -> list[int]:
    return sorted(r.k for r in wh.sql(text).collect())


@pytest.fixture
def location(tmp_path: Path) -> Path:
    folder = tmp_path / "other writers ü" / "t"
    write(folder, 1, 2)
    return folder


@pytest.fixture
def ext(swh: Warehouse, location: Path) -> Warehouse:
    swh.sql(f"CREATE TABLE t USING DELTA LOCATION '{location}'")
    return swh


def test_a_new_table_reads_at_once(ext: Warehouse) -> None:
    assert keys(ext) == [1, 2]


@pytest.mark.parametrize("feed", [True, False])
def test_a_query_sees_what_others_wrote(swh: Warehouse, tmp_path: Path, feed: bool) -> None:
    """Law: append, overwrite, delete, update, merge and compaction by others are seen by the next query."""
    location = tmp_path / "t"
    write(location, 1, 2, 3, configuration={"delta.enableChangeDataFeed": "true"} if feed else None)
    swh.sql(f"CREATE TABLE t (PRIMARY KEY (k)) USING DELTA LOCATION '{location}'")
    assert keys(swh) == [1, 2, 3]
    at = {internals(swh).newest_csn(): [1, 2, 3]}

    def table() -> DeltaTable:
        return DeltaTable(str(location))

    steps: list[tuple[Callable[[], object], list[int]]] = [
        (lambda: write(location, 4), [1, 2, 3, 4]),
        (lambda: table().delete("k = 2"), [1, 3, 4]),
        (lambda: table().update({"k": "k + 10"}, predicate="k = 3"), [1, 4, 13]),
        (
            lambda: (
                table()
                .merge(pa.table({"k": [4, 5]}), "t.k = s.k", source_alias="s", target_alias="t")
                .when_matched_delete()
                .when_not_matched_insert({"k": "s.k"})
                .execute()
            ),
            [1, 5, 13],
        ),
        (lambda: table().optimize.compact(), [1, 5, 13]),
        (lambda: write(location, 7, mode="overwrite"), [7]),
    ]
    for step, expected in steps:
        step()
        assert keys(swh) == expected
        at[internals(swh).newest_csn()] = expected
    assert len(at) == 6  # the compaction made no commit
    for csn, expected in at.items():
        assert keys(swh, f"SELECT k FROM t VERSION AS OF {csn}") == expected


def test_partition_values_are_typed_from_the_log(swh: Warehouse, tmp_path: Path) -> None:
    """Law 11.16: '01' stays text, NULL stays NULL, and odd characters do not get lost in paths."""
    texts = ["01", "1", None, "a b", "50%", "x/y", "ü{1}*", "a%2Fb", "#?", "=", "[x]"]
    n = len(texts)
    rows = pa.table(
        {
            "k": pa.array(range(n), pa.int64()),
            "p": pa.array(texts),
            "d": pa.array([dt.date(1969, 12, 31 - i) if i % 3 else None for i in range(n)]),
            "b": pa.array([i % 2 == 0 for i in range(n)]),
            "m": pa.array([Decimal(i) + Decimal("0.50") for i in range(n)], pa.decimal128(9, 2)),
            "t": pa.array([dt.datetime(2020, 7, 1, 12, 0, 0, i) for i in range(n)], pa.timestamp("us", "UTC")),
        }
    )
    write_deltalake(str(tmp_path / "t"), rows, partition_by=["p", "d", "b", "m", "t"])
    swh.sql(f"CREATE TABLE t USING DELTA LOCATION '{tmp_path / 't'}'")
    found = swh.sql("SELECT k, p, d, b, m, unix_micros(t) AS t FROM t ORDER BY k").collect()
    expected = [
        (r["k"], r["p"], r["d"], r["b"], r["m"], rows.column("t")[i].value) for i, r in enumerate(rows.to_pylist())
    ]
    assert [tuple(r) for r in found] == expected


def test_an_added_column_is_null_in_older_rows(ext: Warehouse, location: Path) -> None:
    write_deltalake(str(location), pa.table({"k": [3], "w": ["x"]}), mode="append", schema_mode="merge")
    assert sorted((r.k, r.w or "") for r in ext.sql("SELECT k, w FROM t").collect()) == [(1, ""), (2, ""), (3, "x")]


@pytest.mark.parametrize("versions", [1, 2], ids=["same version", "higher version"])
def test_a_recreated_table_is_read_anew(ext: Warehouse, location: Path, versions: int) -> None:
    """Law: no cached plan or handle of the old table answers for the new one; the old version has expired."""
    assert keys(ext) == [1, 2]
    old = internals(ext).newest_csn()
    shutil.rmtree(location)
    for i in range(versions):
        write(location, 100 + i)
    assert keys(ext) == [100 + i for i in range(versions)]
    with pytest.raises(SnapshotExpired):
        keys(ext, f"SELECT k FROM t VERSION AS OF {old}")


def test_a_vacuumed_version_has_expired(ext: Warehouse, location: Path) -> None:
    """Law: files that their writers removed give SnapshotExpired, not a JVM trace."""
    old = internals(ext).newest_csn()
    write(location, 7, mode="overwrite")
    DeltaTable(str(location)).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert keys(ext) == [7]
    with pytest.raises(SnapshotExpired, match="vacuumed"):
        keys(ext, f"SELECT k FROM t VERSION AS OF {old}")


def test_a_declared_key_is_trusted_and_verified_on_request(swh: Warehouse, location: Path) -> None:
    """Law: check() finds the keys that occur twice; reading does not mind them."""
    swh.sql(f"CREATE TABLE t (PRIMARY KEY (K)) USING DELTA LOCATION '{location}'")
    assert swh.check("t").ok
    write(location, 2, 5)
    assert keys(swh) == [1, 2, 2, 5]
    report = swh.check("t")
    assert not report.ok
    assert [row["k"] for row in report.extra] == [2]


@pytest.fixture
def joined(swh: Warehouse, tmp_path: Path) -> Path:
    """The folder of a small table of others, in two files; a view joins it with a table of ours."""
    folder = tmp_path / "e"
    write(folder, 1, 2, 2)
    write(folder, 3, 4)
    swh.sql(f"CREATE TABLE e USING DELTA LOCATION '{folder}'")
    swh.sql("CREATE TABLE own (id INT PRIMARY KEY, k BIGINT)")
    swh.sql("INSERT INTO own VALUES (1, 1), (2, 2), (3, 9)")
    swh.sql(
        "CREATE MATERIALIZED VIEW v TBLPROPERTIES ('refresh'='incremental') AS "
        "SELECT id, e.k FROM own JOIN e ON own.k = e.k"
    )
    return folder


@pytest.mark.parametrize("engine", ["auto", "spark"])
def test_a_view_joins_a_small_table_of_others_with_a_change_of_ours(
    swh: Warehouse, joined: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "ENGINE", engine)
    for change in (lambda: write(joined, 9, 2), lambda: DeltaTable(str(joined)).delete("k = 3")):
        swh.sql("UPDATE own SET k = 5 - k WHERE id < 3")
        change()
        (job,) = swh.maintain()
        assert job.strategy == "incremental"
        assert swh.check("v").ok


@pytest.mark.parametrize("engine", ["auto", "spark"])
def test_the_state_before_is_found_by_undoing_the_change_if_its_files_are_gone(
    swh: Warehouse, joined: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DEFER §2.5: its writers compact and vacuum, and append then. The old version cannot be read, its change can."""
    monkeypatch.setattr(embedded, "ENGINE", engine)
    old = internals(swh).newest_csn()
    table = DeltaTable(str(joined))
    table.optimize.compact()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    write(joined, 9, 2)
    swh.sql("UPDATE own SET k = 4 WHERE id = 1")
    (job,) = swh.maintain()
    assert job.strategy == "incremental"
    assert swh.check("v").ok
    assert rows(swh, "SELECT id, k FROM v") == [(1, 4), (2, 2), (2, 2), (2, 2), (3, 9)]
    with pytest.raises(SnapshotExpired):
        swh.sql("SELECT * FROM e", as_of=old).collect()


def test_an_unknown_key_column_is_refused(swh: Warehouse, location: Path) -> None:
    with pytest.raises(FreshviewError, match="nope"):
        swh.sql(f"CREATE TABLE t (PRIMARY KEY (nope)) USING DELTA LOCATION '{location}'")
    assert internals(swh).relations() == []


def test_a_table_that_is_gone_is_told_and_does_not_stop_others(ext: Warehouse, location: Path) -> None:
    """Law: a query of the lost table says where it was; a query that does not read it is not disturbed."""
    ext.sql("CREATE TABLE own (k INT)")
    shutil.rmtree(location)
    with pytest.raises(FreshviewError, match="there is none at that location"):
        keys(ext)
    ext.sql("INSERT INTO own VALUES (1)")
    assert keys(ext, "SELECT k FROM own") == [1]


def test_external_and_own_tables_join(ext: Warehouse, location: Path) -> None:
    """Law: both are read at one CSN."""
    ext.sql("CREATE TABLE own (k INT, v STRING)")
    ext.sql("INSERT INTO own VALUES (2, 'x')")
    csn = internals(ext).newest_csn()
    write(location, 2)
    assert len(ext.sql("SELECT * FROM t JOIN own USING (k)").collect()) == 2
    assert len(ext.sql("SELECT * FROM t JOIN own USING (k)", as_of=csn).collect()) == 1


@pytest.mark.parametrize("marks", [{"version": "2.4.8"}, {"version": "3.5.0", "legacyDateTime": ""}])
def test_days_of_the_hybrid_calendar_are_read_as_spark_means_them(
    swh: Warehouse, tmp_path: Path, marks: dict[str, str]
) -> None:
    """Spark converts them when it reads such files; Arrow does not, so a view of them is computed by Spark."""
    location = tmp_path / "t"
    day, late = dt.date(1200, 3, 8), dt.date(2020, 1, 1)  # the first is 1200-03-01 in the calendar of Spark 2
    moments = [dt.datetime(1200, 3, 8, tzinfo=dt.UTC), dt.datetime(2020, 1, 1, tzinfo=dt.UTC)]
    write_deltalake(str(location), pa.table({"d": pa.array([late]), "t": pa.array([moments[1]])}))
    swh.sql(f"CREATE TABLE t USING DELTA LOCATION '{location}'")
    text = "SELECT CAST(d AS STRING) AS d, unix_micros(t) AS t FROM t"
    swh.sql(f"CREATE MATERIALIZED VIEW v AS {text}")
    swh.sql("CREATE MATERIALIZED VIEW g AS SELECT d, count(*) AS n FROM t GROUP BY d")
    table = DeltaTable(str(location))
    for number, days in enumerate(([late, day], [late, late])):
        noted = {f"org.apache.spark.{name}": value for name, value in marks.items()}
        times = [moments[d == late] for d in days]
        stored = pa.table({"d": pa.array(days), "t": pa.array(times, pa.timestamp("us", "UTC"))})
        file = location / f"{number}.parquet"
        pq.write_table(stored.replace_schema_metadata(noted), file)
        added = AddAction(file.name, file.stat().st_size, {}, 0, True, '{"numRecords": 2}')
        table.create_write_transaction([added], "append", table.schema())
        table = DeltaTable(str(location))
        assert rows(swh, "SELECT * FROM v") == rows(swh, text)
        assert rows(swh, "SELECT CAST(d AS STRING), n FROM g") == [("1200-03-01", 1), ("2020-01-01", 2 + 2 * number)]
