"""docs/architecture.md follows the code: what its two paths name exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATHS = (ROOT / "docs" / "architecture.md").read_text().split("### Two paths, from top to bottom")[1].split("\n## ")[0]


@cache
def _defined() -> set[str]:
    """The names of all functions, methods and classes of the package; methods also with their class."""
    found: set[str] = set()
    for path in (ROOT / "src" / "freshview").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.add(node.name)
            if isinstance(node, ast.ClassDef):
                found |= {f"{node.name}.{f.name}" for f in node.body if isinstance(f, ast.FunctionDef)}
    return found


def _named(listing: str) -> list[str]:
    """The functions that a listing names: the left column, without the rooms in brackets."""
    lefts = [re.split(r"\s{2,}", line.strip())[0] for line in listing.splitlines() if not line.startswith(" " * 40)]
    return [n for left in lefts for n in re.findall(r"[A-Za-z_][\w.]*", re.sub(r"\([^)]*\)", "", left))]


@pytest.mark.parametrize("listing", re.findall(r"```\n(.*?)```", PATHS, re.DOTALL), ids=["query", "commit"])
def test_the_functions_of_the_two_paths_exist(listing: str) -> None:
    named, defined = _named(listing), _defined()
    assert len(named) > 12
    assert [name for name in named if name not in defined] == []
