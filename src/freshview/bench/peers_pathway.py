"""Pathway for the peers suite: a separate process, with an interpreter that has pathway installed."""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from freshview.bench.peers import PATHWAY, Missing, TableChange
from freshview.bench.processes import descendants

INTERPRETER = "FRESHVIEW_PATHWAY_PYTHON"
_PATIENCE = 30 * 60.0  # seconds of loading
_WORKER = Path(__file__).with_name("peers_pathway_worker.py")


def pathway(home: Path, data: Path) -> Pathway:
    """Return a process that has loaded the tables; raise Missing if there can be none."""
    own = home.parent / "pathway"  # an environment beside the data
    python = os.environ.get(INTERPRETER)
    if python is None and (own / "bin" / "python").exists():
        python = str(own / "bin" / "python")
    if python is None and importlib.util.find_spec("pathway"):
        python = sys.executable
    if python is None:
        how = f"python -m venv {own} && {own}/bin/pip install pathway"
        raise Missing(f"pathway is not installed here; {how}, or {INTERPRETER} names a Python that has it")
    return Pathway(python, home / "pathway", data)


class Pathway:
    """V1 as a streaming computation in memory: each change is processed as it comes."""

    name = PATHWAY

    def __init__(self, python: str, home: Path, data: Path) -> None:
        home.mkdir()
        self._home = home
        threads, pipe = os.cpu_count() or 1, subprocess.PIPE
        command, variables = [python, str(_WORKER), str(data)], {**os.environ, "PATHWAY_THREADS": str(threads)}
        with (home / "log").open("wb") as log:
            try:
                self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, text=True, env=variables)
            except OSError as error:
                raise Missing(f"{INTERPRETER} cannot be run ({error.strerror})") from error
        # Loading that would take all memory, or for ever, ends: the machine has to survive it.
        resource.prlimit(self._process.pid, resource.RLIMIT_DATA, (_most_memory(),) * 2)
        patience = threading.Timer(_PATIENCE, self._process.kill)
        patience.start()
        try:
            version = self._reply()["version"]
        except BaseException:
            self.close()
            raise
        finally:
            patience.cancel()
        self.setup = f"{version}, {threads} threads, in memory, amounts as whole cents; maintained as changes come"

    def apply(self, change: TableChange) -> None:
        come = {**change.come, **({"customer": change.customers} if change.customers is not None else {})}
        self._ask({side: self._stored(side, rows) for side, rows in (("left", change.left), ("come", come))})

    def _stored(self, side: str, tables: dict[str, Any]) -> dict[str, str]:
        paths = {table: self._home / f"{side}-{table}.parquet" for table in tables}
        for table, rows in tables.items():
            pq.write_table(rows, paths[table])
        return {table: str(path) for table, path in paths.items()}

    def answer(self) -> Sequence[Sequence[object]]:
        return [(*row[:3], *map(_from_cents, row[3:])) for row in self._ask({"answer": True})["rows"]]

    def _ask(self, what: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        return self._reply()

    def _reply(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            lines = (self._home / "log").read_text(errors="replace").strip().splitlines() or ["no message"]
            raise Missing(f"its process ended ({lines[-1][:200]})")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def processes(self) -> Sequence[int]:
        return descendants(self._process.pid)

    def close(self) -> None:
        self._process.kill()  # its state is in memory only
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


def _most_memory() -> int:
    """Return the bytes that the process may take: four fifths of what is available now."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    return available * 1024 * 4 // 5


def _from_cents(value: int) -> Decimal:
    return Decimal(value).scaleb(-2)
