"""Processes that begin with everything loaded: one server loads it, and each of them is a copy of that server.

All tests ask here, since what the server loads is settled when the first process of a test run starts. It must load
nothing that starts threads, and no Spark.
"""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from typing import Any

import pytest

from freshview.catalog import engine

_LOADED = ["pytest", "freshview.warehouse.warehouse", "tests.catalog.view_world", "tests.storage.recovery_worker"]


def forks() -> ForkServerContext:
    """What starts such processes. A function that one of them runs has to be found by the name of its module."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(_LOADED)
    return processes


def run_in_fork(function: Callable[..., None], *arguments: Any) -> None:
    """Run a function in such a process, which has to come to its end: an error there is an error here."""
    processes = forks()
    hears, says = processes.Pipe(duplex=False)
    process = processes.Process(target=_tell, args=(says, function, arguments), daemon=True)
    process.start()
    says.close()
    with hears:
        failure = hears.recv() if hears.poll(120) else "it did not come to its end"
    assert failure == "", failure
    process.join()
    assert process.exitcode == 0


def _tell(says: Connection, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    try:
        function(*arguments)
    except BaseException:
        says.send(traceback.format_exc())
    else:
        says.send("")


def unflushed() -> None:
    """In such a process: wait for no disk, as the tests that started it do not (tests/conftest.py)."""
    sqlite_engine, patch = engine._sqlite_engine, pytest.MonkeyPatch()
    patch.setattr(os, "fsync", lambda _: None)
    patch.setattr(engine, "_sqlite_engine", lambda url, _: sqlite_engine(url, "OFF"))
