"""The sixteen laws that keep answers right, one test each, as far as they show without Spark.

| law | says | test here | and in tests/spark/test_design_laws.py |
| --- | --- | --- | --- |
| 1 | blind rows are completed first | test_law_01 | test_law_01 |
| 2 | a checkpoint that crashed is settled, not repeated | test_law_02 | |
| 3 | maintenance is in CSN order, over explicit versions | test_law_03 | test_law_03 |
| 4 | cancelling compares bits, not SQL equality | test_law_04 | test_law_04 |
| 5 | inexact values are retracted as they were stored | test_law_05 | test_law_05 |
| 6 | ⋉K is null-safe, the join keeps its own comparison | test_law_06 | test_law_06 |
| 7 | NOT IN follows NULLs and emptiness of its subquery | test_law_07 | test_law_07 |
| 8 | a SUM of only NULLs is NULL; integer state does not overflow | test_law_08 | test_law_08 |
| 9 | a global aggregate never dies; grouping sets by place | test_law_09 | test_law_09 |
| 10 | a scalar subquery is a left join to its result | test_law_10 | test_law_10 |
| 11 | a row and its new parent may arrive in one run | test_law_11 | test_law_11 |
| 12 | ties have a stated tie-break, or are refused | test_law_12 | test_law_12 |
| 13 | the catalog holds Spark's types | test_law_13 | test_law_13 |
| 14 | SQLite: writers begin as writers | test_law_14 | |
| 15 | pins do not hang on garbage collection | test_law_15 | test_law_15 |
| 16 | partition values come from the log | test_law_16 | test_law_16 |
"""

from __future__ import annotations

import gc
import itertools
import sqlite3
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from hypothesis import HealthCheck, assume, given, settings
from tests.internals import internals
from tests.unit.algebra.oracle import Bag, TooManyRows, evaluate, plus, signed
from tests.unit.sql.view_grammar import SCHEMAS, Change, State, states, views

from freshview import Warehouse
from freshview.algebra.nodes import Aggregate, Join, Node, SetOperation, Stored, Unary, Window
from freshview.algebra.traversal import bottom_up, scans
from freshview.definition.analysis import analyse
from freshview.definition.determinism import refuse_indeterminate
from freshview.delta.derive import at_version, derive
from freshview.delta.forms import choose_form, delta_plan
from freshview.errors import FreshviewError, NotMaintainable
from freshview.refresh.deltas import changes
from freshview.refresh.span import Span
from freshview.sql.lowering import lower
from freshview.transactions.transaction import Transaction

Data = Mapping[str, Sequence[tuple[Any, ...]]]
R_S = {"r": ("a", "b"), "s": ("b", "c")}


def _delta(text: str, schemas: Mapping[str, tuple[str, ...]], old: Data, new: Data) -> Bag:
    """The change of a view by the general rules, checked to lead from the old rows to the new ones."""
    node = lower(text, schemas).node
    change = Change({t: Counter(r) for t, r in old.items()}, {t: Counter(r) for t, r in new.items()}, schemas=schemas)
    plan = derive(node, change.changed)
    assert plan is not None
    found = signed(plan, change.read)
    before, after = (evaluate(at_version(node, v), change.read) for v in ("old", "new"))
    assert plus(before, found) == after
    return found


def _rows(wh: Warehouse, name: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(r.values()) for r in internals(wh).rows(name).to_pylist()), key=repr)


def _signed(wh: Warehouse, name: str, since: int) -> list[tuple[Any, ...]]:
    """The net change of a table since a CSN, as maintenance reads it."""
    span = Span.between(internals(wh).catalog, internals(wh).storage, since, internals(wh).newest_csn())
    found = changes(span, internals(wh).relation(name))
    table = getattr(found, "rows", found)
    return sorted((tuple(r.values()) for r in table.to_pylist()), key=repr)


def test_law_01_blind_rows_are_completed_first(wh: Warehouse) -> None:
    """A blind upsert and then a delete of the same key: the old row's image is in the change, and nothing else."""
    wh.sql("CREATE TABLE t (k INT PRIMARY KEY, v STRING)")
    with wh.transaction() as tx:
        tx.insert("t", [{"k": 1, "v": "old"}])
    since = wh.status().csn
    with wh.transaction() as tx:
        tx.upsert("t", [{"k": 1, "v": "new"}, {"k": 2, "v": "never seen"}])
    with wh.transaction() as tx:
        tx.delete("t", [1, 2])
    assert _signed(wh, "t", since) == [(1, "old", -1)]


def test_law_02_a_crashed_checkpoint_is_settled_and_not_repeated(wh: Warehouse) -> None:
    """Crash after main's Delta commit and before the catalog's: the next checkpoint doubles no row."""
    wh.sql("CREATE TABLE t (k INT)")
    crashing = True

    def die(event: Any) -> None:
        if event.name == "checkpoint.written" and crashing:
            raise KeyboardInterrupt

    wh.events.listen(die)
    for batch in ([1, 2], [2, 3]):
        with wh.transaction() as tx:
            tx.insert("t", [{"k": k} for k in batch])
        crashing = True
        with pytest.raises(KeyboardInterrupt):
            wh.sql("CHECKPOINT t")
        crashing = False
        wh.sql("CHECKPOINT t")
    assert _rows(wh, "t") == [(1,), (2,), (2,), (3,)]
    folder = internals(wh).folder("t")
    told = pa.table(QueryBuilder().register("t", DeltaTable(str(folder))).execute("SELECT k FROM t"))
    assert sorted(told.column("k").to_pylist()) == [1, 2, 2, 3]


def test_law_03_rows_that_arrive_at_once_on_both_sides_of_a_join_meet() -> None:
    """Each delta alone, over the begin snapshot, misses r ⋈ s; in order over explicit versions it is found once."""
    text = "SELECT r.a, s.c FROM r JOIN s ON r.b = s.b"
    none: Data = {"r": [], "s": []}
    both: Data = {"r": [(1, 2)], "s": [(2, 3)]}
    assert _delta(text, R_S, none, both) == {(1, 3): 1}
    middle: Data = {"r": [(1, 2)], "s": []}
    assert plus(_delta(text, R_S, none, middle), _delta(text, R_S, middle, both)) == {(1, 3): 1}


def test_law_04_rows_cancel_by_their_bits(wh: Warehouse) -> None:
    """−0.0 and 0.0 are equal in SQL and different rows; NaN cancels NaN; maps and arrays have identity too."""
    wh.sql("CREATE TABLE t (k INT PRIMARY KEY, x DOUBLE, a ARRAY<DOUBLE>, m MAP<STRING, DOUBLE>)")
    row = {"k": 1, "x": 0.0, "a": [0.0], "m": {"a": 0.0}}
    with wh.transaction() as tx:
        tx.insert("t", [row, {"k": 2, "x": float("nan"), "a": [float("nan")], "m": None}])
    since = wh.status().csn
    with wh.transaction() as tx:
        tx.upsert("t", [{"k": 2, "x": float("nan"), "a": [float("nan")], "m": None}])
    assert _signed(wh, "t", since) == []
    for column, value in (("x", -0.0), ("a", [-0.0]), ("m", {"a": -0.0})):
        since = wh.status().csn
        row = {**row, column: value}
        with wh.transaction() as tx:
            tx.upsert("t", [row])
        assert [r[-1] for r in _signed(wh, "t", since)] in ([-1, 1], [1, -1]), column


def _typed(type_: str) -> Any:
    return lambda node: dict.fromkeys(node.columns, type_)


def test_law_05_inexact_sums_are_retracted_from_the_store_or_recomputed() -> None:
    """At the root what goes is read from the stored rows, never summed again; below an operator the view recomputes."""
    text = "SELECT a, SUM(b) AS s FROM r GROUP BY a"
    definition = analyse(text, {}, R_S, ("a", "s"), "auto", _typed("double"))
    assert definition.form is not None
    assert definition.lowered is not None
    assert definition.form.rule == "groups"
    plan = delta_plan(definition.form, definition.lowered, {"r"}, definition.types)
    assert plan is not None
    assert Stored() in {s.source for s in scans(plan)}
    assert not [n for n in _aggregates_over(plan, "old") if n.items], "no sum is computed over old rows"
    above = f"SELECT s, COUNT(*) AS n FROM ({text}) GROUP BY s"
    assert "inexact" in analyse(above, {}, R_S, ("s", "n"), "auto", _typed("double")).reason
    assert analyse(above, {}, R_S, ("s", "n"), "auto", _typed("bigint")).reason == ""


def _aggregates_over(plan: Node, version: str) -> list[Aggregate]:
    found = [n for n in bottom_up(plan) if isinstance(n, Aggregate)]
    return [n for n in found if any(s.version == version and s.source != Stored() for s in scans(n))]


def test_law_06_affected_keys_are_null_safe_and_joins_are_not() -> None:
    """An anti join keeps NULL keys whatever the right side holds; a window's NULL partition is found all the same."""
    old: Data = {"r": [(None, 1)], "s": []}
    new: Data = {"r": [(None, 1), (None, 2)], "s": [(None, 0)]}
    assert _delta("SELECT r.a, r.b FROM r LEFT ANTI JOIN s ON r.a = s.b", R_S, old, new) == {(None, 2): 1}
    window = "SELECT a, COUNT(*) OVER (PARTITION BY a) AS n FROM r"
    assert _delta(window, R_S, old, new) == {(None, 1): -1, (None, 2): 2}
    # A scan below an aggregate whose keys lack K is never reduced: the total is over all rows of the window's input.
    total = "SELECT a, b, (SELECT SUM(c) FROM s) AS t FROM r WHERE a = 1"
    before: Data = {"r": [(1, 1)], "s": [(9, 5)]}
    assert _delta(total, R_S, before, {"r": [(1, 1), (1, 2)], "s": [(9, 5)]}) == {(1, 2, 5): 1}


def test_law_07_not_in_follows_nulls_and_emptiness() -> None:
    text = "SELECT a FROM r WHERE a NOT IN (SELECT b FROM s)"
    rows = [(1, 0), (None, 0)]
    for before, after, expected in (
        ([], [(None, 0)], {(1,): -1, (None,): -1}),
        ([(None, 0)], [], {(1,): 1, (None,): 1}),
        ([(2, 0)], [(2, 0), (None, 0)], {(1,): -1}),
        ([], [(2, 0)], {(None,): -1}),
    ):
        assert _delta(text, R_S, {"r": rows, "s": before}, {"r": rows, "s": after}) == expected
    scoped = "SELECT a FROM r WHERE a NOT IN (SELECT c FROM s WHERE s.b = r.b)"
    change = _delta(scoped, R_S, {"r": [(1, 1), (1, 2)], "s": []}, {"r": [(1, 1), (1, 2)], "s": [(2, None)]})
    assert change == {(1,): -1}, "only the rows of that correlation scope"


def _stored_change(text: str, types: str, old: Data, new: Data) -> tuple[Bag, Bag]:
    """(stored rows after the delta, stored rows from scratch) of a view in its best form."""
    lowered = lower(text, R_S)
    form = choose_form(lowered, tuple(n for _, n in lowered.outputs), _typed(types))
    change = Change({t: Counter(r) for t, r in old.items()}, {t: Counter(r) for t, r in new.items()}, schemas=R_S)
    before, after = (evaluate(at_version(form.tree, v), change.read) for v in ("old", "new"))
    plan = delta_plan(form, lowered, change.changed, dict.fromkeys(form.stored, types))
    assert plan is not None
    stored = Change(change.old, change.new, schemas=R_S, stored=(form.stored, before))
    return plus(before, signed(plan, stored.read)), after


def test_law_08_a_sum_of_only_nulls_is_null() -> None:
    """A sum over NULLs only is NULL, also per FILTER, and its group lives as long as it has rows."""
    text = "SELECT a, SUM(b) AS s, SUM(b) FILTER (WHERE b > 3) AS f FROM r GROUP BY a"
    old: Data = {"r": [(1, 5), (1, None), (1, 2)], "s": []}
    new: Data = {"r": [(1, None), (1, 2)], "s": []}
    assert _delta(text, R_S, old, new) == {(1, 7, 5): -1, (1, 2, None): 1}
    for types in ("int", "bigint"):
        text = "SELECT a, SUM(b) AS s FROM r GROUP BY a"
        found, expected = _stored_change(text, types, old, {"r": [(1, None)], "s": []})
        assert found == expected


def test_law_09_a_global_aggregate_never_dies_and_sets_are_told_apart_by_place() -> None:
    one: Data = {"r": [(1, 5)], "s": []}
    none: Data = {"r": [], "s": []}
    assert _delta("SELECT COUNT(*) AS n, SUM(b) AS t FROM r", R_S, one, none) == {(1, 5): -1, (0, None): 1}
    assert _delta("SELECT a, COUNT(*) AS n FROM r GROUP BY ROLLUP (a)", R_S, one, none) == {(1, 1): -1, (None, 1): -1}
    twice = "SELECT a, COUNT(*) AS n FROM r GROUP BY GROUPING SETS ((a), (a))"
    assert _delta(twice, R_S, none, one) == {(1, 1): 2}
    found, expected = _stored_change("SELECT COUNT(*) AS n, SUM(b) AS t FROM r", "bigint", one, none)
    assert found == expected != Counter()


def test_law_10_a_scalar_subquery_is_a_left_join() -> None:
    """Empty gives NULL, COUNT gives 0, two rows are an error."""
    old: Data = {"r": [(1, 1)], "s": []}
    new: Data = {"r": [(1, 1)], "s": [(1, 7)]}
    assert _delta("SELECT a, (SELECT c FROM s) AS x FROM r", R_S, old, new) == {(1, None): -1, (1, 7): 1}
    counted = "SELECT a, (SELECT COUNT(*) FROM s WHERE s.b = r.b) AS n FROM r"
    assert _delta(counted, R_S, old, new) == {(1, 0): -1, (1, 1): 1}
    with pytest.raises(TooManyRows):
        _delta("SELECT a, (SELECT c FROM s) AS x FROM r", R_S, old, {"r": [(1, 1)], "s": [(1, 7), (1, 7)]})


def test_law_11_a_row_and_its_new_parent_arrive_in_one_run() -> None:
    """No foreign key prunes a term here: each changed table's delta is read, whichever is first in FROM."""
    for tables in ("r JOIN s ON r.b = s.b", "s JOIN r ON r.b = s.b"):
        text = f"SELECT r.a, s.c FROM {tables}"
        plan = derive(lower(text, R_S).node, {"r", "s"})
        assert plan is not None
        assert {s.relation for s in scans(plan) if s.version == "delta"} == {"r", "s"}
        old: Data = {"r": [(1, 1)], "s": [(1, 1)]}
        new: Data = {"r": [(2, 2)], "s": [(2, 2)]}
        assert _delta(text, R_S, old, new) == {(1, 1): -1, (2, 2): 1}


def test_law_12_ties_are_broken_or_refused() -> None:
    """Positional windows go on with all columns of their input; what has no order is refused with a way out."""
    text = "SELECT a, ROW_NUMBER() OVER (PARTITION BY a ORDER BY b) AS n FROM r"
    definition = analyse(text, {}, R_S, ("a", "n"), "auto", _typed("int"))
    assert definition.lowered is not None
    window = next(n for n in bottom_up(definition.lowered.node) if isinstance(n, Window))
    order = window.items[0][1].args["order"].expressions
    assert [o.this.name for o in order[1:]] == list(window.inputs[0].columns)
    for call in ("first(b)", "collect_list(b)", "any_value(b)", "listagg(b)"):
        with pytest.raises(NotMaintainable, match="not determined"):
            refuse_indeterminate(f"SELECT a, {call} AS x FROM r GROUP BY a")
    with pytest.raises(FreshviewError, match="Add an ORDER BY"):
        lower("SELECT a FROM r LIMIT 1", R_S)


def test_law_13_the_catalog_holds_sparks_types(wh: Warehouse) -> None:
    """What cannot be kept exactly is refused at CREATE TABLE; CHAR is padded, lengths are checked."""
    for type_ in ("VARIANT", "TIME", "INTERVAL DAY TO SECOND", "STRING COLLATE UTF8_LCASE"):
        with pytest.raises(FreshviewError):
            wh.sql(f"CREATE TABLE no (x {type_})")
    wh.sql("CREATE TABLE t (c CHAR(3), v VARCHAR(2), i TIMESTAMP, n TIMESTAMP_NTZ)")
    types = [str(c.type) for c in internals(wh).relation("t").schema.columns]
    assert [t.lower() for t in types] == ["char(3)", "varchar(2)", "timestamp", "timestamp_ntz"]
    with wh.transaction() as tx:
        tx.insert("t", [{"c": "a", "v": "b"}])
    assert _rows(wh, "t") == [("a  ", "b", None, None)]
    with pytest.raises(FreshviewError), wh.transaction() as tx:
        tx.insert("t", [{"c": "a", "v": "too long"}])


def test_law_14_writers_begin_as_writers(wh: Warehouse) -> None:
    """A second writer waits for the first instead of failing at once, though it has read before it writes."""
    wh.sql("CREATE TABLE t (k INT)")
    errors: list[BaseException] = []

    def write(number: int) -> None:
        try:
            for i in range(10):
                with wh.transaction() as tx:
                    tx.insert("t", [{"k": number * 100 + i}])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(_rows(wh, "t")) == 40
    other = sqlite3.connect(wh.path / "catalog.db", timeout=0)
    with internals(wh).writing_database(), pytest.raises(sqlite3.OperationalError, match="locked"):
        other.execute("BEGIN IMMEDIATE")  # the lock is ours before our first statement
    other.close()


def test_law_15_a_pin_does_not_hang_on_garbage_collection(wh: Warehouse) -> None:
    """An open transaction that nobody holds any more keeps its snapshot until it is ended or its heartbeat stops."""
    wh.sql("CREATE TABLE t (k INT)")
    transaction: Transaction | None = Transaction(internals(wh).catalog, internals(wh).storage, wh.events)
    assert transaction is not None
    snapshot = transaction.snapshot
    for k in range(3):
        with wh.transaction() as tx:
            tx.insert("t", [{"k": k}])
    transaction = None
    gc.collect()
    wh.vacuum(timedelta(0))
    assert internals(wh).horizon() <= snapshot < wh.status().csn


def test_law_16_partition_values_come_from_the_log(wh: Warehouse, tmp_path: Path) -> None:
    """'01' stays text and NULL stays NULL, although the values stand in no file."""
    rows = pa.table({"k": [1, 2, 3], "p": ["01", "1", None]})
    write_deltalake(str(tmp_path / "e"), rows, partition_by=["p"])
    wh.sql(f"CREATE TABLE e USING DELTA LOCATION '{tmp_path / 'e'}'")
    since = wh.status().csn
    DeltaTable(str(tmp_path / "e")).delete("k < 4")
    internals(wh).notice()
    assert _signed(wh, "e", since) == [(1, "01", -1), (2, "1", -1), (3, None, -1)]


def test_every_law_has_its_test_and_its_line() -> None:
    numbers = range(1, 17)
    named = {n: [t for t in globals() if t.startswith(f"test_law_{n:02}_")] for n in numbers}
    assert all(len(tests) == 1 for tests in named.values())
    assert all(f"| {n} | " in (__doc__ or "") and f"| test_law_{n:02} |" in (__doc__ or "") for n in numbers)


# -- the laws of the delta rules themselves --------------------------------------------------------


@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
@given(run=states(2))
def test_the_order_of_from_does_not_matter(run: list[State]) -> None:
    """In every order of FROM, so with every table first, last, old and new in the telescoping, Δ is the same."""
    change = Change(run[0], run[1])
    assume(change.changed)
    found = []
    for tables in itertools.permutations(["t p", "u q", "v r"]):
        text = f"SELECT p.b, q.d, r.y FROM {', '.join(tables)} WHERE p.a = q.a AND q.d = r.d AND NOT p.x > r.y"
        node = lower(text, SCHEMAS).node
        plan = derive(node, change.changed)
        assert plan is not None
        found.append(signed(plan, change.read))
        swapped = derive(node, change.changed)  # old and new exchanged: the change of the way back
        assert swapped is not None
        back = signed(swapped, Change(run[1], run[0]).read)
        assert back == Counter({row: -n for row, n in found[-1].items()})
    assert all(f == found[0] for f in found)


@settings(deadline=None, max_examples=150, suppress_health_check=list(HealthCheck))
@given(text=views())
def test_what_did_not_change_has_no_plan(text: str) -> None:
    """Δ of unchanged inputs is None at planning time, for every random view."""
    node = lower(text, SCHEMAS).node
    assert derive(node, set()) is None
    assert derive(node, {"another table"}) is None


_reached: Counter[str] = Counter()


@settings(deadline=None, max_examples=150, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(text=views())
def _count_kinds(text: str) -> None:
    for node in bottom_up(lower(text, SCHEMAS).node):
        kind = type(node).__name__
        _reached[f"{node.kind} {kind}" if isinstance(node, Join | SetOperation) else kind] += 1


def test_the_grammar_reaches_every_operator() -> None:
    """Laws proved on random views are worth what the views contain: each kind of node, many times."""
    _reached.clear()
    _count_kinds()
    joins = {f"{k} Join" for k in ("inner", "left", "semi", "anti")}
    sets = {f"{k} SetOperation" for k in ("except", "intersect")}
    kinds = {k.__name__ for k in (*Node.__subclasses__(), *Unary.__subclasses__())}
    plain = kinds - {"Unary", "Join", "SetOperation"}
    assert set(_reached) >= joins | sets | plain
    assert min(_reached.values()) >= 3, _reached
