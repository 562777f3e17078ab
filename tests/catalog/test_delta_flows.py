"""Flows from Delta tables of others: after every poll the target is the table, or the poll is refused."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.catalog.helpers import contents
from tests.catalog.test_flows import Died, Killer
from tests.effort import examples
from tests.internals import internals

import freshview
from freshview import Warehouse
from freshview.cdc import delta_versions
from freshview.cdc.delta_versions import DeltaVersions
from freshview.errors import CaptureFailed, FreshviewError, InvalidStatement, NotFound
from freshview.flows.explain import explain_flow

FEED = {"delta.enableChangeDataFeed": "true"}
SCHEMA = pa.schema([("id", pa.int64()), ("p", pa.string()), ("v", pa.string()), ("n", pa.int64())])


@pytest.fixture
def wh(tmp_path: Path) -> Iterator[Warehouse]:
    with freshview.connect(tmp_path / "warehouse") as wh:
        yield wh


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def _rows(*rows: tuple[Any, ...]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)


def _append(lake: Path, *rows: tuple[Any, ...], **more: Any) -> None:
    (lake / "t").mkdir(parents=True, exist_ok=True)
    write_deltalake(str(lake / "t"), _rows(*rows), mode="append", **more)


def _table(lake: Path) -> DeltaTable:
    return DeltaTable(str(lake / "t"))


def _flow(wh: Warehouse, lake: Path, clauses: str = "", options: str = "") -> None:
    wh.sql(f"CREATE SOURCE lake USING DELTA OPTIONS (path '{lake}'{options})")
    wh.sql(f"CREATE FLOW f AS AUTO CDC INTO t FROM lake.t KEYS (id) {clauses}")


def _there(lake: Path) -> list[dict[str, Any]]:
    """The rows of the Delta table, as delta-rs reads them."""
    return sorted(_table(lake).to_pyarrow_table().to_pylist(), key=lambda row: row["id"])


def _here(wh: Warehouse, table: str = "t") -> list[dict[str, Any]]:
    return sorted(contents(wh, table), key=lambda row: row["id"])


def _position(wh: Warehouse) -> Any:
    catalog = internals(wh).catalog
    return catalog.position(catalog.relation("t").id)


def _refused(wh: Warehouse, match: str) -> None:
    """A poll is refused with this message, and changes nothing."""
    before = _here(wh), _position(wh)
    with pytest.raises(CaptureFailed, match=match):
        wh.sql("REFRESH FLOW f")
    assert (_here(wh), _position(wh)) == before


# -- laws --------------------------------------------------------------------------------------------


def _change(lake: Path, draw: random.Random, number: int) -> str:
    """One operation of some other writer, which keeps ids unique."""
    table, ids = _table(lake), [row["id"] for row in _there(lake)]
    kinds = ["append"] * 3 + [
        "update",
        "update",
        "delete",
        "merge",
        "overwrite",
        "compact",
        "zorder",
        "feed",
        "restore",
    ]
    kind = draw.choice([*kinds, "vacuum", "again"])
    new = [(i, draw.choice("ab"), f"v{number}", number) for i in draw.sample(range(40), 3)]
    match kind:
        case "append":
            _append(lake, *(row for row in new if row[0] not in ids))
        case "update" if ids:
            table.update({"v": f"'u{number}'", "n": str(number)}, predicate=f"id % 3 = {number % 3}")
        case "delete" if ids:
            table.delete(f"id = {draw.choice(ids)}")
        case "merge":
            (
                table.merge(_rows(*new), "t.id = s.id", source_alias="s", target_alias="t")
                .when_matched_update({"v": "s.v", "n": "s.n"})
                .when_not_matched_insert({c: f"s.{c}" for c in SCHEMA.names})
                .execute()
            )
        case "overwrite":
            kept = [r for r in _there(lake) if draw.random() < 0.8]
            write_deltalake(table, pa.Table.from_pylist(kept, SCHEMA), mode="overwrite")
        case "again" if ids:  # a row goes and comes back as it was
            row = draw.choice(_there(lake))
            table.delete(f"id = {row['id']}")
            _append(lake, tuple(row.values()))
        case "compact":
            table.optimize.compact()
        case "zorder":
            table.optimize.z_order(["id"])
        case "feed":
            table.alter.set_table_properties({"delta.enableChangeDataFeed": draw.choice(["true", "false"])})
        case "restore" if table.version() > 0:
            table.restore(max(0, table.version() - draw.randrange(1, 3)))
        case "vacuum":
            table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    return kind


def _polled(wh: Warehouse, done: list[str]) -> None:
    """Poll; after a VACUUM the changes may be lost, and then FULL is the way on."""
    try:
        wh.sql("REFRESH FLOW f")
    except CaptureFailed:
        if "vacuum" not in done:
            raise
        wh.sql("REFRESH FLOW f FULL")


@pytest.mark.parametrize("seed", range(examples(12)))
def test_the_target_is_the_table_after_every_poll_whatever_dies(wh: Warehouse, lake: Path, seed: int) -> None:
    """Law: after a poll the target is the table, by its feed, its files or both; only VACUUM may cause a refusal."""
    draw, killer = random.Random(seed), Killer(wh)
    more = {"partition_by": ["p"] if seed % 3 else None, "configuration": FEED if seed % 2 else None}
    _append(lake, *((i, "a", "first", 0) for i in range(10)), **more)
    _flow(wh, lake)
    _polled(wh, [])
    done: list[str] = []
    for number in range(1, 25):
        done.append(_change(lake, draw, number))
        if draw.random() < 0.4:
            continue
        killer.left = draw.choice([None, None, 1, 2, 3])
        with suppress(Died):
            _polled(wh, done)
        killer.left = None
        _polled(wh, done)
        assert _here(wh) == _there(lake), f"seed {seed}: {done}"


@pytest.mark.parametrize("seed", range(examples(5)))
def test_a_history_has_each_version_of_each_row_whatever_dies(wh: Warehouse, lake: Path, seed: int) -> None:
    draw, killer = random.Random(seed), Killer(wh)
    _append(lake, *((i, "a", "first", 0) for i in range(5)), configuration=FEED if seed % 2 else None)
    _flow(wh, lake, "SEQUENCE BY n STORED AS SCD TYPE 2")
    wh.sql("REFRESH FLOW f")
    wanted = {(i, "first", 0) for i in range(5)}
    for number in range(1, 15):
        key = draw.randrange(8)
        if draw.random() < 0.2:
            _table(lake).optimize.compact()
        elif any(row["id"] == key for row in _there(lake)):
            _table(lake).update({"v": f"'u{number}'", "n": str(number)}, predicate=f"id = {key}")
            wanted.add((key, f"u{number}", number))
        else:
            _append(lake, (key, "a", "new", number))
            wanted.add((key, "new", number))
        if draw.random() < 0.5:
            killer.left = draw.choice([1, 2, 3, 4, 5, None])
            with suppress(Died):
                wh.sql("REFRESH FLOW f")
            killer.left = None
    wh.sql("REFRESH FLOW f")
    found = contents(wh, "t")
    assert {(r["id"], r["v"], r["__START_AT"]) for r in found} == wanted, f"seed {seed}"
    assert len(found) == len(wanted)
    assert sorted(r["id"] for r in found if r["__END_AT"] is None) == [row["id"] for row in _there(lake)]


# -- what one poll brings ------------------------------------------------------------------------------


@pytest.mark.parametrize("configuration", [FEED, None])
def test_the_sets_are_those_of_the_difference(lake: Path, configuration: dict[str, str] | None) -> None:
    _append(lake, (1, "a", "x", 1), (2, "a", "x", 1), (3, "a", "x", 1), configuration=configuration)
    source = DeltaVersions(lake / "t", "t", ["ID"])
    first = source.poll(None)
    assert first.delta.filled == {"ins"}
    assert first.delta.ins.num_rows == 3
    _table(lake).update({"v": "'y'"}, predicate="id = 2")
    _table(lake).delete("id = 3")
    _append(lake, (4, "a", "x", 1))
    poll = source.poll(first.position)
    found = {name: rows.to_pylist() for name, rows in poll.delta.sets.items() if rows.num_rows}
    assert {name: [row["id"] for row in rows] for name, rows in found.items()} == {"ins": [4], "del": [3], "un/uo": [2]}
    assert (found["un/uo"][0]["v"], poll.delta.uo.to_pylist()[0]["v"]) == ("y", "x")
    assert poll.at is not None
    again = source.poll(poll.position)
    assert (again.delta.num_changes, again.position) == (0, poll.position)


def test_a_rearrangement_is_no_change(wh: Warehouse, lake: Path) -> None:
    for i in range(3):
        _append(lake, (i, "a", "x", 1))
    _flow(wh, lake)
    wh.sql("REFRESH FLOW f")
    _table(lake).optimize.compact()
    csn = wh.status().csn
    assert wh.sql("REFRESH FLOW f").rows == 0
    assert wh.status().csn == csn


def test_a_history_has_a_row_for_each_version_of_the_table(wh: Warehouse, lake: Path) -> None:
    """Versions between two polls count one by one; a deletion ends a row at the time of its commit."""
    _append(lake, (1, "a", "x", 1), (2, "a", "x", 1))
    _flow(wh, lake, "SEQUENCE BY n COLUMNS (id, v, n) STORED AS SCD TYPE 2")
    for n in (2, 3):
        _table(lake).update({"v": f"'v{n}'", "n": str(n)}, predicate="id = 1")
        _table(lake).optimize.compact()
    wh.sql("REFRESH FLOW f")
    for n in (4, 5):
        _table(lake).update({"v": f"'v{n}'", "n": str(n)}, predicate="id = 1")
        _table(lake).optimize.compact()
    wh.sql("REFRESH FLOW f")
    rows = [(r["id"], r["v"], r["__START_AT"], r["__END_AT"]) for r in contents(wh, "t")]
    want = [(1, "v3", 3, 4), (1, "v4", 4, 5), (1, "v5", 5, None), (2, "x", 1, None)]
    assert sorted(rows, key=repr) == sorted(want, key=repr)


def test_type_1_with_a_sequence_takes_deletions(wh: Warehouse, lake: Path) -> None:
    _append(lake, (1, "a", "x", 1), (2, "a", "x", 1))
    _flow(wh, lake, "SEQUENCE BY n")
    wh.sql("REFRESH FLOW f")
    _table(lake).delete("id = 2")
    _table(lake).update({"v": "'late'", "n": "0"}, predicate="id = 1")
    wh.sql("REFRESH FLOW f")
    assert [(r["id"], r["v"]) for r in _here(wh)] == [(1, "x")]  # by the sequence, the update came too late
    wh.sql("REFRESH FLOW f FULL")
    assert _here(wh) == _there(lake)


def test_a_restored_version_is_a_change(wh: Warehouse, lake: Path) -> None:
    _append(lake, (1, "a", "x", 1))
    _append(lake, (2, "a", "x", 1))
    _flow(wh, lake)
    wh.sql("REFRESH FLOW f")
    _table(lake).restore(0)
    assert wh.sql("REFRESH FLOW f").rows == 1
    assert _here(wh) == _there(lake)


# -- keys ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("configuration", [FEED, None])
def test_a_key_with_two_rows_is_refused_and_taken_when_one_is_gone(
    wh: Warehouse, lake: Path, configuration: dict[str, str] | None
) -> None:
    """The row that was there before has not changed, so no change of the log has it."""
    _append(lake, (1, "a", "x", 1), (2, "a", "x", 1), partition_by=["p"], configuration=configuration)
    _flow(wh, lake)
    wh.sql("REFRESH FLOW f")
    _append(lake, (3, "a", "x", 1), (1, "b", "twice", 1))
    _refused(wh, r"key \(id=1\) has more than one row at version 1\. No change was taken since version 0\. Remove")
    _table(lake).delete("id = 1 AND v = 'x'")
    wh.sql("REFRESH FLOW f")
    assert _here(wh) == _there(lake)
    _append(lake, (5, "a", "x", 1), (5, "a", "x", 1))
    _refused(wh, r"key \(id=5\) has more than one row at version 3")


def test_a_table_with_keys_that_repeat_or_are_null_is_refused_from_the_first(wh: Warehouse, lake: Path) -> None:
    _append(lake, (1, "a", "x", 1), (1, "a", "y", 1))
    _flow(wh, lake)
    _refused(wh, r"Delta table t: the key \(id=1\) has more than one row at version 0")
    _table(lake).delete("v = 'y'")
    wh.sql("REFRESH FLOW f")
    _append(lake, (None, "a", "x", 1))
    _refused(wh, r"NULL.* No change was taken since version 1")


# -- other columns, another history --------------------------------------------------------------------


def _write(lake: Path, rows: pa.Table, **more: Any) -> None:
    write_deltalake(str(lake / "t"), rows, **more)


def test_a_column_that_is_added_is_added_here_without_reading_the_table_anew(
    wh: Warehouse, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _append(lake, (1, "a", "x", 1), (2, "a", "x", 1))
    _flow(wh, lake)
    wh.sql("REFRESH FLOW f")
    wide = _rows((3, "a", "x", 1)).append_column("extra", pa.array([7], pa.int32()))
    _write(lake, wide, mode="append", schema_mode="merge")
    _table(lake).delete("id = 1")
    monkeypatch.setattr(delta_versions, "contents", None)
    wh.sql("REFRESH FLOW f")
    assert _here(wh) == _there(lake)
    assert [row["extra"] for row in _here(wh)] == [None, 7]
    wh.sql("ALTER SOURCE lake SET OPTIONS ('on schema change' 'stop')")
    _write(lake, wide.slice(0, 0).append_column("more", pa.array([], pa.string())), mode="append", schema_mode="merge")
    _refused(
        wh, r"it had \(.*extra int\) at version 2, and has \(.*more string\)\. No change was taken since version 2"
    )


def test_versions_before_a_column_was_added_are_taken_one_by_one(wh: Warehouse, lake: Path) -> None:
    _append(lake, (1, "a", "x", 1))
    _flow(wh, lake, "SEQUENCE BY n COLUMNS * EXCEPT (p) STORED AS SCD TYPE 2")
    wh.sql("REFRESH FLOW f")
    _table(lake).update({"v": "'y'", "n": "2"}, predicate="id = 1")
    wide = _rows((2, "a", "x", 1)).append_column("extra", pa.array([7], pa.int32()))
    _write(lake, wide, mode="append", schema_mode="merge")
    _table(lake).update({"extra": "8", "n": "3"}, predicate="id = 1")
    wh.sql("REFRESH FLOW f")
    found = {(r["id"], r["v"], r["extra"], r["__START_AT"], r["__END_AT"]) for r in contents(wh, "t")}
    assert found == {(1, "x", None, 1, 2), (1, "y", None, 2, 3), (1, "y", 8, 3, None), (2, "x", 7, 1, None)}


@pytest.mark.parametrize("change", ["dropped", "renamed", "retyped"])
def test_other_changes_of_columns_are_refused_until_the_target_has_them(wh: Warehouse, lake: Path, change: str) -> None:
    _append(lake, (1, "a", "5", 1), (2, "a", "6", 1))
    _flow(wh, lake, "COLUMNS (id, v)")
    wh.sql("REFRESH FLOW f")
    old = _rows((1, "a", "5", 1), (3, "a", "7", 1))
    new = {
        "dropped": lambda: old.drop_columns(["n"]),
        "renamed": lambda: old.rename_columns(["id", "q", "v", "n"]),
        "retyped": lambda: old.set_column(3, "n", old.column("n").cast(pa.string())),
    }[change]()
    _write(lake, new, mode="overwrite", schema_mode="overwrite")
    _refused(
        wh, r"it had \(id bigint, .*\) at version 0, and has \(.* since version 0\. Change the target .*FLOW f FULL"
    )
    wh.sql("REFRESH FLOW f FULL")
    assert [(r["id"], r["v"]) for r in _here(wh)] == [(1, "5"), (3, "7")]
    _write(lake, new.slice(0, 1), mode="overwrite")
    wh.sql("REFRESH FLOW f")
    assert [r["id"] for r in _here(wh)] == [1]


@pytest.mark.parametrize("feed", [True, False])
def test_columns_that_were_others_for_a_while_change_nothing(wh: Warehouse, lake: Path, feed: bool) -> None:
    """Files of the versions in between have other types and partitions; only the two versions count."""
    _append(lake, (1, "a", "5", 1), (2, "b", "6", 1), configuration=FEED if feed else None, partition_by=["p"])
    _flow(wh, lake)
    wh.sql("REFRESH FLOW f")
    retyped = _rows((1, "a", "5", 1), (4, "b", "9", 9))
    retyped = retyped.set_column(3, "n", retyped.column("n").cast(pa.string()))
    _write(lake, retyped, mode="overwrite", schema_mode="overwrite", partition_by=["n"])
    _table(lake).update({"v": "'z'"}, predicate="id = 4")
    _write(
        lake, _rows((1, "a", "5", 1), (3, "a", "z", 2)), mode="overwrite", schema_mode="overwrite", partition_by=["p"]
    )
    wh.sql("REFRESH FLOW f")
    assert _here(wh) == _there(lake)


def test_another_partitioning_is_no_change_of_rows(wh: Warehouse, lake: Path) -> None:
    rows = _rows((1, "a", "5", 1), (2, "b", "6", 1))
    _append(lake, *(tuple(r.values()) for r in rows.to_pylist()), partition_by=["p"])
    _flow(wh, lake)
    wh.sql("REFRESH FLOW f")
    _write(lake, rows, mode="overwrite", schema_mode="overwrite", partition_by=["v"])
    assert wh.sql("REFRESH FLOW f").rows == 0
    _table(lake).delete("id = 1")
    wh.sql("REFRESH FLOW f")
    assert _here(wh) == _there(lake)


def test_a_vacuumed_history_is_refused(wh: Warehouse, lake: Path) -> None:
    _append(lake, (1, "a", "x", 1), (2, "a", "x", 1))
    _flow(wh, lake)
    wh.sql("REFRESH FLOW f")
    _table(lake).update({"v": "'y'"}, predicate="id = 1")
    _table(lake).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    _refused(
        wh, r"data file .* was vacuumed\. No change was taken since version 0\. The way on is .*REFRESH FLOW f FULL"
    )
    wh.sql("REFRESH FLOW f FULL")
    assert _here(wh) == _there(lake)


def test_a_cleaned_log_is_refused(wh: Warehouse, lake: Path) -> None:
    _append(lake, (1, "a", "x", 1))
    _flow(wh, lake)
    wh.sql("REFRESH FLOW f")
    for i in range(2, 5):
        _append(lake, (i, "a", "x", 1))
    _table(lake).create_checkpoint()
    for version in range(3):
        (lake / "t" / "_delta_log" / f"{version:020d}.json").unlink()
    _refused(wh, r"does not have version 0 as it was: .* its log was cleaned\. No change was taken since version 0")
    wh.sql("REFRESH FLOW f FULL")
    assert _here(wh) == _there(lake)


@pytest.mark.parametrize("versions", [1, 2, 3])
def test_a_table_that_was_created_anew_is_refused(wh: Warehouse, lake: Path, versions: int) -> None:
    """Whether the new table has fewer versions, as many or more: its version 1 is another one."""
    _append(lake, (1, "a", "x", 1))
    _append(lake, (2, "a", "x", 1))
    _flow(wh, lake)
    wh.sql("REFRESH FLOW f")
    shutil.rmtree(lake / "t")
    for i in range(versions):
        _append(lake, (i + 3, "a", "x", 1))
    _refused(wh, r"the table was created anew.* No change was taken since version 1")
    wh.sql("REFRESH FLOW f FULL")
    assert _here(wh) == _there(lake)


def test_a_log_that_was_set_back_by_hand_is_refused(wh: Warehouse, lake: Path) -> None:
    for i in range(3):
        _append(lake, (i, "a", "x", 1))
    _flow(wh, lake)
    wh.sql("REFRESH FLOW f")
    (lake / "t" / "_delta_log" / f"{2:020d}.json").unlink()
    _refused(wh, r"now at version 1.*does not have version 2")
    _append(lake, (7, "a", "x", 1))
    _refused(wh, r"now at version 2.*does not have version 2")


def test_a_table_that_is_gone_is_refused_and_its_flow_can_be_dropped(wh: Warehouse, lake: Path) -> None:
    _append(lake, (1, "a", "x", 1))
    _flow(wh, lake)
    wh.sql("REFRESH FLOW f")
    (lake / "t").rename(lake / "away")
    _refused(wh, r"there is none at that location\. No change was taken since version 0\. Check the path of the source")
    wh.sql("DROP SOURCE lake CASCADE")


def _add_actions(lake: Path, version: int, *actions: dict[str, Any]) -> None:
    """A commit as a writer with more features makes it."""
    lines = "".join(json.dumps(action) + "\n" for action in actions)
    (lake / "t" / "_delta_log" / f"{version:020d}.json").write_text(lines)


def _protocol(*features: str) -> dict[str, Any]:
    both = {"readerFeatures": list(features), "writerFeatures": list(features)}
    return {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **both}}


def test_deletion_vectors_are_refused_also_if_they_are_gone_again(wh: Warehouse, lake: Path) -> None:
    """A commit with a deletion vector removes and adds one file: without a look at it, its deletions would be lost."""
    _append(lake, (1, "a", "x", 1), (2, "a", "x", 1))
    _flow(wh, lake)
    wh.sql("REFRESH FLOW f")
    log = (lake / "t" / "_delta_log" / f"{0:020d}.json").read_text().splitlines()
    add = next(json.loads(line)["add"] for line in log if '"add"' in line)
    vector = {"storageType": "u", "pathOrInlineDv": "x", "offset": 1, "sizeInBytes": 34, "cardinality": 1}
    gone = {"path": add["path"], "dataChange": True, "deletionTimestamp": 1, "size": add["size"], "partitionValues": {}}
    marked = {**add, "deletionVector": vector}
    _add_actions(lake, 1, _protocol("deletionVectors"), {"remove": gone}, {"add": marked})
    _refused(wh, r"uses deletion vectors.* No change was taken since version 0\. Drop the feature")
    _write(Path(lake / "purged"), _rows((1, "a", "x", 1)))
    purged = next((lake / "purged" / "t").glob("*.parquet"))
    shutil.copy(purged, lake / "t" / "purged.parquet")
    new = {**add, "path": "purged.parquet", "size": purged.stat().st_size, "dataChange": False}
    _add_actions(lake, 2, {"remove": {**gone, "deletionVector": vector, "dataChange": False}}, {"add": new})
    _add_actions(lake, 3, _protocol())
    wh.sql("REFRESH FLOW f")
    assert [row["id"] for row in _here(wh)] == [1]


# -- statements ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clauses", "error", "message"),
    [
        ("(id BIGINT) KEYS (id)", InvalidStatement, "the source knows the table's columns"),
        ("KEYS (none)", FreshviewError, "none"),
        ("KEYS (id) COLUMNS (id, q)", NotFound, "column q"),
        ("KEYS (id) STORED AS SCD TYPE 2", InvalidStatement, "Add SEQUENCE BY"),
    ],
)
def test_a_flow_that_cannot_work_is_refused(
    wh: Warehouse, lake: Path, clauses: str, error: type[FreshviewError], message: str
) -> None:
    _append(lake, (1, "a", "x", 1))
    wh.sql(f"CREATE SOURCE lake USING DELTA OPTIONS (path '{lake}')")
    with pytest.raises(error, match=message):
        wh.sql(f"CREATE FLOW f AS AUTO CDC INTO t FROM lake.t {clauses}")
    with pytest.raises(CaptureFailed, match="Check the path of the source"):
        wh.sql("CREATE FLOW f AS AUTO CDC INTO t FROM lake.nothing KEYS (id)")
    with pytest.raises(InvalidStatement, match="delivers changes and cannot be queried"):
        wh.sql("CREATE REMOTE TABLE r FROM lake.t")
    assert internals(wh).catalog.find("t") is None


def test_a_table_that_moved_goes_on_and_another_one_is_refused(wh: Warehouse, lake: Path, tmp_path: Path) -> None:
    _append(lake, (1, "a", "x", 1))
    _flow(wh, lake)
    wh.sql("REFRESH FLOW f")
    with pytest.raises(InvalidStatement, match="Delta table t of flow f is not in"):
        wh.sql(f"ALTER SOURCE lake SET OPTIONS (path '{tmp_path}')")
    lake.rename(tmp_path / "moved")
    wh.sql(f"ALTER SOURCE lake SET OPTIONS (path '{tmp_path / 'moved'}')")
    _append(tmp_path / "moved", (2, "a", "x", 1))
    assert wh.sql("REFRESH FLOW f").rows == 1
    _append(tmp_path / "other", (9, "a", "x", 1))
    wh.sql(f"ALTER SOURCE lake SET OPTIONS (path '{tmp_path / 'other'}')")
    _refused(wh, "the table was created anew")


def test_a_fresh_query_polls_and_the_flow_is_explained(wh: Warehouse, lake: Path) -> None:
    _append(lake, (1, "a", "x", 1))
    _flow(wh, lake, options=", poll 'on query'")
    internals(wh).flows.look()
    assert len(_here(wh)) == 1
    text = explain_flow(internals(wh).flows, "f")
    assert "capture: versions of a Delta table, delivers del, ins, un/uo" in text
    assert "at the source: nothing at a change; a poll reads changed files" in text
