"""`freshview doctor`: is all there that Freshview needs? Starts no Spark, and loads none."""

from __future__ import annotations

import operator
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import typer

from freshview.cli.output import say, write_json
from freshview.cli.place import Command, JsonOption, Place, command
from freshview.display import counted
from freshview.errors import FreshviewError

_PACKAGES = ("pyspark", "deltalake", "pyarrow", "sqlglot", "SQLAlchemy")
_PYTHON = (3, 11)
_MEMORY_GIB = 2.0
_SIGNS = {"==": operator.eq, ">=": operator.ge, "<=": operator.le, "<": operator.lt, ">": operator.gt}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: what was found, and what to do if that will not do."""

    what: str
    ok: bool
    found: str
    remedy: str = ""


@command
def doctor(place: Place, json: JsonOption = False) -> None:
    """See whether Python, Java, memory, packages, folder and catalog will do. The exit code is 1 if one will not."""
    findings = examine(place)
    if json:
        write_json([asdict(f) for f in findings])
    for finding in () if json else findings:
        line = f"{'ok' if finding.ok else 'problem':8}{finding.what}: {finding.found}"
        typer.echo(line if finding.ok else f"{line}. {finding.remedy}")
    troubles = sum(not f.ok for f in findings)
    if not json:
        say("All is well." if not troubles else f"{counted(troubles, 'problem')}.")
    if troubles:
        raise typer.Exit(1)


def examine(place: Place) -> list[Finding]:
    """All findings; each look stands for itself."""
    looks: list[Callable[[], Finding]] = [_python, _java, _memory, *(_package_look(p) for p in _PACKAGES)]
    return [look() for look in looks] + [_folder(place), _catalog(place)]


def _python() -> Finding:
    found = ".".join(map(str, sys.version_info[:3]))
    return Finding("Python", sys.version_info >= _PYTHON, found, "Install Python 3.11 or newer.")


def _java() -> Finding:
    from freshview.spark.java import MINIMUM_JAVA, check_java, java_command, java_version

    if os.environ.get("SPARK_REMOTE", "").startswith("sc://"):
        return Finding("Java", True, "not needed: Spark runs where SPARK_REMOTE says")
    try:
        check_java()
    except FreshviewError as error:
        return Finding("Java", False, error.cause, error.remedy)
    return Finding("Java", True, f"version {java_version()} ({java_command()}), {MINIMUM_JAVA} is enough")


def _memory() -> Finding:
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    remedy = "Spark and Python want 2 GiB at least; set SPARK_DRIVER_MEMORY to what can be spared."
    return Finding("Memory", gib >= _MEMORY_GIB, f"{gib:.1f} GiB", remedy)


def _package_look(name: str) -> Callable[[], Finding]:
    return lambda: _package(name)


def _package(name: str) -> Finding:
    """Is a package there, in a version that Freshview asks for?"""
    wanted = _wanted(name)
    remedy = f"pip install '{wanted or name}'"
    try:
        found = version(name)
    except PackageNotFoundError:
        return Finding(name, False, "is not installed", remedy)
    return Finding(name, _satisfies(found, wanted), found, f"Freshview needs another version: {remedy}")


def _wanted(name: str) -> str:
    """The requirement of Freshview's own metadata; nothing if it runs from a folder that was never installed."""
    with suppress(PackageNotFoundError):
        for requirement in requires("freshview") or ():
            head = requirement.split(";")[0].strip()
            if head.lower().startswith(name.lower()) and not head[len(name) : len(name) + 1].isalnum():
                return head
    return ""


def _satisfies(found: str, wanted: str) -> bool:
    """Does a version meet `name>=1,<2`? What cannot be compared is let pass: it is the installer's to judge."""
    have = _numbers(found)
    bounds = re.findall(r"([=<>]=?)\s*([\d.]+)", wanted)
    return not have or all(_SIGNS[sign](have, _numbers(limit)) for sign, limit in bounds)


def _numbers(text: str) -> tuple[int, ...]:
    """The version's numbers, filled up with zeros; nothing if there is more to it than numbers."""
    parts = text.split(".")
    return tuple(int(p) for p in (*parts, *"0000")[:4]) if all(p.isdecimal() for p in parts) else ()


def _folder(place: Place) -> Finding:
    """Can the warehouse's folder be written, or made?"""
    folder = place.folder.absolute()
    nearest = next(p for p in (folder, *folder.parents) if p.exists())
    remedy = f"Make {nearest} writable, or choose another folder with -w."
    if not nearest.is_dir():
        return Finding("Folder", False, f"{nearest} is not a folder", "Choose another folder with -w.")
    ok = os.access(nearest, os.W_OK | os.X_OK)
    state = "writable" if ok else "read-only"
    told = f"{folder} is {state}" if nearest == folder else f"{folder} is not there yet; {nearest} is {state}"
    return Finding("Folder", ok, told, remedy)


def _catalog(place: Place) -> Finding:
    """Does the catalog answer? A warehouse that is not there yet is not made."""
    from freshview.warehouse.opening import is_warehouse

    try:
        if is_warehouse(place.folder):
            with place.open_catalog() as catalog:
                return Finding("Catalog", True, f"{catalog.database} answers, CSN {catalog.snapshot()}")
        if place.catalog is None:
            return Finding("Catalog", True, f"none yet: freshview init -w {place.folder} makes one")
        return _reachable(place.catalog)
    except FreshviewError as error:
        return Finding("Catalog", False, f"{error.what}: {error.cause}", error.remedy)


def _reachable(url: str) -> Finding:
    from freshview.catalog.engine import Database
    from freshview.catalog.migrations import is_empty

    file = Path(url.removeprefix("sqlite:///"))
    if url.startswith("sqlite:///") and not file.exists():  # to look would make it
        return Finding("Catalog", True, f"{url} is not there yet: freshview init makes it")
    database = Database(url)
    try:
        state = "is empty: freshview init makes a warehouse" if is_empty(database) else "belongs to another folder"
        return Finding("Catalog", True, f"{database} answers and {state}")
    finally:
        database.close()


COMMANDS = (Command(doctor, "Begin", ("freshview doctor", "freshview doctor -w sales --json")),)
