"""A definition whose rows the tables do not determine is refused; max_by and min_by are given an order that decides."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from tests.unit.algebra.oracle import Bag, evaluate, plus, signed
from tests.unit.delta.cases import all_of, laws
from tests.unit.sql.view_grammar import SCHEMAS, Change, State, noises, states

from freshview.algebra.keys import SourceFacts
from freshview.definition.determinism import (
    best_by_pairs,
    refuse_indeterminate,
    refuse_open_ties,
    refuse_ordered_copies,
)
from freshview.delta.derive import at_version
from freshview.delta.forms import choose_form, delta_plan
from freshview.errors import NotMaintainable
from freshview.sql.lowering import lower

# fmt: off
CALLS = [
    "rand()", "randn()", "random()", "uuid()", "now()", "current_timestamp", "current_timestamp()", "current_date",
    "current_date()", "localtimestamp()", "unix_timestamp()", "curdate()", "current_user()", "session_user()",
    "current_catalog()", "current_schema()", "current_database()", "current_timezone()", "version()", "randstr(3)",
    "uniform(1, 2)", "shuffle(array(a))", "monotonically_increasing_id()", "spark_partition_id()", "input_file_name()",
    "reflect('java.util.UUID', 'randomUUID')", "java_method('java.util.UUID', 'randomUUID')", "aes_encrypt(c, 'k')",
    "CAST('now' AS TIMESTAMP)", "DATE 'today'", "DATE 'today UTC'", "DATE 'today+01:00'", "DATE 'TodayUTC'",
    "d = 'today'", "d BETWEEN 'yesterday' AND '2030-01-01'",
    "d IN ('2020-01-01', 'Now')", "TIMESTAMP ' Now '", "date('yesterday')", "to_date('tomorrow')",
    "CAST(concat('no', 'w') AS TIMESTAMP)", "CAST(r'now' AS TIMESTAMP)", "CAST('n' || 'ow' AS DATE)", "d = 'to' 'day'",
    "d < lower('TODAY')", "d IN (reverse('yadot'))", "CAST(chr(110) || 'ow' AS TIMESTAMP)",
    "d = url_decode('%74oday')", "to_date(try_url_decode('%74oday'))", "d > printf('%s%c%c', 'n', 111, 119)",
    "CAST(format_string('n%s%c', 'o', 119) AS TIMESTAMP)", "d = conv('30704', 10, 36)",
    "CAST(CAST(x'6e6f77' AS STRING) AS DATE)", "to_timestamp(concat_ws('', 'n', 'o', 'w'))",
    "date_add('now', 1)", "coalesce(d, 'today')", "CASE WHEN a > 1 THEN d ELSE 'today' END", "array(d, 'yesterday')",
    "date_add(concat('no', 'w'), 1)", "months_between('now', d)", "date_trunc('day', 'now')", "greatest(d, 'tomorrow')",
    "d - 'today'", "unix_micros('now')", "map(d, 'today')", "coalesce(d, concat('to', 'day'))", "nvl2(a, d, 'now')",
    "IF(a > 1, 'today', d)", "CASE d WHEN 'today' THEN 1 END", "nullif(d, 'today')", "'${spark.app.name}'",
    "coalesce(d, IF(1 = 1, 'today', ''))", "current_path()",
    "TIMESTAMP '06:00'", "TIMESTAMP 'T06'", "TIMESTAMP_LTZ '6:0'", "CAST(' 06:00:00.123 UTC' AS TIMESTAMP)",
    "to_timestamp('06:00')", "timestamp('6:00 Europe/Berlin')", "('06:00Z')::TIMESTAMP", "TRY_CAST('T6' AS TIMESTAMP)",
    "CAST(r'06:00' AS TIMESTAMP_LTZ)",
]
# fmt: on


PLACES = [
    "SELECT CASE WHEN a > 1 THEN coalesce(c, {}) END AS x FROM t",
    "SELECT a FROM t WHERE b IN (SELECT d FROM u WHERE u.a = {})",
    "SELECT a FROM t GROUP BY a HAVING max({}) IS NOT NULL",
    "SELECT a, rank() OVER (PARTITION BY a ORDER BY {}) AS r FROM t",
    "WITH w AS (SELECT {} AS x) SELECT x FROM w",
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_the_tables_do_not_determine_is_refused_wherever_it_stands(call: str, place: str) -> None:
    with pytest.raises(NotMaintainable, match=r"not determined by the tables.*put the value into a table"):
        refuse_indeterminate(place.format(call))


@pytest.mark.parametrize(
    "query",
    [
        "SELECT d FROM t UNION ALL SELECT 'today'",
        "SELECT 'today' AS x FROM t EXCEPT (SELECT d FROM t)",
        "SELECT * FROM t UNION SELECT 'today', 1",
        "SELECT TRANSFORM (a) USING 'cat' AS (b) FROM t",
        "SELECT count(*), rand() FROM t GROUP BY window(d, '1 day')",  # what sqlglot cannot read
        "SELECT current_date, count(*) FROM t GROUP BY window(d, '1 day')",
        "SELECT count(*) FROM t WHERE d = 'today' GROUP BY window(d, '1 day')",
        "SELECT count(*) FROM t WHERE d > TIMESTAMP '06:00' GROUP BY window(d, '1 day')",
        "SELECT current_path(), count(*) FROM t GROUP BY window(d, '1 day')",
        "SELECT CURRENT_PATH, count(*) FROM t GROUP BY window(d, '1 day')",
    ],
)
def test_queries_that_the_tables_do_not_determine_are_refused(query: str) -> None:
    with pytest.raises(NotMaintainable, match="not determined by the tables"):
        refuse_indeterminate(query)


@pytest.mark.parametrize(
    "text",
    ["EXECUTE IMMEDIATE 'SELECT now() AS x'", "DESCRIBE QUERY SELECT * FROM t", "EXPLAIN SELECT * FROM t", "SET a = 1"],
)
def test_what_is_no_query_is_refused(text: str) -> None:
    with pytest.raises(NotMaintainable, match="as the definition of a view: is no query"):
        refuse_indeterminate(text)


@pytest.mark.parametrize(
    "text",
    ["/* a */ ((SELECT 1 AS a))", "VALUES (1)", "TABLE t", "FROM t", "WITH x AS (SELECT 1 AS a) FROM x SELECT a"],
)
def test_every_kind_of_query_is_one(text: str) -> None:
    refuse_indeterminate(text)


def test_an_aggregate_whose_order_is_open_is_refused_in_a_text_that_is_not_parsed() -> None:
    with pytest.raises(NotMaintainable, match="may not be determined"):
        refuse_indeterminate("SELECT first(a) FROM t GROUP BY window(d, '1 day')")
    refuse_indeterminate("SELECT count(*) FROM t GROUP BY window(d, '1 day') ORDER BY 1 NULLS FIRST")
    refuse_indeterminate(f"SELECT {'(' * 3000}a{')' * 3000} FROM t")


@pytest.mark.parametrize(
    "text",
    [
        "SELECT count(*) FROM t TABLESAMPLE (10 PERCENT) GROUP BY window(d, '1 day')",
        "SELECT a FROM t TABLESAMPLE (3 ROWS) UNION ALL TABLE u",
    ],
)
def test_a_sample_in_a_text_that_is_not_parsed_is_refused(text: str) -> None:
    with pytest.raises(NotMaintainable, match="TABLESAMPLE: which rows it takes is not determined"):
        refuse_indeterminate(text)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT IDENTIFIER('rand')() AS r FROM t",
        "SELECT identifier ('my_udf')(a) AS r FROM t",
        "SELECT a FROM IDENTIFIER('default.' || 'foo')",
        "SELECT count(*), IDENTIFIER('rand')() FROM t GROUP BY window(d, '1 day')",
    ],
)
def test_names_that_are_computed_are_refused(text: str) -> None:
    """IDENTIFIER(…) may name a random function, one that is not Spark's own, or a table of others."""
    with pytest.raises(NotMaintainable, match=r"IDENTIFIER\(…\) in the definition of a view.*Write the name itself"):
        refuse_indeterminate(text)


@pytest.mark.parametrize(
    "expression",
    [
        "c = '06:00'",
        "c BETWEEN '06:00' AND '18:00'",
        "d > TIMESTAMP '2020-01-01 06:00'",
        "d > TIMESTAMP_NTZ '2020-01-01T06:00'",
        "INTERVAL '06:00' HOUR TO MINUTE",
        "CAST('06:00' AS STRING)",
        "to_timestamp('06:00', 'HH:mm')",
        "date_format(d, 'HH:mm')",
        "identifier + `identifier`",
    ],
)
def test_times_of_day_may_be_text(expression: str) -> None:
    """Beside a column they are judged by its type, which Spark's plan shows (test_plan_checks.py)."""
    refuse_indeterminate(f"SELECT {expression} AS x FROM t")


@pytest.mark.parametrize(
    "expression",
    [
        "IF(d = DATE '2026-03-30', 'today', 'another day')",
        "IF(d = DATE '2026-03-30', 'today', CAST(d AS STRING))",
        "CASE WHEN a > 1 THEN 'now' WHEN a > 0 THEN 'today' ELSE NULL END",
        "CASE lower(c) WHEN 'today' THEN 1 ELSE 2 END",
        "coalesce(lower(c), 'today')",
        "nvl2(a, 'now', 'later')",
        "array('today', 'tomorrow')",
        "greatest('today', upper(c))",
        "lower(c) = 'today'",
        "upper(c) IN ('now', 'later')",
        "concat('now', c)",
        "to_json(named_struct('today', a))",
    ],
)
def test_words_for_a_day_may_be_text(expression: str) -> None:
    """'today' and 'now' are no dates where every value beside them is text."""
    refuse_indeterminate(f"SELECT {expression} AS x FROM t")


def test_words_for_a_day_may_be_text_in_unions() -> None:
    refuse_indeterminate("SELECT 'today' AS x UNION ALL SELECT lower(c) FROM t")
    refuse_indeterminate("SELECT a, 'later' AS x FROM t UNION ALL SELECT * FROM t")


# fmt: off
ORDER_DEPENDENT = [
    "collect_list(a)", "collect_set(a)", "array_agg(a)", "first(a)", "last(a, true)", "first_value(a)",
    "any_value(a)", "mode(a)", "listagg(c, ',')", "string_agg(c)", "approx_percentile(a, 0.5)",
    "histogram_numeric(a, 3)", "hll_sketch_agg(a)", "kll_sketch_agg_bigint(a)", "theta_sketch_agg(a)",
    "approx_top_k(a)", "array_sort(collect_list(a), (x, y) -> 0)", "collect_list(a) FILTER (WHERE b > 0)",
    "collect_list(a) OVER (PARTITION BY b)", "any_value(a) OVER (PARTITION BY b)",
]
# fmt: on


@pytest.mark.parametrize("call", ORDER_DEPENDENT)
def test_what_depends_on_the_order_of_rows_is_refused(call: str) -> None:
    with pytest.raises(NotMaintainable, match="is not determined"):
        refuse_indeterminate(f"SELECT {call} AS x FROM t")


@pytest.mark.parametrize(
    "call",
    [
        "sort_array(collect_list(a))",
        "sort_array(collect_set(a), false)",
        "sort_array(collect_list(a) FILTER (WHERE b > 0))",
        "mode(a, true)",
        "approx_count_distinct(a)",
        "percentile(a, 0.5)",
        "median(a)",
        "max_by(a, b)",
        "first_value(a) OVER (PARTITION BY b ORDER BY c)",
        "first(a) IGNORE NULLS OVER (PARTITION BY b ORDER BY c)",
    ],
)
def test_what_is_determined_is_not_refused(call: str) -> None:
    refuse_indeterminate(f"SELECT {call} AS x FROM t")


BEST_BY = {
    "by": "SELECT a, MAX_BY(c, b) AS hi, MIN_BY(c, b) AS lo FROM t GROUP BY a",
    "filtered": (
        "SELECT a, MAX_BY(c, b) FILTER (WHERE b > 0) AS hi, COUNT(*) AS n FROM t GROUP BY a HAVING COUNT(*) > 1"
    ),
    "of all": "SELECT MAX_BY(b, a) AS hi FROM t",
    "beside others": "SELECT a, MAX_BY(b, b) AS hi, SUM(b) AS s FROM t GROUP BY a",
}


@pytest.mark.parametrize("name", BEST_BY)
@settings(laws, max_examples=60)
@given(run=states(2), noise=noises())
def test_max_by_is_the_best_pair(name: str, run: list[State], noise: dict[str, Any]) -> None:
    """Law: the pair (y, x) gives an x that max_by may give, and follows changes as state does."""
    plain = lower(BEST_BY[name], SCHEMAS)
    lowered = best_by_pairs(plain, all_of("int"))
    assert lowered.outputs == plain.outputs
    change = Change(run[0], run[1], noise)
    for types in ("int", "double"):
        form = choose_form(lowered, tuple(f"n{i}" for i, _ in enumerate(lowered.outputs)), all_of(types))
        old, new = (evaluate(at_version(form.tree, v), change.read) for v in ("old", "new"))
        plan = delta_plan(form, lowered, change.changed, dict.fromkeys(form.stored, "bigint"))
        delta: Bag = Counter() if plan is None else signed(plan, replace(change, stored=(form.stored, old)).read)
        assert plus(old, delta) == new


@pytest.mark.parametrize("type_", ["map<int,int>", "variant", "struct<a:map<int,int>>"])
def test_max_by_of_what_has_no_order_is_refused(type_: str) -> None:
    with pytest.raises(NotMaintainable, match="has no order"):
        best_by_pairs(lower("SELECT MAX_BY(a, b) AS m FROM t", SCHEMAS), all_of(type_))


def test_open_ties_are_refused_in_texts_that_the_parser_cannot_take() -> None:
    """Pipe syntax makes the parser raise errors of its own kinds."""
    with pytest.raises(NotMaintainable, match="LIMIT"):
        refuse_open_ties("SELECT a FROM t |> LIMIT 1", "pipe syntax")
    refuse_open_ties("SELECT a FROM t |> WHERE a > 1", "pipe syntax")


@pytest.mark.parametrize("frame", ["1 PRECEDING", "BETWEEN CURRENT ROW AND\n1 FOLLOWING", "CURRENT ROW"])
def test_frames_of_rows_leave_ties_open_in_such_texts_too(frame: str) -> None:
    text = "FROM t |> EXTEND sum(b) OVER (ORDER BY a {}) AS s |> DROP a"
    with pytest.raises(NotMaintainable, match="ROWS: which of equal rows it takes"):
        refuse_open_ties(text.format(f"rows {frame}"), "pipe syntax")
    refuse_open_ties(text.format(f"RANGE {frame}"), "pipe syntax")
    refuse_open_ties("FROM t |> EXTEND a AS rows |> DROP a", "pipe syntax")


@pytest.mark.parametrize("call", ['"rand"()', '"first"(a)', '"Current_Date" ()', 'coalesce("collect_list"(a))'])
def test_a_name_in_double_quotes_may_be_that_of_a_call(call: str) -> None:
    """It is under spark.sql.ansi.doubleQuotedIdentifiers; elsewhere no bracket follows a string."""
    with pytest.raises(NotMaintainable, match="determined"):
        refuse_indeterminate(f"SELECT b, {call} FROM t GROUP BY b")


def test_ties_of_a_call_in_double_quotes_are_open() -> None:
    with pytest.raises(NotMaintainable, match="MAX_BY: which of equal rows it takes"):
        refuse_open_ties('SELECT b, "max_by"(a, b) FROM t GROUP BY b', "a name in quotes")
    refuse_open_ties("SELECT b, max(a) FROM t WHERE c = 'max_by' GROUP BY b", "a string")


def test_an_offset_leaves_ties_open_without_a_limit_too() -> None:
    with pytest.raises(NotMaintainable, match=r"OFFSET: which of equal rows it keeps.*Leave OFFSET out"):
        refuse_open_ties("SELECT xxhash64(*) AS x FROM (SELECT a, b FROM t ORDER BY a OFFSET 1)", "a star")


_LAG = "lag(x) OVER (PARTITION BY g ORDER BY x)"


@pytest.mark.parametrize(
    "query",
    [
        f"SELECT {_LAG} AS l, row_number() OVER (ORDER BY x) AS r FROM t",
        f"SELECT {_LAG} AS l, sum(x) OVER (PARTITION BY h ORDER BY x ROWS UNBOUNDED PRECEDING) AS r FROM t",
        f"SELECT l, row_number() OVER (PARTITION BY g ORDER BY x) AS r FROM (SELECT x, g, {_LAG} AS l FROM t)",
        f"SELECT lead(x) OVER (ORDER BY l) AS r FROM (SELECT x, l FROM (SELECT x, g, {_LAG} AS l FROM t) WHERE g > 0)",
    ],
)
def test_windows_that_put_equal_rows_in_two_orders_are_refused(query: str) -> None:
    """Of three equal rows, only the one that lies first has a NULL before it, and Spark gives that one the number 1."""
    lowered = lower(query, {"t": ("x", "g", "h")})
    with pytest.raises(NotMaintainable, match=r"LAG\(t.x\).* distinguishes them.*declare the keys"):
        refuse_ordered_copies(lowered, {"t": SourceFacts()})
    exact = dict.fromkeys("xgh", "int")
    if "FROM (" not in query:
        refuse_ordered_copies(lowered, {"t": SourceFacts(("x", "g"), exact)})  # it has no equal rows


@pytest.mark.parametrize(
    "query",
    [
        f"SELECT {_LAG} AS l, row_number() OVER (PARTITION BY g ORDER BY x DESC) AS r FROM t",
        f"SELECT {_LAG} AS l, rank() OVER (ORDER BY x) AS r, sum(x) OVER (PARTITION BY h) AS s FROM t",
        f"SELECT {_LAG} AS l FROM (SELECT x, g, row_number() OVER (PARTITION BY h ORDER BY x) AS n FROM t) WHERE n = 1",
        f"SELECT l, row_number() OVER (ORDER BY n) AS r FROM (SELECT l, count(*) AS n FROM (SELECT {_LAG} AS l FROM t)"
        " GROUP BY l)",
    ],
)
def test_windows_that_see_one_order_of_equal_rows_are_not_refused(query: str) -> None:
    refuse_ordered_copies(lower(query, {"t": ("x", "g", "h")}), {"t": SourceFacts()})
