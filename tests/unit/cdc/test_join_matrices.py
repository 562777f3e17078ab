"""The join matrices of the paper (Figures 9 and 10), cell by cell, and the views that equal their recomputation."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from tests.unit.cdc.applying import applied
from tests.unit.cdc.running_example import cells, rows_of, schema_of
from tests.unit.cdc.worlds import InMemory, recomputed

from freshview.cdc.captures import LOG, SNAPSHOTS
from freshview.cdc.dimension import KeyJoin, Remote
from freshview.cdc.model import PartialDelta, partial_delta
from freshview.cdc.rules import propagate
from freshview.relation.schema import Schema

S = schema_of("s int, a int, b string", "s")
T = schema_of("t int, v string", "t")
VIEW = KeyJoin(Remote("S", S, LOG), Remote("T", T, SNAPSHOTS), ("a",))

# Figure 9: columns are the sets of S, rows those of T; the columns up, ups and delk hold for all rows.
_FIGURE_9 = """
      pre   ins  del
pre   -     ins  del
ins   ins   ins  -
del   del   -    del
un    un    ins  -
uo    uo    -    del
up    up    ins  -
ups   ups   ins  -
delk  delk  -    delk
"""
# For (up, del) and (ups, del) the figure prints "-", which holds for the new image of T's row: it joins no row of S.
# Its old image joined the deleted row, and j(comp, up) = up, j(comp, ups) = ups: without a new row, a partial deletion.
_OLD_IMAGE_OF_PARTIAL = {("up", "del"): "delk", ("ups", "del"): "delk"}

# Figure 10: partner of S.un in Tnew, partner of S.uo in Told, result.
_FIGURE_10 = """
-   -   -      un  -   ins
-   pre del    un  pre un/uo
-   uo  del    un  uo  un/uo
-   del del    un  del un/uo
-   delk delk  un  delk up
-   up  delk   un  up  up
-   ups delk   un  ups ups
pre -   ins    up  -   ins
pre pre un/uo  up  pre un/uo
pre uo  un/uo  up  uo  un/uo
pre del un/uo  up  del un/uo
pre delk up    up  delk up
pre up  up     up  up  up
pre ups ups    up  ups ups
ins -   ins    ups -   ins
ins pre un/uo  ups pre un/uo
ins uo  un/uo  ups uo  un/uo
ins del un/uo  ups del un/uo
ins delk up    ups delk up
ins up  up     ups up  up
ins ups ups    ups ups ups
"""


def _figure_9() -> list[tuple[str, str, str]]:
    header, *rows = (line.split() for line in _FIGURE_9.strip().splitlines())
    return [(t, s, cell) for t, *line in rows for s, cell in zip(header, line, strict=True)]


def _figure_10() -> list[tuple[str, str, str]]:
    words = [line.split() for line in _FIGURE_10.strip().splitlines()]
    return [(w[i], w[i + 1], w[i + 2]) for i in (0, 3) for w in words]


class _World:
    """Old and new rows of one table, and the delta between them."""

    def __init__(self, name: str, schema: Schema) -> None:
        self.name, self.schema = name, schema
        self.old: list[tuple[Any, ...]] = []
        self.new: list[tuple[Any, ...]] = []
        self._sets: dict[str, list[tuple[Any, ...]]] = {}

    def add(self, kind: str, old: tuple[Any, ...], new: tuple[Any, ...]) -> None:
        """A row that is preserved, or changes as the set says."""
        if kind == "-":
            return
        if kind == "pre":
            old = new
        if kind != "ins":
            self.old.append(old)
        if kind not in ("del", "delk"):
            self.new.append(new)
        if kind in ("un", "uo"):
            self._sets.setdefault("un", []).append(new)
            self._sets.setdefault("uo", []).append(old)
        elif kind == "delk":
            self._sets.setdefault("delk", []).append(old[:1])
        elif kind != "pre":
            self._sets.setdefault(kind, []).append(old if kind == "del" else new)

    def delta(self) -> PartialDelta:
        full = {k: rows_of(self.schema, *rows) for k, rows in self._sets.items() if k != "delk"}
        keys = self._sets.get("delk", [])
        none = rows_of(self.schema)
        return partial_delta(
            self.name,
            self.schema,
            ins=full.get("ins"),
            deleted=full.get("del"),
            pairs=(full.get("un", none), full.get("uo", none)),
            up=full.get("up"),
            ups=full.get("ups"),
            delk=pa.table({self.schema.names[0]: pa.array([k for (k,) in keys], pa.int32())}),
        )


def _result(s: _World, t: _World) -> str:
    """The set of the view's one change; its application is checked against recomputation."""
    old = {w.name: rows_of(w.schema, *w.old) for w in (s, t)}
    new = {w.name: rows_of(w.schema, *w.new) for w in (s, t)}
    delta = propagate(VIEW, "v", {w.name: w.delta() for w in (s, t)}, InMemory(new))
    stored = rows_of(VIEW.schema, *recomputed(VIEW, old))
    assert cells(applied(stored, delta)) == recomputed(VIEW, new)
    assert delta.num_changes <= 1
    return next(iter(delta.filled), "-")


@pytest.mark.parametrize(("t_kind", "s_kind", "printed"), _figure_9())
def test_figure_9(t_kind: str, s_kind: str, printed: str) -> None:
    result = _nine(s_kind, t_kind)
    if t_kind in ("un", "uo"):  # two rows of the figure, one change: what the new image yields, and what the old one
        printed = {"pre": "un/uo", "ins": "ins", "del": "del"}[s_kind]
    assert result == _OLD_IMAGE_OF_PARTIAL.get((t_kind, s_kind), printed)


@pytest.mark.parametrize("t_kind", ["pre", "ins", "del", "un", "up", "ups", "delk"])
@pytest.mark.parametrize(("s_kind", "printed"), [("up", "ups"), ("ups", "ups"), ("delk", "delk")])
def test_figure_9_partial_rows_of_s(s_kind: str, printed: str, t_kind: str) -> None:
    """The new row of S finds no partner where T's row is gone: the upsert then deletes by key, as in §5.5."""
    expected = "delk" if t_kind in ("del", "delk") else printed
    assert _nine(s_kind, t_kind) == expected


def _nine(s_kind: str, t_kind: str) -> str:
    s, t = _World("S", S), _World("T", T)
    s.add(s_kind, (1, 10, "old"), (1, 10, "new"))
    t.add(t_kind, (10, "old"), (10, "new"))
    return _result(s, t)


@pytest.mark.parametrize(("in_new", "in_old", "printed"), _figure_10())
def test_figure_10(in_new: str, in_old: str, printed: str) -> None:
    s, t = _World("S", S), _World("T", T)
    s.add("un", (1, 20, "x"), (1, 10, "x"))
    t.add(in_new, (10, "old"), (10, "new"))
    t.add(in_old, (20, "old"), (20, "new"))
    assert _result(s, t) == printed


def test_the_figures_are_whole() -> None:
    assert len(set(_figure_10())) == 6 * 7
    assert len(set(_figure_9())) == 8 * 3
