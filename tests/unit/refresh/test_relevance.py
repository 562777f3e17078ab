"""A delta that cannot matter to a query: σ_p(V) is the same before and after, whatever the view, p and the change."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlglot import exp
from tests.effort import examples
from tests.unit.algebra import oracle
from tests.unit.algebra.oracle import Bag, Double, TooManyRows, evaluate, plus
from tests.unit.delta.cases import VIEWS
from tests.unit.sql.view_grammar import SCHEMAS, Change, State, kind_of, lowered_view, reading, views

from freshview.algebra.nodes import Filter, Node, Project, Scan, column
from freshview.algebra.traversal import bottom_up, relations, scans
from freshview.errors import NotMaintainable
from freshview.refresh.paths import is_open, numbered, paths, restricted

laws = settings(deadline=None, max_examples=200, suppress_health_check=list(HealthCheck))


def view(text: str) -> Node:
    """A definition, with its columns named as queries see them."""
    lowered = lowered_view(text)
    return Project(lowered.node, tuple((f"n{i}", column(c)) for i, (c, _) in enumerate(lowered.outputs)))


class Types:
    """Types of columns, as far as the values of two states tell."""

    def __init__(self, change: Change) -> None:
        self._change = change
        self._known: dict[int, tuple[Node, dict[str, str]]] = {}

    def __call__(self, node: Node) -> Mapping[str, str]:
        if id(node) not in self._known:
            bags = [evaluate(node, reading(state)) for state in (self._change.old, self._change.new)]
            columns = list(zip(*(row for bag in bags for row in bag), strict=True)) or [()] * len(node.columns)
            self._known[id(node)] = node, {n: _kind(v) for n, v in zip(node.columns, columns, strict=True)}
        return self._known[id(node)][1]


def _kind(values: tuple[Any, ...]) -> str:
    kinds = {type(v) for v in values if v is not None}
    names = {int: "int", str: "string", bool: "boolean", Double: "double"}
    return names.get(kinds.pop(), "other") if len(kinds) == 1 else "other" if kinds else "int"


def touching(root: Node, change: Change) -> list[Node]:
    """The paths of what changed."""
    return [p for p in paths(root, Types(change)) if scans(p)[0].relation in change.changed]


def is_met(path: Node, conditions: list[exp.Expr], change: Change) -> bool:
    def delta(scan: Scan) -> Bag:
        rows = change.read(replace(scan, version="delta"))
        return Counter(row[:-1] for row in rows.elements())

    return bool(evaluate(restricted(path, conditions), delta))


def is_relevant(root: Node, conditions: list[exp.Expr], change: Change) -> bool:
    return any(is_met(path, conditions, change) for path in touching(root, change))


def _same(rows: Bag, _: Scan) -> Bag:
    return rows


def in_part(root: Node, conditions: list[exp.Expr], change: Change) -> Change:
    """The change of the tables by those rows alone that meet a path, each by its number."""
    part = dict(change.old)
    for table in change.changed:
        rows = [r for r, n in change.rows_of(table).items() for _ in range(n)]
        met: set[int] = set()
        for path in touching(root, change):
            if scans(path)[0].relation == table:
                tested = numbered(path, conditions, "number")
                places = [SCHEMAS[table].index(c) if c in SCHEMAS[table] else None for c, _ in scans(tested)[0].fields]
                given: Bag = Counter(tuple(i if p is None else r[p] for p in places) for i, r in enumerate(rows))
                met |= {number for (number,) in evaluate(tested, partial(_same, given))}
        for number in met:
            *row, weight = rows[number]
            part[table] = plus(part[table], Counter({tuple(row): weight}))
    return Change(change.old, part)


def kept(root: Node, conditions: list[exp.Expr], state: State) -> Bag:
    """σ_p(V) in one state."""
    for condition in conditions:
        root = Filter(root, condition)
    return evaluate(root, reading(state))


def literal(value: Any) -> exp.Expr:
    if isinstance(value, Double):
        return exp.cast(exp.Literal.string(value.text), "double")
    if isinstance(value, str):
        return exp.Literal.string(value)
    return exp.Null() if value is None else exp.Literal.number(int(value))


def random_value(draw: random.Random, column_name: str) -> Any:
    return draw.choice(_SAMPLES[kind_of(column_name)])


_SAMPLES: dict[str, list[Any]] = {
    "int": [None, 0, 1, 2],
    "text": [None, "x", "y"],
    "double": [None, *map(Double, ("0.0", "-0.0", "1.5", "nan"))],
}


def random_change(draw: random.Random, root: Node) -> Change:
    """A row or two more, less or otherwise, in one or two tables that the view reads."""

    def row(table: str) -> tuple[Any, ...]:
        return tuple(random_value(draw, c) for c in SCHEMAS[table])

    old = {table: Counter(row(table) for _ in range(draw.choice([0, 3, 4, 5]))) for table in SCHEMAS}
    new = dict(old)
    read = sorted(relations(root))
    for table in draw.sample(read, min(draw.choice([1, 1, 1, 2]), len(read))):
        for _ in range(draw.choice([1, 1, 2])):
            kind = draw.choice(["insert", "delete", "update"])
            if kind != "insert" and new[table]:
                new[table] = new[table] - Counter([draw.choice(sorted(new[table].elements(), key=repr))])
            if kind != "delete":
                new[table] = new[table] + Counter([row(table)])
    return Change(old, new)


def random_conditions(draw: random.Random, root: Node, rows: list[tuple[Any, ...]]) -> list[exp.Expr]:
    """Up to three conditions on columns of a view, with values that occur in them."""
    found: list[exp.Expr] = []
    for _ in range(draw.choice([0, 1, 1, 2, 2, 3])):
        place = draw.randrange(len(root.columns))
        known = sorted({r[place] for r in rows if isinstance(r[place], int | str | Double)}, key=repr)
        value = literal(draw.choice([*known, *known, None] if known else [None, 1]))
        ours = column(root.columns[place])
        kind = draw.choice([exp.EQ, exp.EQ, exp.EQ, exp.NullSafeEQ, exp.NEQ, exp.Is, exp.Is, exp.GT, exp.LTE])
        if kind is exp.Is:
            null = exp.Is(this=ours, expression=exp.Null())
            found.append(null if draw.random() < 0.7 else exp.Not(this=null))
        elif draw.random() < 0.8:
            found.append(kind(this=ours, expression=value))
        else:
            other = column(draw.choice(root.columns))
            found.append(exp.or_(kind(this=ours, expression=value), exp.EQ(this=ours.copy(), expression=other)))
    return found


def _check(root: Node, seed: int, found: Counter[str]) -> None:
    """Several changes and predicates for one view. Counted: deltas that are irrelevant, those that change something."""
    draw = random.Random(seed)
    for _ in range(8 if relations(root) else 0):
        change = random_change(draw, root)
        if not change.changed:
            continue
        try:
            rows = [r for state in (change.old, change.new) for r in evaluate(root, reading(state))]
            conditions = random_conditions(draw, root, rows)
            before, after = (kept(root, conditions, state) for state in (change.old, change.new))
            relevant = is_relevant(root, conditions, change)
        except (TypeError, ArithmeticError, TooManyRows, NotMaintainable):  # a comparison of what cannot be compared
            continue
        found["tested"] += 1
        found["different"] += before != after
        found["irrelevant"] += not relevant
        assert relevant or before == after, [c.sql(dialect="spark") for c in conditions]
        part = in_part(root, conditions, change)
        found["in part"] += relevant and part.new != change.new
        assert kept(root, conditions, part.new) == after, [c.sql(dialect="spark") for c in conditions]


def _check_often(queries: st.SearchStrategy[str], times: int) -> None:
    found: Counter[str] = Counter()

    @settings(laws, max_examples=times)
    @given(query=queries, seed=st.integers(0, 2**32))
    def law(query: str, seed: int) -> None:
        _check(view(query), seed, found)

    law()
    assert found["tested"] > times, found
    assert found["irrelevant"] > 0.01 * found["tested"], found  # both cases are met, whatever views were drawn
    assert found["different"] > 0.02 * found["tested"], found
    assert found["in part"], found


def test_what_an_irrelevant_delta_leaves_alone() -> None:
    """Law: if no path is met, σ_p(V) is the same bag before and after; and it is that of the tables with those changed
    rows alone that meet a path; for random views, predicates and changes."""
    _check_often(views(), examples(80, commit=40))


def test_what_an_irrelevant_delta_leaves_alone_for_each_rule() -> None:
    """An irrelevant delta leaves σ_p(V) alone for a view of each rule, so that no rule is left to chance."""
    _check_often(st.sampled_from(sorted(VIEWS.values())), examples(150, commit=75))


# -- each rule finds what it should ----------------------------------------------------------------

_T: dict[str, Bag] = {
    "t": Counter([(1, 1, "x", None), (2, 2, "y", None)]),
    "u": Counter([(1, 5), (2, 6)]),
    "v": Counter([(1, 5, None)]),
}


def _after(**added: tuple[Any, ...]) -> Change:
    new = {t: _T[t] + Counter([added[t]] if t in added else []) for t in _T}
    return Change(_T, new)


def _is(place: int, value: Any) -> exp.Expr:
    return exp.EQ(this=column(f"n{place}"), expression=literal(value))


_NEW_T: dict[str, tuple[Any, ...]] = {"t": (2, 9, "z", None)}
_FOUND: dict[str, tuple[str, exp.Expr, dict[str, tuple[Any, ...]]]] = {
    "a plain column": ("SELECT a, b FROM t", _is(0, 1), _NEW_T),
    "an expression": ("SELECT a + 1 AS x FROM t", _is(0, 2), _NEW_T),
    "a constant": ("SELECT 'one' AS k, a FROM t UNION ALL SELECT 'two', a FROM u", _is(0, "two"), _NEW_T),
    "a group key": ("SELECT a, SUM(b) AS s FROM t GROUP BY a", _is(0, 1), _NEW_T),
    "a key of groups of groups": (
        "SELECT a, MAX(s) AS m FROM (SELECT a, c, SUM(b) AS s FROM t GROUP BY a, c) GROUP BY a",
        _is(0, 1),
        _NEW_T,
    ),
    "distinct rows": ("SELECT DISTINCT a, c FROM t", _is(1, "x"), _NEW_T),
    "a grouping set": ("SELECT a, c, COUNT(*) AS n FROM t GROUP BY GROUPING SETS ((a), (c))", _is(0, 1), _NEW_T),
    "the view's own filter": ("SELECT a FROM t WHERE c = 'x'", _is(0, 2), _NEW_T),
    "a filter below a global aggregate": ("SELECT COUNT(*) AS n FROM t WHERE c = 'x'", _is(0, 1), _NEW_T),
    "a filter below a window": (
        "SELECT a, ROW_NUMBER() OVER (ORDER BY b) AS r FROM (SELECT * FROM t WHERE c = 'x')",
        _is(0, 2),
        _NEW_T,
    ),
    "a side of a join": ("SELECT t.b, u.d FROM t JOIN u ON t.a = u.a", _is(0, 1), _NEW_T),
    "the other side's key": ("SELECT u.a, u.d FROM t JOIN u ON t.a = u.a", _is(0, 1), _NEW_T),
    "a key through three tables": (
        "SELECT u.a, v.d FROM t, u, v WHERE t.a = u.a AND u.a = v.b",
        _is(0, 1),
        {"v": (2, 5, None)},
    ),
    "a null-safe key": ("SELECT u.a, u.d FROM t JOIN u ON t.a <=> u.a", _is(0, 1), {"t": (None, 9, "z", None)}),
    "a condition on the other side's key": (
        "SELECT t.b, u.d FROM t JOIN u ON t.a = u.a WHERE u.a = 1",
        exp.true(),
        _NEW_T,
    ),
}


@pytest.mark.parametrize("name", _FOUND)
def test_what_is_found_irrelevant(name: str) -> None:
    text, condition, added = _FOUND[name]
    change = _after(**added)
    assert not is_relevant(view(text), [condition], change)
    assert kept(view(text), [condition], change.old) == kept(view(text), [condition], change.new)


_MISSED = {
    "a column of the delta": ("SELECT a, b FROM t", _is(0, 2)),
    "an aggregate": ("SELECT a, SUM(b) AS s FROM t GROUP BY a", _is(1, 1)),
    "a global aggregate": ("SELECT SUM(b) AS s FROM t", _is(0, 1)),
    "the padded side": ("SELECT u.a, t.b FROM u LEFT JOIN t ON t.a = u.a", _is(0, 1)),
    "the kept side": ("SELECT t.a, u.d FROM t LEFT JOIN u ON t.a = u.a", _is(0, 1)),
    "an anti join": ("SELECT u.a FROM u LEFT ANTI JOIN t ON u.a = t.a", _is(0, 1)),
    "a window": ("SELECT a, RANK() OVER (ORDER BY b) AS r FROM t", _is(0, 1)),
    "the first rows": ("SELECT a, b FROM t ORDER BY b DESC LIMIT 1", _is(0, 1)),
    "except": ("SELECT a FROM u EXCEPT ALL SELECT a FROM t", _is(0, 1)),
}


@pytest.mark.parametrize("name", _MISSED)
def test_predicates_stop_where_the_law_ends(name: str) -> None:
    text, condition = _MISSED[name]
    assert is_relevant(view(text), [condition], _after(**_NEW_T))


def test_a_row_that_takes_padding_away() -> None:
    """The new row has no NULL where the query asks for one, but the row that it meets had."""
    root = view("SELECT u.a, t.b FROM u LEFT JOIN t ON t.a = u.a AND t.c = 'z'")
    condition = exp.Is(this=column("n1"), expression=exp.Null())
    change = _after(**_NEW_T)
    assert kept(root, [condition], change.old) != kept(root, [condition], change.new)
    assert is_relevant(root, [condition], change)


def test_a_row_that_joins_through_another_scan_of_its_table() -> None:
    """Every scan of a table counts: the new row is no row of x, but of y."""
    text = "SELECT x.a, y.b FROM t x JOIN t y ON x.b <= y.b"
    assert is_relevant(view(text), [_is(0, 1)], _after(**_NEW_T))


def test_a_null_meets_no_comparison() -> None:
    change = _after(t=(None, 9, None, None))
    assert not is_relevant(view("SELECT a, c FROM t"), [_is(0, 1)], change)
    assert is_relevant(view("SELECT a, c FROM t"), [exp.Is(this=column("n0"), expression=exp.Null())], change)


def test_a_group_of_zeros_is_not_known_by_its_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: −0.0 counts in the group 0.0, so what tells them apart may not be asked of the row."""
    monkeypatch.setitem(oracle._STRICT, exp.Hex, repr)
    condition = exp.EQ(this=exp.Hex(this=column("n0")), expression=exp.Hex(this=literal(Double("0.0"))))
    old: dict[str, Bag] = {**_T, "t": Counter([(1, 1, "x", Double("0.0"))])}
    change = Change(old, {**_T, "t": old["t"] + Counter([(1, 1, "x", Double("-0.0"))])})
    grouped = view("SELECT x, COUNT(*) AS n FROM t GROUP BY x")
    assert kept(grouped, [condition], change.old) != kept(grouped, [condition], change.new)
    assert is_relevant(grouped, [condition], change)
    assert not is_relevant(view("SELECT x FROM t"), [condition], change)  # a row is what it is


def test_equal_doubles_of_two_sides_may_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: t.x = v.y says nothing about the sign of a zero."""
    monkeypatch.setitem(oracle._STRICT, exp.Hex, repr)
    condition = exp.EQ(this=exp.Hex(this=column("n0")), expression=exp.Hex(this=literal(Double("0.0"))))
    old: dict[str, Bag] = {**_T, "t": Counter([(1, 1, "x", Double("0.0"))]), "v": Counter()}
    change = Change(old, {**old, "v": Counter([(1, 1, Double("-0.0"))])})
    joined = view("SELECT t.x FROM t JOIN v ON t.x = v.y")
    assert kept(joined, [condition], change.old) != kept(joined, [condition], change.new)
    assert is_relevant(joined, [condition], change)


def test_a_path_is_one_line_and_reads_no_more_than_it_must() -> None:
    """What is evaluated on delta rows: filters and projections over one scan, of the columns that conditions use."""
    root = view("SELECT t.b, u.d + 1 AS e, SUM(t.a) AS s FROM t JOIN u ON t.a = u.a WHERE t.c = 'x' GROUP BY t.b, u.d")
    change = _after(**_NEW_T)
    (path,) = touching(root, change)
    tested = restricted(path, [_is(0, 1), _is(1, 1), _is(2, 1)])
    assert all(isinstance(n, Filter | Project | Scan) for n in bottom_up(tested))
    assert {c for c, _ in scans(tested)[0].fields} == {"b", "c"}  # not `a`: it equals itself
    assert not is_open(tested)
    assert is_open(restricted(paths(view("SELECT a FROM t"), Types(change))[0], []))


def test_a_tree_with_too_many_ways_is_not_looked_into() -> None:
    queries = ["q0 AS (SELECT a FROM t)"]
    queries += [f"q{i} AS (SELECT l.a FROM q{i - 1} l JOIN q{i - 1} r ON l.a = r.a)" for i in range(1, 8)]
    with pytest.raises(NotMaintainable):
        paths(view(f"WITH {', '.join(queries)} SELECT a FROM q7"), Types(Change(_T, _T)))
