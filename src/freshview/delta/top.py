"""The first rows of an order, stored with a buffer: ORDER BY … LIMIT k OFFSET o at the root of a view.

    E       the input, in a total order: ties are broken by the whole row, to the bit
    B       what is stored: the best m rows of E, min(o + k, |E|) ≤ m ≤ size
    last    the worst row of B, marked in the column `more` if E may have rows beyond B; without it, B is all of E

Law. Let Δ be a change that agrees with Δ(E) on the rows that are not worse than `last`. Then

    N  =  { r in B + Δ : r not worse than last }       is the best |N| rows of new(E)
    B' =  the best `size` rows of N                    its worst row is `last'`, if there was a `last` or |N| > size

because a row better than `last` is in B as often as in E; and of `last` itself E may hold more copies than B, so that N
has at most those of new(E), and a count below 0 is none. What is worse than `last` is not known, and not needed, while
|N| ≥ o + k. If there is a `last` and |N| < o + k, the buffer has run out: the change then has rows of weight 0, which
`signed.net` finds, and the view is recomputed. That takes `size − o − k` of the best rows that go while none come.

Over an aggregate, Δ = γ(new ⋉ K) − B ⋉ K, K the touched keys: an old group that is not in B is worse than `last`. The
order then ends with the keys, so that no two groups tie.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from sqlglot import exp

from freshview.algebra.nodes import (
    WEIGHT,
    Filter,
    Lowered,
    Node,
    Project,
    TopK,
    Union,
    Window,
    chosen,
    column,
    names_in,
    same,
)
from freshview.delta.aggregates import case, stored
from freshview.delta.derive import weighted

SPARE = 100  # rows that are kept beyond those of the view, at least; as many again if the view has more
MOST = 10_000  # rows up to the end of the LIMIT: the change of so small a buffer is always netted on the driver

# Columns of a delta plan; no column of a tree has a space in its name.
_MORE, _RANK, _NET, _COPY, _BOUND, _KEPT, _LEFT, _PLACE = (
    f"top {name}" for name in ("more", "rank", "net", "copy", "bound", "kept", "left", "place")
)


@dataclass(frozen=True)
class Top:
    """How the first rows of an order are stored."""

    source: TopK  # as it stands in the definition
    node: TopK  # the same rows over the stored columns, in a total order
    visible: tuple[tuple[str, str], ...]  # (column of the view, column of the input)
    hidden: tuple[tuple[str, str], ...]  # (stored column, column of the input that the view does not show)
    member: str
    more: str
    size: int

    @property
    def reach(self) -> int:
        """The place of the last row that the view shows."""
        assert self.node.limit is not None
        return self.node.offset + self.node.limit

    @property
    def proviso(self) -> str:
        """How many rows are stored, and when that is not enough."""
        return f"the best {self.size:,} are stored, recomputed when fewer than {self.reach:,} of them are left"

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        """(column of the input, stored column) for each column of the input."""
        found = {c: s for s, c in reversed((*self.visible, *self.hidden))}
        return tuple((c, found[c]) for c in self.node.columns)

    @property
    def tree(self) -> Node:
        """The stored rows from scratch: one row more is taken, to know whether there are rows beyond the buffer."""
        best = replace(self.node, limit=self.size + 1, offset=0)
        count = exp.Window(this=exp.Count(this=exp.Star()))
        placed = Window(best, (), ((_PLACE, _over(exp.RowNumber(), self.node.order)), (_LEFT, count)))
        return Project(self._kept(placed), self._stored(_compared(exp.GT, _LEFT, self.size)))

    def delta(self, delta: Node, rows: Node) -> Node:
        """The change of the stored rows; `delta` is that of the input, `rows` are the stored ones in a delta plan."""
        own = tuple((c, column(stored(s))) for c, s in self.columns)
        before = Project(rows, (*own, (WEIGHT, exp.Literal.number(1)), (_MORE, column(stored(self.more)))))
        change = Project(delta, (*same(self.node.columns), (WEIGHT, column(WEIGHT)), (_MORE, exp.false())))
        both = Union((before, change), before.columns)
        ended = exp.Not(this=exp.Is(this=column(_BOUND), expression=exp.Null()))
        lacking = exp.and_(ended, _compared(exp.LT, _LEFT, self.reach))
        remaining = Filter(self._counted(both), exp.or_(_compared(exp.EQ, _KEPT, 1), lacking))
        placed = Window(remaining, (), ((_PLACE, _over(exp.RowNumber(), self.node.order)),))
        further = exp.or_(ended.copy(), _compared(exp.GT, _LEFT, self.size))
        sign = case(lacking.copy(), exp.Literal.number(0), exp.Literal.number(1))
        fresh = Project(self._kept(placed), (*self._stored(further), (WEIGHT, sign)))
        names = tuple(n for n, _ in self._stored(further))
        old = weighted(Project(rows, tuple((n, column(stored(n))) for n in names)), -1)
        return Union((fresh, old), (*names, WEIGHT))

    def _counted(self, both: Node) -> Node:
        """The signed rows with `_KEPT`, 1 for those of N, and `_LEFT`, their number. Rows of one rank are the same."""
        rank = _over(exp.Rank(), self.node.order)
        net = exp.Window(this=exp.Sum(this=column(WEIGHT)), partition_by=[column(_RANK)])
        copy = _over(exp.RowNumber(), [exp.Ordered(this=column(WEIGHT), desc=True, nulls_first=False)])
        copy.set("partition_by", [column(_RANK)])
        bound = exp.Window(this=exp.Max(this=case(column(_MORE), column(_RANK))))
        ranked = Window(both, (), ((_RANK, rank),))
        netted = Window(ranked, (_RANK,), ((_NET, net), (_COPY, copy)))
        bounded = Window(netted, (), ((_BOUND, bound),))
        open_ = exp.Is(this=column(_BOUND), expression=exp.Null())
        kept = exp.and_(
            exp.GT(this=column(WEIGHT), expression=exp.Literal.number(0)),
            exp.LTE(this=column(_COPY), expression=column(_NET)),
            exp.or_(open_, exp.LTE(this=column(_RANK), expression=column(_BOUND))),
        )
        flag = case(kept, exp.Literal.number(1), exp.Literal.number(0))
        flagged = Project(bounded, (*same((*self.node.columns, _BOUND)), (_KEPT, flag)))
        return Window(flagged, (), ((_LEFT, exp.Window(this=exp.Sum(this=column(_KEPT)))),))

    def _kept(self, placed: Node) -> Node:
        return Filter(placed, _compared(exp.LTE, _PLACE, self.size))

    def _stored(self, further: exp.Expr) -> tuple[tuple[str, exp.Expr], ...]:
        """The stored columns of a row at its place; `further`: there are rows beyond the buffer."""
        belongs = exp.and_(_compared(exp.GT, _PLACE, self.node.offset), _compared(exp.LTE, _PLACE, self.reach))
        ends = exp.EQ(this=column(_PLACE), expression=column(_LEFT))
        is_last = exp.and_(exp.or_(_compared(exp.EQ, _PLACE, self.size), ends), further.copy())
        marks = ((self.member, belongs), (self.more, case(is_last, exp.true(), exp.false())))
        return (*((s, column(c)) for s, c in (*self.visible, *self.hidden)), *marks)


def root_top(lowered: Lowered, names: tuple[str, ...]) -> tuple[TopK, tuple[tuple[str, str], ...]] | None:
    """The ORDER BY … LIMIT at the root, and the column of its input for each of the view; None if there is none."""
    node, places = lowered.node, {c: c for c, _ in lowered.outputs}
    while isinstance(node, Project):
        items = dict(node.items)
        found = {c: items[place] for c, place in places.items()}
        places = {c: e.name for c, e in found.items() if isinstance(e, exp.Column)}
        if len(places) < len(found):
            return None
        node = node.input
    if not isinstance(node, TopK) or not _is_bounded(node):
        return None
    return node, tuple((n, places[c]) for n, (c, _) in zip(names, lowered.outputs, strict=True))


def kept(
    node: TopK,
    over: Node,
    visible: tuple[tuple[str, str], ...],
    keys: tuple[str, ...],
    hidden: Iterable[str],
    marks: tuple[str, str],
) -> Top:
    """How the rows of a LIMIT over an input are stored; `keys` of a grouping below it make its order total.

    `hidden` gives names for stored columns that the view does not show; `marks` are those of `member` and `more`.
    """
    one = alike(over, (c for _, c in visible))
    visible = tuple((n, one[c]) for n, c in visible)
    terms = (*node.order, *(exp.Ordered(this=column(k), desc=False) for k in keys))
    first: dict[exp.Expr, exp.Expr] = {}  # a second term over the same value decides nothing
    for term in terms:
        renamed = term.transform(lambda n: column(one[n.name]) if isinstance(n, exp.Column) else n)
        first.setdefault(renamed.this, renamed)
    order = tuple(first.values())
    used = dict.fromkeys([*(c for _, c in visible), *(c for term in order for c in sorted(names_in(term)))])
    others = [c for c in used if c not in {c for _, c in visible}]
    further = tuple(zip(hidden, others, strict=False))
    total = TopK(chosen(over, tuple(used)), order, node.limit, node.offset)
    reach = node.offset + (node.limit or 0)
    return Top(node, total, visible, further, *marks, reach + max(SPARE, reach))


def alike(node: Node, preferred: Iterable[str]) -> dict[str, str]:
    """For each column of a node, one column that holds the same values, of the preferred ones if there is one."""
    items = dict(node.items) if isinstance(node, Project) else {}
    first: dict[str, str] = {}
    names = dict.fromkeys([*preferred, *node.columns])
    return {n: first.setdefault(items[n].sql(dialect="spark"), n) if n in items else n for n in names}


def unkept(node: TopK) -> str:
    """Why an ORDER BY … LIMIT has no buffer."""
    if node.limit is None:
        return "ORDER BY … OFFSET without LIMIT keeps all rows but the first ones"
    if node.limit == 0:
        return "ORDER BY … LIMIT 0 has no rows to keep"
    if not _is_bounded(node):
        return f"ORDER BY … LIMIT beyond {MOST:,} rows keeps no buffer"
    return "ORDER BY … LIMIT has a buffer only at the root of a view, over what has delta rules"


def _is_bounded(node: TopK) -> bool:
    return node.limit is not None and 0 < node.limit <= MOST - node.offset


def _over(function: exp.Expr, order: Iterable[exp.Expr]) -> exp.Window:
    return exp.Window(this=function, order=exp.Order(expressions=[term.copy() for term in order]))


def _compared(comparison: type[exp.Binary], name: str, number: int) -> exp.Expr:
    return comparison(this=column(name), expression=exp.Literal.number(number))
