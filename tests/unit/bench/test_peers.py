"""The peers suite: all systems get the same changes, and what they answer is compared before it is measured."""

from __future__ import annotations

import subprocess
import sys
import time
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from freshview.bench import peers
from freshview.bench.data import tpch
from freshview.bench.peers import (
    OURS,
    TABLES,
    Missing,
    Starters,
    System,
    TableChange,
    TableChanges,
    canonical,
    figures,
    gathered,
    raced,
)
from freshview.bench.peers_pathway import INTERPRETER, Pathway, pathway
from freshview.bench.peers_postgres import as_csv, column_type, postgres
from freshview.bench.peers_systems import Duck
from freshview.bench.postgres_server import server_tools
from freshview.bench.processes import descendants
from freshview.bench.report import comparison
from freshview.errors import QueryFailed

_SCALE = 0.001
_ROW: tuple[object, ...] = ("FRANCE", "BUILDING", 3, Decimal("1.50"), Decimal("2"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("peers")
    tpch(folder, _SCALE, TABLES)
    return folder


class Fake:
    """A system that answers what it is told to."""

    setup = "made up"

    def __init__(self, name: str, rows: list[tuple[object, ...]] | None = None) -> None:
        self.name = name
        self.seen: list[str] = []
        self.closed = False
        self._rows = [_ROW] if rows is None else rows

    def apply(self, change: TableChange) -> None:
        self.seen.append(change.name)

    def answer(self) -> list[tuple[object, ...]]:
        return self._rows

    def processes(self) -> list[int]:
        return []

    def close(self) -> None:
        self.closed = True


def test_the_same_seed_makes_the_same_changes(folder: Path) -> None:
    one, two = TableChanges(folder, _SCALE, seed=3), TableChanges(folder, _SCALE, seed=3)
    for make in (TableChanges.customers, TableChanges.orders, TableChanges.customers):
        assert make(one) == make(two)


def test_what_leaves_is_what_was_there_and_what_comes_is_new(folder: Path) -> None:
    """Applied to the tables as dictionaries, every change fits: no key comes twice or leaves without being there."""
    data = tpch(folder, _SCALE, TABLES)
    key = {"customer": ("c_custkey",), "orders": ("o_orderkey",), "lineitem": ("l_orderkey", "l_linenumber")}
    state = {t: _by_key(pq.read_table(data / f"{t}.parquet"), columns) for t, columns in key.items()}
    changes = TableChanges(folder, _SCALE, seed=4)
    for change in [make(changes) for _ in range(5) for make in (TableChanges.customers, TableChanges.orders)]:
        come = {**change.come, **({"customer": change.customers} if change.customers else {})}
        assert set(change.left) == set(come)
        for table, rows in change.left.items():
            for k, row in _by_key(rows, key[table]).items():
                assert state[table].pop(k) == row
        assert (
            {k[0] for k in _by_key(change.left["orders"], key["orders"])} == set(change.gone) if change.gone else True
        )
        for table, rows in come.items():
            for k, row in _by_key(rows, key[table]).items():
                assert k not in state[table]
                state[table][k] = row
    assert len(state["customer"]) == 150
    assert {k[0] for k in state["lineitem"]} == {k[0] for k in state["orders"]}  # no line without its order


def _by_key(rows: pa.Table, columns: tuple[str, ...]) -> dict[tuple[object, ...], dict[str, object]]:
    return {tuple(row[c] for c in columns): row for row in rows.to_pylist()}


def test_all_get_the_same_changes_and_take_turns_to_begin(folder: Path) -> None:
    systems = [Fake(OURS), Fake("other")]
    race, compared = raced(systems, TableChanges(folder, _SCALE, seed=1), repeat=2)
    assert systems[0].seen == systems[1].seen
    assert len(systems[0].seen) == 6  # with the warm-up
    assert compared == 12
    assert set(race) == {"100 customers", "0.1 % of orders and lineitem"}
    assert all(len(spent.update) == len(spent.answer) == 2 for found in race.values() for spent in found.values())


def test_an_answer_that_differs_ends_the_run(folder: Path) -> None:
    cent = (*_ROW[:3], Decimal("1.51"), Decimal("2"))
    for rows in ([cent], [], [_ROW, _ROW]):
        with pytest.raises(QueryFailed, match=r"Freshview and wrong differ"):
            raced([Fake(OURS), Fake("wrong", rows)], TableChanges(folder, _SCALE, seed=1), repeat=1)


def test_answers_are_equal_by_value_and_sums_are_exact() -> None:
    assert canonical([("B", "x", 1, Decimal("1.0"), Decimal("2")), ("A", "x", 1, Decimal("1"), Decimal("2"))]) == (
        canonical([("A", "x", 1, Decimal("1.00"), Decimal("2.00")), ("B", "x", 1, Decimal("1"), Decimal("2.0"))])
    )
    with pytest.raises(QueryFailed, match="a sum is a float"):
        canonical([("A", "x", 1, 1.0, Decimal("2"))])


def test_a_system_that_is_not_there_is_told_and_all_others_are_closed(folder: Path) -> None:
    ours = Fake(OURS)

    def absent(*_: object) -> System:
        raise Missing("is not installed")

    with gathered(folder, _SCALE, {OURS: lambda *_: ours, "absent": absent}) as found:
        assert found.systems == [ours]
    assert ours.closed
    assert not (folder / "peers").exists()
    told = figures(*raced([ours], TableChanges(folder, _SCALE, seed=1), repeat=1), found)
    assert "made up; loaded in" in told[0].details[OURS]
    assert told[-1].details == {"absent": "is not installed"}


def test_the_comparison_shows_all_systems_and_names_those_that_are_faster() -> None:
    def spent(update: float, answer: float) -> peers.SystemTimes:
        return peers.SystemTimes([update], [answer])

    systems = [Fake(OURS), Fake("slow"), Fake("fast")]
    race = {"a": {OURS: spent(0.01, 0.5), "slow": spent(2.0, 6.0), "fast": spent(0.02, 0.3)}}
    starters = Starters(list(systems), {s.name: 1.0 for s in systems})
    found = [f.as_json() for f in figures(race, 3, starters)]
    lines = comparison({"figures": found})
    assert lines[0] == "| system | a: update | a: fresh answer |"
    assert "| Freshview | 10.00 ms | 500.00 ms |" in lines
    assert "| slow | 2.00 s | 6.00 s |" in lines
    assert "Faster than Freshview (500.00 ms) after a change of a: fast 300.00 ms." in lines
    assert [round(float(str(f["value"])), 3) for f in found[1:3]] == [12.0, 0.6]
    assert found[1]["spread"] == [12.0, 12.0]
    del race["a"]["fast"]
    starters.systems.pop()
    alone = [f.as_json() for f in figures(race, 2, starters)]
    assert not any("Faster" in line for line in comparison({"figures": alone}))
    assert comparison({"figures": [{"name": "x", "chart": None}]}) == []


class Running(Fake):
    """A system with a process of its own, which notes whether it is stopped while another one answers."""

    def __init__(self, name: str, others: list[Running]) -> None:
        super().__init__(name)
        self.process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        self.others = others
        self.states: set[str] = set()

    def processes(self) -> list[int]:
        return descendants(self.process.pid)

    def answer(self) -> list[tuple[object, ...]]:
        self.states |= {
            f"own {_state(self, 'running')}",
            *(f"other {_state(o, 'stopped')}" for o in self.others if o is not self),
        }
        return super().answer()


def _state(system: Running, wanted: str) -> str:
    """Return whether the system's process is stopped; a signal takes a while to arrive on a busy machine."""
    until = time.monotonic() + 10
    while True:
        text = Path(f"/proc/{system.process.pid}/stat").read_text()
        state = "stopped" if text.rpartition(")")[2].split()[0] == "T" else "running"
        if state == wanted or time.monotonic() > until:
            return state
        time.sleep(0.01)


def test_while_one_system_is_measured_the_others_are_stopped(folder: Path) -> None:
    systems: list[Running] = []
    systems += [Running(OURS, systems), Running("other", systems)]
    try:
        raced(systems, TableChanges(folder, _SCALE, seed=1), repeat=1)
        assert all(s.states == {"own running", "other stopped"} for s in systems)
        assert [_state(s, "running") for s in systems] == ["running", "running"]
    finally:
        for system in systems:
            system.process.kill()
            system.process.wait()


def test_the_limits_of_the_race_are_judged() -> None:
    names = (OURS, peers.DUCKDB, peers.PATHWAY)
    spent = {
        OURS: peers.SystemTimes([0.4], [0.5]),
        peers.DUCKDB: peers.SystemTimes([0.1], [2.0]),
        peers.PATHWAY: peers.SystemTimes([1], [1]),
    }
    race = {kind: dict(spent) for kind in ("100 customers", "0.1 % of orders and lineitem")}
    starters = Starters([Fake(n) for n in names], dict.fromkeys(names, 1.0))
    found = {f.name: (round(f.value, 2), f.limit, f.met) for f in figures(race, 3, starters)}
    assert found["V1, 100 customers, fresh answer: DuckDB, recomputed / Freshview"] == (4.0, 3.0, True)
    assert found["V1, 100 customers, fresh answer: Freshview / Pathway"] == (0.5, 1.5, True)
    assert found["V1, 0.1 % of orders and lineitem, update: Freshview / DuckDB, recomputed"] == (4.0, 3.0, False)
    assert "V1, 100 customers, update: Freshview / DuckDB, recomputed" not in found


@pytest.mark.postgres
def test_duckdb_and_postgres_answer_alike(folder: Path) -> None:
    if server_tools() is None:
        pytest.skip("no PostgreSQL server is installed on this machine")
    with gathered(folder, _SCALE, {Duck.name: Duck, "PostgreSQL, REFRESH": postgres}) as found:
        assert not found.missing
        systems = found.systems
        before = canonical(systems[0].answer())
        _, compared = raced(systems, TableChanges(folder, _SCALE, seed=5), repeat=1)
        assert compared == 8
        after = canonical(systems[0].answer())
    assert before != after
    assert len(after) > 20


def test_a_missing_server_or_program_is_a_reason(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("freshview.bench.peers_postgres.server_tools", lambda: None)
    with pytest.raises(Missing, match="no PostgreSQL server is installed"):
        postgres(folder, folder)
    monkeypatch.delenv(INTERPRETER, raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(Missing, match="pathway is not installed here"):
        pathway(folder, folder)


def test_a_pathway_that_cannot_start_is_a_reason(tmp_path: Path) -> None:
    with pytest.raises(Missing, match="cannot be run"):
        Pathway(str(tmp_path / "none"), tmp_path / "a", tmp_path)
    with pytest.raises(Missing, match="its process ended"):  # this interpreter has no pathway, or there is no data
        Pathway(sys.executable, tmp_path / "b", tmp_path)


def test_columns_of_tpch_have_types_in_postgres() -> None:
    assert column_type(pa.decimal128(15, 2)) == "NUMERIC(15,2)"
    assert column_type(pa.date32()) == "DATE"
    assert (column_type(pa.int64()), column_type(pa.int32())) == ("BIGINT", "INT")
    assert column_type(pa.string()) == "TEXT"
    rows = pa.table({"k": [1], "s": ['a "b", c'], "d": pa.array([Decimal("1.50")], pa.decimal128(15, 2))})
    assert as_csv(rows) == b'1,"a ""b"", c",1.50\n'
