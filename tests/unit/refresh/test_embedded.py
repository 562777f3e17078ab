"""What keeps a plan from the embedded engine: settings, and parts that Spark cannot compute before."""

from __future__ import annotations

import pytest
from sqlglot import exp

from freshview.algebra.nodes import Filter, Scan, Shared, column
from freshview.local.typed import Unproven
from freshview.refresh.embedded import HARMLESS, preparing, require_defaults
from freshview.spark.meaning import DEFAULTS, MEANING


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
