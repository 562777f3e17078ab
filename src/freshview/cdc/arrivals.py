"""What a poll brought, as changes with their sequences: expressions over rows are evaluated by Spark.

Expressions see the columns of the source's row (of a deletion: its old image, or its key alone), `_change_type`
(insert, update, upsert or delete) and `_change_time` (when the source made the change or, if it does not say, when it
was polled).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from freshview.cdc.flow import CHANGE_TIME, CHANGE_TYPE, Plan
from freshview.cdc.model import PartialDelta
from freshview.cdc.net import Change, Row, as_table, of_one_key
from freshview.cdc.sequenced import SequencedChange
from freshview.cdc.source import Poll, Quarantined
from freshview.errors import CaptureFailed
from freshview.relation.ingest import to_table
from freshview.relation.schema import Column, Schema, fold
from freshview.relation.types import parse_type

Evaluate = Callable[[pa.Table, Schema, Sequence[str]], list[list[Any]]]
"""Values of expressions over rows with these columns, a list per expression."""


@dataclass
class Arrivals:
    """The changes of a poll in their order of arrival, events that have no sequence, and deletions that count for
    nothing here, since the rows of the source are events."""

    changes: list[SequencedChange] = field(default_factory=list)
    bad: list[Quarantined] = field(default_factory=list)
    ignored: int = 0


def arrivals(poll: Poll, plan: Plan, target: Schema, evaluate: Evaluate) -> Arrivals:
    """The changes of a poll as the flow means them, with images in the chosen columns, typed as the target's."""
    schema, found = plan.source, Arrivals()
    given = list(of_one_key(poll.changes, schema)) if poll.changes is not None else _of_sets(poll.delta)
    if plan.is_feed:
        found.ignored = sum(change.new is None for change in given)
        given = [change for change in given if change.new is not None]
    images = [change.new or change.old or _of_key(change, schema) for change in given]
    if not images:
        return found
    rows = as_table(images, schema)
    typed = [target.column(c.name) for c in plan.values]
    values = to_table(rows.select([c.name for c in plan.values]), Schema(tuple(typed)), plan.flow.target)
    places = [next(i for i, c in enumerate(plan.values) if fold(c.name) == fold(k)) for k in plan.keys]
    chosen = list(zip(*(c.to_pylist() for c in values.columns), strict=True))
    evaluated = _evaluated(given, rows, plan, poll.at or datetime.now(UTC), evaluate)
    for i, (change, image) in enumerate(zip(given, chosen, strict=True)):
        is_reported = change.new is None
        sequence, deletes = evaluated.sequences[i], evaluated.deletes[i]
        if sequence is None and plan.flow.sequence and not is_reported:
            found.bad.append(_without_sequence(change, plan))
            continue
        found.changes.append(
            SequencedChange(
                tuple(image[p] for p in places),
                sequence,
                None if is_reported or deletes else image,
                (change.at or poll.at) if is_reported else None,
                change.place,
                evaluated.truncates[i] and not is_reported,
                is_reported,
            )
        )
    return found


@dataclass(frozen=True)
class _Evaluated:
    sequences: list[Any]
    deletes: list[bool]
    truncates: list[bool]


def _evaluated(given: Sequence[Change], rows: pa.Table, plan: Plan, at: datetime, evaluate: Evaluate) -> _Evaluated:
    """The sequence of each change, and whether it deletes a row or all of them."""
    flow, plain = plan.flow, plan.plain_sequence
    asked = {"sequence": flow.sequence if plain is None else "", "d": flow.delete_when, "t": flow.truncate_when}
    expressions = {name: text for name, text in asked.items() if text}
    found: Mapping[str, list[Any]] = {}
    if expressions:
        table, schema = _described(given, rows, plan.source, at)
        found = dict(zip(expressions, evaluate(table, schema, list(expressions.values())), strict=True))
    nothing: list[Any] = [None] * len(given)
    sequences = rows.column(plain).to_pylist() if plain is not None else found.get("sequence", nothing)
    return _Evaluated(
        sequences, [v is True for v in found.get("d", nothing)], [v is True for v in found.get("t", nothing)]
    )


def _described(given: Sequence[Change], rows: pa.Table, schema: Schema, at: datetime) -> tuple[pa.Table, Schema]:
    """The rows with the kind and the time of their changes, unless the source has columns of these names."""
    kinds = {False: "insert", True: "update", None: "upsert"}
    more = {
        CHANGE_TYPE: ("STRING", [kinds[c.existed] if c.new is not None else "delete" for c in given]),
        CHANGE_TIME: ("TIMESTAMP", [c.at or at for c in given]),
    }
    columns = list(schema.columns)
    for name, (type_, values) in more.items():
        if not schema.has(name):
            column = Column(name, parse_type(type_))
            columns.append(column)
            rows = rows.append_column(name, pa.array(values, column.type.arrow))
    return rows, Schema(tuple(columns))


def described_schema(schema: Schema) -> Schema:
    """The columns that expressions see."""
    return _described([], schema.arrow.empty_table(), schema, datetime.now(UTC))[1]


def _of_sets(delta: PartialDelta) -> list[Change]:
    """The changes of six sets, deletions first: no key is in two of them."""
    schema = delta.schema

    def rows(table: pa.Table) -> list[Row]:
        return list(zip(*(c.to_pylist() for c in table.columns), strict=True))

    def key(row: Row) -> Row:
        return tuple(row[i] for i in schema.key_positions)

    gone = [Change(key(r), True, None, r) for r in rows(delta.deleted)]
    gone += [Change(k, True, None) for k in rows(delta.delk)]
    pairs = zip(rows(delta.un), rows(delta.uo), strict=True)
    changed = [Change(key(r), True, r, old) for r, old in pairs] + [Change(key(r), True, r) for r in rows(delta.up)]
    new = [Change(key(r), False, r) for r in rows(delta.ins)] + [Change(key(r), None, r) for r in rows(delta.ups)]
    return gone + changed + new


def _of_key(change: Change, schema: Schema) -> Row:
    """A row with the key alone."""
    by_place = dict(zip(schema.key_positions, change.key, strict=True))
    return tuple(by_place.get(i) for i in range(len(schema.columns)))


def _without_sequence(change: Change, plan: Plan) -> Quarantined:
    assert change.new is not None
    row = {n: v for n, v in zip(plan.source.names, change.new, strict=True) if v is not None}
    place = change.place or f"row {row}"
    return Quarantined(place, f"SEQUENCE BY {plan.flow.sequence} is NULL", repr(row))


def refuse(bad: Sequence[Quarantined], name: str) -> None:
    """Raise CaptureFailed for the first of events that are not to be set aside."""
    for event in bad:
        raise CaptureFailed(
            f"event of {name}, {event.place}", event.cause, "Correct it, or let 'on error' 'quarantine' set it aside."
        )
