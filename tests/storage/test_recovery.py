"""Recovery: after a kill at any moment the warehouse opens without a repair step, and nothing acknowledged is lost."""

from __future__ import annotations

import itertools
import random
import signal
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.forks import forks
from tests.internals import internals
from tests.storage import recovery_worker

import freshview
from freshview import Warehouse
from freshview.catalog import tables as t

SHORT = {"events": 8, "signals": 4}
AGAIN = 3  # of the CSNs that were read before, so many are read after every kill


@dataclass
class Model:
    """What has been acknowledged, and the one step that may or may not have happened."""

    a: dict[int, str] = field(default_factory=dict)
    b: Counter[int] = field(default_factory=Counter)
    tables: set[str] = field(default_factory=set)
    history: dict[int, tuple[dict[int, str], Counter[int]]] = field(default_factory=dict)

    def after(self, what: dict[str, Any]) -> Model:
        a, b, tables = dict(self.a), Counter(self.b), set(self.tables)
        match what["kind"]:
            case "write":
                a |= dict(what["puts"])
                for k in what["drops"]:
                    a.pop(k, None)
                b.update(what["log"])
            case "create":
                tables.add(what["name"])
            case "drop":
                tables.discard(what["name"])
        return Model(a, b, tables, self.history)


class Site:
    """A warehouse that processes work on and die."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "warehouse"
        self.external = folder / "external"
        self.model = Model()
        self.checked: set[int] = set()  # CSNs that have been read since they were acknowledged
        write_deltalake(str(self.external), pa.table({"k": [0]}))
        with freshview.connect(self.path) as wh:
            wh.sql("CREATE TABLE a (k INT, v STRING, PRIMARY KEY (k))")
            wh.sql("CREATE TABLE b (n BIGINT)")
            wh.sql(f"CREATE TABLE e USING DELTA LOCATION '{self.external}'")

    def run(self, seed: int, event: int = 0, steps: int = 30, kill_after_lines: int | None = None) -> bool:
        """Let a process work until it dies; take over what it acknowledged. True if it came to its end."""
        processes = forks()
        hears, says = processes.Pipe(duplex=False)
        process = processes.Process(
            target=recovery_worker.work, args=(says, self.path, self.external, seed, event, steps), daemon=True
        )
        process.start()
        says.close()
        flight: dict[str, Any] | None = None
        verb, failure = "", ""
        with hears, suppress(EOFError):
            for number in itertools.count():
                verb, *rest = hears.recv()
                if verb == "begin":
                    flight = rest[0]
                elif verb == "done":
                    flight = None
                    self.model = self.model.after(rest[0])
                    if rest[1] is not None:
                        self.model.history[rest[1]] = (self.model.a, self.model.b)
                elif verb == "failed":
                    failure = rest[0]
                if number == kill_after_lines:
                    process.kill()
        process.join()
        assert process.exitcode in (0, 9, -signal.SIGKILL), failure
        known = sorted(self.model.history.keys() & self.checked)
        again = random.Random(seed).sample(known, min(AGAIN, len(known)))
        self.check(flight, (self.model.history.keys() - self.checked) | set(again))
        return verb == "end"

    def check(self, flight: dict[str, Any] | None, csns: Iterable[int] | None = None) -> None:
        """Law: what was acknowledged is there, now and at these CSNs (default: all); the step in flight is there whole,
        or not at all."""
        with freshview.connect(self.path) as wh:
            found = (table_a(wh), table_b(wh), {r.name for r in internals(wh).relations()} - {"a", "b", "e"})
            possible = [self.model] + ([self.model.after(flight)] if flight else [])
            matches = [m for m in possible if (m.a, m.b, m.tables) == found]
            assert matches, f"in flight: {flight}"
            self.model = matches[0]
            horizon = internals(wh).horizon()
            history = self.model.history
            for csn in sorted(history if csns is None else csns):
                if csn >= horizon:
                    assert (table_a(wh, csn), table_b(wh, csn)) == history[csn], f"CSN {csn}"
                self.checked.add(csn)
            wh.transaction().rollback()
            main = internals(wh).main("e")
            assert main is not None
            assert main.delta_version == DeltaTable(str(self.external)).version()
            assert {c.kind for c in internals(wh).commits("e")} <= {"create", "data"}

    def clean_up(self) -> None:
        """Law: all that was acknowledged can be read until vacuum takes it; once leases have expired, checkpoint and
        vacuum work and leave no file that nobody needs."""
        self.check(None)
        with freshview.connect(self.path) as wh:
            with internals(wh).writing_database() as c:
                for table in (t.leases, t.snapshots):
                    c.execute(table.update().values(expires_at=0))
            for name in ("a", "b"):
                wh.sql(f"CHECKPOINT {name}")
            wh.vacuum(timedelta(0))
            for name in ("a", "b"):
                main = internals(wh).main(name)
                folder = internals(wh).folder(name)
                needed = internals(wh).segment_files(name)
                if main is not None:
                    assert DeltaTable(str(folder)).version() == main.delta_version
                    needed |= {f.path for f in internals(wh).main_files(name)}
                lying = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
                log = {p for p in lying if p.startswith("_delta_log")}
                assert lying - log == needed
                assert {p for p in log if not p.endswith((".json", ".parquet", "_last_checkpoint"))} == set()
            assert (table_a(wh), table_b(wh)) == (self.model.a, self.model.b)
        self.check(None)


def table_a(wh: Warehouse, csn: int | None = None) -> dict[int, str]:
    rows = read(wh, "a", csn)
    found = dict(zip(rows.column(0).to_pylist(), rows.column(1).to_pylist(), strict=True))
    assert len(found) == rows.num_rows, "a key occurs twice"
    return found


def table_b(wh: Warehouse, csn: int | None = None) -> Counter[int]:
    return Counter(read(wh, "b", csn).column(0).to_pylist())


def read(wh: Warehouse, name: str, csn: int | None) -> pa.Table:
    return internals(wh).rows(name, csn)


def work_and_die(site: Site, seed: int, events: int, signals: int) -> None:
    chance = random.Random(seed)
    for _ in range(events):
        site.run(chance.randrange(10**6), event=chance.randint(1, 90))
    site.clean_up()
    for _ in range(signals):
        site.run(chance.randrange(10**6), steps=60, kill_after_lines=chance.randint(1, 60))
    site.clean_up()


@pytest.mark.parametrize("seed", [20261])
def test_kills_at_any_event_lose_nothing(tmp_path: Path, seed: int) -> None:
    """Law: kill after kill, everything acknowledged is there and nothing is half there."""
    work_and_die(Site(tmp_path), seed, **SHORT)


def test_a_process_that_is_not_killed_comes_to_its_end(tmp_path: Path) -> None:
    """The worker itself works: all its steps are acknowledged and found."""
    site = Site(tmp_path)
    assert site.run(1, steps=40)
    assert site.model.b
    site.clean_up()
