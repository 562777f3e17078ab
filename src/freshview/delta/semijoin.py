"""Semi-join reduction: which rows of a large scan a delta plan can need, those that match the delta.

A plan starts at small deltas and joins outward. Where a join has the condition `a = b` and the values of `a` come from
a small scan (a delta, or a scan that is already reduced), of the scan behind `b` only rows with one of those values
matter. The scan gets a `SemiJoin` that says so; its reader may skip the other rows.

Law: skipping rows that a restriction does not admit does not change the result of the plan. A restriction therefore

    passes      σ, π of a plain column, ⊎, EXCEPT/INTERSECT ALL, generators; the group keys of γ, the partition keys of
                windows (law 11.6); both sides of an inner join; the left side of left, semi and anti joins
    arises      at a join's equality: for the other side of an inner or semi join, the right side of a left or anti join
    ends        at everything else.

Of the values that a scan hands on to other scans, those of rows that cannot come so far are left out. Such rows fail a
test of the scan, which arises

    at a filter, or at a condition of an inner join with OR, from what follows from it for one row of a scan, for
      conditions that no row can fail on (`delta/row_tests.py`)
    at an inner or semi join, for the side that comes first, if the values of the other side are tested themselves.

Sizes are not known here: a restriction is an offer, of which the reader makes use if the values are few. Tests are
offers too: a reader that asks none of them hands on more values.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, replace

from sqlglot import exp

from freshview.algebra.nodes import (
    Aggregate,
    Filter,
    Generate,
    Join,
    Node,
    Project,
    RowCriterion,
    Scan,
    SemiJoin,
    SetOperation,
    Union,
    Values,
    Window,
    conjuncts,
    equalities,
    names_in,
)
from freshview.algebra.traversal import scans, with_inputs
from freshview.delta.row_tests import implied, renamed

# Scans and stored columns that together hold all values of a column, each with the tests that their rows pass.
_Values = tuple[tuple[Scan, str, tuple[RowCriterion, ...]], ...]
Wanted = Mapping[str, tuple[tuple[_Values, bool], ...]]  # per column: restrictions, and whether NULL is admitted too


@dataclass(frozen=True)
class _Origin:
    """Where the values of a column come from. Columns of one `row` have theirs from the same row of one scan."""

    values: _Values
    row: Scan | None = None


Origins = Mapping[str, _Origin]  # columns whose values come from small scans

_Conditions = tuple[exp.Expr, ...]
_Asked = tuple[Node, Wanted, _Conditions]  # a node under restrictions, and the conditions of the filters above it
_Found = tuple[Node, Origins]
_Visit = Generator[_Asked, _Found, _Found]  # yields what it has to know of inputs; its result is that of the node


def reduced(plan: Node) -> Node:
    """The plan, with each scan restricted to the rows that can matter."""
    return _Reducing().run(plan)


class _Reducing:
    def __init__(self) -> None:
        self._done: dict[object, _Found] = {}
        self._deltas: dict[Node, bool] = {}

    def run(self, plan: Node) -> Node:
        """The reduced plan. A plan can be deeper than Python's stack: visits that wait for inputs are in a list."""
        asked: _Asked = (plan, {}, ())
        waiting = [(_key(*asked), self._visit(*asked))]
        found: _Found | None = None  # what the last of them asked for
        while waiting:
            key, visit = waiting[-1]
            try:
                asked = next(visit) if found is None else visit.send(found)
            except StopIteration as end:
                waiting.pop()
                found = self._done[key] = end.value
                continue
            found = self._done.get(_key(*asked))
            if found is None:
                waiting.append((_key(*asked), self._visit(*asked)))
        assert found is not None
        return found[0]

    def _visit(self, node: Node, wanted: Wanted, conditions: _Conditions) -> _Visit:
        """The node under restrictions; an inner join also makes use of the `conditions` of the filters above it."""
        match node:
            case Scan():
                return _scan(node, wanted)
            case Values():
                return node, {}
            case Filter():
                inner = (*conditions, *conjuncts(node.predicate)) if _leads_to_join(node.input) else ()
                below, origins = yield node.input, wanted, inner
                return with_inputs(node, (below,)), _passing(origins, conjuncts(node.predicate))
            case Project():
                return (yield from self._project(node, wanted))
            case Join():
                return (yield from self._join(node, wanted, conditions))
            case Union() | SetOperation():
                return (yield from self._by_place(node, wanted))
            case Aggregate():
                return (yield from self._through(node, wanted, set(node.keys)))
            case Window():
                return (yield from self._through(node, wanted, set(node.partition), keeps=True))
            case Generate():
                return (yield from self._through(node, wanted, set(node.input.columns), keeps=True))
        inputs: list[Node] = []
        for one in node.inputs:
            below, _ = yield one, {}, ()
            inputs.append(below)
        return with_inputs(node, tuple(inputs)), {}

    def _through(
        self, node: Aggregate | Window | Generate, wanted: Wanted, columns: set[str], *, keeps: bool = False
    ) -> _Visit:
        below, origins = yield node.input, {c: w for c, w in wanted.items() if c in columns}, ()
        return with_inputs(node, (below,)), {c: o for c, o in origins.items() if keeps or c in columns}

    def _project(self, node: Project, wanted: Wanted) -> _Visit:
        plain = {name: e.name for name, e in node.items if isinstance(e, exp.Column)}
        inner: dict[str, tuple[tuple[_Values, bool], ...]] = {}
        for name, restrictions in wanted.items():
            if name in plain:
                inner[plain[name]] = (*inner.get(plain[name], ()), *restrictions)
        below, origins = yield node.input, inner, ()
        return with_inputs(node, (below,)), {n: origins[c] for n, c in plain.items() if c in origins}

    def _by_place(self, node: Union | SetOperation, wanted: Wanted) -> _Visit:
        parts, found = [], []
        for part in node.inputs:
            own = {c: wanted[n] for n, c in zip(node.columns, part.columns, strict=True) if n in wanted}
            below, origins = yield part, own, ()
            parts.append(below)
            found.append([origins.get(c) for c in part.columns])
        origins_by_name: dict[str, _Origin] = {}
        for place, name in enumerate(node.columns):
            parts_of = [f[place] for f in found]
            if isinstance(node, SetOperation) and parts_of[0] is not None:
                origins_by_name[name] = parts_of[0]
            elif all(o is not None for o in parts_of):
                origins_by_name[name] = _Origin(tuple(dict.fromkeys(s for o in parts_of if o for s in o.values)))
        return with_inputs(node, tuple(parts)), origins_by_name

    def _join(self, node: Join, wanted: Wanted, conditions: _Conditions) -> _Visit:
        # Of the others those of one side are filters of their own. They are not passed on: visits could not be shared.
        own = [c for c in conjuncts(node.condition) if isinstance(c, exp.Or)] if node.condition is not None else []
        passed = (*conditions, *own) if node.kind == "inner" else ()
        pairs = [
            (a.name, b.name, nulls)
            for a, b, nulls in equalities(node, conditions if node.kind == "inner" else ())
            if isinstance(a, exp.Column) and isinstance(b, exp.Column)
        ]
        left_wanted = {c: w for c, w in wanted.items() if c in node.left.columns}
        right_wanted = {c: w for c, w in wanted.items() if c in node.right.columns and node.kind == "inner"}
        to_left = passed if _leads_to_join(node.left) else ()
        to_right = passed if _leads_to_join(node.right) else ()
        backwards = [(b, a, n) for a, b, n in pairs]
        right_first = node.kind in ("inner", "semi") and not self._starts(node.left, left_wanted)
        if node.kind == "semi" and self._starts(node.right, {}):
            right_first = True
        if node.kind == "inner" and _narrows(right_wanted, backwards) and not _narrows(left_wanted, pairs):
            right_first = True
        if right_first:
            right, from_right = yield node.right, right_wanted, to_right
            from_right = _passing(from_right, passed)
            left, from_left = yield node.left, _more(left_wanted, backwards, from_right), to_left
            if node.kind == "inner":
                from_left = _passing(from_left, passed)
                from_right = _meeting(from_right, from_left, backwards)
        else:
            left, from_left = yield node.left, left_wanted, to_left
            # A row of the left that fails above needs no partner.
            from_left = _passing(from_left, passed if node.kind == "inner" else conditions)
            right, from_right = yield node.right, _more(right_wanted, pairs, from_left), to_right
            if node.kind in ("inner", "semi"):
                from_left = _meeting(from_left, _passing(from_right, passed), pairs)
        origins = {**from_left, **(_apart(from_right, from_left) if node.kind in ("inner", "left") else {})}
        return with_inputs(node, (left, right)), origins

    def _starts(self, node: Node, wanted: Wanted) -> bool:
        """Has one side of a join a source of values: a delta, or a restriction?"""
        if node not in self._deltas:
            self._deltas[node] = any(s.version == "delta" for s in scans(node))
        return bool(wanted) or self._deltas[node]


def _key(node: Node, wanted: Wanted, conditions: _Conditions) -> object:
    """What the result of a visit depends on; nodes and conditions are those of one plan."""
    return node, tuple(sorted(wanted.items(), key=lambda w: w[0])), tuple(map(id, conditions))


def _narrows(wanted: Wanted, pairs: list[tuple[str, str, bool]]) -> bool:
    """Is one side of a join restricted by the very column that the other side is equal to? Then few rows of it are
    read first, and restrict the other side; restrictions of other columns (a date, a flag) may admit most rows."""
    return any(known in wanted for known, _, _ in pairs)


def _scan(node: Scan, wanted: Wanted) -> tuple[Node, Origins]:
    if node.version == "delta":
        return node, {name: _Origin(((node, stored, ()),), node) for stored, name in node.fields}
    stored = {name: c for c, name in node.fields}
    semijoins = [
        _restriction(stored[c], v, nulls) for c, offers in wanted.items() if c in stored for v, nulls in offers
    ]
    if not semijoins:
        return node, {}
    node = replace(node, semijoins=tuple(semijoins))
    return node, {name: _Origin(((node, c, ()),), node) for c, name in node.fields}


def _restriction(column: str, values: _Values, nulls: bool) -> SemiJoin:
    tests = tuple(own for _, _, own in values)
    return SemiJoin(column, tuple((scan, name) for scan, name, _ in values), nulls, tests if any(tests) else ())


def _passing(origins: Origins, conditions: Iterable[exp.Expr]) -> Origins:
    """The origins of a filter's columns: of the rows of a scan those that meet its conditions, as far as they can be
    tested."""
    for condition in conditions:
        for row in dict.fromkeys(origins[name].row for name in names_in(condition) if name in origins):
            stored = {name: o.values[0][1] for name, o in origins.items() if row is not None and o.row is row}
            known = implied(condition, stored)
            if row is not None and known is not None:
                origins = _tested(origins, row, RowCriterion(renamed(known, stored)))
    return origins


def _meeting(origins: Origins, others: Origins, pairs: list[tuple[str, str, bool]]) -> Origins:
    """The origins of the columns of one side of a join: of the rows of a scan those that may meet the other side, where
    not all values of that side count."""
    for own, other, nulls in pairs:
        if own not in origins or other not in others or not any(tests for _, _, tests in others[other].values):
            continue
        row, values = origins[own].row, origins[own].values
        if row is not None:
            origins = _tested(origins, row, RowCriterion(_restriction(values[0][1], others[other].values, nulls)))
    return origins


def _tested(origins: Origins, row: Scan, test: RowCriterion) -> Origins:
    """The origins with one more test for the rows of a scan, unless they have it."""

    def further(tests: tuple[RowCriterion, ...]) -> tuple[RowCriterion, ...]:
        return tests if any(known.test == test.test for known in tests) else (*tests, test)

    return {
        name: replace(o, values=tuple((scan, c, further(tests)) for scan, c, tests in o.values)) if o.row is row else o
        for name, o in origins.items()
    }


def _apart(origins: Origins, others: Origins) -> Origins:
    """The origins of one side of a join. A scan that both sides read gives other rows to each: what one of them is
    tested for says nothing of the other."""
    known = {o.row for o in others.values()}
    return {name: replace(o, row=None) if o.row in known else o for name, o in origins.items()}


def _more(wanted: Wanted, pairs: list[tuple[str, str, bool]], origins: Origins) -> Wanted:
    """The restrictions and those that a join's equalities add; pairs are (known column, its partner, null-safe)."""
    result = dict(wanted)
    for known, partner, nulls in pairs:
        if known in origins:
            result[partner] = (*result.get(partner, ()), (origins[known].values, nulls))
    return result


def _leads_to_join(node: Node) -> bool:
    return isinstance(node, Filter | Join)
