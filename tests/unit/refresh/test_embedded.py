"""Under which settings a view may be maintained in the embedded engine."""

from __future__ import annotations

import pytest

from freshview.local.typed import Unproven
from freshview.refresh.embedded import HARMLESS, require_defaults
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
