"""`freshview doctor`: check what Freshview needs, without starting or loading Spark."""

from __future__ import annotations

import operator
import os
import re
import sys
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
    """The result of one check: what was found, and the remedy if it is a problem."""

    what: str
    ok: bool
    found: str
    remedy: str = ""


@command
def doctor(place: Place, json: JsonOption = False) -> None:
    """Check Python, Java, memory, packages, folder and catalog. The exit code is 1 if there is a problem."""
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
    """Return the findings of all checks."""
    return [_python(), _java(), _memory(), *map(_package, _PACKAGES), _folder(place), _catalog(place)]


def _python() -> Finding:
    found = ".".join(map(str, sys.version_info[:3]))
    return Finding("Python", sys.version_info >= _PYTHON, found, "Install Python 3.11 or newer.")


def _java() -> Finding:
    from freshview.spark.java import MINIMUM_JAVA, check_java, java_command, java_version

    if os.environ.get("SPARK_REMOTE", "").startswith("sc://"):
        return Finding("Java", True, "not needed: Spark runs at SPARK_REMOTE")
    try:
        check_java()
    except FreshviewError as error:
        return Finding("Java", False, error.cause, error.remedy)
    return Finding("Java", True, f"version {java_version()} ({java_command()}), {MINIMUM_JAVA} is enough")


def _memory() -> Finding:
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    remedy = "Spark and Python need at least 2 GiB; set SPARK_DRIVER_MEMORY to the memory that is free."
    return Finding("Memory", gib >= _MEMORY_GIB, f"{gib:.1f} GiB", remedy)


def _package(name: str) -> Finding:
    """Check that a package is installed in a version that Freshview accepts."""
    wanted = _wanted(name)
    remedy = f"pip install '{wanted or name}'"
    try:
        found = version(name)
    except PackageNotFoundError:
        return Finding(name, False, "is not installed", remedy)
    return Finding(name, _satisfies(found, wanted), found, f"Freshview needs another version: {remedy}")


def _wanted(name: str) -> str:
    """Return the requirement in Freshview's metadata; '' if Freshview is not installed as a package."""
    with suppress(PackageNotFoundError):
        for requirement in requires("freshview") or ():
            head = requirement.split(";")[0].strip()
            if head.lower().startswith(name.lower()) and not head[len(name) : len(name) + 1].isalnum():
                return head
    return ""


def _satisfies(found: str, wanted: str) -> bool:
    """Return whether a version meets `name>=1,<2`; a version that cannot be compared is left to the installer."""
    have = _numbers(found)
    bounds = re.findall(r"([=<>]=?)\s*([\d.]+)", wanted)
    return not have or all(_SIGNS[sign](have, _numbers(limit)) for sign, limit in bounds)


def _numbers(text: str) -> tuple[int, ...]:
    """Return a version's numbers, padded with zeros; () if it has parts that are not numbers."""
    parts = text.split(".")
    return tuple(int(p) for p in (*parts, *"0000")[:4]) if all(p.isdecimal() for p in parts) else ()


def _folder(place: Place) -> Finding:
    """Check that the warehouse's folder can be written or created."""
    folder = place.folder.absolute()
    nearest = next(p for p in (folder, *folder.parents) if p.exists())
    remedy = f"Make {nearest} writable, or choose another folder with -w."
    if not nearest.is_dir():
        return Finding("Folder", False, f"{nearest} is not a folder", "Choose another folder with -w.")
    ok = os.access(nearest, os.W_OK | os.X_OK)
    state = "writable" if ok else "read-only"
    found = f"{folder} is {state}" if nearest == folder else f"{folder} is not there yet; {nearest} is {state}"
    return Finding("Folder", ok, found, remedy)


def _catalog(place: Place) -> Finding:
    """Check that the catalog answers; creates no warehouse."""
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
    if url.startswith("sqlite:///") and not file.exists():  # connecting would create it
        return Finding("Catalog", True, f"{url} is not there yet: freshview init makes it")
    database = Database(url)
    try:
        state = "is empty: freshview init makes a warehouse" if is_empty(database) else "belongs to another folder"
        return Finding("Catalog", True, f"{database} answers and {state}")
    finally:
        database.close()


COMMANDS = (Command(doctor, "Begin", ("freshview doctor", "freshview doctor -w sales --json")),)
