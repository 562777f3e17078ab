"""Delta rules for dimension views (PARTIAL §5.4 to §5.6), over flagged deltas.

Δ and ∇ are those of `flagged`; p is a condition, A a list of columns with the key.

    π   Δ = π_A(ΔS) − π_A(σ_comp(∇S))           ∇ = π_A,flag(∇S) − π_A,comp(ΔS)     without the effectiveness test
                                                                                      the subtractions are left out
    ε   Δ = ε(ΔS)                               ∇ = ε(σ_comp(∇S)) ∪ σ_{not comp}(∇S)        ε adds computed columns,
                                                                                      which are NULL where unknown
    σ   Δ = σ_p(ΔS)                             ∇ = σ_{p or not comp}(π_{s(flag)}(∇S))     s(up) = ups
    ⋈   Δ = So ⋈ ΔT  ∪  ΔS ⋈ Tnew
        ∇ = So ⋈ ∇T  ∪  σ_comp(∇S) ⋈ Told  ∪  π_{pk(S), s(flag)}(σ_{not comp}(∇S))

So = Snew without the keys of ΔS is the preserved state, and Told = To [comp] ∪ ∇T. The paper's terms are Snew ⋈ ΔT and
Sold ⋈ ∇T; what they add to So ⋈ ΔT and So ⋈ ∇T is in the terms beside them. The function j of the paper then is the
flag of T: rows of So and σ_comp(∇S) are known, and what is known of the joined row is what is known of T's.

States are read by values only (`States.rows`): rows that meet the deltas, never a whole table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from freshview.cdc.dimension import Extend, KeyJoin, Projection, Remote, RemoteNode, RowFilter, RowTest
from freshview.cdc.flagged import (
    COMP,
    FLAG,
    UP,
    UPS,
    Flagged,
    by_key,
    flagged_as,
    matches,
    to_flagged,
    to_partial,
    with_flag,
    without_flag,
)
from freshview.cdc.model import PartialDelta
from freshview.relation.schema import Schema


class States(Protocol):
    """The new states of remote tables."""

    def rows(self, name: str, columns: tuple[str, ...], values: pa.Table) -> pa.Table:
        """The rows of a table whose columns have one of the combinations of values, each row once.

        Rows beyond are allowed; NULL is no value.
        """
        ...


def propagate(
    view: RemoteNode, name: str, deltas: Mapping[str, PartialDelta], states: States, *, effectiveness: bool = True
) -> PartialDelta:
    """The changes of a view, from the changes of its tables since the last call and their states now.

    `effectiveness` drops update pairs that change no column of the view; without it they are passed on.
    """
    return to_partial(_Propagation(deltas, states, effectiveness).change(view), name)


class _Propagation:
    """One cycle: the changes of each node, computed once."""

    def __init__(self, deltas: Mapping[str, PartialDelta], states: States, effectiveness: bool) -> None:
        self._deltas = deltas
        self._states = states
        self._effectiveness = effectiveness

    def change(self, node: RemoteNode) -> Flagged:
        match node:
            case Remote():
                delta = self._deltas.get(node.name)
                return to_flagged(delta) if delta is not None else _unchanged(node.schema)
            case RowFilter():
                return self._select(node, self.change(node.input))
            case Projection():
                return self._project(node, self.change(node.input))
            case Extend():
                return self._extend(node, self.change(node.input))
            case KeyJoin():
                return self._join(node, self.change(node.left), self.change(node.right))
        raise TypeError(node)

    def _select(self, node: RowFilter, s: Flagged) -> Flagged:
        old = _selected(flagged_as(s.removed, COMP), node.condition)
        partial = _weakened(flagged_as(s.removed, UP, UPS))
        return Flagged(node.schema, _selected(s.inserted, node.condition), pa.concat_tables([old, partial]))

    def _extend(self, node: Extend, s: Flagged) -> Flagged:
        old, partial = without_flag(flagged_as(s.removed, COMP)), flagged_as(s.removed, UP, UPS)
        unknown = [pa.nulls(partial.num_rows, c.type.arrow) for c in node.columns]
        padded = pa.table([*without_flag(partial).columns, *unknown], schema=node.schema.arrow)
        removed = [with_flag(_extended(old, node), COMP), padded.append_column(FLAG, partial.column(FLAG))]
        return Flagged(node.schema, _extended(s.inserted, node), pa.concat_tables(removed))

    def _project(self, node: Projection, s: Flagged) -> Flagged:
        inserted, removed = _projected(s.inserted, node), _projected(s.removed, node)
        if self._effectiveness:
            old, partial = flagged_as(removed, COMP), flagged_as(removed, UP, UPS)
            row = Schema(node.schema.columns)  # no key: rows are compared as a whole
            kept = by_key(without_flag(old), inserted, row, inside=False)
            inserted = by_key(inserted, without_flag(old), row, inside=False)
            removed = pa.concat_tables([with_flag(kept, COMP), partial])
        return Flagged(node.schema, inserted, removed)

    def _join(self, node: KeyJoin, s: Flagged, t: Flagged) -> Flagged:
        on, key = node.on_columns, node.right.schema.key
        s_old = flagged_as(s.removed, COMP)
        touched = _values([t.inserted, t.removed], key)
        s_kept = by_key(self._find(node.left, on, touched), s.inserted, node.left.schema, inside=False)
        referenced = _values([s.inserted, s_old], on)
        t_new = self._find(node.right, key, referenced)
        t_kept = by_key(t_new, t.inserted, node.right.schema, inside=False)
        t_old = pa.concat_tables([with_flag(t_kept, COMP), t.removed])
        inserted = [_joined(node, s_kept, t.inserted), _joined(node, s.inserted, t_new)]
        removed = [
            _joined(node, s_kept, t.removed),
            _joined(node, without_flag(s_old), t_old),
            _weakened(_unjoined(node, flagged_as(s.removed, UP, UPS))),
        ]
        return Flagged(node.schema, pa.concat_tables(inserted), pa.concat_tables(removed))

    def _find(self, node: RemoteNode, columns: tuple[str, ...], values: pa.Table) -> pa.Table:
        """The rows of a node's new state whose columns have one of the combinations of values, and maybe others.

        Rows beyond make no difference: what is found is joined again.
        """
        places = [columns.index(c) for c in dict.fromkeys(columns)]
        columns, values = tuple(columns[i] for i in places), values.select(places)
        if not values.num_rows:
            return node.schema.arrow.empty_table()
        match node:
            case Remote():
                wanted = _as_columns(values.rename_columns(list(columns)), node.schema)
                return (
                    self._states.rows(node.name, columns, wanted)
                    if wanted.num_rows
                    else node.schema.arrow.empty_table()
                )
            case RowFilter():
                return _selected(self._find(node.input, columns, values), node.condition)
            case Projection():
                return _projected(self._find(node.input, tuple(node.sources[c] for c in columns), values), node)
            case Extend():
                own = [i for i, c in enumerate(columns) if node.input.schema.has(c)]
                assert own, "rows are found by columns of tables"
                found = self._find(node.input, tuple(columns[i] for i in own), values.select(own))
                return _extended(found, node)
            case KeyJoin():
                return self._find_joined(node, columns, values)
        raise TypeError(node)

    def _find_joined(self, node: KeyJoin, columns: tuple[str, ...], values: pa.Table) -> pa.Table:
        """One side is found by the values, the other by the join."""
        on, key = node.on_columns, node.right.schema.key
        own = [i for i, c in enumerate(columns) if node.left.schema.has(c)]
        if own:
            left = self._find(node.left, tuple(columns[i] for i in own), values.select(own))
            right = self._find(node.right, key, _values([left], on))
        else:
            right = self._find(node.right, columns, values)
            left = self._find(node.left, on, _values([right], key))
        return _joined(node, left, right)


def _unchanged(schema: Schema) -> Flagged:
    none = schema.arrow.empty_table()
    return Flagged(schema, none, with_flag(none, COMP))


def _weakened(removed: pa.Table) -> pa.Table:
    """The function s: a row that was in the input may not have been in the output, so up becomes ups."""
    return with_flag(without_flag(removed), UPS)


def _selected(rows: pa.Table, condition: RowTest) -> pa.Table:
    if not rows.num_rows:
        return rows
    return rows.filter(condition.test(rows.select(list(condition.columns))), null_selection_behavior="drop")


def _projected(rows: pa.Table, node: Projection) -> pa.Table:
    """The columns of a projection, and the flag if there is one."""
    result = pa.table([rows.column(s) for s in node.sources.values()], schema=node.schema.arrow)
    return result.append_column(FLAG, rows.column(FLAG)) if FLAG in rows.column_names else result


def _extended(rows: pa.Table, node: Extend) -> pa.Table:
    """Rows with the computed columns."""
    if not rows.num_rows:
        return node.schema.arrow.empty_table()
    return pa.table([*rows.columns, *node.compute(rows).columns], schema=node.schema.arrow)


def _as_columns(values: pa.Table, schema: Schema) -> pa.Table:
    """Values by which rows are looked up, in the types of their columns, without integers that these cannot have."""
    for i, name in enumerate(values.column_names):
        wanted = schema.column(name).type
        given = values.column(i)
        if given.type == wanted.arrow:
            continue
        if pa.types.is_integer(given.type) and given.type.bit_width > wanted.arrow.bit_width:
            most = pa.scalar(2 ** (wanted.arrow.bit_width - 1), pa.int64())
            values = values.filter(pc.and_(pc.less(given, most), pc.greater_equal(given, pc.negate(most))))
        values = values.set_column(i, pa.field(name, wanted.arrow), values.column(i).cast(wanted.arrow))
    return values


def _joined(node: KeyJoin, left: pa.Table, right: pa.Table) -> pa.Table:
    """Rows of the left with their rows of the right, and the flag of the right if it has one."""
    at_left, at_right = matches(left, right, node.on_columns, node.right.schema.key)
    columns = left.take(at_left).columns + right.take(at_right).columns
    names = [*node.schema.names, *([FLAG] if FLAG in right.column_names else [])]
    return pa.table(columns, names=names)


def _unjoined(node: KeyJoin, left: pa.Table) -> pa.Table:
    """Partial rows of the left, padded: of the right, only its key is known, and only where the left's columns are."""
    pairs = zip(node.right.schema.key, node.on_columns, strict=True)
    types = {c.name: c.type.arrow for c in node.schema.columns}
    given = {key: on for key, on in pairs if types[key] == types[on]}
    right = [
        left.column(given[f.name]) if f.name in given else pa.nulls(left.num_rows, f.type)
        for f in node.right.schema.arrow
    ]
    padded = pa.table([*without_flag(left).columns, *right], schema=node.schema.arrow)
    return padded.append_column(FLAG, left.column(FLAG))


def _values(tables: list[pa.Table], columns: tuple[str, ...]) -> pa.Table:
    """The distinct combinations of values of some columns, named by place: the same column may stand twice."""
    names = [f"k{i}" for i in range(len(columns))]
    rows = pa.concat_tables([pa.table([t.column(c) for c in columns], names=names) for t in tables])
    return rows.group_by(names, use_threads=False).aggregate([])
