"""Optimised plans in normal form: equal for spellings of one query, different for different ones."""

from __future__ import annotations

import pytest

from freshview.sql.plans import normal, optimised, renumbered

LEAF = "MapInArrow t(id#0L)#1, [k#{k}L, v#{v}L], false\n{i}+- Range (0, 1, step=1, splits=Some(2))"


def leaf(k: int, v: int, indent: str = "") -> str:
    return LEAF.format(k=k, v=v, i=indent)


TEXT = f"""\
Aggregate [k#2L], [k#2L, sum(v#3L) AS s#10L]
+- Project [k#2L, v#3L]
   +- Filter ((isnotnull(k#2L) AND isnotnull(v#3L)) AND ((k#2L > 3) AND (v#3L < 4)))
      +- {leaf(2, 3, "         ")}"""
TREE = f"""\
Aggregate [k_1#59L], [k_1#59L AS k#18L, sum(v_2#60L) AS s#19L]
+- Project [k#54L AS k_1#59L, v#55L AS v_2#60L]
   +- Filter (((v#55L < 4) AND isnotnull(k#54L)) AND (isnotnull(v#55L) AND (k#54L > 3)))
      +- {leaf(54, 55, "         ")}"""


def test_names_on_the_way_numbers_and_the_order_of_conditions_make_no_difference() -> None:
    assert normal(TEXT) is not None
    assert normal(TEXT) == normal(TREE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(v#55L < 4)", "(v#55L < 5)"),
        ("(v#55L < 4)", "(k#54L < 4)"),
        ("sum(v_2#60L)", "sum(k_1#59L)"),
        ("k_1#59L AS k#18L, sum(v_2#60L) AS s#19L", "sum(v_2#60L) AS s#19L, k_1#59L AS k#18L"),
        ("(k#54L > 3)", "(k#54L > 3) AND (k#54L > 4)"),
        ("MapInArrow t(", "MapInArrow u("),
        ("Aggregate [k_1#59L]", "Aggregate [v_2#60L]"),
    ],
)
def test_what_is_another_query_is_another_plan(old: str, new: str) -> None:
    assert old in TREE
    assert normal(TREE.replace(old, new)) != normal(TEXT)


def test_the_sides_of_an_outer_join_are_told_apart() -> None:
    one = f"Join LeftOuter, (k#2L = k#7L)\n:- {leaf(2, 3, ':  ')}\n+- {leaf(7, 8, '   ').replace(' t(', ' u(')}"
    two = f"Join LeftOuter, (k#2L = k#7L)\n:- {leaf(7, 8, ':  ').replace(' t(', ' u(')}\n+- {leaf(2, 3, '   ')}"
    assert normal(one) is not None
    assert normal(one) != normal(two)


def test_which_column_of_two_equal_tables_is_kept_makes_a_difference() -> None:
    join = f"+- Join Inner, (k#2L = k#7L)\n   :- {leaf(2, 3, '   :  ')}\n   +- {leaf(7, 8, '      ')}"
    assert normal(f"Project [k#2L, v#3L]\n{join}") != normal(f"Project [k#2L, v#8L]\n{join}")


def test_a_cross_join_with_a_condition_is_an_inner_join_and_the_last_sort_goes() -> None:
    join = f"Join Inner, (k#2L = k#7L)\n:- {leaf(2, 3, ':  ')}\n+- {leaf(7, 8, '   ')}"
    assert normal(join) == normal(join.replace("Inner", "Cross"))
    assert normal(f"Sort [v#3L ASC NULLS FIRST], true\n+- {leaf(2, 3, '   ')}") == normal(leaf(2, 3))


@pytest.mark.parametrize("operator", ["Union false, false", "Intersect All", "Expand [[k#2L]], [k#9L]"])
def test_plans_that_match_columns_by_place_have_no_normal_form(operator: str) -> None:
    assert normal(f"{operator}\n+- {leaf(2, 3, '   ')}") is None


def test_spellings_of_a_text_are_compared_by_numbers_alone() -> None:
    one = "Union false, false\n:- Project [k#1 AS a#2]\n+- Project [v#3 AS a#4]"
    assert renumbered(one) == renumbered(one.replace("#1", "#11").replace("#4", "#7"))
    assert renumbered(one) != renumbered(one.replace("v#3", "w#3"))
    assert renumbered("Project [a#1, a#2]") != renumbered("Project [a#1, a#1]")


def test_the_optimised_plan_is_cut_out_of_what_explain_prints() -> None:
    printed = "== Analyzed Logical Plan ==\nx\n\n== Optimized Logical Plan ==\nA\n+- B\n\n== Physical Plan ==\nC\n"
    assert optimised(printed) == "A\n+- B"
    assert optimised("org.apache.spark.sql.AnalysisException: no") is None
