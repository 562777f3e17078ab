"""What plans show of definitions: foreign leaves, and times of day where timestamps are expected."""

from __future__ import annotations

import pytest

from freshview.definition.plan_checks import refuse_by_plans
from freshview.errors import NotMaintainable

_OURS = """SubqueryAlias _pyspark_e9e7
{0}   +- View (`_pyspark_e9e7`, [k#6, ts#8, s#9])
{0}      +- MapInArrow t(id#4L)#5, [k#6, ts#8, s#9], false
{0}         +- Range (0, 1, step=1, splits=Some(1))"""


def _explained(optimised: str, analysed: str = "") -> str:
    analysed = analysed or f"k: int\nProject [k#6]\n+- {_OURS.format('')}"
    return (
        f"== Parsed Logical Plan ==\n...\n\n== Analyzed Logical Plan ==\n{analysed}\n\n"
        f"== Optimized Logical Plan ==\n{optimised}\n\n== Physical Plan ==\n..."
    )


_LEAF = "MapInArrow t(id#4L)#5, [k#6, ts#8, s#9, d#10], false\n      +- Range (0, 1, step=1, splits=Some(1))"
CLOCKS = {
    "compared": f"Project [k#6]\n+- Filter (isnotnull(ts#8) AND (ts#8 > cast(06:00:00 as timestamp)))\n   +- {_LEAF}",
    "in a list": f"Filter ts#8 IN (cast(2020-01-01 as timestamp),cast( T7 as timestamp))\n   +- {_LEAF}",
    "tried": f"Project [try_cast(6:0 UTC as timestamp) AS x#7]\n+- {_LEAF}",
    "beside a column": f"Filter (cast(if ((k#6 = 1)) 06:00 else s#9 as timestamp) > ts#8)\n   +- {_LEAF}",
    "in an array": f"Project [cast(array(concat(06, :00)) as array<timestamp>) AS x#7]\n+- {_LEAF}",
    "behind no column": f"Project [cast(concat(,  06:00) as timestamp) AS x#7]\n+- {_LEAF}",
    "in place of a value": f"Project [cast(coalesce(s#9,  06:00) as timestamp) AS x#7]\n+- {_LEAF}",
    "in a struct": f"Project [cast(named_struct(a, 06:00) as struct<b:decimal(10,2),a:timestamp>) AS x#7]\n+- {_LEAF}",
    "in a lambda": (
        "Project [exists(array(06:00), lambdafunction((cast(lambda y#11 as timestamp) > ts#8), lambda y#11, false))"
        f" AS x#12]\n+- {_LEAF}"
    ),
    "under a name": (
        f"Filter (cast(d#12 as timestamp) > ts#8)\n+- Project [k#6, ts#8, c#11 AS d#12]\n"
        f"   +- Project [k#6, ts#8, 06:00 AS c#11]\n   +- {_LEAF}"
    ),
    "in a subquery": (
        f"Filter (ts#8 > cast(scalar-subquery#34 [] as timestamp))\n:  +- Aggregate [max(06:00) AS m#39]\n"
        f":     +- OneRowRelation\n+- {_LEAF}"
    ),
    "in a branch": (
        f"Filter (ts#8 > cast(s#9 as timestamp))\n+- Union false, false\n   :- Project [ts#8, s#9]\n   :  +- {_LEAF}\n"
        "   +- Project [null AS ts#20, 06:00 AS c#21]\n      +- OneRowRelation"
    ),
    "in a format": f"Project [cast(date_format(ts#8, HH:mm, Some(UTC)) as timestamp) AS x#13]\n+- {_LEAF}",
    "in the format of a string": f"Filter (ts#8 > cast(format_string(%1$02d:30, k#6) as timestamp))\n+- {_LEAF}",
    "put together": f"Filter (ts#8 > cast(concat_ws(:, 06, 30) as timestamp))\n+- {_LEAF}",
    "in a document": (
        'Project [from_json(StructField(a,TimestampType,true), {"a":"06:00"}, Some(UTC), false).a AS x#9]'
        f"\n+- {_LEAF}"
    ),
    "in VALUES": f"Join Inner, (ts#8 > cast(c#33 as timestamp))\n:- {_LEAF}\n+- LocalRelation [c#33]",
}
_TEXTS = {"in VALUES": "SELECT k FROM t JOIN (VALUES ('06:00')) x(c) ON ts > c"}


@pytest.mark.parametrize("case", CLOCKS)
def test_a_time_of_day_where_a_timestamp_is_expected_is_refused(case: str) -> None:
    """Spark takes it for a time of the day on which the query runs."""
    with pytest.raises(NotMaintainable, match=r"time of day .*the day of the query.*Write the date before it"):
        refuse_by_plans(_TEXTS.get(case, "SELECT k FROM t"), _explained(CLOCKS[case]))


@pytest.mark.parametrize(
    "plan",
    [
        f"Filter (s#9 = 06:00)\n+- {_LEAF}",
        f"Filter (ts#8 > cast(2020-01-01 06:00 as timestamp))\n+- {_LEAF}",
        f"Filter (cast(s#9 as timestamp) > ts#8)\n+- {_LEAF}",  # of data: docs/sql.md
        f"Filter ((s#9 = 06:00) AND (cast(d#10 as timestamp) > ts#8))\n+- {_LEAF}",
        f"Project [06:00 AS c#12, cast(d#10 as timestamp) AS x#13, cast(06:00 as timestamp_ntz) AS y#14]\n+- {_LEAF}",
        f"Project [cast(d#10 as timestamp) + INTERVAL '06:00' HOUR TO MINUTE AS x#13]\n+- {_LEAF}",
        f"Project [cast(concat(cast(d#10 as string),  12:30:00) as timestamp) AS x#13]\n+- {_LEAF}",
        f"Project [cast(concat(d#10, T06:00:00) as timestamp) AS x#13]\n+- {_LEAF}",
        f"Project [cast(date_format(ts#8, yyyy-MM-dd 00:00:00, Some(UTC)) as timestamp) AS x#13]\n+- {_LEAF}",
        f"Project [cast(T1#10 as timestamp) AS x#13, cast(concat(T1(k#6), +06:00) as timestamp) AS y#1]\n+- {_LEAF}",
    ],
)
def test_a_time_of_day_beside_text_is_text(plan: str) -> None:
    refuse_by_plans("SELECT k FROM t WHERE s = '06:00'", _explained(plan))


def test_formats_of_times_are_found_where_constants_are_computed_too() -> None:
    with pytest.raises(NotMaintainable, match="time of day"):
        refuse_by_plans("SELECT k FROM t", _explained(CLOCKS["in a format"]), is_unfolded=False)


def test_values_without_times_are_no_clocks() -> None:
    plan = f"Join Inner, (cast(s#9 as timestamp) > ts#8)\n:- {_LEAF}\n+- LocalRelation [c#33]"
    refuse_by_plans("SELECT k FROM t JOIN (VALUES (1)) x(c) ON k = c", _explained(plan))


@pytest.mark.parametrize(
    "leaf",
    [
        "Relation spark_catalog.default.foo[k#1] parquet",
        "HiveTableRelation [`spark_catalog`.`default`.`foo`]",
        "RelationV2[k#1] testcat.foo",
        "LogicalRDD [k#1], false",
        "View (`spark_catalog`.`default`.`fv`, [k#81])\n   :     +- OneRowRelation",
        "View (`tv`, [k#81])\n   :     +- Range (0, 3, step=1)",
    ],
)
def test_leaves_of_others_are_refused(leaf: str) -> None:
    """Wherever they stand, and however the text names them."""
    other = _OURS.format("   ")
    analysed = f"k: int\nProject [k#6]\n+- Filter exists#1 []\n   :  +- {leaf}\n   +- {other}"
    with pytest.raises(
        NotMaintainable, match="in the plan of a view's definition: it is no table or view of this ware"
    ):
        refuse_by_plans("SELECT k FROM t", _explained("", analysed))


@pytest.mark.parametrize(
    "leaf",
    [
        "LocalRelation [k#1]",
        "OneRowRelation",
        "Range (0, 3, step=1)",
        "CTERelationRef 2, true, [n#112L], false, false",
        "UnionLoopRef 1, [1#107], false",
    ],
)
def test_leaves_that_are_nobodys_are_not(leaf: str) -> None:
    analysed = f"k: int\nProject [k#6, a\nb AS c#1]\n+- Join Inner\n   :- {leaf}\n   +- {_OURS.format('   ')}"
    refuse_by_plans("SELECT k FROM t", _explained("", analysed))


CALLS = ["current_date(Some(UTC))", "now()", "current_timestamp()", "current_user()", "current_time(6, Some(UTC))"]


@pytest.mark.parametrize("call", [*CALLS, "rand(-326)", "uuid(Some(-5))", "localtimestamp(Some(UTC))"])
def test_calls_that_the_tables_do_not_determine_are_refused_however_they_are_named(call: str) -> None:
    analysed = f"k: int, x: date\nProject [k#6, {call} AS x#9]\n+- {_OURS.format('')}"
    with pytest.raises(NotMaintainable, match=r"\(\) in the plan of a view's definition: its value is not determined"):
        refuse_by_plans("SELECT k, `x` FROM t", _explained("", analysed))


@pytest.mark.parametrize("name", ["1 AS now()#9", "now()#9", "(s#7 = rand())", "brand(1) AS x#9", "user#9"])
def test_names_and_strings_are_no_calls(name: str) -> None:
    refuse_by_plans("SELECT k FROM t", _explained("", f"k: int\nProject [k#6, {name}]\n+- {_OURS.format('')}"))
