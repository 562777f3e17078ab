"""Where deltas are condensed: below all joins by the sources' keys, and once more before they are applied."""

from __future__ import annotations

import pytest
from tests.unit.view_grammar import SCHEMAS

from freshview.algebra.nodes import Node
from freshview.delta.condense import Condense, condenses
from freshview.delta.forms import Form, choose_form
from freshview.sql.lowering import lower

_KEYS = {"t": ("a",), "u": ("a",)}


def _form(text: str) -> Form:
    def types_of(node: Node) -> dict[str, str]:
        return dict.fromkeys(node.columns, "bigint")

    lowered = lower(text, SCHEMAS)
    return choose_form(lowered, tuple(n for _, n in lowered.outputs), types_of)


def test_every_source_has_a_partial_condense_and_the_view_a_full_one() -> None:
    found = condenses("v", _form("SELECT t.b, u.d FROM t JOIN u ON t.b = u.d"), {"t": ("a",), "u": ()})
    assert found == (Condense("t", "partial", ("a",)), Condense("u", "partial", ()), Condense("v", "full", ()))


def test_the_full_condense_goes_by_whole_rows_of_groups_too() -> None:
    """As the rows are cancelled: a group that changed is deleted and inserted."""
    form = _form("SELECT b, count(*) n FROM t GROUP BY b")
    assert condenses("v", form, {"t": ("a",)})[-1] == Condense("v", "full", ())


@pytest.mark.parametrize(
    ("text", "pushed"),
    [
        ("SELECT a, b FROM t WHERE b > 0", {"t"}),
        ("SELECT b FROM t", set()),  # the key is not shown
        ("SELECT a + 1 AS a FROM t", set()),
        ("SELECT t.a, u.d FROM t JOIN u ON t.b = u.a", {"t"}),  # u is looked up by its key
        ("SELECT t.a AS x, u.a AS y FROM t JOIN u ON t.a = u.a", {"t", "u"}),
        ("SELECT t.a, u.d FROM t JOIN u ON t.b = u.d", set()),  # t meets many
        ("SELECT t.a, u.d FROM t LEFT JOIN u ON t.b = u.a", {"t"}),
        ("SELECT u.a, t.b FROM t LEFT JOIN u ON t.a = u.a", set()),  # u may be missing
        ("SELECT a FROM t WHERE b IN (SELECT d FROM u)", {"t"}),
        ("SELECT x.a FROM t x JOIN t y ON x.b = y.a", set()),  # t occurs twice
        ("SELECT a, count(*) n FROM t GROUP BY a", set()),
        ("SELECT DISTINCT a, b FROM t", set()),
    ],
)
def test_it_is_pushed_through_joins_where_the_view_keeps_the_key(text: str, pushed: set[str]) -> None:
    """Figure 3(c)."""
    keys = {n: k for n, k in _KEYS.items() if n in ("t", "u")}
    used = {n: k for n, k in keys.items() if f" {n}" in text}
    assert {c.on for c in condenses("v", _form(text), used) if c.pushed} == pushed
