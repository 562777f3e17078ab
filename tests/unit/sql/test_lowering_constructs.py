"""Constructs that lowering takes apart: each means what DuckDB says, and its delta is right, also in stages."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from sqlglot import exp
from tests.unit.algebra.oracle import Bag, evaluate, plus, signed
from tests.unit.sql.duck import Duck, means
from tests.unit.sql.view_grammar import SCHEMAS, Change, State, states

from freshview.algebra import stages
from freshview.algebra.nodes import Aggregate, Filter, Node, Scan, ScanSource, Table, names_in
from freshview.algebra.stages import staged
from freshview.algebra.traversal import bottom_up, scans
from freshview.delta.derive import at_version, derive
from freshview.sql.lowering import Unsupported, lower

some = settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck))

VIEWS = {
    "an order by all": "SELECT a, b FROM t ORDER BY ALL DESC LIMIT 2",
    "an order by all of sets": "SELECT DISTINCT a, b + 1 AS c FROM t ORDER BY all NULLS LAST LIMIT 2 OFFSET 1",
    "an order by all of a union": "SELECT a, b FROM t UNION SELECT a, d FROM u ORDER BY ALL LIMIT 3",
    "an order by all of groups": "SELECT a, SUM(b) AS s FROM t GROUP BY a ORDER BY ALL NULLS LAST LIMIT 2",
    "a named window": "SELECT a, SUM(b) OVER w AS s FROM t WINDOW w AS (PARTITION BY a)",
    "a named window in brackets": (
        "SELECT a, b, RANK() OVER (w) AS r, COUNT(b) OVER w AS n FROM t"
        " WINDOW w AS (PARTITION BY a ORDER BY b NULLS LAST)"
    ),
    "a window named by another": "SELECT SUM(b) OVER w AS s FROM t WINDOW x AS (PARTITION BY a), w AS (x)",
    "windows of one name in two queries": (
        "SELECT x.a, x.s, SUM(x.s) OVER w AS y"
        " FROM (SELECT a, SUM(b) OVER w AS s FROM t WINDOW w AS (PARTITION BY c)) x"
        " WINDOW w AS (PARTITION BY x.a)"
    ),
    "a lateral subquery": "SELECT t.a, x.e FROM t, LATERAL (SELECT u.d + 1 AS e FROM u WHERE u.a = t.a) x",
    "a lateral subquery with names": "SELECT t.a, x.e FROM t JOIN LATERAL (SELECT d FROM u WHERE u.a < t.a) AS x(e)",
    "a left lateral subquery": (
        "SELECT t.a, x.d FROM t LEFT JOIN LATERAL (SELECT d FROM u WHERE u.a = t.a) x ON x.d > 0"
    ),
    "exists in a join condition": (
        "SELECT t.a, u.d FROM t JOIN u ON t.a = u.a AND EXISTS (SELECT 1 FROM v WHERE v.b = t.b)"
    ),
    "in under or in a join condition": (
        "SELECT t.a FROM t JOIN u ON t.a = u.a AND (t.b IN (SELECT d FROM v) OR u.d = 1)"
    ),
    "scalar subquery in a join condition": (
        "SELECT t.a, u.d FROM t JOIN u ON t.a = u.a AND u.d = (SELECT MAX(d) FROM v)"
    ),
    "with in a correlated subquery": (
        "SELECT a FROM t WHERE EXISTS (WITH w AS (SELECT d, a AS k FROM u) SELECT 1 FROM w WHERE w.k = t.a)"
    ),
    "with in a scalar subquery": (
        "SELECT a, (WITH w AS (SELECT d, a AS k FROM u) SELECT MAX(w.d) FROM w WHERE w.k = t.a) AS m FROM t"
    ),
    "count correlated under or": (
        "SELECT a FROM t WHERE (SELECT COUNT(*) FROM u WHERE (u.a = t.a AND u.d = 1) OR (u.a = t.a AND u.d > 1)) > 0"
    ),
    "a join condition under or": "SELECT t.b, u.d FROM t, u WHERE (t.a = u.a AND t.b = 1) OR (t.a = u.a AND u.d > 0)",
    "what or takes in": "SELECT b FROM t WHERE a = 1 OR (a = 1 AND b > 0)",
    "the empty grouping set": "SELECT COUNT(*) AS n, SUM(b) AS s FROM t GROUP BY GROUPING SETS (())",
    "a query used twice": (
        "WITH w AS (SELECT a, SUM(b) AS s FROM t GROUP BY a)"
        " SELECT x.a, y.s FROM w x JOIN w y ON x.a = y.a AND x.s <= y.s"
    ),
    "a query used three times": (
        "WITH w AS (SELECT a, b FROM t WHERE c = 'x'), z AS (SELECT a FROM w UNION ALL SELECT b FROM w)"
        " SELECT a FROM z WHERE a NOT IN (SELECT b FROM w)"
    ),
    "a query used twice in a set operation": (
        "WITH w AS (SELECT a, b FROM t) SELECT a FROM w EXCEPT ALL SELECT b FROM w"
    ),
}


@pytest.fixture(scope="module")
def duck() -> Duck:
    return Duck()


@pytest.mark.parametrize("name", VIEWS)
@some
@given(run=states(1))
def test_each_construct_means_what_duckdb_says(duck: Duck, name: str, run: list[State]) -> None:
    assert means(VIEWS[name], run[0]) == duck.answer(VIEWS[name], {t: (SCHEMAS[t], run[0][t]) for t in SCHEMAS})


@pytest.mark.parametrize("name", VIEWS)
@some
@given(run=states(2))
def test_refresh_equals_recompute_also_in_stages(name: str, run: list[State]) -> None:
    """new(E) = old(E) + Δ(E), and a plan that is cut into stages gives what the whole plan gives."""
    node = lower(VIEWS[name], SCHEMAS).node
    change = Change(run[0], run[1])
    delta = derive(node, change.changed)
    if delta is None:
        return
    old, new = (evaluate(at_version(node, v), change.read) for v in ("old", "new"))
    assert plus(old, signed(delta, change.read)) == new
    assert plus(old, _in_stages(delta, change)) == new


def _in_stages(plan: Node, change: Change) -> Bag:
    """The plan's rows as the runner gets them: every stage is evaluated once, before what reads it."""
    known: dict[ScanSource, Bag] = {}

    def read(scan: Scan) -> Bag:
        return known[scan.source] if scan.source in known else change.read(scan)

    parts, rest = staged(plan)
    for stage in parts:
        assert {s.source for s in scans(stage.part)} <= {*map(Table, SCHEMAS), *known}, (
            "a stage reads only what comes before it"
        )
        known[stage.scan.source] = evaluate(stage.part, read)
    return signed(rest, read)


@pytest.fixture(autouse=True)
def _eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever can be a stage is one."""
    monkeypatch.setattr(stages, "_ENOUGH", 0)
    monkeypatch.setattr(stages, "_WORTH", 1)


def test_a_stage_is_small_and_used_more_than_once() -> None:
    """Rows of whole tables are not brought to the driver; the keys that a change touches are."""
    node = lower("SELECT a, n FROM (SELECT a, COUNT(*) AS n FROM t GROUP BY a) WHERE n > 1", SCHEMAS).node
    delta = derive(node, {"t"})
    assert delta is not None
    parts, rest = staged(delta)
    assert [{s.version for s in scans(p.part)} for p in parts] == [{"delta"}]
    assert sum(s is parts[0].scan for n in bottom_up(rest) for s in n.inputs) == 2


def test_a_with_query_is_one_tree_however_often_it_is_used() -> None:
    found = lower(VIEWS["a query used twice"], SCHEMAS).node
    assert len(scans(found)) == 1
    assert sum(isinstance(n, Aggregate) for n in bottom_up(found)) == 1


READ = {  # the columns of t that are read
    "SELECT a FROM t WHERE b > 0": {"a", "b"},
    "SELECT COUNT(*) AS n FROM t": {"a"},
    "SELECT a FROM (SELECT * FROM t) ORDER BY b LIMIT 3": {"a", "b"},
    "SELECT a FROM (SELECT a, SUM(b) AS s, MAX(c) AS m FROM t GROUP BY a) WHERE s > 1": {"a", "b"},
    "SELECT x FROM (SELECT a AS x, b AS y FROM t UNION ALL SELECT b, c FROM t)": {"a", "b"},
    "SELECT x FROM (SELECT a AS x, b AS y FROM t UNION SELECT b, a FROM t)": {"a", "b"},
    "SELECT a FROM (SELECT DISTINCT a, b FROM t)": {"a", "b"},
    "SELECT a FROM (SELECT a, b FROM t EXCEPT ALL SELECT a, b FROM t)": {"a", "b"},
    "SELECT a FROM (SELECT a, RANK() OVER (PARTITION BY b ORDER BY c) AS r FROM t)": {"a"},
    "SELECT a, r FROM (SELECT a, RANK() OVER (PARTITION BY b ORDER BY c) AS r FROM t)": {"a", "b", "c"},
    "SELECT d FROM u WHERE EXISTS (SELECT * FROM t WHERE t.b = u.d)": {"b"},
    "SELECT e FROM t LATERAL VIEW explode(array(a, b)) x AS e": {"a", "b"},
}


@pytest.mark.parametrize("text", READ)
def test_only_columns_that_something_uses_are_read(text: str) -> None:
    """What decides which rows there are is used too."""
    found = {c for s in scans(lower(text, SCHEMAS).node) if s.relation == "t" for c, _ in s.fields}
    assert found == READ[text]


def test_an_equality_that_all_branches_ask_for_stands_alone() -> None:
    """The equality is a condition of its own, so that a delta can be joined by it."""
    node = lower(VIEWS["a join condition under or"], SCHEMAS).node
    conditions = [n.predicate for n in bottom_up(node) if isinstance(n, Filter)]
    assert any(isinstance(c, exp.EQ) and len(names_in(c)) == 2 for c in conditions)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("SELECT a, SUM(b) OVER (w ORDER BY b) AS s FROM t WINDOW w AS (PARTITION BY a)", "named window"),
        ("SELECT t.a FROM t, LATERAL (SELECT COUNT(*) AS n FROM u WHERE u.a = t.a) x", "LATERAL"),
        ("SELECT t.a FROM t, LATERAL (SELECT DISTINCT d FROM u WHERE u.a = t.a) x", "LATERAL"),
        ("SELECT t.a FROM t, LATERAL (SELECT u.d + t.a AS e FROM u) x", "outer query"),
        ("SELECT a FROM t WHERE EXISTS (WITH w AS (SELECT d FROM u WHERE u.a = t.a) SELECT 1 FROM w)", "outer query"),
        ("SELECT t.a FROM t LEFT JOIN u ON t.a = u.a AND EXISTS (SELECT 1 FROM v)", "subquery in a join condition"),
    ],
)
def test_what_goes_further_is_recomputed_for_a_stated_reason(text: str, reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        lower(text, SCHEMAS)
