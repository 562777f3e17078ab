"""A view whose refresh is 'incremental' is refused where an operator would be recomputed."""

from __future__ import annotations

import pytest
from tests.unit.definition.analysed import analysed

from freshview.errors import NotMaintainable


@pytest.mark.parametrize(
    ("text", "operator"),
    [
        ("SELECT a FROM t ORDER BY b DESC OFFSET 3", r"top all offset 3 by .*: ORDER BY … OFFSET without LIMIT"),
        ("SELECT a FROM t ORDER BY b LIMIT 0", r"top 0 by .*: ORDER BY … LIMIT 0 has no rows"),
        ("SELECT a FROM t ORDER BY b LIMIT 10 OFFSET 9991", r"top 10 offset 9991 .* LIMIT beyond 10,000 rows"),
        (
            "SELECT a FROM (SELECT a FROM t ORDER BY a LIMIT 3) WHERE a > 1",
            r"top 3 by .*: ORDER BY … LIMIT has a buffer",
        ),
        ("SELECT a + 1 AS b FROM (SELECT a FROM t ORDER BY a LIMIT 3)", r"top 3 by .*: ORDER BY … LIMIT has a buffer"),
        ("SELECT a, RANK() OVER (ORDER BY b) AS r FROM t", r"window RANK\(\) OVER .*: a window without PARTITION BY"),
    ],
)
def test_strict_mode_names_the_operator(text: str, operator: str) -> None:
    with pytest.raises(NotMaintainable, match=operator):
        analysed(text, "incremental")
    assert analysed(text).reason
