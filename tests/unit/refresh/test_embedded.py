"""What keeps a plan from the embedded engine: settings, and parts that Spark cannot compute before."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sqlglot import exp

from freshview.algebra.nodes import Filter, Node, Scan, Shared, Table, column
from freshview.catalog.records import Relation
from freshview.local.plans import LocalPlan, translated
from freshview.local.typed import Unproven
from freshview.refresh import embedded
from freshview.refresh.embedded import HARMLESS, preparing, require_defaults
from freshview.relation.schema import Column, Schema
from freshview.relation.types import parse_type
from freshview.spark.meaning import DEFAULTS, MEANING
from freshview.spark.running import PlanRunner


def test_sparks_defaults_are_accepted_in_any_case_of_letters() -> None:
    require_defaults(DEFAULTS)
    require_defaults({key: value.upper() for key, value in DEFAULTS.items()})


@pytest.mark.parametrize("key", [*MEANING, "spark.sql.of.another.version"])
def test_any_other_setting_is_an_obstacle_unless_it_is_known_to_be_harmless(key: str) -> None:
    """Settings without a default, and such as nobody knows, are kept by a view too."""
    other = "true" if DEFAULTS.get(key) != "true" else "false"
    if key in HARMLESS:
        require_defaults({key: other})
    else:
        with pytest.raises(Unproven, match=f"the setting {key} = {other}"):
            require_defaults({**DEFAULTS, key: other})


def test_spark_does_not_prepare_what_stands_on_a_part_that_several_views_share() -> None:
    """The rows of such a part are known when it has been run; before, the view's plan is left to Spark."""
    part = Filter(Scan(Shared(1), (("a", "a"),)), exp.EQ(this=column("a"), expression=exp.Literal.number(1)))
    with pytest.raises(Unproven, match="several views share"):
        preparing(None, lambda: None)(part)  # type: ignore[arg-type,return-value]  # neither is asked


def test_a_query_is_translated_once_for_scans_of_the_same_schemas(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Node] = []

    def counted(root: Node, *args: Any) -> LocalPlan:
        asked.append(root)
        return translated(root, *args)

    monkeypatch.setattr(embedded, "translated", counted)
    query = Scan(Table("t"), (("a", "a"),), "delta")
    plans = [embedded.embedded(query, _given(type_), _no_spark) for type_ in ("int", "int", "bigint", "int")]
    assert len(asked) == 3
    assert [str(dict(plan.columns)["a"]) for plan in plans] == ["int", "int", "bigint", "int"]


def _given(type_: str) -> Any:
    """The input of a job for a view that stores its one source."""
    schema = Schema((Column("a", parse_type(type_)),))
    relation = Relation(1, "t", "table", 1, 1, schema, 1, None, {}, {"settings": "{}"})
    return SimpleNamespace(view=relation, relation=lambda _: relation)


def _no_spark() -> PlanRunner:
    raise AssertionError("nothing is computed by Spark")
