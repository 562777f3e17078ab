"""The embedded engine gives Spark's bits, types included, or it does not answer: expressions and aggregates."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.effort import IS_SOAK, examples, seed_of
from tests.internals import internals
from tests.spark.sessions import apart, jobs_run, setting
from tests.unit.local.grammar import COLUMNS, SCHEMA, WORLDS, Expressions, rows
from tests.unit.local.queries import Queries
from tests.unit.local.test_order import ANSWERED, FAILING, table

from freshview import Warehouse
from freshview.algebra.nodes import Node
from freshview.errors import Cancelled, InvalidStatement, QueryFailed, first_line
from freshview.interruption import Interruption
from freshview.local.engine import LocalEngine, LocalError
from freshview.local.plans import LocalPlan, translated
from freshview.local.typed import Unproven
from freshview.refresh.embedded import HARMLESS
from freshview.refresh.job_input import SourceInput
from freshview.refresh.lookups import Lookups
from freshview.spark.meaning import DEFAULTS, MEANING
from freshview.sql.lowering import lower

SEED = seed_of(20261117)
_TYPES = {c.name: c.type for c in SCHEMA.columns}
_DDL = ", ".join(f"{name} {type_}" for name, type_ in COLUMNS.items())
_EXPRESSIONS, _PLANS = (100_000, 5_000) if IS_SOAK else (3_000, 200)
# Plans that Spark may fail on alone: it takes some conditions sooner, for rows that others leave out.
_FAILED = _PLANS // 100 if IS_SOAK else 0
# Values of settings that no proven construct depends on, under which expressions are compared.
_HARMLESS = {"spark.sql.session.timeZone": "America/St_Johns", "spark.sql.caseSensitive": "true"}
_TOGETHER = 100  # expressions to one query of Spark
_AT_ONCE = 3_000  # expressions over the same rows
# Over a local table Spark would compute columns that nothing reads, and fail on them; over files it does not.
_NO_LOCAL_TABLES = "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation"
_PLANS_TOGETHER = 10  # whole queries to one of Spark, over one table


@dataclass
class Outcome:
    """What became of the distinct expressions of a run."""

    compared: int = 0  # with Spark's values, over the rows of one world at least
    raised: int = 0  # over the rows of one world at least
    unproven: int = 0


def _plan(text: str) -> LocalPlan | None:
    """The query in the embedded engine; None if it is not taken."""
    try:
        return translated(lower(text, {"t": tuple(COLUMNS)}).node, lambda _: _TYPES)
    except Unproven:
        return None


def _compare(
    spark: SparkSession, count: int, draw: Callable[[Expressions], str], query: Callable[[list[str]], str]
) -> Outcome:
    """Draw until so many distinct expressions are compared: each one that the embedded engine answers has Spark's value
    in every row, and Spark's type."""
    rng = random.Random(SEED)
    writer, engines, outcome = Expressions(rng), (LocalEngine(), LocalEngine(small=0)), Outcome()
    session = apart(spark)
    for key, value in _HARMLESS.items():
        session.conf.set(key, value)
    drawn: set[str] = set()
    failed: list[str] = []
    while outcome.compared < count:
        worlds = [rows(world, 12, rng, first=12 * place) for place, world in enumerate(WORLDS)]
        whole = pa.concat_tables(worlds).combine_chunks()
        answers: dict[tuple[int, ...], dict[str, pa.Table]] = {}  # by the worlds whose rows they are for
        enough = min(count, outcome.compared + _AT_ONCE)
        while outcome.compared < enough:
            expression = draw(writer)
            if expression in drawn:
                continue
            drawn.add(expression)
            plan = _plan(query([expression]))
            outcome.unproven += plan is None
            if plan is not None:
                places, answer = _answered(engines[outcome.compared % 2], plan, whole, worlds)
                outcome.raised += len(places) < len(WORLDS)
                if answer is not None:
                    answers.setdefault(places, {})[expression] = answer
                    outcome.compared += 1
        for places, found in answers.items():
            _require_sparks(session, pa.concat_tables(worlds[p] for p in places), found, query, failed)
    for engine in engines:
        engine.close()
    assert not failed, f"(seed {SEED}) an answer here, an error in Spark: {failed}"
    return outcome


def _answered(
    engine: LocalEngine, plan: LocalPlan, whole: pa.Table, worlds: list[pa.Table]
) -> tuple[tuple[int, ...], pa.Table | None]:
    """The worlds over whose rows the plan does not fail, and the plan's rows over theirs: mostly all worlds at once."""
    with suppress(LocalError):
        return tuple(range(len(worlds))), engine.run(plan, _always(whole))
    answers = {}
    for place, world in enumerate(worlds):
        with suppress(LocalError):
            answers[place] = engine.run(plan, _always(world))
    return tuple(answers), pa.concat_tables(answers.values()) if answers else None


def _require_sparks(
    session: SparkSession,
    table: pa.Table,
    answers: Mapping[str, pa.Table],
    query: Callable[[list[str]], str],
    failed: list[str],
) -> None:
    """Fail if an answer over the table is not Spark's."""
    session.createDataFrame(table, schema=_DDL).createOrReplaceTempView("t")
    texts = list(answers)
    for start in range(0, len(texts), _TOGETHER):
        for part, found in _asked(session, texts[start : start + _TOGETHER], query, failed):
            for place, expression in enumerate(part, 1):
                _require_equal(answers[expression], found.select([0, place]), f"{expression} (seed {SEED})", table)


def _asked(
    session: SparkSession, texts: list[str], query: Callable[[list[str]], str], failed: list[str]
) -> Iterator[tuple[list[str], pa.Table]]:
    """Spark's answers, to some of the texts at a time. What Spark fails on is noted, with its error."""
    try:
        yield texts, session.sql(query(texts)).toArrow()
    except (PySparkException, Py4JError) as error:
        if len(texts) == 1:
            failed.append(f"{texts[0]}: {first_line(error)}")
            return
        middle = len(texts) // 2
        for half in (texts[:middle], texts[middle:]):
            yield from _asked(session, half, query, failed)


def _always(table: pa.Table) -> Callable[[Node], pa.Table]:
    return lambda _: table


def _require_equal(local: pa.Table, spark: pa.Table, what: str, table: pa.Table) -> None:
    ours, theirs = ((t.sort_by(t.column_names[0]).column(1).combine_chunks()) for t in (local, spark))
    assert ours.type == theirs.type, f"{what}: {ours.type} here, {theirs.type} in Spark"
    if not _bits(ours).equals(_bits(theirs)):
        place = next(i for i in range(len(ours)) if not _bits(ours.slice(i, 1)).equals(_bits(theirs.slice(i, 1))))
        row = {
            name: str(_bits(column.combine_chunks())[place])
            for name, column in zip(COLUMNS, table.columns, strict=True)
        }
        here, there = (_bits(values)[place] for values in (ours, theirs))
        raise AssertionError(f"{what}: {here!r} here, {there!r} in Spark, for {row}")


def _bits(values: pa.Array) -> pa.Array:
    """Doubles by their bits (NaN is NaN, -0.0 is not 0.0), dates and times by their numbers (Python's end sooner)."""
    if values.type == pa.date32():
        return values.view(pa.int32())
    return values.view(pa.int64()) if values.type == pa.float64() or pa.types.is_timestamp(values.type) else values


def test_expressions_have_sparks_bits(spark: SparkSession) -> None:
    def query(expressions: list[str]) -> str:
        return "SELECT id, " + ", ".join(f"{e} AS x{i}" for i, e in enumerate(expressions)) + " FROM t"

    outcome = _compare(spark, _EXPRESSIONS, lambda writer: writer.any(), query)
    assert outcome.compared == _EXPRESSIONS > 2 * outcome.unproven
    print(outcome)


def test_aggregates_have_sparks_bits(spark: SparkSession) -> None:
    def query(calls: list[str]) -> str:
        listed = ", ".join(f"{c} AS x{i}" for i, c in enumerate(calls))
        return f"SELECT ti AS k, {listed} FROM t WHERE ti IS NOT NULL GROUP BY ti"

    outcome = _compare(spark, examples(600), lambda writer: writer.aggregate(), query)
    assert outcome.compared > 2 * outcome.unproven
    print(outcome)


def test_plans_have_sparks_rows(spark: SparkSession) -> None:
    """Joins, groupings, set operations and windows, over random expressions and over each other, against Spark over
    equal tables: as many plans as are compared, not as are drawn, over values of every world."""
    rng = random.Random(SEED)
    writer, engines, session = Queries(rng), (LocalEngine(), LocalEngine(small=0)), apart(spark)
    session.conf.set("spark.sql.optimizer.excludedRules", _NO_LOCAL_TABLES)
    taken = Counter[int]()
    failed: list[str] = []
    while taken.total() < _PLANS:
        world = taken.total() // _PLANS_TOGETHER % len(WORLDS)
        table = rows(WORLDS[world], 10, rng)
        answers: dict[str, pa.Table] = {}
        usable = engines[:1] if WORLDS[world] is WORLDS[-1] else engines  # the last moments: test_engine.py
        while len(answers) < _PLANS_TOGETHER:
            text = writer.any()
            plan = _plan(text)
            if plan is not None:
                with suppress(LocalError):
                    answers[text] = rng.choice(usable).run(plan, _always(table))
        session.createDataFrame(table, schema=_DDL).createOrReplaceTempView("t")
        widths = {text: ours.num_columns for text, ours in answers.items()}
        for part, found in _asked(session, list(answers), partial(_side_by_side, widths), failed):
            for place, text in enumerate(part):
                ours = answers[text]
                rows_of_it = found.filter(pc.equal(found.column("place"), place)).column(f"q{place}")
                theirs = rows_of_it.combine_chunks().flatten()
                assert [f.type for f in ours.schema] == [c.type for c in theirs], f"{text} (seed {SEED})"
                assert _bag(ours) == _bag(pa.table(theirs, ours.column_names)), f"{text} (seed {SEED})"
        taken[world] += len(answers)
    for engine in engines:
        engine.close()
    assert len(taken) == len(WORLDS)
    assert len(failed) <= _FAILED, f"(seed {SEED}) an answer here, an error in Spark: {failed}"


def test_conditions_that_can_fail_are_computed_for_sparks_rows(spark: SparkSession) -> None:
    """Spark fails on each query that the embedded engine is required to fail on, and answers the others."""
    session = apart(spark)
    session.conf.set("spark.sql.optimizer.excludedRules", _NO_LOCAL_TABLES)
    for name in ("t", "u"):
        session.createDataFrame(table(name)).createOrReplaceTempView(name)
    for text in ANSWERED:
        assert session.sql(text).toArrow().num_rows == 1, text
    for text in FAILING:
        with pytest.raises((PySparkException, Py4JError)):
            print(text, session.sql(text).toArrow())


def _side_by_side(widths: Mapping[str, int], queries: list[str]) -> str:
    """One query with the rows of all of these: the place of each, and its rows as structs in a column of its own.

    Arrow takes no NULL beside structs with a field that has none: CASE makes every field one that may be NULL.
    """

    def side(of: int) -> str:
        names = [f"c{i}" for i in range(widths[queries[of]])]
        row = ", ".join(f"CASE WHEN {name} IS NOT NULL THEN {name} END AS {name}" for name in names)
        columns = (f"{f'struct({row})' if place == of else 'NULL'} AS q{place}" for place in range(len(queries)))
        return f"SELECT {of} AS place, {', '.join(columns)} FROM ({queries[of]}) AS q({', '.join(names)})"

    return " UNION ALL ".join(map(side, range(len(queries))))


def _bag(table: pa.Table) -> Counter[tuple[str, ...]]:
    columns = [[v.as_py() if v.is_valid else None for v in _bits(c.combine_chunks())] for c in table.columns]
    return Counter(tuple(map(repr, row)) for row in zip(*columns, strict=True))


@pytest.fixture
def sums(swh: Warehouse) -> Warehouse:
    swh.sql("CREATE TABLE t (id INT, g STRING, v DECIMAL(15, 2), PRIMARY KEY (id))")
    swh.sql("INSERT INTO t VALUES (1, 'a', 1.5), (2, 'b', 2.5)")
    swh.sql("CREATE MATERIALIZED VIEW v AS SELECT upper(g) AS g, sum(v) AS s, avg(v) AS m FROM t GROUP BY upper(g)")
    return swh


def _engine_of_next_job(wh: Warehouse) -> str:
    (job,) = wh.maintain(["v"])
    assert wh.check("v").ok
    assert job.strategy == "incremental"
    return wh.history("v")[-1].engine


def test_small_changes_start_no_spark_job(sums: Warehouse, spark: SparkSession) -> None:
    sums.sql("INSERT INTO t VALUES (3, 'a', 4)")
    assert "on the embedded engine" in sums.explain("v")
    assert jobs_run(spark, lambda: sums.maintain(["v"])) == 0
    assert sums.history("v")[-1].engine == "embedded"
    assert sums.check("v").ok


@pytest.mark.parametrize("place", ["SourceInput.segments", "Lookups.table", "LocalEngine._cursor"])
def test_a_job_that_is_asked_to_stop_leaves_its_tasks(
    sums: Warehouse, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Law: a job of the embedded engine gives way too, wherever it is; Spark does not take it over."""
    sums.sql("CREATE OR REPLACE MATERIALIZED VIEW v AS SELECT t.id, u.v FROM t JOIN t AS u ON t.id = u.id")
    sums.sql("INSERT INTO t VALUES (3, 'a', 4)")
    work = Interruption(gives_way=True)
    owner = {kind.__name__: kind for kind in (SourceInput, Lookups, LocalEngine)}[place.partition(".")[0]]
    name = place.partition(".")[2]
    original = getattr(owner, name)

    def asked(self: object, *given: object, **named: object) -> object:
        work.request()
        return original(self, *given, **named)

    if isinstance(original, cached_property):
        original = original.func
        monkeypatch.setattr(owner, name, property(asked))
    else:
        monkeypatch.setattr(owner, name, asked)
    catalog, views = internals(sums).catalog, internals(sums).views

    def run() -> None:
        with work.here(), pytest.raises(Cancelled):
            views.maintenance.bring(catalog.view("v"), catalog.snapshot())

    assert jobs_run(spark, run) == 0
    assert [job.strategy for job in sums.history("v")] == ["cancelled"]
    assert len(views.catalog.tasks()) == 1
    monkeypatch.undo()
    assert _engine_of_next_job(sums) == "embedded"


def test_a_value_that_is_not_proven_is_sparks(sums: Warehouse) -> None:
    """The history has what kept the job on Spark; later jobs are tried in the embedded engine again."""
    sums.sql("INSERT INTO t VALUES (3, 'ß', 4)")
    assert _engine_of_next_job(sums).startswith("spark: ")
    sums.sql("INSERT INTO t VALUES (4, 'c', 4)")
    assert _engine_of_next_job(sums) == "embedded"


def test_the_engine_can_be_turned_off(sums: Warehouse) -> None:
    sums.sql("ALTER MATERIALIZED VIEW v SET TBLPROPERTIES ('engine' = 'spark')")
    sums.sql("INSERT INTO t VALUES (3, 'a', 4)")
    assert "not in the embedded engine: the property 'engine' = 'spark'" in sums.explain("v")
    assert _engine_of_next_job(sums) == "spark: the property 'engine' = 'spark'"
    with pytest.raises(InvalidStatement, match="auto, spark"):
        sums.sql("ALTER MATERIALIZED VIEW v SET TBLPROPERTIES ('engine' = 'duck')")


def test_constructs_that_are_not_proven_stay_on_spark(sums: Warehouse) -> None:
    text = "SELECT t.id, sha2(t.g || u.g, 256) AS h FROM t JOIN t AS u ON t.id = u.id"
    sums.sql(f"CREATE OR REPLACE MATERIALIZED VIEW v AS {text}")
    sums.sql("INSERT INTO t VALUES (3, 'a', 4)")
    assert _engine_of_next_job(sums).startswith("spark: SHA2(")


def test_what_is_not_proven_and_stands_on_a_delta_is_sparks_without_a_job(sums: Warehouse, spark: SparkSession) -> None:
    """The rest of the plan is the embedded engine's. Floats and times come back to the bit."""
    below = "SELECT id, sha2(g, 256) AS h, sqrt(v) AS r, CAST(-v AS FLOAT) AS f, TIMESTAMP_SECONDS(id) AS m FROM t"
    sums.sql(f"CREATE OR REPLACE MATERIALIZED VIEW v AS SELECT x.*, t.g FROM ({below}) x JOIN t ON t.id = x.id")
    sums.sql("INSERT INTO t VALUES (3, 'a', 0)")
    assert "by Spark before, without a job: SHA2(" in sums.explain("v")
    assert jobs_run(spark, lambda: sums.maintain(["v"])) == 0
    assert sums.history("v")[-1].engine == "embedded"
    assert sums.check("v").ok


def test_an_error_of_what_spark_computes_before_is_sparks_own(sums: Warehouse) -> None:
    sums.sql("CREATE OR REPLACE MATERIALIZED VIEW v AS SELECT id, CAST(g AS DOUBLE) AS x FROM t WHERE id > 2")
    sums.sql("INSERT INTO t VALUES (3, 'abc', 0)")
    with pytest.raises(QueryFailed, match="abc"):
        sums.maintain(["v"])
    sums.sql("UPDATE t SET g = '1.5' WHERE id = 3")
    assert _engine_of_next_job(sums) == "embedded"


def test_other_settings_than_sparks_own_keep_a_view_on_spark(sums: Warehouse, spark: SparkSession) -> None:
    with setting(spark, spark__sql__ansi__enabled="false"):
        sums.sql("CREATE OR REPLACE MATERIALIZED VIEW v AS SELECT id, v + 1 AS w FROM t")
    sums.sql("INSERT INTO t VALUES (3, 'a', 4)")
    assert _engine_of_next_job(sums) == "spark: the setting spark.sql.ansi.enabled = false"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spark.sql.parser.escapedStringLiterals", "true"),  # how a literal is read
        ("spark.sql.legacy.timeParserPolicy", "LEGACY"),  # no proven construct is known to depend on it: not proven
    ],
)
def test_any_setting_that_is_not_known_to_be_harmless_keeps_a_view_on_spark(
    sums: Warehouse, spark: SparkSession, key: str, value: str
) -> None:
    with setting(spark, **{key.replace(".", "__"): value}):
        sums.sql("CREATE OR REPLACE MATERIALIZED VIEW v AS SELECT id, v + 1 AS w FROM t")
    sums.sql("INSERT INTO t VALUES (3, 'a', 4)")
    assert _engine_of_next_job(sums) == f"spark: the setting {key} = {value}"


def test_harmless_settings_do_not(sums: Warehouse, spark: SparkSession) -> None:
    with setting(spark, **{key.replace(".", "__"): value for key, value in _HARMLESS.items()}):
        sums.sql("CREATE OR REPLACE MATERIALIZED VIEW v AS SELECT id, v + 1 AS w FROM t")
    sums.sql("INSERT INTO t VALUES (3, 'a', 4)")
    assert _engine_of_next_job(sums) == "embedded"


def test_what_proofs_ask_for_are_sparks_defaults(spark: SparkSession) -> None:
    fresh = spark.newSession().conf
    assert {key: fresh.get(key) for key in DEFAULTS} == DEFAULTS
    assert DEFAULTS.keys() <= set(MEANING)
    assert _HARMLESS.keys() == HARMLESS
