"""Less common SQL: what lowering leaves to Spark, and how it names and places what it takes apart."""

from __future__ import annotations

import pytest
from sqlglot import exp
from tests.spark.less_common import CASES, KEPT

from freshview.algebra.nodes import Aggregate, Generate, Join, Lowered, Node, Project, SetOperation, TopK, Window
from freshview.algebra.traversal import bottom_up
from freshview.definition.coercion import coerced
from freshview.definition.determinism import refuse_open_ties, with_tie_breaks
from freshview.errors import NotMaintainable
from freshview.sql.lowering import Unsupported, lower
from freshview.sql.rendering import render

TABLES = {
    "a": ("id", "k", "v", "arr", "m", "st", "s", "d"),
    "b": ("id", "k", "w", "s"),
    "c": ("id", "k", "z"),
    "e": ("id", "k", "v"),
}

NOT_LOWERED = {
    "a generator in an expression": ("SELECT explode(arr) + 1 AS x FROM a", "EXPLODE"),
    "a generator in WHERE": ("SELECT id FROM a WHERE explode(arr) > 1", "EXPLODE"),
    "a generator beside HAVING": ("SELECT explode(array(max(v))) AS e FROM a GROUP BY k HAVING k > 1", "HAVING"),
    "a generator over a window": ("SELECT explode(array(sum(v) OVER (PARTITION BY k))) AS e FROM a", "window"),
    "a generator beside windows over groups": (
        "SELECT explode(array(max(v))) AS e, rank() OVER (ORDER BY k) AS r FROM a GROUP BY k",
        "windows over groups",
    ),
    "inline without names": ("SELECT inline(arr) FROM a", "without AS"),
    "exists over a generator": ("SELECT id FROM a WHERE EXISTS (SELECT explode(a.arr))", "EXISTS"),
    "a star in a struct": ("SELECT to_json(struct(*)) AS j FROM a", "star"),
    "a table's star in a struct": ("SELECT max(struct(a.*)) AS j FROM a", "star"),
    "a star in a hash": ("SELECT xxhash64(*) AS h FROM a", "star"),
    "a star in a distinct count": ("SELECT count(DISTINCT *) AS h FROM a", "star"),
    "using after a comma": ("SELECT v FROM c, a JOIN b USING (k)", "comma"),
    "a right join after a comma": ("SELECT a.v FROM c, a RIGHT JOIN b ON a.k = b.k", "comma"),
    "a right join after a condition over an outer query": (
        "SELECT id FROM a WHERE EXISTS (SELECT 1 FROM b JOIN c ON b.k = c.k AND b.w > a.v + (SELECT count(*) FROM c) "
        "RIGHT JOIN b AS d ON d.k = c.k)",
        "outer query",
    ),
    "zipped columns": ("SELECT arrays_zip(arr, arr) AS z FROM a", "named by columns"),
    "a row of columns": ("SELECT (k, v) AS r FROM a", "named by columns"),
    "a field by place": ("SELECT struct(m['K']) AS r FROM a", "without AS"),
    "a variable in another case": ("SELECT transform(arr, V -> v + k) AS t FROM a", "variable"),
    "a window of time": ("SELECT window(s, '1 hour') AS w, count(*) AS n FROM a GROUP BY ALL", "window"),
    "a window of a session": (
        "SELECT session_window(s, '1 hour') AS w, count(*) AS n FROM a GROUP BY session_window(s, '1 hour')",
        "session_window",
    ),
    "pipes": ("FROM a |> WHERE k > 1 |> SELECT k", "|>"),
    "pipes that the parser cannot read": ("FROM a |> EXTEND k + 1 AS l |> DROP k |> AGGREGATE sum(v) GROUP BY k", ""),
    "values over subqueries": ("SELECT * FROM VALUES ((SELECT max(k) FROM a)) AS t(x)", "VALUES"),
    "an unknown aggregate of nothing": (
        "SELECT id, (SELECT histogram_numeric(w, 3) FROM b WHERE b.k = a.k) AS h FROM a",
        "no rows",
    ),
    "sets after sets": ("SELECT k FROM a GROUP BY ROLLUP (k) GROUPING SETS ((k))", ""),
    "no sets but the empty one": ("SELECT count(*) AS n FROM a GROUP BY k GROUPING SETS (())", "GROUPING SETS"),
    "equal to less": ("SELECT id FROM a WHERE (k > 1) = (v > 1) < (id > 1)", "without brackets"),
    "unequal to less": ("SELECT id FROM a WHERE (k > 1) <> (v > 1) < (id > 1)", "without brackets"),
    "equal to more": ("SELECT id FROM a WHERE (k > 1) = (v > 1) >= false", "without brackets"),
    "concatenated bits": ("SELECT k & 3 || 1 AS x FROM a", "without brackets"),
    "concatenated sums": ("SELECT k || v + 1 AS x FROM a", "without brackets"),
    "depth": ("SELECT " + "(" * 2000 + "v" + ")" * 2000 + " AS x FROM a", ""),
}


@pytest.mark.parametrize("case", NOT_LOWERED)
def test_what_has_no_rule_is_left_to_spark(case: str) -> None:
    definition, reason = NOT_LOWERED[case]
    with pytest.raises(Unsupported) as raised:
        lower(definition, TABLES)
    assert reason in str(raised.value)
    assert not any(f"{name}_" in str(raised.value) for name in TABLES["a"])  # no name of ours


@pytest.mark.parametrize(
    "definition",
    [
        "SELECT a < b = c AS x FROM t",
        "SELECT (a = b) < c AS x FROM t",
        "SELECT a + b || c AS x FROM t",
        "SELECT (a & b) || c AS x FROM t",
        "SELECT count(*) AS n FROM t",
        "SELECT t.*, a AS x FROM t",
        "SELECT count(DISTINCT (a, b)) AS n FROM t",
        "SELECT (a, b) IN ((1, 2)) AS x FROM t",
        "SELECT a FROM t WHERE (a, b) IN (SELECT a, b FROM t)",
        "SELECT a FROM t LIMIT ALL",
        "SELECT x.a FROM t x CROSS JOIN t y RIGHT JOIN t z ON y.a = z.a",
    ],
)
def test_what_looks_alike_is_lowered(definition: str) -> None:
    lower(definition, {"t": ("a", "b", "c")})


def _nodes(definition: str, kind: type[Node]) -> list[Node]:
    return [n for n in bottom_up(lower(definition, TABLES).node) if isinstance(n, kind)]


def _text(definition: str) -> str:
    lowered = lower(definition, TABLES)
    return render(lowered.node, lambda scan: scan.relation, lowered.outputs)


def test_a_generator_is_never_pruned() -> None:
    assert _nodes("SELECT count(*) AS n FROM (SELECT k, explode(arr) AS e FROM a)", Generate)


def test_windows_are_over_generated_rows() -> None:
    (window,) = _nodes("SELECT count(*) OVER (PARTITION BY k) AS n, explode(arr) AS e FROM a", Window)
    assert isinstance(window, Window)
    assert isinstance(window.input, Generate)


def test_groups_come_before_generated_rows() -> None:
    (generate,) = _nodes("SELECT k, explode(array(count(*), sum(v))) AS e FROM a GROUP BY k", Generate)
    assert isinstance(generate.inputs[0], Aggregate)


def test_generated_columns_have_sparks_names() -> None:
    names = [n for _, n in lower("SELECT posexplode(arr), stack(2, k, v, v) FROM a", TABLES).outputs]
    assert names == ["pos", "col", "col0", "col1"]


def test_joins_using_keep_one_column_each() -> None:
    definition = "SELECT k FROM a {} JOIN b USING (k) {} JOIN c USING (k)"
    assert "COALESCE" not in _text(definition.format("LEFT", "INNER"))
    assert "COALESCE" not in _text(definition.format("RIGHT", "INNER"))
    assert _text(definition.format("FULL", "FULL")).count("COALESCE") == 2
    assert _text("SELECT coalesce(a.k, b.k) AS k FROM a JOIN b USING (k)").count("COALESCE") == 1  # the text's own


def test_names_that_are_data_keep_their_case() -> None:
    items = "m.K AS x, named_struct('userId', V) AS y, struct(V) AS z, CAST(st AS STRUCT<X: INT>) AS c"
    text = _text(f"SELECT {items} FROM A")
    for name in ("`K`", "`userId`", "AS `V`", "`X`"):
        assert name in text


def test_generated_names_are_not_those_of_the_text() -> None:
    taken = ["v_2", "V_3", "k_1", "id_1__touched"]
    variables = ", ".join(f"transform(arr, {name} -> {name} + v) AS x{i}" for i, name in enumerate(taken))
    lowered = lower(f"SELECT id, k, {variables} FROM a", TABLES)
    for node in bottom_up(lowered.node):
        for column in node.columns:
            assert not any(name.lower().startswith(column.lower()) for name in taken)


@pytest.mark.parametrize(
    "definition",
    [
        "SELECT count(*) AS n FROM a LIMIT 100",
        "SELECT count(*) AS n, max(k) + 1 AS m FROM a HAVING max(k) > 1 ORDER BY m LIMIT 1",
        "SELECT * FROM (SELECT count(*) AS n FROM a) x, (SELECT sum(k) AS s FROM a) y LIMIT 100",
        "SELECT x.n AS z FROM (SELECT count(*) AS n FROM a) x JOIN (SELECT sum(k) AS s FROM a) y ON n < s LIMIT 1",
        "SELECT id FROM a WHERE k IN (SELECT max(k) FROM a LIMIT 1)",
    ],
)
def test_a_limit_of_one_row_is_idle(definition: str) -> None:
    """A query that has one row at most is determined without an order, and a LIMIT leaves it as it is."""
    assert not _nodes(definition, TopK)
    refuse_open_ties(definition, "for any reason")


def test_distinct_rows_are_ordered_by_items_in_brackets() -> None:
    assert _nodes("SELECT DISTINCT (k) FROM a ORDER BY k LIMIT 2", TopK)
    assert _nodes("SELECT DISTINCT k FROM a ORDER BY (k) LIMIT 2", TopK)


def test_an_offset_needs_no_limit() -> None:
    (top,) = _nodes("SELECT id FROM a ORDER BY id OFFSET 2", TopK)
    assert isinstance(top, TopK)
    assert (top.limit, top.offset) == (None, 2)
    assert "LIMIT" not in _text("SELECT id FROM a ORDER BY id OFFSET 2")


def test_sets_are_made_of_converted_values() -> None:
    """'1' and '01' are two strings and one number: EXCEPT of sets must see one."""

    def types_of(node: Node) -> dict[str, str]:
        strings = () if isinstance(node, SetOperation) else tuple(c for c in node.columns if c.startswith("s_"))
        return {c: "string" if c in strings else "bigint" for c in node.columns}

    found = coerced(lower("SELECT s FROM a EXCEPT SELECT k FROM b", TABLES), types_of)
    (operation,) = [n for n in bottom_up(found.node) if isinstance(n, SetOperation)]
    assert isinstance(operation.left, Aggregate)
    assert isinstance(operation.left.input, Project)
    assert any(e.find(exp.Cast) for _, e in operation.left.input.items)


@pytest.mark.parametrize(("lax", "lowered"), [("bigint", True), ("double", False)])
def test_in_over_two_types_is_an_equality_under_ansi_only(lax: str, lowered: bool) -> None:
    def types_of(node: Node) -> dict[str, str]:
        kinds = {"side0": "int", "side1": "string", "lax": lax}
        return {c: kinds.get(c, "int") for c in node.columns}

    tree = lower("SELECT id FROM a WHERE k NOT IN (SELECT s FROM b)", TABLES)
    assert any(isinstance(n, Join) for n in bottom_up(tree.node))
    if lowered:
        coerced(tree, types_of)
    else:
        with pytest.raises(Unsupported, match="compares int with string"):
            coerced(tree, types_of)


def test_in_over_char_columns_is_left_to_spark() -> None:
    """`=` pads the shorter one, IN (query) does not."""
    tree = lower("SELECT id FROM a WHERE s IN (SELECT z FROM c)", TABLES)

    def types_of(node: Node) -> dict[str, str]:
        return dict.fromkeys(node.columns, "string")

    coerced(tree, types_of, {("a", "s")})
    with pytest.raises(Unsupported, match="CHAR"):
        coerced(tree, types_of, {("a", "s"), ("c", "z")})


def _with_ties(call: str, type_: str = "int") -> Lowered:
    def types_of(node: Node) -> dict[str, str]:
        return dict.fromkeys(node.columns, type_)

    return with_tie_breaks(lower(f"SELECT id, {call} AS x FROM a", TABLES), types_of)


@pytest.mark.parametrize(
    "call",
    [
        "first_value(v) IGNORE NULLS OVER (PARTITION BY k ORDER BY d)",
        "first(v, true) OVER (PARTITION BY k ORDER BY d)",
        "first_value(v) IGNORE NULLS OVER (PARTITION BY k)",
        "first_value(v) OVER (PARTITION BY k ORDER BY d RANGE BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)",
        "first_value(v) OVER (PARTITION BY k ORDER BY d RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING)",
        "last_value(v) OVER (PARTITION BY k ORDER BY d)",
        "nth_value(v, 2) OVER (PARTITION BY k ORDER BY d)",
    ],
)
def test_a_tie_break_never_changes_a_frame(call: str) -> None:
    with pytest.raises(NotMaintainable, match="among rows that tie"):
        _with_ties(call)


@pytest.mark.parametrize(
    "call",
    [
        "first_value(v) OVER (PARTITION BY k ORDER BY d)",
        "first_value(v) IGNORE NULLS OVER (PARTITION BY k ORDER BY d ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)",
        "last_value(v) OVER (PARTITION BY k ORDER BY d RANGE BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)",
        "lag(v) IGNORE NULLS OVER (PARTITION BY k ORDER BY d)",
        "sum(v) OVER (PARTITION BY k ORDER BY d ROWS 2 PRECEDING)",
        "ntile(3) OVER (PARTITION BY k ORDER BY d)",
    ],
)
def test_ties_are_broken_where_the_frame_stays(call: str) -> None:
    assert render(_with_ties(call).node, lambda s: s.relation).count("NULLS LAST") > 2


@pytest.mark.parametrize("call", ["rank()", "dense_rank()", "cume_dist()", "percent_rank()", "sum(v)", "count(*)"])
def test_what_counts_ties_keeps_them(call: str) -> None:
    definition = f"{call} OVER (PARTITION BY k ORDER BY d)"
    assert "NULLS LAST" not in render(_with_ties(definition).node, lambda s: s.relation)


def test_rows_without_an_order_have_no_tie_break() -> None:
    with pytest.raises(Unsupported, match="map<string,int>"):
        _with_ties("row_number() OVER (PARTITION BY k ORDER BY d)", "map<string,int>")


@pytest.mark.parametrize("case", CASES)
def test_less_common_cases_are_lowered_but_for_those_that_are_known(case: str) -> None:
    """A lowering that refused everything would leave each view equal to its text."""
    if case in KEPT:
        with pytest.raises(Unsupported):
            lower(CASES[case], TABLES)
    else:
        lower(CASES[case], TABLES)
