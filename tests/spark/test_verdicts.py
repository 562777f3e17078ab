"""Spark is asked whether a definition is read as it reads it; what it reads otherwise is recomputed, and says so."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from sqlglot import exp, parse_one
from tests.effort import IS_SOAK
from tests.internals import internals
from tests.spark.sessions import rows, setting

import freshview
from freshview import Warehouse
from freshview.algebra.nodes import WEIGHT, Filter, Join, Lowered, Node, Project, column
from freshview.algebra.traversal import rewrite
from freshview.definition import analysis as definitions
from freshview.definition import reading, selftest, verdict
from freshview.definition.verdict import FACT, Verdict
from freshview.delta.forms import delta_plan
from freshview.errors import Cancelled, InvalidStatement, NotMaintainable
from freshview.events import Event
from freshview.refresh import embedded, execute
from freshview.sql import lowering

pytestmark = [pytest.mark.spark, pytest.mark.selftest]
EARLIER = "an earlier version"
LEFT = "SELECT t.k, t.v, u.w FROM t LEFT JOIN u ON t.k = u.k"


@pytest.fixture
def tables(swh: Warehouse) -> Warehouse:
    swh.sql("CREATE TABLE t (k INT, v INT, s STRING)")
    swh.sql("CREATE TABLE u (k INT PRIMARY KEY, w INT)")
    swh.sql("INSERT INTO t VALUES (1, 10, 'a'), (2, 20, 'b'), (2, 20, 'b'), (NULL, 5, NULL)")
    swh.sql("INSERT INTO u VALUES (1, 100), (3, 300)")
    return swh


def create(wh: Warehouse, text: str, properties: str = "") -> str:
    """What EXPLAIN says of the reading of a view of this text."""
    given = f" TBLPROPERTIES ({properties})" if properties else ""
    wh.sql(f"CREATE OR REPLACE MATERIALIZED VIEW x{given} AS {text}")
    return next(line for line in wh.explain("x").splitlines() if line.startswith("  reading: "))[11:]


def change(wh: Warehouse) -> None:
    with wh.transaction() as tx:
        tx.sql("INSERT INTO t VALUES (3, 7, 'c'), (1, 10, 'a')")
        tx.sql("DELETE FROM t WHERE k = 2 AND v = 20")
        tx.sql("INSERT INTO u VALUES (2, 200)")
        tx.sql("DELETE FROM u WHERE k = 1")


def lowered_otherwise(patch: pytest.MonkeyPatch, rule: Callable[[Node], Node]) -> None:
    """Lowering makes a mistake."""
    honest = lowering.lower

    def lower(*given: Any) -> Lowered:
        found = honest(*given)
        return Lowered(rewrite(found.node, rule), found.outputs)

    patch.setattr(definitions, "lower", lower)


def test_no_selftest_ends_spark(swh: Warehouse, spark: SparkSession) -> None:
    """On extreme numbers these calls take Spark down with them: by the address of an element, or by all memory."""
    swh.sql("CREATE TABLE t (k INT, v INT, w INT, y INT, s STRING, a ARRAY<INT>)")
    with setting(spark, spark__sql__ansi__enabled="false"):
        place = create(swh, "SELECT k, max(try_element_at(a, y)) AS x FROM t WHERE y <> 0 GROUP BY k")
        size = create(swh, "SELECT k, max(lpad(s, v, 'x')) AS p, max(rpad(s, y)) AS q FROM t GROUP BY k")
    assert place.startswith("tested on")
    assert size.startswith("tested on")


@pytest.mark.parametrize(
    "text",
    [
        "SELECT k, count(*) AS n, sum(v) AS s FROM t GROUP BY k",
        "SELECT k, v + 1 AS n FROM t WHERE v BETWEEN 5 AND 10 AND s LIKE 'a%' OR k IS NULL",
        "SELECT t.k, u.w FROM t, u WHERE t.k = u.k AND u.w > 100",
        LEFT,
        "SELECT DISTINCT k, CASE WHEN v > 6 THEN 'x' ELSE s END AS c FROM t",
        "WITH q AS (SELECT k, max(v) AS m FROM t GROUP BY k) SELECT q.k, q.m, u.w FROM q JOIN u ON q.k = u.k",
    ],
)
def test_common_definitions_are_proven_by_their_plans(tables: Warehouse, text: str) -> None:
    assert create(tables, text) == "proven by plan"
    assert "maintained: incrementally" in tables.explain("x")


OTHER_SHAPES = [
    "SELECT k FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.k = t.k)",
    "SELECT k, v, count(*) AS n FROM t GROUP BY CUBE (k, v)",
    "SELECT t.k, u.w FROM t FULL JOIN u ON t.k = u.k",
]
if IS_SOAK:
    OTHER_SHAPES += [
        "SELECT k, v FROM t UNION ALL SELECT k, w FROM u",
        "SELECT k, row_number() OVER (PARTITION BY k ORDER BY v, s) AS n FROM t",
        "SELECT k, (SELECT max(w) FROM u WHERE u.k = t.k) AS w FROM t",
    ]


@pytest.mark.parametrize("text", OTHER_SHAPES)
def test_other_shapes_are_tested(tables: Warehouse, text: str) -> None:
    read = create(tables, text)
    assert read.startswith("tested on ")
    found = Verdict.of(internals(tables).relation("x").facts)
    assert found is not None
    assert found.rows > 10
    assert found.rounds >= 2
    assert "maintained: incrementally" in tables.explain("x")


@pytest.fixture
def gullible(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but Spark knows which texts the parser reads otherwise."""
    monkeypatch.setattr(lowering, "refuse_misread", lambda *_: None)


@pytest.mark.usefixtures("gullible")
@pytest.mark.parametrize("text", ["SELECT k FROM t WHERE (k > 1) = (v > 1) < (k > 5)", "SELECT k & 3 || 1 AS n FROM t"])
def test_a_text_that_is_read_otherwise_is_recomputed_and_says_so(tables: Warehouse, text: str) -> None:
    read = create(tables, text)
    assert read.startswith("recomputed: read here as SELECT ")
    assert "another query to Spark" in read or "Spark refuses" in read
    assert rows(tables, "SELECT * FROM x") == rows(tables, text)
    assert "by recomputation" in tables.explain("x")
    assert "recomputed: read here as" in next(v for v in tables.status().views if v.name == "x").reading


@pytest.mark.example
def test_a_left_join_that_is_lowered_as_an_inner_one_is_found(
    tables: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    lowered_otherwise(monkeypatch, lambda n: replace(n, kind="inner") if isinstance(n, Join) else n)
    read = create(tables, LEFT)
    assert read.startswith("recomputed: the text gives [(")
    assert ")], what was made of it [], over t: [(" in read
    assert read.endswith("; u: []")  # the smallest example: one row of t is enough
    change(tables)
    assert rows(tables, "SELECT * FROM x") == rows(tables, LEFT)


def test_a_column_of_another_type_or_field_name_is_found(tables: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    def renamed(node: Node) -> Node:
        if not isinstance(node, Project):
            return node
        texts = [(n, e.sql(dialect="spark").replace("userId", "userid")) for n, e in node.items]
        return replace(node, items=tuple((n, parse_one(t, read="spark")) for n, t in texts))

    lowered_otherwise(monkeypatch, renamed)
    read = create(tables, "SELECT named_struct('userId', v) AS j FROM t")
    assert read == ("recomputed: column j is struct<userId:int> to Spark, and struct<userid:int> as it was read here")
    assert "userId" in tables.sql("SELECT * FROM x").schema.simpleString()


def test_a_delta_rule_that_forgets_what_goes_is_found(tables: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(*given: Any, **options: Any) -> Node | None:
        plan = delta_plan(*given, **options)
        if plan is None:
            return None
        return Filter(plan, exp.GT(this=column(WEIGHT), expression=exp.Literal.number(0)))

    monkeypatch.setattr(selftest, "delta_plan", forgetful)
    read = create(tables, "SELECT k, v FROM t UNION ALL SELECT k, w FROM u")
    assert read.startswith("recomputed: the text gives ")
    assert "(changed from " in read


def test_a_generator_that_is_taken_for_a_scalar_is_found(tables: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    def scalar(node: Node) -> Node:
        if isinstance(node, Project) and any(isinstance(e, exp.Add) for _, e in node.items):
            made = parse_one("explode(sequence(1, 2))", read="spark")
            return replace(node, items=tuple((n, made if isinstance(e, exp.Add) else e) for n, e in node.items))
        return node

    lowered_otherwise(monkeypatch, scalar)
    read = create(tables, "SELECT k, v + 1 AS n FROM t")
    assert read.startswith("recomputed: EXPLODE(")
    assert "not all of it is a scalar to Spark" in read


def test_without_a_self_test_the_status_says_so(tables: Warehouse) -> None:
    text = "SELECT k, v FROM t UNION ALL SELECT k, w FROM u"
    assert create(tables, text, "'selftest' = 'off'") == "not tested ('selftest' = 'off')"
    assert "not tested ('selftest' = 'off')" in str(tables.status())
    with pytest.raises(InvalidStatement, match="selftest"):
        create(tables, text, "'selftest' = 'maybe'")


@pytest.mark.usefixtures("gullible")
def test_incremental_or_nothing_is_refused_with_what_differed(tables: Warehouse) -> None:
    with pytest.raises(NotMaintainable, match="read here as"):
        create(tables, "SELECT k & 3 || 1 AS n FROM t", "'refresh' = 'incremental'")


def test_where_ties_are_open_a_text_that_is_not_read_is_refused(
    tables: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    lowered_otherwise(monkeypatch, lambda n: replace(n, kind="inner") if isinstance(n, Join) else n)
    with pytest.raises(NotMaintainable, match="which of tied rows comes first is not determined"):
        create(tables, LEFT.replace("u.w", "row_number() OVER (PARTITION BY t.k ORDER BY v) AS n"))


def test_a_view_of_an_earlier_version_is_asked_about_again_and_corrected(
    tables: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier version took a left join for an inner one, and has stored the wrong rows; another view is above it."""
    with pytest.MonkeyPatch.context() as patch:
        lowered_otherwise(patch, lambda n: replace(n, kind="inner") if isinstance(n, Join) else n)
        patch.setattr(verdict, "present", lambda: EARLIER)
        patch.setattr(reading.Reader, "verdict", lambda *_, **__: Verdict("plan", version=EARLIER))
        grouped = "SELECT t.k, count(*) AS n FROM t LEFT JOIN u ON t.k = u.k GROUP BY t.k HAVING count(*) > 0"
        tables.sql(f"CREATE MATERIALIZED VIEW x AS {grouped}")
        tables.sql("CREATE MATERIALIZED VIEW above AS SELECT k, n FROM x WHERE n > 0")
        assert len(rows(tables, "SELECT * FROM x")) == 1
        assert internals(tables).relation("x").schema.key == internals(tables).relation("above").schema.key == ("k",)
        internals(tables).views.definitions.forget()
    lowered_otherwise(monkeypatch, lambda n: replace(n, kind="inner") if isinstance(n, Join) else n)
    assert rows(tables, "SELECT * FROM x") == rows(tables, grouped)
    assert rows(tables, "SELECT * FROM above") == rows(tables, grouped)
    stored = json.loads(internals(tables).relation("x").facts[FACT])
    assert stored["kind"] == "recomputed"
    assert stored["version"] == verdict.present()
    assert not internals(tables).relation("x").schema.key  # it followed from the wrong reading
    assert not internals(tables).relation("above").schema.key
    change(tables)
    assert rows(tables, "SELECT * FROM x") == rows(tables, grouped)
    assert rows(tables, "SELECT * FROM above") == rows(tables, grouped)


def stored_wrongly(wh: Warehouse, *texts: str) -> None:
    """An earlier version takes left joins for inner ones while it runs these statements, and is replaced."""
    with pytest.MonkeyPatch.context() as patch:
        lowered_otherwise(patch, lambda n: replace(n, kind="inner") if isinstance(n, Join) else n)
        patch.setattr(verdict, "present", lambda: EARLIER)
        patch.setattr(reading.Reader, "verdict", lambda *_, **__: Verdict("plan", version=EARLIER))
        for text in texts:
            wh.sql(text)
        internals(wh).views.definitions.forget()


# Each scenario at one moment; in a soak at both.
@pytest.mark.parametrize(
    ("scenario", "past"),
    [("base-log", True), ("combined", False)] + [("base-log", False), ("combined", True)] * IS_SOAK,
)
def test_a_deferred_view_of_an_earlier_version_is_corrected_at_every_moment(
    tables: Warehouse, monkeypatch: pytest.MonkeyPatch, scenario: str, past: bool
) -> None:
    deferred = f"TBLPROPERTIES ('maintenance' = 'deferred', 'scenario' = '{scenario}')"
    stored_wrongly(tables, f"CREATE MATERIALIZED VIEW x {deferred} AS {LEFT}")
    lowered_otherwise(monkeypatch, lambda n: replace(n, kind="inner") if isinstance(n, Join) else n)
    wanted, csn = rows(tables, LEFT), tables.status().csn
    if past:
        assert rows(tables, f"SELECT * FROM x VERSION AS OF {csn}") == wanted
    else:
        assert rows(tables, "SELECT * FROM x", freshness="fresh") == wanted
    assert rows(tables, "SELECT * FROM x") == wanted
    change(tables)
    assert rows(tables, "SELECT * FROM x") == wanted
    assert rows(tables, f"SELECT * FROM x VERSION AS OF {csn}") == wanted


def test_a_transaction_does_not_see_what_an_earlier_version_stored(
    tables: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It began before the view below was corrected: what it wrote is not laid over rows of that time."""
    tables.sql("CREATE TABLE b (k INT PRIMARY KEY)")
    above = "SELECT k, w FROM x UNION ALL SELECT k, k FROM b"
    stored_wrongly(tables, f"CREATE MATERIALIZED VIEW x AS {LEFT}", f"CREATE MATERIALIZED VIEW above AS {above}")
    lowered_otherwise(monkeypatch, lambda n: replace(n, kind="inner") if isinstance(n, Join) else n)
    with tables.transaction() as tx:
        tx.sql("INSERT INTO b VALUES (50)")
        wanted = rows(tx, above.replace("FROM x", f"FROM ({LEFT})"))
        assert rows(tx, "SELECT * FROM above") == wanted
    assert rows(tables, "SELECT * FROM above") == wanted


def test_a_view_of_an_earlier_version_that_reads_well_keeps_its_rows(
    tables: Warehouse, tmp_path: Any, spark: Any
) -> None:
    create(tables, LEFT)
    relation = internals(tables).relation("x")
    internals(tables).views.catalog.note(relation, FACT, Verdict("plan", version=EARLIER).to_json())
    with freshview.connect(tmp_path / "warehouse", spark=spark) as again:
        before = len(again.history("x"))
        assert rows(again, "SELECT * FROM x") == rows(again, LEFT)
        assert len(again.history("x")) == before  # nothing had to be computed
        found = Verdict.of(internals(again).relation("x").facts)
        assert found is not None
        assert found.is_current


@pytest.mark.parametrize("error", [pa.ArrowInvalid("no"), InvalidStatement("query", "no", "")])
def test_what_fails_in_what_was_made_of_a_text_is_not_the_users(
    tables: Warehouse, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    create(tables, LEFT)
    change(tables)
    seen: list[str] = []
    tables.events.listen(lambda e: seen.append(e.name))

    def fails(*_: Any) -> None:
        raise error

    monkeypatch.setattr(embedded, "ENGINE", "spark")
    monkeypatch.setattr(execute, "_over_rows_at_hand", fails)
    assert rows(tables, "SELECT * FROM x") == rows(tables, LEFT)
    assert "job.recomputes" in seen
    assert tables.history("x")[-1].strategy == "full"


def test_an_error_of_the_lowered_plan_at_create_is_not_the_users(
    tables: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(node: Node) -> Node:
        if isinstance(node, Project):
            return replace(node, items=tuple((n, parse_one("no_such_call(1)", read="spark")) for n, _ in node.items))
        return node

    lowered_otherwise(monkeypatch, broken)
    assert create(tables, "SELECT k + 1 AS n FROM t").startswith("recomputed: Spark refuses what was made of it")
    assert rows(tables, "SELECT * FROM x") == rows(tables, "SELECT k + 1 AS n FROM t")


def test_a_definition_whose_test_does_not_end_is_recomputed(
    tables: Warehouse, monkeypatch: pytest.MonkeyPatch, spark: SparkSession
) -> None:
    monkeypatch.setattr(selftest, "most_joined", lambda _: 1)  # tables have all their rows, and the join many millions
    monkeypatch.setattr(selftest, "_LONGEST", 0.5)
    monkeypatch.setattr(selftest, "_SECONDS", 0.0)
    # A task that is cancelled ends at the next row of its first table: with two tables more, after minutes, in which
    # it takes a core from all later tests.
    joins = " ".join(f"JOIN t AS t{i} ON t.s > '' OR t{i}.s = t.s" for i in range(7))
    reading = create(tables, f"SELECT count(*) AS n FROM t {joins} WHERE EXISTS (SELECT 1 FROM u WHERE u.k < t.k)")
    assert reading.startswith("recomputed: it could not be tested: Spark")
    assert "took more than 0.5 s" in reading
    until, tracker = time.monotonic() + 60, spark.sparkContext._jsc.sc().statusTracker()
    while sum(executor.numRunningTasks() for executor in tracker.getExecutorInfos()):
        assert time.monotonic() < until, "a task goes on, and takes a core from all later tests"
        time.sleep(0.05)


def test_a_reading_that_is_cancelled_is_no_verdict(tables: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of the queries for the text, or of those for the tree."""

    def gives_way(*_: Any, **__: Any) -> None:
        raise Cancelled("self-test", "was cancelled to make way for other work", "Run it again.")

    text = "SELECT k, count(*) AS n FROM t WHERE k NOT IN (SELECT k FROM u WHERE w > 100) GROUP BY k"
    assert create(tables, text).startswith("tested on")
    held = tables.explain("x")
    for owner, method in ((type(tables.engine()), "answers"), (selftest.SelfTest, "_trees")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, method, gives_way)
            with pytest.raises(Cancelled):
                create(tables, text)
        assert tables.explain("x") == held
    assert rows(tables, "SELECT * FROM x") == rows(tables, text)


def test_progress_is_told(tables: Warehouse) -> None:
    seen: list[Event] = []
    tables.events.listen(seen.append)
    create(tables, "SELECT k, v FROM t UNION ALL SELECT k, w FROM u")
    steps = [(e.details["view"], e.details["step"]) for e in seen if e.name == "view.reading"]
    assert steps == [("x", "text"), ("x", "tree"), ("x", "self-test"), ("x", "read")]


def test_a_self_test_that_is_turned_on_later_runs(tables: Warehouse) -> None:
    text = "SELECT k, v FROM t UNION ALL SELECT k, w FROM u"
    create(tables, text, "'selftest' = 'off'")
    tables.sql("ALTER MATERIALIZED VIEW x SET TBLPROPERTIES ('selftest' = 'on')")
    assert next(v for v in tables.status().views if v.name == "x").reading.startswith("tested on ")
    tables.sql("ALTER MATERIALIZED VIEW x SET TBLPROPERTIES ('selftest' = 'off')")  # what was tested stays tested
    assert next(v for v in tables.status().views if v.name == "x").reading.startswith("tested on ")


def test_a_self_test_that_is_turned_on_later_corrects_the_rows(
    tables: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    lowered_otherwise(monkeypatch, lambda n: replace(n, kind="inner") if isinstance(n, Join) else n)
    monkeypatch.setattr(reading.Reader, "_same_plan", lambda *_: False)
    create(tables, LEFT, "'selftest' = 'off'")
    tables.sql("CREATE MATERIALIZED VIEW above TBLPROPERTIES ('selftest' = 'off') AS SELECT k, v FROM x")
    change(tables)
    assert rows(tables, "SELECT * FROM x") != rows(tables, LEFT)
    tables.sql("ALTER MATERIALIZED VIEW x SET TBLPROPERTIES ('selftest' = 'on')")
    assert rows(tables, "SELECT * FROM x") == rows(tables, LEFT)
    assert rows(tables, "SELECT * FROM above") == rows(tables, f"SELECT k, v FROM ({LEFT})")
    assert "recomputed: the text gives" in next(v for v in tables.status().views if v.name == "x").reading


def test_another_process_hears_that_spark_reads_a_view_otherwise(
    tables: Warehouse, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, spark: SparkSession
) -> None:
    """It has analysed the view, and one above it, before; by its own reading it would keep wrong rows again."""
    lowered_otherwise(monkeypatch, lambda n: replace(n, kind="inner") if isinstance(n, Join) else n)
    monkeypatch.setattr(reading.Reader, "_same_plan", lambda *_: False)
    create(tables, LEFT, "'selftest' = 'off'")
    tables.sql("CREATE MATERIALIZED VIEW above TBLPROPERTIES ('selftest' = 'off') AS SELECT k, v FROM x")
    with freshview.connect(tmp_path / "warehouse", spark=spark) as other:
        change(tables)
        assert rows(other, "SELECT * FROM above") != rows(tables, f"SELECT k, v FROM ({LEFT})")
        tables.sql("ALTER MATERIALIZED VIEW x SET TBLPROPERTIES ('selftest' = 'on')")
        tables.sql("INSERT INTO t VALUES (8, 8, 'h')")
        assert rows(other, "SELECT * FROM above WHERE k = 8") == [(8, 8)]  # of the change, only a part may be seen
        assert rows(other, "SELECT * FROM x") == rows(tables, LEFT)
        assert rows(other, "SELECT * FROM above") == rows(tables, f"SELECT k, v FROM ({LEFT})")
        assert other.check("x").ok


@pytest.mark.parametrize("divisor", ["3L", "-3S", "+3", "(+ 3)"])
def test_an_integer_beside_a_decimal_has_the_digits_that_spark_counts(tables: Warehouse, divisor: str) -> None:
    """The scale of the quotient depends on them, and Spark's plan does not show it."""
    text = f"SELECT k, CAST(CAST(v AS DECIMAL(10, 2)) / {divisor} AS STRING) AS q FROM t"
    assert not create(tables, text).startswith("proven")
    change(tables)
    assert rows(tables, "SELECT * FROM x") == rows(tables, text)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_view_that_is_judged_anew_is_known_by_its_old_reading_nowhere(
    tables: Warehouse, monkeypatch: pytest.MonkeyPatch, tmp_path: Any, spark: SparkSession, elsewhere: bool
) -> None:
    """A process keeps what it has made of a text: which changes a query can see, and how they reach the view."""

    def otherwise(node: Node) -> Node:
        if not isinstance(node, Filter):
            return node
        moved = node.predicate.transform(lambda e: exp.Literal.number(15) if isinstance(e, exp.Literal) else e)
        return Filter(node.input, moved)

    lowered_otherwise(monkeypatch, otherwise)
    monkeypatch.setattr(reading.Reader, "_same_plan", lambda *_: False)
    text, asked = "SELECT k, v FROM t WHERE v > 5", "SELECT * FROM {} WHERE k > 60"
    create(tables, text, "'selftest' = 'off'")
    with freshview.connect(tmp_path / "warehouse", spark=spark) as other:
        reader = other if elsewhere else tables
        tables.sql("INSERT INTO t VALUES (70, 9, 'x')")
        assert rows(reader, asked.format("x")) == []  # by the wrong reading
        tables.sql("ALTER MATERIALIZED VIEW x SET TBLPROPERTIES ('selftest' = 'on')")
        tables.sql("INSERT INTO t VALUES (77, 10, 'x')")
        assert rows(reader, asked.format("x")) == [(70, 9), (77, 10)]
        assert rows(reader, "SELECT * FROM x") == rows(reader, text)
