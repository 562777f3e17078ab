"""Facts of trees: the parts and conditions of flat joins, what grows, what is small."""

from __future__ import annotations

import pytest
from tests.unit.definition.analysed import with_sources

from freshview.algebra.facts import comes_from_delta, flat_join, is_inner_join, most_joined, only_grows
from freshview.algebra.nodes import Filter, Join, Node, Scan, Table
from freshview.delta.derive import derive
from freshview.sql.literals import parse_expression as parsed


def _scan(name: str, *columns: str) -> Scan:
    return Scan(Table(name), tuple((c, c) for c in columns))


def _tree() -> Node:
    """σ_{a>1}((t ⋈_{a=b} σ_{b>2}(u)) ⋈ v), with a filter between, too."""
    inner = Join(_scan("t", "a"), Filter(_scan("u", "b"), parsed("b > 2")), "inner", parsed("a = b"))
    between = Filter(inner, parsed("a < 9 AND b < 8"))
    return Filter(Join(between, _scan("v", "c"), "inner", None), parsed("a > 1"))


@pytest.mark.parametrize(
    ("filtered_parts", "expected"),
    [
        (False, ["b > 2", "a = b", "a < 9", "b < 8", "a > 1"]),
        (True, ["a = b", "a < 9", "b < 8", "a > 1"]),
    ],
)
def test_a_flat_join_has_all_parts_and_conditions(filtered_parts: bool, expected: list[str]) -> None:
    parts, conditions = flat_join(_tree(), filtered_parts=filtered_parts)
    assert [p.relation if isinstance(p, Scan) else type(p).__name__ for p in parts] == [
        "t",
        "Filter" if filtered_parts else "u",
        "v",
    ]
    assert [c.sql(dialect="spark") for c in conditions] == expected


def test_other_nodes_are_a_join_of_one_part() -> None:
    left = Join(_scan("t", "a"), _scan("u", "b"), "left", parsed("a = b"))
    assert flat_join(left) == ([left], [])
    assert [is_inner_join(n) for n in (left, Filter(left, parsed("a > 1")), _tree())] == [False, False, True]


def test_what_grows_and_what_is_small() -> None:
    assert only_grows(_tree(), {"t"}, frozenset({"t"}))
    assert not only_grows(_tree(), {"t", "u"}, frozenset({"t"}))
    lowered = with_sources("SELECT t.b, u.d FROM t JOIN u ON t.a = u.a").lowered
    assert lowered is not None
    delta = derive(lowered.node, {"t"})
    assert delta is not None
    assert comes_from_delta(delta)
    assert not comes_from_delta(lowered.node)


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("SELECT a FROM t", 1),
        ("SELECT t.a FROM t, u, t AS again WHERE t.a = u.a AND again.b = u.d", 3),
        ("SELECT a FROM t WHERE a IN (SELECT u.a FROM u)", 1),
        ("SELECT t.a FROM t JOIN (SELECT d, count(*) AS n FROM u JOIN t ON d = b GROUP BY d) AS s ON t.a = s.d", 2),
        ("SELECT a FROM t UNION ALL SELECT d FROM u", 1),
    ],
)
def test_how_many_relations_a_join_multiplies(text: str, most: int) -> None:
    lowered = with_sources(text).lowered
    assert lowered is not None
    assert most_joined(lowered.node) == most
