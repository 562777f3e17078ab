"""The package as a type checker and an importer see it: every public name is there, typed, and no others."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import tomllib
import typing
from importlib.resources import files
from pathlib import Path

import pytest

import freshview

_ROOT = Path(__file__).parents[2]
_USER = '''\
"""What a user may write."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyspark.sql import DataFrame, Row, SparkSession

import freshview
from freshview import (
    CheckReport, Event, Events, Explanation, Freshness, Holder, Invariant, Job, Outcome, Source, Status, TableStatus,
    UserTransaction, ViewStatus, Warehouse, connect,
)
from freshview.errors import FreshviewError, WriteConflict


def listen(event: Event) -> None:
    print(event.name, sorted(event.details))


def work(wh: Warehouse, age: Freshness) -> list[Row]:
    events: Events = wh.events
    events.listen(listen)
    done: Outcome = wh.sql("CREATE TABLE t (k INT PRIMARY KEY)")
    csn: int | None = done.csn
    tx: UserTransaction
    with wh.transaction() as tx:
        inserted: Outcome = tx.insert("t", [{"k": 1}])
        tx.upsert("t", [{"k": inserted.rows}])
        tx.delete("t", [1])
        inside: DataFrame = tx.sql("SELECT * FROM t")
    number: int = tx.txsn
    end: int | None = tx.csn
    again = wh.transaction()
    try:
        committed: int = again.commit()
    except WriteConflict as error:
        print(error.what, error.cause, error.remedy)
        again.rollback()
    jobs: list[Job] = wh.maintain(["v"])
    jobs += wh.history() + wh.history("v")
    for outcome in (wh.refresh("v", full=True), wh.propagate("v"), wh.partial_refresh("v")):
        print(outcome.rows + 1)
    cleaned: Outcome = wh.vacuum(timedelta(hours=1))
    report: CheckReport = wh.check("v", invariant=True)
    invariants: tuple[Invariant, ...] = report.invariants
    status: Status = wh.status()
    tables: tuple[TableStatus, ...] = status.tables
    views: tuple[ViewStatus, ...] = status.views
    holders: tuple[Holder, ...] = status.holders
    explained: Explanation = wh.explain("v")
    text: str = wh.explain("v")
    print(report.ok, report.missing, jobs[0].seconds, views[0].age.total_seconds(), explained.splitlines(), text)
    frame: DataFrame = wh.sql("SELECT * FROM t", freshness=age, as_of=datetime.now(UTC))
    return frame.unionAll(wh.sql("SELECT * FROM t", freshness="any", as_of=csn)).collect()


def follow(wh: Warehouse, source: Source) -> int:
    taken: Outcome = wh.capture("t", source)
    return taken.rows


def main(spark: SparkSession) -> None:
    with connect(Path("warehouse"), catalog=None, spark=spark, background=True, policy="use") as wh:
        work(wh, timedelta(minutes=5))
    wh = freshview.connect()
    try:
        work(wh, "fresh")
    except FreshviewError as error:
        print(error, freshview.__version__)
    wh.close()
'''
_WRONG = {
    "freshview.conect()": "attr-defined",
    "freshview.connect(folder='x')": "call-arg",
    "freshview.connect().sql(1)": "arg-type",
    "freshview.connect().sql('SELECT 1', freshness=5)": "arg-type",
    "freshview.connect().maintain('v')": "arg-type",
    "freshview.connect().history()[0].duration": "attr-defined",
    "freshview.connect().status().csn + 'x'": "operator",
    "freshview.connect().events.listen(print, 1)": "call-arg",
    "freshview.Outcome(1).csn + 1": "operator",
}


def test_a_strict_checker_accepts_what_users_may_write_and_no_more(tmp_path: Path) -> None:
    """One run for both: the right script has no error, each wrong line has the one it should have."""
    (tmp_path / "right.py").write_text(_USER)
    (tmp_path / "wrong.py").write_text("import freshview\n" + "".join(f"{line}\n" for line in _WRONG))
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--config-file=",
            "--no-error-summary",
            "--hide-error-context",
            f"--cache-dir={_ROOT / '.mypy_cache' / 'user'}",
            "right.py",
            "wrong.py",
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": ""},
    )
    assert done.stderr == ""
    told = [line for line in done.stdout.splitlines() if ": note: " not in line]
    expected = [(f"wrong.py:{i}", code) for i, code in enumerate(_WRONG.values(), 2)]
    assert [(line.split(": error:")[0], line.rsplit("[", 1)[-1].rstrip("]")) for line in told] == expected


def test_all_public_names_are_there() -> None:
    assert sorted(freshview.__all__) == freshview.__all__
    assert {name for name in freshview.__all__ if getattr(freshview, name, None) is None} == set()
    assert set(freshview.__all__) <= set(dir(freshview))
    names: dict[str, object] = {}
    exec("from freshview import *", names)
    assert set(freshview.__all__) <= set(names)
    with pytest.raises(AttributeError, match="has no attribute 'conect'"):
        freshview.conect  # type: ignore[attr-defined]  # noqa: B018


def _named(hint: object) -> set[type]:
    """The classes of ours in a type hint."""
    parts = {part for argument in typing.get_args(hint) for part in _named(argument)}
    is_ours = isinstance(hint, type) and hint.__module__.startswith("freshview")
    return parts | ({hint} if is_ours and isinstance(hint, type) else set())


def test_what_the_public_surface_gives_or_takes_is_public_and_typed() -> None:
    """A user can name the type of everything in hand; every parameter and result says its type."""
    from pyspark.sql import DataFrame, SparkSession

    public = {value for name in freshview.__all__ if inspect.isclass(value := getattr(freshview, name))}
    inner = {"engine", "run", "create", "move"}  # for the parts of the system
    for owner in (freshview.Warehouse, freshview.UserTransaction, freshview.Events):
        for name, value in vars(owner).items():
            function = value.fget if isinstance(value, property) else value
            if name.startswith("_") or name in inner or not inspect.isfunction(function):
                continue
            module = sys.modules[function.__module__]
            hints = typing.get_type_hints(
                function, {**vars(module), "DataFrame": DataFrame, "SparkSession": SparkSession}
            )
            assert {*inspect.signature(function).parameters, "return"} - {"self"} == set(hints), name
            assert {c for hint in hints.values() for c in _named(hint)} <= public, name


def test_the_package_says_that_it_is_typed() -> None:
    assert files("freshview").joinpath("py.typed").is_file()
    build = tomllib.loads((_ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert build == {"targets": {"wheel": {"packages": ["src/freshview"]}}}  # all files of it, and so the marker
