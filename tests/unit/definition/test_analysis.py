"""A view whose refresh is 'incremental' is refused where an operator would be recomputed."""

from __future__ import annotations

import pytest
from tests.unit.definition.analysed import analysed

from freshview.errors import NotMaintainable


@pytest.mark.parametrize(
    ("text", "operator"),
    [
        ("SELECT a FROM t ORDER BY b DESC LIMIT 3", r"top 3 by .*: ORDER BY … LIMIT"),
        ("SELECT a, RANK() OVER (ORDER BY b) AS r FROM t", r"window RANK\(\) OVER .*: a window without PARTITION BY"),
    ],
)
def test_strict_mode_names_the_operator(text: str, operator: str) -> None:
    with pytest.raises(NotMaintainable, match=operator):
        analysed(text, "incremental")
    assert analysed(text).reason
