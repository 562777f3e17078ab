"""The maintainability report names every operator of a view with its way, its keys and the reason."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from tests.effort import examples
from tests.unit.delta.cases import all_of
from tests.unit.sql.view_grammar import SCHEMAS, views

from freshview.algebra.traversal import bottom_up
from freshview.delta.forms import choose_form
from freshview.delta.report import WAYS, Step, lines, report
from freshview.sql.lowering import lower


def _report(text: str) -> Step:
    lowered = lower(text, SCHEMAS)
    return report(lowered, choose_form(lowered, tuple(n for _, n in lowered.outputs), all_of("int")))


@pytest.mark.parametrize(
    ("text", "operator", "way", "keys"),
    [
        ("SELECT a + 1 AS x FROM t WHERE b > 0", "filter t.b > 0", "linear", ()),
        ("SELECT a + 1 AS x FROM t WHERE b > 0", "project t.a + 1", "linear", ()),
        ("SELECT a FROM t UNION ALL SELECT d FROM u", "union all", "linear", ()),
        ("SELECT e.x FROM t LATERAL VIEW explode(array(a, b)) e AS x", "generate", "linear", ()),
        ("SELECT t.b, u.d FROM t JOIN u ON t.a = u.a", "inner join on t.a = u.a", "multilinear", ()),
        ("SELECT t.b, u.d FROM t CROSS JOIN u", "cross join", "multilinear", ()),
        ("SELECT t.b, u.d FROM t LEFT JOIN u ON t.a = u.a", "left join", "affected keys", ("t.a",)),
        ("SELECT t.b, u.d FROM t LEFT JOIN u ON t.a < u.a", "left join", "affected keys", ()),
        ("SELECT b FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.a = t.a)", "anti join", "affected keys", ("t.a",)),
        ("SELECT DISTINCT a, c FROM t", "distinct by a, c", "state", ("a", "c")),
        ("SELECT a, MAX(b) AS m FROM t GROUP BY a", "aggregate MAX(t.b) by t.a", "state", ("t.a",)),
        ("SELECT a, MEDIAN(b) AS m FROM t GROUP BY a", "aggregate MEDIAN(t.b) by t.a", "affected keys", ("t.a",)),
        ("SELECT a, SUM(b) AS s FROM t GROUP BY a", "aggregate SUM(t.b) by t.a", "state", ("t.a",)),
        ("SELECT SUM(b) AS s FROM t", "aggregate SUM(t.b)", "state", ()),
        ("SELECT MEDIAN(b) AS m FROM t", "aggregate MEDIAN(t.b)", "affected keys", ()),
        ("SELECT a FROM t EXCEPT ALL SELECT d FROM u", "except all", "affected keys", ("a",)),
        ("SELECT SUM(b) OVER (PARTITION BY a) AS s FROM t", "window", "affected keys", ("t.a",)),
        ("SELECT SUM(b) OVER (ORDER BY a) AS s FROM t", "window", "recompute", ()),
        ("SELECT a FROM t ORDER BY b LIMIT 3", "top 3 by", "buffer", ()),
        ("SELECT a, SUM(b) AS s FROM t GROUP BY a ORDER BY s LIMIT 3", "aggregate SUM", "affected keys", ("t.a",)),
        ("SELECT a FROM t ORDER BY b OFFSET 3", "top all offset 3 by", "recompute", ()),
        ("SELECT a, (SELECT MAX(d) FROM u) AS m FROM t", "aggregate MAX(u.d)", "recompute", ()),
        ("SELECT t.a FROM t JOIN (VALUES (1)) AS k(i) ON t.a = k.i", "values, 1 rows", "constant", ()),
        ("SELECT a FROM t", "scan t", "source", ()),
    ],
)
def test_each_operator_is_named_with_its_way_and_keys(
    text: str, operator: str, way: str, keys: tuple[str, ...]
) -> None:
    found = [s for s in _report(text).walk() if s.operator.startswith(operator)]
    assert [(s.way, s.keys) for s in found] == [(way, keys)]


@settings(deadline=None, max_examples=examples(60, commit=30))
@given(text=views())
def test_every_operator_of_every_view_is_told_of(text: str) -> None:
    """A report has a step for every place of every operator, each with a known way and a reason."""
    steps = list(_report(text).walk())
    assert len(steps) >= len(list(bottom_up(lower(text, SCHEMAS).node)))
    assert all(s.way in WAYS and s.reason and s.operator for s in steps)
    assert all(s.keys == () for s in steps if s.way in ("linear", "multilinear", "recompute", "source", "constant"))


def test_a_report_is_an_indented_tree() -> None:
    text = "SELECT t.c, SUM(u.d) AS s FROM t JOIN u ON t.a = u.a WHERE t.b > 0 GROUP BY t.c"
    assert [line.split("  <- ")[0] for line in lines(_report(text))] == [
        "project t.c, sum",
        "  aggregate SUM(u.d) by t.c",
        "    filter t.b > 0",
        "      inner join on t.a = u.a",
        "        scan t",
        "        scan u",
    ]
