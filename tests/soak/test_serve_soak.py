"""`freshview serve`, killed in a job FRESHVIEW_KILLS times (default 50); FRESHVIEW_SOAK_SEED replays the choices."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import datetime, timedelta, tzinfo
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import sqlalchemy as sa
from tests.internals import internals
from tests.soak.world import KEYS, TABLES, VIEWS, bag, build, require_same, seed, some_rows

import freshview
from freshview import Warehouse
from freshview.catalog import tables as t
from freshview.catalog.writer import LIFETIME

_SERVER_STARTS = 180.0  # seconds within which a server begins a job

Rows = dict[str, dict[int, dict[str, Any]]]  # by table and key


class Site:
    """A warehouse that the test writes to, without Spark, while a server maintains its views and is killed."""

    def __init__(self, wh: Warehouse, rows: Rows, scratch: Path, draw: random.Random) -> None:
        """`rows` are those that have to be there; they are kept up to date."""
        self.wh = wh
        self._rows = rows
        self._scratch = scratch
        self._draw = draw

    def commit(self) -> None:
        """A small transaction; nobody else writes, so it does not lose a race."""
        put = {table: some_rows(self._draw, table, 4) for table in self._draw.sample(list(TABLES), 2)}
        gone = self._draw.sample(range(KEYS), 2)
        with self.wh.transaction() as tx:
            for table, rows in put.items():
                tx.upsert(table, rows)
            tx.delete("orders", gone)
        for table, rows in put.items():
            self._rows[table].update({row["id"]: row for row in rows})
        for key in gone:
            self._rows["orders"].pop(key, None)

    def hurry(self, zone: tzinfo) -> None:
        """A near deadline, by the views' clocks: a server does not wait until a busy machine is quiet."""
        deadline = datetime.now(zone) + timedelta(minutes=15)
        for name in VIEWS:
            self.wh.sql(f"ALTER MATERIALIZED VIEW {name} SET TBLPROPERTIES ('deadline'='{deadline:%H:%M}')")

    def serve_and_kill(self) -> bool:
        """Start a server, kill it some time after it has begun its first to fourth job; True if a job was under way."""
        before = self._draw.randrange(len(VIEWS))  # jobs that it finishes; the first one takes long, after a cold start
        command = [sys.executable, "-m", "freshview.cli.main", "serve", str(self.wh.path)]
        environment = {**os.environ, "SPARK_DRIVER_MEMORY": "1g", "TMPDIR": str(self._scratch)}
        with (self._scratch / "serve.log").open("w") as log:
            server = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            self._wait_for_job(server, self.done() + before)
            if self._draw.random() < 0.5:
                self.commit()
            time.sleep(self._draw.uniform(0, 1 if before else 4))
        finally:
            server.send_signal(signal.SIGKILL)  # its Java ends by itself when the pipe to it breaks
            server.wait()
        under_way = bool(internals(self.wh).views.catalog.in_progress())
        self._let_time_pass(server.pid)
        return under_way

    def done(self) -> int:
        """Jobs that have shown their result."""
        return sum(job.error is None for job in self.wh.history())

    def _wait_for_job(self, server: subprocess.Popen[bytes], done: int) -> None:
        """Until so many jobs are done and another is under way."""
        views, until = internals(self.wh).views.catalog, time.monotonic() + _SERVER_STARTS
        while self.done() < done or not views.in_progress():
            assert server.poll() is None, f"it ended: {(self._scratch / 'serve.log').read_text()}"
            assert time.monotonic() < until, f"no job began: {(self._scratch / 'serve.log').read_text()}"
            if not views.backlogs():
                self.commit()  # the last job came and went between two looks
            time.sleep(0.02)

    def _let_time_pass(self, dead: int) -> None:
        """Move back when the pins and leases of the dead process end: what two minutes on the catalog's clock do."""
        with internals(self.wh).writing_database() as c:
            for table in (t.snapshots, t.leases):
                theirs = table.c.owner.like(f"%:{dead}:%")
                c.execute(table.update().where(theirs).values(expires_at=table.c.expires_at - 2 * LIFETIME))


def test_killing_the_server_loses_nothing_and_applies_nothing_twice(tmp_path: Path, small_spark: Any) -> None:
    """Law: whenever the server dies in a job, the next one goes on, and in the end every view is its definition."""
    kills = int(os.environ.get("FRESHVIEW_KILLS", "50"))
    draw = random.Random(seed())
    folder, scratch = tmp_path / "warehouse", tmp_path / "scratch"
    scratch.mkdir()
    with freshview.connect(folder, spark=small_spark) as wh:
        build(wh, draw, VIEWS)
        rows = {name: {r["id"]: r.asDict() for r in wh.sql(f"SELECT * FROM {name}").collect()} for name in TABLES}
    with freshview.connect(folder) as writer:
        site = Site(writer, rows, scratch, draw)
        _kill_servers(site, kills, draw, ZoneInfo(small_spark.conf.get("spark.sql.session.timeZone")))
    with freshview.connect(folder, spark=small_spark) as wh:
        wh.maintain()
        for name in VIEWS:
            report = wh.check(name)
            assert report.ok, report
            _require_no_overlap(wh, name)
        for table, expected in rows.items():
            found = bag(wh.sql(f"SELECT * FROM {table}"))
            require_same(table, found, Counter(tuple(row.values()) for row in expected.values()))
        wh.vacuum()
        assert _left_behind(wh) == [0, 0]


def _kill_servers(site: Site, kills: int, draw: random.Random, zone: tzinfo) -> None:
    in_a_job = started = 0
    while in_a_job < kills:
        assert started < 4 * kills + 10, f"only {in_a_job} of {started} servers were killed in a job"
        for _ in range(draw.randint(1, 4)):
            site.commit()
        site.hurry(zone)
        in_a_job += site.serve_and_kill()
        started += 1
        if draw.random() < 0.3:
            site.wh.vacuum(timedelta(0))  # takes nothing away that the next server needs
        print(f"killed {started} servers, {in_a_job} of them in a job; jobs done: {site.done()}", flush=True)
    assert site.done(), "no server got as far as to finish a job"


def _left_behind(wh: Warehouse) -> list[int]:
    """Pins and leases, of anybody."""
    with internals(wh).reading_database() as c:
        return [c.execute(sa.select(sa.func.count()).select_from(x)).scalar_one() for x in (t.snapshots, t.leases)]


def _require_no_overlap(wh: Warehouse, view: str) -> None:
    """Law: no commit is in two jobs of a view."""
    done = [(job.from_csn, job.to_csn) for job in wh.history(view) if job.error is None]
    assert done, f"no job of {view}"
    assert all(end <= start for (_, end), (start, _) in pairwise(done)), (view, done)
