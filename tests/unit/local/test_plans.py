"""Plans of the embedded engine, without Spark: their bags are those of the oracle, or they are not taken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlglot import exp
from tests.effort import examples
from tests.unit.algebra.oracle import Bag, Double, Row, evaluate
from tests.unit.delta.cases import VIEWS
from tests.unit.sql.view_grammar import SCHEMAS, Change, State, kind_of, lowered_view, noises, states, views

from freshview.algebra.nodes import WEIGHT, Filter, Node, Project, Scan, Shared, Table, TopK, column
from freshview.algebra.together import put_together
from freshview.catalog.records import Relation
from freshview.delta.derive import at_version, derive
from freshview.delta.forms import choose_form, delta_plan, with_buffer
from freshview.local.engine import LocalEngine, LocalError
from freshview.local.expressions import over
from freshview.local.plans import translated
from freshview.local.typed import INT, STRING, Unproven
from freshview.refresh.combined import Combined, Translation
from freshview.relation.schema import Column, Schema
from freshview.relation.types import DataType
from freshview.sql.lowering import lower

_KINDS = {"int": "bigint", "text": "string", "double": "double"}
_TYPES = {c: DataType(_KINDS[kind_of(c)]) for columns in SCHEMAS.values() for c in columns}
ENGINE = LocalEngine()

# Views of the rules' own list that stay on Spark, with the first construct that keeps them there.
UNPROVEN = {
    "explode": "EXPLODE",
    "posexplode": "POSEXPLODE",
    "no table": "VALUES",
    "no table, but a condition": "VALUES",
}


_ROOTS = {name: lowered_view(text).node for name, text in VIEWS.items()}
_STORED = {**_TYPES, **{mark: DataType("boolean") for mark in ("__shown", "__more")}}


def _arrow(scan: Scan, rows: Bag) -> pa.Table:
    names = [c for c, _ in scan.fields] + ([WEIGHT] if scan.version == "delta" else [])
    kinds = [_STORED.get(c, DataType("bigint")) for c, _ in scan.fields]
    types = [k.arrow for k in kinds] + ([pa.int32()] if scan.version == "delta" else [])
    listed = [tuple(v.value if isinstance(v, Double) else v for v in r) for r in rows.elements()]
    return pa.table([pa.array([r[i] for r in listed], t) for i, t in enumerate(types)], names=names)


def _answer(plan: Node, read: Callable[[Scan], Bag]) -> Bag:
    local = translated(plan, lambda scan: {c: _STORED.get(c, DataType("bigint")) for c, _ in scan.fields})

    def rows(scan: Node) -> pa.Table:
        assert isinstance(scan, Scan)
        return _arrow(scan, read(scan))

    table = ENGINE.run(local, rows)
    columns = [c.to_pylist() for c in table.columns]
    return Counter(tuple(_exact(v) for v in row) for row in zip(*columns, strict=True))


def _exact(value: Any) -> Any:
    return Double.of(value) if isinstance(value, float) else value


def _oracle(plan: Node, read: Callable[[Scan], Bag]) -> Bag:
    """The oracle's rows; it keeps averages of integers as fractions."""
    found: Bag = Counter()
    for row, count in evaluate(plan, read).items():
        found[tuple(Double.of(float(v)) if isinstance(v, Fraction) else v for v in row)] += count
    return found


@settings(deadline=None, max_examples=examples(12, commit=7), suppress_health_check=list(HealthCheck))
@given(run=states(2), noise=noises())
def test_a_plan_gives_the_oracles_bag(run: list[State], noise: dict[str, list[Row]]) -> None:
    """The definition and its delta, of every view that is not listed as one for Spark."""
    change = Change(run[0], run[1], noise)
    for name, root in _ROOTS.items():
        for plan in filter(None, [at_version(root, "new"), derive(root, change.changed)]):
            if name in UNPROVEN:
                with pytest.raises(Unproven, match=UNPROVEN[name]):
                    _answer(plan, change.read)
            else:
                assert _answer(plan, change.read) == _oracle(plan, change.read), name


@settings(deadline=None, max_examples=examples(150, commit=75), suppress_health_check=list(HealthCheck))
@given(text=views(), run=states(2))
def test_plans_of_random_views_give_the_oracles_bag(text: str, run: list[State]) -> None:
    change = Change(run[0], run[1])
    root = lowered_view(text).node
    for plan in filter(None, [at_version(root, "new"), derive(root, change.changed)]):
        with suppress(Unproven):
            assert _answer(plan, change.read) == _oracle(plan, change.read)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT a, b FROM t ORDER BY b DESC NULLS FIRST, a LIMIT 2 OFFSET 1",
        "SELECT c FROM t WHERE a > 0 ORDER BY b LIMIT 2",
        "SELECT a, SUM(b) AS s FROM t GROUP BY a ORDER BY s DESC LIMIT 2",
    ],
)
@settings(deadline=None, max_examples=examples(12, commit=7), suppress_health_check=list(HealthCheck))
@given(run=states(2))
def test_buffers_give_the_oracles_bag(text: str, run: list[State]) -> None:
    """A change merged into the stored rows of ORDER BY … LIMIT is proven, whether or not rows run out."""
    lowered = lowered_view(text)
    form = choose_form(lowered, tuple(n for _, n in lowered.outputs), lambda n: dict.fromkeys(n.columns, "bigint"))
    assert form.top is not None
    form = with_buffer(form, form.top.reach + 1)
    stored = evaluate(at_version(form.tree, "old"), Change(run[0], run[1]).read)
    change = Change(run[0], run[1], stored=(form.stored, stored))
    plan = delta_plan(form, lowered, change.changed, dict.fromkeys(form.stored, "bigint"))
    for tree in filter(None, [at_version(form.tree, "new"), plan]):
        assert _answer(tree, change.read) == _oracle(tree, change.read)


def test_names_that_differ_in_case_are_two() -> None:
    scan = Scan(Table("t"), (("A", "x"), ("a", "X")))
    plan = translated(Project(scan, (("y", column("X")), ("Y", column("x")))), lambda _: {"a": INT, "A": INT})
    rows = pa.table({"a": pa.array([1], pa.int32()), "A": pa.array([2], pa.int32())})
    assert ENGINE.run(plan, lambda _: rows).to_pydict() == {"y": [1], "Y": [2]}


def test_an_error_is_the_engines_own() -> None:
    """Spark computes what the embedded engine cannot."""
    plan = translated(lower("SELECT a + a AS x FROM t", {"t": ("a",)}).node, lambda _: {"a": INT})
    with pytest.raises(LocalError, match="Overflow"):
        ENGINE.run(plan, lambda _: pa.table({"a": pa.array([2**31 - 1], pa.int32())}))


@pytest.mark.parametrize(
    "order",
    [column("a"), *(exp.Ordered(this=column("a"), desc=d, nulls_first=n) for d in (False, True) for n in (None, True))],
)
def test_nulls_are_where_the_text_for_spark_has_them(order: exp.Expr) -> None:
    """Tie-breaks are built without a word on NULLs; their text says NULLS LAST."""
    text = order.sql(dialect="spark")
    is_first = "NULLS FIRST" in text or ("NULLS LAST" not in text and "DESC" not in text)
    plan = translated(TopK(Scan(Table("t"), (("a", "a"),)), (order,), 1), lambda _: {"a": INT})
    found = ENGINE.run(plan, lambda _: pa.table({"a": pa.array([None, 1], pa.int32())}))
    assert found.column(0).to_pylist() == [None if is_first else 1]


def test_not_like_is_not_like() -> None:
    plan = translated(lower("SELECT c FROM t WHERE c NOT LIKE 'ap%'", {"t": ("c",)}).node, lambda _: {"c": STRING})
    assert ENGINE.run(plan, lambda _: pa.table({"c": ["apple", "pear", None]})).column(0).to_pylist() == ["pear"]


def test_an_argument_that_no_rule_reads_is_not_proven() -> None:
    with pytest.raises(Unproven, match="with collation"):
        over({}).typed(exp.Literal(this="a", is_string=True, collation="x"))


def test_sums_of_39_digits_are_errors() -> None:
    type_ = DataType("decimal", (38, 0))
    plan = translated(lower("SELECT sum(v) AS s FROM t", {"t": ("v",)}).node, lambda _: {"v": type_})
    rows = pa.table({"v": pa.array([Decimal("6" * 38)] * 2, type_.arrow)})
    with pytest.raises(LocalError, match="Overflow"):
        ENGINE.run(plan, lambda _: rows)


# -- parts that Spark computes -----------------------------------------------------------------------

_ROWS = pa.table({"a": pa.array([1, 2], pa.int32()), "c": ["x", "y"]})


def _joined_with(text: str) -> tuple[list[Node], list[list[object]]]:
    """The parts of a query that Spark is asked for, and the query's columns if Spark answers 'h' to all of them."""
    asked: list[Node] = []

    def prepare(part: Node) -> dict[str, DataType]:
        asked.append(part)
        return {c: INT if c.startswith("a") else STRING for c in part.columns}

    def rows(read: Node) -> pa.Table:
        if isinstance(read, Scan):
            return _ROWS
        return pa.table({c: pa.array([2], pa.int32()) if c.startswith("a") else ["h"] for c in read.columns})

    plan = translated(lower(text, {"t": ("a", "c")}).node, lambda _: {"a": INT, "c": STRING}, prepare)
    assert plan.prepared == asked
    return asked, [c.to_pylist() for c in ENGINE.run(plan, rows).columns]


def test_what_is_not_proven_and_stands_on_a_scan_is_sparks_and_the_rest_is_not() -> None:
    below = "SELECT a, sha2(c, 256) AS h FROM t WHERE sqrt(a) > 1"
    asked, rows = _joined_with(f"SELECT u.h, t.c FROM t JOIN ({below}) u ON t.a = u.a")
    assert rows == [["h"], ["y"]]
    (part,) = asked  # the filter and the projection at once
    assert isinstance(part, Project)
    assert isinstance(part.input, Filter)


def test_a_query_over_one_scan_may_be_sparks_as_a_whole() -> None:
    asked, rows = _joined_with("SELECT sha2(c, 256) AS h FROM t")
    assert (len(asked), rows) == (1, [["h"]])


@pytest.mark.parametrize(
    "text",
    ["SELECT sha2(t.c, 256) AS h FROM t JOIN t u ON t.a = u.a", "SELECT a, max(sqrt(a)) AS m FROM t GROUP BY a"],
)
def test_what_is_not_proven_above_other_operators_stays_with_its_reason(text: str) -> None:
    with pytest.raises(Unproven, match=r"SHA2|SQRT"):
        _joined_with(text)


def test_rows_of_nested_types_are_taken_if_spark_makes_plain_ones_of_them() -> None:
    types = {"a": INT, "c": DataType("array", (), (STRING,))}
    text = "SELECT t.a, size(t.c) AS n FROM t"
    plan = translated(
        lower(text, {"t": ("a", "c")}).node, lambda _: types, lambda part: dict.fromkeys(part.columns, INT)
    )
    assert len(plan.prepared) == 1
    with pytest.raises(Unproven, match="nested"):
        translated(lower("SELECT a, c FROM t", {"t": ("a", "c")}).node, lambda _: types, lambda _: types)


def test_a_text_that_is_no_utf_8_goes_to_spark() -> None:
    """DuckDB counts its characters otherwise, or does not end."""
    plan = translated(lower("SELECT length(s) AS n FROM t", {"t": ("s",)}).node, lambda _: {"s": STRING})
    broken = pa.Array.from_buffers(pa.string(), 1, pa.array(["ab"]).buffers()[:2] + [pa.py_buffer(b"\x80A")])
    assert ENGINE.run(plan, lambda _: pa.table({"s": ["ab"]})).column(0).to_pylist() == [2]
    with pytest.raises(LocalError):
        ENGINE.run(plan, lambda _: pa.table({"s": broken}))


def test_replace_without_a_replacement_removes() -> None:
    plan = translated(lower("SELECT replace(s, 'a') AS r FROM t", {"t": ("s",)}).node, lambda _: {"s": STRING})
    assert ENGINE.run(plan, lambda _: pa.table({"s": ["banana"]})).column(0).to_pylist() == ["bnn"]


@settings(deadline=None, max_examples=examples(60), suppress_health_check=list(HealthCheck))
@given(texts=st.lists(st.one_of(views(), st.sampled_from(sorted(VIEWS.values()))), min_size=2), run=states(2))
def test_plans_put_together_give_the_oracles_bags(texts: list[str], run: list[State]) -> None:
    """Parts that several plans read are computed once; a plan is taken if it and its parts are."""
    change = Change(run[0], run[1])
    derived = [derive(lowered_view(text).node, change.changed) for text in texts[:4]]
    plans = [plan for plan in derived if plan is not None]
    together = put_together(plans)
    translation = Translation(Combined(tuple(plans), together), _relation, _nothing)
    rows: dict[object, pa.Table] = {}

    def table(scan: Node) -> pa.Table:
        assert isinstance(scan, Scan)
        return rows[scan.source] if isinstance(scan.source, Shared) else _arrow(scan, change.read(scan))

    for part in together.parts:
        local = translation.part(part)
        if local is not None:
            rows[part.scan.source] = ENGINE.run(local, table)
    for place, plan in enumerate(plans):
        with suppress(Unproven):
            found = ENGINE.run(translation.translated(place, together.plans[place]), table)
            answer = Counter(
                tuple(map(_exact, row)) for row in zip(*(c.to_pylist() for c in found.columns), strict=True)
            )
            assert answer == _oracle(plan, change.read)


def _relation(scan: Scan) -> Relation:
    columns = tuple(Column(c, _TYPES[c]) for c in SCHEMAS[scan.relation])
    return Relation(1, scan.relation, "table", 1, 1, Schema(columns), 0, None, {}, {})


def _nothing(_: Node) -> dict[str, DataType]:
    raise Unproven("nothing is computed by Spark")
