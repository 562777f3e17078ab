"""ALTER SOURCE and REFRESH FLOW … CONFIRM: no statement about a source loses a position."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.catalog.helpers import contents
from tests.internals import internals

import freshview
from freshview import Warehouse
from freshview.catalog.flows import FlowCatalog
from freshview.errors import CaptureFailed, FreshviewError, InvalidStatement, NotFound, WriteConflict


@pytest.fixture
def wh(tmp_path: Path) -> Iterator[Warehouse]:
    with freshview.connect(tmp_path / "warehouse") as wh:
        yield wh


def _options(wh: Warehouse) -> dict[str, str]:
    return dict(FlowCatalog(internals(wh).catalog).source("s").options)


def _position(wh: Warehouse) -> object:
    catalog = internals(wh).catalog
    return catalog.position(catalog.relation("t").id)


def _dumps(wh: Warehouse, folder: Path, flow: str = "f") -> None:
    (folder / "t").mkdir(parents=True)
    wh.sql(f"CREATE SOURCE s USING CSV OPTIONS (path '{folder}')")
    wh.sql(f"CREATE FLOW {flow} AS AUTO CDC INTO t FROM s.t (id INT, v STRING) KEYS (id)")
    (folder / "t" / "1.csv").write_text("id,v\n1,a\n2,b\n3,c\n")
    wh.sql(f"REFRESH FLOW {flow}")


def _event(key: int, lsn: int) -> str:
    source = {"schema": "public", "table": "t", "lsn": lsn}
    return json.dumps({"op": "c", "before": None, "after": {"id": key}, "source": source}) + "\n"


def _events(wh: Warehouse, folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "1").write_text(_event(1, 1))
    wh.sql(f"CREATE SOURCE s USING DEBEZIUM OPTIONS (path '{folder}')")
    wh.sql("CREATE FLOW f AS AUTO CDC INTO t FROM s.public.t (id INT) KEYS (id)")
    wh.sql("REFRESH FLOW f")


# -- dumps that are held back ------------------------------------------------------------------------


@pytest.mark.parametrize("flow", ["f", "`my flow`"])
def test_what_the_error_of_a_small_dump_advises_takes_it(wh: Warehouse, tmp_path: Path, flow: str) -> None:
    _dumps(wh, tmp_path / "e", flow)
    (tmp_path / "e" / "t" / "it's 2.csv").write_text("id,v\n1,a\n")
    with pytest.raises(CaptureFailed, match="it has 1 rows, and the dump before had 3") as held:
        wh.sql(f"REFRESH FLOW {flow}")
    before = _position(wh)
    advised = re.search(r"confirm it: (REFRESH .*')\.$", str(held.value))
    assert advised is not None
    assert _position(wh) == before
    assert wh.sql(advised[1]).rows == 2
    assert contents(wh, "t") == [{"id": 1, "v": "a"}]


def test_another_dump_than_the_confirmed_one_is_held_back(wh: Warehouse, tmp_path: Path) -> None:
    _dumps(wh, tmp_path / "e")
    (tmp_path / "e" / "t" / "2.csv").write_text("id,v\n1,a\n")
    (tmp_path / "e" / "t" / "3.csv").write_text("id,v\n")
    with pytest.raises(CaptureFailed, match=r"dump 3\.csv of t: it has 0 rows"):
        wh.sql("REFRESH FLOW f CONFIRM '2.csv'")
    assert contents(wh, "t") == [{"id": 1, "v": "a"}]
    wh.sql("REFRESH FLOW f CONFIRM '2.csv', '3.csv'")
    assert contents(wh, "t") == []


def test_what_cannot_be_confirmed_is_named(wh: Warehouse, tmp_path: Path) -> None:
    _dumps(wh, tmp_path / "e")
    with pytest.raises(CaptureFailed, match=r"dump 9\.csv of t: it is not in .*/e/t"):
        wh.sql("REFRESH FLOW f CONFIRM '9.csv'")
    wh.sql("DROP SOURCE s CASCADE")
    wh.sql("DROP TABLE t")
    _events(wh, tmp_path / "events")
    with pytest.raises(InvalidStatement, match="flow f: it takes no dumps"):
        wh.sql("REFRESH FLOW f CONFIRM '1'")


# -- options -----------------------------------------------------------------------------------------


def test_options_change_and_the_others_and_the_position_stay(wh: Warehouse, tmp_path: Path) -> None:
    _dumps(wh, tmp_path / "e")
    before = _position(wh)
    (tmp_path / "e" / "t" / "2.csv").write_text("id,v\n1,a\n")
    with pytest.raises(CaptureFailed):
        wh.sql("REFRESH FLOW f")
    wh.sql("ALTER SOURCE S SET OPTIONS (confirmed '2.csv', POLL 'on query', 'on error' = 'quarantine')")
    assert _options(wh) == {
        "path": str(tmp_path / "e"),
        "confirmed": "2.csv",
        "poll": "on query",
        "on error": "quarantine",
    }
    assert _position(wh) == before
    wh.sql("REFRESH FLOW f")
    assert contents(wh, "t") == [{"id": 1, "v": "a"}]
    wh.sql("ALTER SOURCE s SET OPTIONS (poll 'manual')")
    assert _options(wh)["confirmed"] == "2.csv"


def test_a_source_that_nothing_reads_may_change_at_will(wh: Warehouse) -> None:
    wh.sql("CREATE SOURCE s USING DEBEZIUM OPTIONS (path '/nowhere')")
    wh.sql("ALTER SOURCE s SET OPTIONS (path '/elsewhere', 'old images' 'true')")
    assert _options(wh) == {"path": "/elsewhere", "old images": "true"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("url 'x'", "option 'url' of DEBEZIUM: is not known"),
        ("'on error' 'ignore'", "Use 'stop' or 'quarantine'"),
        ("poll 'never'", "Use 'every 10 seconds'"),
        ("path ''", "'path' is missing"),
        ("'old images' 'true'", "which changes are captured, and flow f has a position in these.*drop flow f first"),
        ("poll 'on query', path '/nowhere'", "file 1 of flow f is not in /nowhere: Move or copy|Move or copy all"),
    ],
)
def test_what_may_not_change_is_refused_and_changes_nothing(
    wh: Warehouse, tmp_path: Path, options: str, message: str
) -> None:
    _events(wh, tmp_path / "e")
    before, position = _options(wh), _position(wh)
    with pytest.raises(FreshviewError, match=message):
        wh.sql(f"ALTER SOURCE s SET OPTIONS ({options})")
    assert (_options(wh), _position(wh)) == (before, position)


def test_events_go_on_at_another_path_with_all_that_was_not_taken(wh: Warehouse, tmp_path: Path) -> None:
    """At a path without the file that grew since, its new events would never be missed."""
    old, new = tmp_path / "old", tmp_path / "new"
    _events(wh, old)
    with (old / "1").open("a") as file:
        file.write(_event(2, 2))
    (old / "2").write_text(_event(3, 3))
    new.mkdir()
    shutil.copy(old / "1", new)
    (new / "9").write_text(_event(4, 4))
    with pytest.raises(InvalidStatement, match="file 2 of flow f is not in"):
        wh.sql(f"ALTER SOURCE s SET OPTIONS (path '{new}')")
    shutil.copy(old / "2", new)
    wh.sql(f"ALTER SOURCE s SET OPTIONS (path '{new}')")
    wh.sql("REFRESH FLOW f")
    assert [row["id"] for row in contents(wh, "t")] == [1, 2, 3, 4]


def test_a_folder_that_was_moved_must_have_the_last_file_of_the_position(wh: Warehouse, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    _events(wh, old)
    old.rename(new)
    (tmp_path / "other").mkdir()
    with pytest.raises(InvalidStatement, match="file 1 of flow f is not in"):
        wh.sql(f"ALTER SOURCE s SET OPTIONS (path '{tmp_path / 'other'}')")
    wh.sql(f"ALTER SOURCE s SET OPTIONS (path '{new}')")
    (new / "2").write_text(_event(2, 2))
    wh.sql("REFRESH FLOW f")
    assert [row["id"] for row in contents(wh, "t")] == [1, 2]


def test_dumps_go_on_at_another_path_from_the_last_one(wh: Warehouse, tmp_path: Path) -> None:
    _dumps(wh, tmp_path / "e")
    shutil.copytree(tmp_path / "e", tmp_path / "new")
    (tmp_path / "new" / "t" / "1.csv").unlink()
    with pytest.raises(InvalidStatement, match=r"dump 1\.csv of flow f is not in"):
        wh.sql(f"ALTER SOURCE s SET OPTIONS (path '{tmp_path / 'new'}')")
    shutil.copy(tmp_path / "e" / "t" / "1.csv", tmp_path / "new" / "t" / "1.csv")
    wh.sql(f"ALTER SOURCE s SET OPTIONS (path '{tmp_path / 'new'}')")
    (tmp_path / "new" / "t" / "2.csv").write_text("id,v\n1,a\n2,b\n")
    wh.sql("REFRESH FLOW f")
    assert len(contents(wh, "t")) == 2


def test_a_source_that_changed_meanwhile_is_not_overwritten(wh: Warehouse, tmp_path: Path) -> None:
    wh.sql(f"CREATE SOURCE s USING EVENTS OPTIONS (path '{tmp_path}')")
    records = FlowCatalog(internals(wh).catalog)
    record = records.source("s")
    wh.sql("ALTER SOURCE s SET OPTIONS (poll 'on query')")
    with pytest.raises(WriteConflict, match="source s"):
        records.alter_source(record, {"path": "/x"}, 0)
    wh.sql("CREATE FLOW f AS AUTO CDC INTO t FROM s.t (id INT, n INT) KEYS (id) SEQUENCE BY n")
    with pytest.raises(WriteConflict, match="source s"):
        records.alter_source(records.source("s"), {"path": "/x"}, 0)
    wh.sql("DROP SOURCE s CASCADE")
    with pytest.raises(NotFound, match="source s"):
        wh.sql("ALTER SOURCE s SET OPTIONS (poll 'manual')")
