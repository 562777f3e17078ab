"""docs/architecture.md follows the code: what its two paths name exists, and calls what stands below it; names of
classes have one meaning each, as its glossary says."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATHS = (ROOT / "docs" / "architecture.md").read_text().split("### Two paths, from top to bottom")[1].split("\n## ")[0]


@cache
def _bodies() -> dict[str, list[str]]:
    """The texts of all functions, methods and classes of the package, by name; of methods also with their class."""
    found: dict[str, list[str]] = {}
    for path in (ROOT / "src" / "freshview").rglob("*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.setdefault(node.name, []).append(_body(text, node))
            if isinstance(node, ast.ClassDef):
                for method in node.body:
                    if isinstance(method, ast.FunctionDef):
                        found.setdefault(f"{node.name}.{method.name}", []).append(_body(text, method))
    return found


def _body(text: str, node: ast.FunctionDef | ast.ClassDef) -> str:
    return "\n".join(text.splitlines()[node.body[0].lineno - 1 : node.end_lineno])


def _chains(listing: str) -> list[tuple[int, list[str]]]:
    """The indentation of each line that names functions, with these: the left column, without rooms in brackets."""
    found = []
    for line in listing.splitlines():
        if line.strip() and not line.startswith(" " * 40):
            left = re.sub(r"\([^)]*\)", "", re.split(r"\s{2,}", line.strip())[0])
            found.append((len(line) - len(line.lstrip()), re.findall(r"[A-Za-z_][\w.]*", left)))
    return found


def _named(listing: str) -> list[str]:
    return [name for _, names in _chains(listing) for name in names]


def _calls(listing: str) -> list[tuple[list[str], str]]:
    """Each function but the first, with those of which one calls it: what stands before it in its line, or else in the
    line above that is indented less."""
    found = []
    above: list[tuple[int, list[str]]] = []
    for indent, names in _chains(listing):
        above = [line for line in above if line[0] < indent]
        found += [(names[:i], name) for i, name in enumerate(names) if i]
        if above:
            found.append((above[-1][1], names[0]))
        above.append((indent, names))
    return found


def test_a_class_has_a_name_of_its_own() -> None:
    """Law: no two classes of the package have the same name, a leading underscore aside."""
    trees = [ast.parse(path.read_text()) for path in (ROOT / "src" / "freshview").rglob("*.py")]
    names = Counter(n.name.lstrip("_") for tree in trees for n in ast.walk(tree) if isinstance(n, ast.ClassDef))
    assert len(names) > 500
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("listing", re.findall(r"```\n(.*?)```", PATHS, re.DOTALL), ids=["query", "commit"])
def test_the_functions_of_the_two_paths_exist(listing: str) -> None:
    named, defined = _named(listing), _bodies()
    assert len(named) > 12
    assert [name for name in named if name not in defined] == []


@pytest.mark.parametrize("listing", re.findall(r"```\n(.*?)```", PATHS, re.DOTALL), ids=["query", "commit"])
def test_a_function_of_the_two_paths_calls_those_below_it(listing: str) -> None:
    """Law: the name of each occurs in the body of one that stands before it."""
    calls = _calls(listing)
    assert len(calls) > 12
    assert [
        (callers, name)
        for callers, name in calls
        if not any(
            re.search(rf"\b{name.split('.')[-1]}\b", body) for caller in callers for body in _bodies().get(caller, [])
        )
    ] == []
