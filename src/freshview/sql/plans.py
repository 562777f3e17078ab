"""Normal form of Spark's optimised plans, as EXPLAIN prints them: equal plans have equal texts.

Two texts that mean the same get plans that differ in numbers (`k#12`), in the names of columns inside, and in
projections that only pass columns on. In normal form

    numbers         are assigned in the order of their first use; only leaves keep the names of their columns
    `a#1 AS b#2`    is a#1, also in operators above
    projections     that only pass columns on are dropped, except at the root and where the places of columns matter
    conditions      joined by AND are in the order of their texts; a cross join with a condition is an inner join
    the last sort   is dropped: a view is a bag

Plans with equal normal forms are equal. Operators that match columns by place (UNION, EXCEPT, GROUPING SETS) give new
meanings to numbers: plans with them have no normal form.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_SECTION = re.compile(r"== Optimized Logical Plan ==\n(.*?)\n\n== Physical Plan ==", re.DOTALL)
_LINE = re.compile(r"^((?:   |:  )*)(?:[+:]- )?(.*)$")
_ID = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)?#(\d+)L?")
_RENAMED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*#(\d+)L? AS [A-Za-z_][A-Za-z0-9_]*#(\d+)L?")
_PLAIN_LIST = re.compile(r"Project \[(?:[A-Za-z_][A-Za-z0-9_]*#\d+L?(?:, )?)*\]")
_BY_PLACE = ("Union", "Intersect", "Except", "Expand", "WithCTE", "CTERelation", "LocalRelation", "OneRowRelation")
_SEES_THROUGH = ("Filter", "Join", "Aggregate", "Window", "Sort", "Project", "Generate")
_LEAF = "MapInArrow"


@dataclass
class _Operator:
    text: str
    inputs: list[_Operator] = field(default_factory=list)


def optimised(explained: str) -> str | None:
    """The optimised plan in the output of EXPLAIN EXTENDED."""
    found = _SECTION.search(explained)
    return found[1] if found else None


def normal(plan: str) -> str | None:
    """The normal form of a plan; None if it has none."""
    root = _parsed(plan)
    if root is None or _mentions(root, _BY_PLACE):
        return None
    while root.text.startswith("Sort "):
        root = root.inputs[0]
    renamed = {new: old for old, new in _RENAMED.findall(plan)}
    _rewrite(root, renamed)
    lines: list[str] = []
    _print(root, 0, lines)
    return _renumbered(lines)


def renumbered(plan: str) -> str:
    """The plan with numbers in the order of their first use, else unchanged: to compare two spellings of a query."""
    numbers: dict[str, int] = {}
    return _ID.sub(lambda m: f"{m[1] or ''}#{numbers.setdefault(m[2], len(numbers))}", plan)


def _parsed(plan: str) -> _Operator | None:
    """The tree that the lines of a plan describe."""
    stack: list[_Operator] = []
    for line in plan.splitlines():
        match = _LINE.match(line)
        assert match is not None
        depth = len(match[1]) // 3 + (1 if line[len(match[1]) :].startswith(("+- ", ":- ")) else 0)
        operator = _Operator(match[2])
        if depth > len(stack) or (depth == 0 and stack):
            return None  # a text in the plan has line breaks
        del stack[depth:]
        if stack:
            stack[-1].inputs.append(operator)
        stack.append(operator)
    return stack[0] if stack else None


def _mentions(operator: _Operator, words: tuple[str, ...]) -> bool:
    return operator.text.startswith(words) or any(_mentions(i, words) for i in operator.inputs)


def _rewrite(operator: _Operator, renamed: dict[str, str]) -> None:
    """Give columns the numbers they have in the leaves, and drop projections that only pass columns on."""
    operator.text = _sorted_conjuncts(_resolved(operator.text, renamed)).replace("Join Cross", "Join Inner")
    inputs = []
    for below in operator.inputs:
        while (
            operator.text.startswith(_SEES_THROUGH)
            and len(below.inputs) == 1
            and _PLAIN_LIST.fullmatch(_resolved(below.text, renamed))
        ):
            below = below.inputs[0]
        inputs.append(below)
    operator.inputs = inputs
    for below in operator.inputs:
        _rewrite(below, renamed)


def _resolved(text: str, renamed: dict[str, str]) -> str:
    def origin(number: str) -> str:
        seen = set()
        while number in renamed and number not in seen:
            seen.add(number)
            number = renamed[number]
        return number

    text = _RENAMED.sub(lambda m: f"c#{m[1]}", text)
    return _ID.sub(lambda m: f"{m[1] or ''}#{origin(m[2])}", text)


def _sorted_conjuncts(text: str) -> str:
    """An operator with the parts of its condition in the order of their texts without numbers."""
    head, found, condition = text.partition("Filter ") if text.startswith("Filter ") else text.partition(", (")
    if not found or not text.startswith(("Filter", "Join")):
        return text
    body = condition if text.startswith("Filter") else f"({condition}"
    parts = sorted(_conjuncts(body), key=lambda p: (_ID.sub("#", p), p))
    return f"{head}{found.rstrip('(')}{' AND '.join(parts)}"


def _conjuncts(text: str) -> list[str]:
    """`((a AND b) AND c)` as a, b, c; not split if brackets in strings confuse it, which does no harm."""
    if not (text.startswith("(") and text.endswith(")")):
        return [text]
    depth = 0
    for i, character in enumerate(text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth == 0 and i < len(text) - 1:
            return [text]
        if depth == 1 and text.startswith(" AND ", i):
            return [*_conjuncts(text[1:i]), *_conjuncts(text[i + 5 : -1])]
    return [text]


def _print(operator: _Operator, depth: int, lines: list[str]) -> None:
    lines.append(f"{depth} {operator.text}")
    for below in operator.inputs:
        _print(below, depth + 1, lines)


def _renumbered(lines: list[str]) -> str:
    numbers: dict[str, int] = {}

    def anew(match: re.Match[str]) -> str:
        return f"#{numbers.setdefault(match[2], len(numbers))}"

    def named(match: re.Match[str]) -> str:
        return f"{match[1] or ''}{anew(match)}"

    return "\n".join(_ID.sub(named if _LEAF in line else anew, line) for line in lines)  # leaves are known by names
