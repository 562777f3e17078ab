"""MERGE: every kind of clause, against a model in Python, and the rules that a model cannot show."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from tests.spark.sessions import rows

from freshview import Warehouse
from freshview.errors import DuplicateKey, InvalidStatement, NotFound, NotNullViolation, QueryFailed

Row = tuple[Any, ...]  # (k, a, s)
Test = tuple[str, Callable[[Any, Any], bool]]


def _plus(*values: Any) -> Any:
    return None if None in values else sum(values)


def _equal(x: Any, y: Any) -> bool:
    return x is not None and y is not None and x == y


_ON: list[Test] = [
    ("t.k = q.k", lambda t, q: _equal(t[0], q[0])),
    ("t.k = q.k AND q.a > 1", lambda t, q: _equal(t[0], q[0]) and q[1] is not None and q[1] > 1),
    ("t.a = q.a", lambda t, q: _equal(t[1], q[1])),
    ("t.a <=> q.a AND t.k = q.k", lambda t, q: t[1] == q[1] and _equal(t[0], q[0])),
    ("FALSE", lambda _t, _q: False),
]
_BOTH: list[Test] = [
    ("q.s = 'x'", lambda _t, q: q[2] == "x"),
    ("t.a > q.a", lambda t, q: t[1] is not None and q[1] is not None and t[1] > q[1]),
    ("t.s IS NULL", lambda t, _q: t[2] is None),
    ("q.a NOT IN (1, NULL)", lambda _t, _q: False),
]
_TARGET: list[Test] = [
    ("t.a > 1", lambda t, _q: t[1] is not None and t[1] > 1),
    ("t.s IS NULL", lambda t, _q: not t[2]),
]
_SOURCE: list[Test] = [("q.a IS NOT NULL", lambda _t, q: q[1] is not None), ("q.s = 'x'", lambda _t, q: q[2] == "x")]
_UPDATES: list[tuple[str, Callable[[Any, Any], Row]]] = [
    ("UPDATE SET s = q.s", lambda t, q: (t[0], t[1], q[2])),
    ("UPDATE SET t.a = t.a + q.a, s = t.s", lambda t, q: (t[0], _plus(t[1], q[1]), t[2])),
    ("UPDATE SET k = t.k + 50, a = NULL", lambda t, _q: (_plus(t[0], 50), None, t[2])),
    ("UPDATE SET *", lambda _t, q: q),
]
_ALONE: list[tuple[str, Callable[[Any, Any], Row]]] = [
    ("UPDATE SET s = 'gone'", lambda t, _q: (t[0], t[1], "gone")),
    ("UPDATE SET k = t.k + 1", lambda t, _q: (_plus(t[0], 1), t[1], t[2])),
]
_INSERTS: list[tuple[str, Callable[[Any, Any], Row]]] = [
    ("INSERT *", lambda _t, q: q),
    ("INSERT (k, s) VALUES (q.k + 30, q.s)", lambda _t, q: (_plus(q[0], 30), None, q[2])),
]


@dataclass(frozen=True)
class _Clause:
    kind: str
    text: str
    holds: Callable[[Any, Any], bool]
    new: Callable[[Any, Any], Row] | None


def _clause(dice: random.Random) -> _Clause:
    kind = dice.choice(["MATCHED", "MATCHED", "NOT MATCHED", "NOT MATCHED BY SOURCE"])
    tests = {"MATCHED": _BOTH, "NOT MATCHED": _SOURCE, "NOT MATCHED BY SOURCE": _TARGET}[kind]
    condition, holds = dice.choice([*tests, ("", lambda _t, _q: True)])
    new: Callable[[Any, Any], Row] | None
    if kind == "NOT MATCHED":
        action, new = dice.choice(_INSERTS)
    else:
        changes = _UPDATES if kind == "MATCHED" else _ALONE
        action, new = dice.choice([*changes, ("DELETE", None)])
    guard = f" AND {condition}" if condition else ""
    return _Clause(kind, f"WHEN {kind}{guard} THEN {action}", holds, new)


def _model(
    target: list[Row], source: list[Row], on: Callable[[Any, Any], bool], clauses: list[_Clause], keyed: bool
) -> list[Row] | type[Exception]:
    """What the target holds afterwards, or the error that is due."""
    matches = [[q for q in source if on(t, q)] for t in target]
    result: list[Row] = []
    for t, found in zip(target, matches, strict=True):
        kind = "MATCHED" if found else "NOT MATCHED BY SOURCE"
        acts = []
        partners: Sequence[Row | None] = found or [None]
        for partner in partners:
            clause = next((c for c in clauses if c.kind == kind and c.holds(t, partner)), None)
            if clause is not None:
                acts.append((clause, partner))
        if len(acts) > 1:
            return InvalidStatement
        if not acts:
            result.append(t)
        elif acts[0][0].new is not None:
            result.append(acts[0][0].new(t, acts[0][1]))
    for q in source:
        if not any(on(t, q) for t in target):
            clause = next((c for c in clauses if c.kind == "NOT MATCHED" and c.holds(None, q)), None)
            if clause is not None and clause.new is not None:
                result.append(clause.new(None, q))
    if keyed:
        keys = [r[0] for r in result]
        if None in keys:
            return NotNullViolation
        if len(set(keys)) < len(keys):
            return DuplicateKey
    return result


def _rows(dice: random.Random, count: int) -> list[Row]:
    return [(dice.randint(1, 8), dice.choice([None, 1, 2, 3]), dice.choice([None, "x", "y"])) for _ in range(count)]


def _data(rows: list[Row]) -> list[dict[str, Any]]:
    return [dict(zip(("k", "a", "s"), r, strict=True)) for r in rows]


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_merge_answers_as_its_model(swh: Warehouse, seed: int, keyed: bool) -> None:
    """Clauses in order, the first that holds; one source row per target row; constraints at the end."""
    dice = random.Random(seed)
    swh.sql(f"CREATE TABLE t (k INT, a INT, s STRING{', PRIMARY KEY (k)' if keyed else ''})")
    swh.sql("CREATE TABLE q (k INT, a INT, s STRING)")
    target, source = _rows(dice, 5), _rows(dice, 4)
    if keyed:
        target = list({r[0]: r for r in target}.values())
    if dice.random() < 0.7:
        source = list({r[0]: r for r in source}.values())
    with swh.transaction() as tx:
        tx.insert("t", _data(target))
        tx.insert("q", _data(source))
    if dice.random() < 0.5:
        swh.sql("CHECKPOINT t")
    on_text, on = dice.choice(_ON if seed else _ON[:1])
    clauses = [_clause(dice) for _ in range(dice.randint(1, 4))]
    text = f"MERGE INTO t USING q ON {on_text} {' '.join(c.text for c in clauses)}"
    expected = _model(target, source, on, clauses, keyed)
    csn = swh.status().csn
    if isinstance(expected, type):
        # A statement may break several rules at once; which of them is told is not promised.
        with pytest.raises((InvalidStatement, DuplicateKey, NotNullViolation)):
            swh.sql(text)
        assert swh.status().csn == csn
        expected = target
    else:
        swh.sql(text)
    assert Counter(tuple(r) for r in swh.sql("TABLE t").collect()) == Counter(expected), text


def _tables(wh: Warehouse) -> None:
    wh.sql("CREATE TABLE t (k INT PRIMARY KEY, a INT, s STRING)")
    wh.sql("INSERT INTO t VALUES (1, 10, 'x'), (2, 20, NULL), (3, 30, 'z')")


def _all(wh: Warehouse) -> list[Row]:
    return rows(wh, "SELECT * FROM t")


def test_rows_counts_every_row_acted_on(swh: Warehouse) -> None:
    """Two inserted, one updated, one deleted: four."""
    _tables(swh)
    outcome = swh.sql(
        "MERGE INTO t USING (SELECT col1 AS k FROM VALUES (1), (2), (7), (8)) q ON t.k = q.k "
        "WHEN MATCHED AND t.s = 'x' THEN DELETE WHEN MATCHED THEN UPDATE SET s = 'u' "
        "WHEN NOT MATCHED THEN INSERT (k) VALUES (q.k)"
    )
    assert outcome.rows == 4
    assert _all(swh) == [(2, 20, "u"), (3, 30, "z"), (7, None, None), (8, None, None)]


def test_expressions_of_clauses_that_do_not_apply_are_not_evaluated(swh: Warehouse) -> None:
    """A failing cast in a clause that is not chosen does not fail the statement."""
    _tables(swh)
    swh.sql(
        "MERGE INTO t USING (SELECT 1 AS k, 'no number' AS s UNION ALL SELECT 9, '42') q ON t.k = q.k "
        "WHEN MATCHED AND q.s = 'never' THEN UPDATE SET a = CAST(q.s AS INT) "
        "WHEN MATCHED THEN UPDATE SET s = q.s "
        "WHEN NOT MATCHED AND q.s <> 'no number' THEN INSERT (k, a) VALUES (q.k, CAST(q.s AS INT))"
    )
    assert _all(swh) == [(1, 10, "no number"), (2, 20, None), (3, 30, "z"), (9, 42, None)]


def test_failing_expression_of_a_clause_that_applies_leaves_no_trace(swh: Warehouse) -> None:
    _tables(swh)
    before, csn = _all(swh), swh.status().csn
    with pytest.raises(QueryFailed):
        swh.sql(
            "MERGE INTO t USING (SELECT 1 AS k, 'no' AS s) q ON t.k = q.k "
            "WHEN MATCHED THEN UPDATE SET a = CAST(q.s AS INT)"
        )
    assert (_all(swh), swh.status().csn) == (before, csn)


def test_two_source_rows_for_one_target_row_are_refused(swh: Warehouse) -> None:
    """… unless at most one of them acts."""
    _tables(swh)
    source = "(SELECT 1 AS k, col1 AS a FROM VALUES (5), (6)) q"
    before = _all(swh)
    with pytest.raises(InvalidStatement, match="several source rows match one target row"):
        swh.sql(f"MERGE INTO t USING {source} ON t.k = q.k WHEN MATCHED THEN UPDATE SET a = q.a")
    assert _all(swh) == before
    swh.sql(f"MERGE INTO t USING {source} ON t.k = q.k WHEN MATCHED AND q.a = 6 THEN UPDATE SET a = q.a")
    assert _all(swh)[0] == (1, 6, "x")


def test_source_may_be_the_target_itself_and_conditions_may_hold_subqueries(swh: Warehouse) -> None:
    _tables(swh)
    swh.sql(
        "MERGE INTO t AS x USING (SELECT k + 1 AS k, a, s FROM t WHERE a < (SELECT max(a) FROM t)) AS y ON x.k = y.k "
        "WHEN MATCHED THEN UPDATE SET a = y.a WHEN NOT MATCHED BY SOURCE THEN DELETE"
    )
    assert _all(swh) == [(2, 10, None), (3, 20, "z")]


def test_nondeterministic_values_are_evaluated_once(swh: Warehouse) -> None:
    _tables(swh)
    swh.sql(
        "MERGE INTO t USING (SELECT 1 AS k) q ON t.k = q.k WHEN MATCHED THEN UPDATE SET s = uuid(), a = rand() * 1000"
    )
    first = _all(swh)
    swh.sql("CHECKPOINT t")
    assert _all(swh) == first


def test_unknown_columns_and_clashing_names_are_named(swh: Warehouse) -> None:
    _tables(swh)
    with pytest.raises(NotFound, match="nope"):
        swh.sql("MERGE INTO t USING (SELECT 1 AS k) q ON t.k = q.k WHEN MATCHED THEN UPDATE SET nope = 1")
    with pytest.raises(NotFound, match="nope"):
        swh.sql("MERGE INTO t USING (SELECT 1 AS k) q ON t.k = q.k WHEN MATCHED THEN UPDATE SET a = q.nope")
    with pytest.raises(InvalidStatement, match="one name"):
        swh.sql("MERGE INTO t USING t ON t.k = t.k WHEN MATCHED THEN DELETE")
    with pytest.raises(NotFound):  # UPDATE SET * wants every column of the target
        swh.sql("MERGE INTO t USING (SELECT 1 AS k) q ON t.k = q.k WHEN MATCHED THEN UPDATE SET *")
