"""What a poll brought, as changes with their sequences: expressions over rows are evaluated by Spark.

Expressions see the columns of the source's row (of a deletion: its old image, or its key alone), `_change_type`
(insert, update, upsert or delete) and `_change_time` (when the source made the change or, if it does not say, when it
was polled).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from freshview.cdc.columns import DELETED, ChangeColumns, NotColumns
from freshview.cdc.fitting import Fit, failing
from freshview.cdc.flow import CHANGE_TIME, CHANGE_TYPE, Plan
from freshview.cdc.model import keys_of
from freshview.cdc.net import Key, LoggedChange, Row, as_table, of_one_key, row_of_key
from freshview.cdc.sequenced import SequencedChange
from freshview.cdc.sequenced_columns import SequencedColumns, compares
from freshview.cdc.source import Poll, Quarantined
from freshview.errors import FieldMismatch, QueryFailed, SparkFailed, TypeMismatch
from freshview.relation.schema import Column, Schema, fold
from freshview.relation.types import parse_type

Evaluate = Callable[[pa.Table, Schema, Sequence[str]], list[pa.ChunkedArray]]
"""Values of expressions over rows with these columns, a column per expression."""


@dataclass
class Arrivals:
    """The changes of a poll in their order of arrival, bad ones with the keys that they name, and deletions that count
    for nothing here, since the rows of the source are events.

    `failed` counts the changes on which an expression failed, and is no more than the limit that was given.
    """

    changes: list[SequencedChange] | SequencedColumns = field(default_factory=list)
    bad: list[Quarantined] = field(default_factory=list)
    bad_keys: set[Key] = field(default_factory=set)
    ignored: int = 0
    failed: int = 0


def arrivals(poll: Poll, plan: Plan, fit: Fit, evaluate: Evaluate, *, limit: int | None = None) -> Arrivals:
    """The changes of a poll as the flow means them, as columns if all of them can be taken and the source has columns.

    Law: these columns are what `arrivals_by_row` finds.
    """
    try:
        return _as_columns(poll, plan, fit, evaluate)
    except NotColumns:
        return arrivals_by_row(poll, plan, fit, evaluate, limit=limit)


def arrivals_by_row(poll: Poll, plan: Plan, fit: Fit, evaluate: Evaluate, *, limit: int | None = None) -> Arrivals:
    """The changes of a poll as the flow means them, with images in the chosen columns, typed as the target's.

    A change that the target cannot hold, on which an expression fails, or without a sequence is a bad one. Behind so
    many changes (`limit`) on which an expression fails, no further ones are looked for, and no change is taken.
    """
    schema, found, changes = plan.source, Arrivals(), list[SequencedChange]()
    logged = poll.changes.rows() if isinstance(poll.changes, ChangeColumns) else poll.changes
    given = list(of_one_key(logged, schema)) if logged is not None else _of_sets(poll)
    if plan.is_feed:
        found.ignored = sum(change.new is None for change in given)
        given = [change for change in given if change.new is not None]
    at = poll.at or datetime.now(UTC)

    def set_aside(causes: Mapping[int, str]) -> None:
        nonlocal given
        for number, cause in causes.items():
            found.bad.append(_bad(given[number], plan, cause))
            found.bad_keys.add(_key(given[number], plan))
        given = [change for number, change in enumerate(given) if number not in causes]

    if not fit.is_certain:
        set_aside(fit.unfit(as_table([change.new or row_of_key(change, schema) for change in given], schema)))
    try:
        evaluated = _evaluated(given, plan, at, evaluate)
    except QueryFailed as error:
        if isinstance(error, SparkFailed):
            raise
        table, seen = _described(given, plan.source, at)
        expressions = list(_expressions(plan).values())
        failed = failing(table, lambda part: evaluate(part, seen, expressions), limit)
        found.failed = len(failed)
        set_aside(failed)
        if limit is not None and found.failed >= limit:
            return found
        evaluated = _evaluated(given, plan, at, evaluate)
    if not given:
        return found
    values = fit.stored(as_table([change.new or row_of_key(change, schema) for change in given], schema))
    places = [next(i for i, c in enumerate(plan.values) if fold(c.name) == fold(k)) for k in plan.keys]
    chosen = list(zip(*(c.to_pylist() for c in values.columns), strict=True))
    for i, (change, image) in enumerate(zip(given, chosen, strict=True)):
        is_reported = change.new is None
        sequence, deletes = evaluated.sequences[i], evaluated.deletes[i]
        if sequence is None and plan.flow.sequence and not is_reported:
            found.bad.append(_bad(change, plan, f"SEQUENCE BY {plan.flow.sequence} is NULL"))
            found.bad_keys.add(tuple(image[p] for p in places))
            continue
        changes.append(
            SequencedChange(
                tuple(image[p] for p in places),
                sequence,
                None if is_reported or deletes else image,
                (change.at or at) if is_reported else None,
                change.place,
                evaluated.truncates[i] and not is_reported,
                is_reported,
            )
        )
    found.changes = changes
    return found


def _expressions(plan: Plan) -> dict[str, str]:
    """The expressions of a flow that Spark evaluates."""
    flow = plan.flow
    asked = {"sequence": flow.sequence if plan.plain_sequence is None else "", "d": flow.delete_when}
    return {name: text for name, text in {**asked, "t": flow.truncate_when}.items() if text}


def _seen(change: LoggedChange, schema: Schema) -> Row:
    """The row that expressions see."""
    return change.new or change.old or row_of_key(change, schema)


@dataclass(frozen=True)
class _Evaluated:
    sequences: list[Any]
    deletes: list[bool]
    truncates: list[bool]


def _evaluated(given: Sequence[LoggedChange], plan: Plan, at: datetime, evaluate: Evaluate) -> _Evaluated:
    """The sequence of each change, and whether it deletes a row or all of them."""
    plain, expressions = plan.plain_sequence, _expressions(plan)
    found: Mapping[str, list[Any]] = {}
    if expressions and given:
        table, schema = _described(given, plan.source, at)
        columns = evaluate(table, schema, list(expressions.values()))
        found = {name: column.to_pylist() for name, column in zip(expressions, columns, strict=True)}
    nothing: list[Any] = [None] * len(given)
    sequences = found.get("sequence", nothing)
    if plain is not None:
        at_place = plan.source.position(plain)
        sequences = [_seen(change, plan.source)[at_place] for change in given]
    return _Evaluated(
        sequences, [v is True for v in found.get("d", nothing)], [v is True for v in found.get("t", nothing)]
    )


def _described(given: Sequence[LoggedChange], schema: Schema, at: datetime) -> tuple[pa.Table, Schema]:
    """The rows with the kind and the time of their changes, unless the source has columns of these names."""
    rows = as_table([_seen(change, schema) for change in given], schema)
    names = {False: "insert", True: "update", None: "upsert"}
    kinds = [names[c.existed] if c.new is not None else "delete" for c in given]
    return _with_kinds(rows, schema, kinds, [c.at or at for c in given])


def _with_kinds(
    rows: pa.Table, schema: Schema, kinds: Sequence[str], times: Sequence[datetime]
) -> tuple[pa.Table, Schema]:
    """Rows with these values of `_change_type` and `_change_time`, unless the source has columns of these names."""
    more = {CHANGE_TYPE: ("STRING", kinds), CHANGE_TIME: ("TIMESTAMP", times)}
    columns = list(schema.columns)
    for name, (type_, values) in more.items():
        if not schema.has(name):
            column = Column(name, parse_type(type_))
            columns.append(column)
            rows = rows.append_column(name, pa.array(values, column.type.arrow))
    return rows, Schema(tuple(columns))


def described_schema(schema: Schema) -> Schema:
    """The columns that expressions see."""
    return _described([], schema, datetime.now(UTC))[1]


def _of_sets(poll: Poll) -> list[LoggedChange]:
    """The changes of six sets, deletions first: no key is in two of them."""
    delta, schema = poll.delta, poll.delta.schema

    def rows(table: pa.Table) -> list[Row]:
        return list(zip(*(c.to_pylist() for c in table.columns), strict=True))

    def key(row: Row) -> Row:
        return tuple(row[i] for i in schema.key_positions)

    gone = [LoggedChange(key(r), True, None, r) for r in rows(delta.deleted)]
    gone += [LoggedChange(k, True, None) for k in rows(delta.delk)]
    pairs = zip(rows(delta.un), rows(delta.uo), strict=True)
    changed = [LoggedChange(key(r), True, r, old) for r, old in pairs] + [
        LoggedChange(key(r), True, r) for r in rows(delta.up)
    ]
    new = [LoggedChange(key(r), False, r) for r in rows(delta.ins)] + [
        LoggedChange(key(r), None, r) for r in rows(delta.ups)
    ]
    return [replace(change, place=poll.places.get(change.key, "")) for change in (*gone, *changed, *new)]


def _key(change: LoggedChange, plan: Plan) -> Key:
    """The values of KEYS in the row of a change."""
    row = change.new or row_of_key(change, plan.source)
    return tuple(row[plan.source.position(k)] for k in plan.keys)


def _bad(change: LoggedChange, plan: Plan, cause: str) -> Quarantined:
    row = change.new or change.old or row_of_key(change, plan.source)
    named = {n: v for n, v in zip(plan.source.names, row, strict=True) if v is not None}
    return Quarantined(change.place or f"row {named}", cause, repr(named))


# -- as columns --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _GivenChanges:
    """Changes in their order: the rows that expressions see, the new rows (of a deletion, its key alone), and the
    places, if the source has places."""

    kinds: np.ndarray
    seen: pa.Table
    rows: pa.Table
    places: Sequence[str]

    @cached_property
    def reported(self) -> np.ndarray:
        """Which changes are deletions."""
        found: np.ndarray = self.kinds == "delete"
        return found

    def without_deletions(self) -> _GivenChanges:
        kept = np.flatnonzero(~self.reported)
        places = [self.places[i] for i in kept.tolist()] if self.places else ()
        return _GivenChanges(self.kinds[kept], self.seen.take(kept), self.rows.take(kept), places)


def _given_in_sets(poll: Poll) -> _GivenChanges:
    """The changes of six sets, deletions first: no key is in two of them."""
    delta, schema = poll.delta, poll.delta.schema
    gone = [delta.deleted, schema.widened(delta.delk)]
    new = [delta.un, delta.up, delta.ins, delta.ups]
    kinds = ("delete", "delete", "update", "update", "insert", "upsert")
    keys = [schema.widened(keys_of(rows, schema)) for rows in gone]
    rows, places = pa.concat_tables([*keys, *new]), list[str]()
    if poll.places:
        key_rows = zip(*(c.to_pylist() for c in keys_of(rows, schema).columns), strict=True)
        places = [poll.places.get(key, "") for key in key_rows]
    lengths = [part.num_rows for part in (*gone, *new)]
    return _GivenChanges(np.repeat(kinds, lengths), pa.concat_tables([*gone, *new]), rows, places)


def _given_each(changes: ChangeColumns) -> _GivenChanges:
    """The changes of a log."""
    keys, is_gone = changes.schema.widened(changes.keys), pa.array(changes.kinds == DELETED)

    def chosen(gone: pa.Table) -> pa.Table:
        columns = [pc.if_else(is_gone, a, b) for a, b in zip(gone.columns, changes.new.columns, strict=True)]
        return pa.table(columns, schema=changes.schema.arrow)

    kinds = np.array(["insert", "update", "delete"])[changes.kinds]  # of INSERTED, UPDATED and DELETED
    places = pc.binary_join_element_wise(changes.place, changes.places, " ").to_pylist()
    return _GivenChanges(kinds, chosen(keys if changes.old is None else changes.old), chosen(keys), places)


def _as_columns(poll: Poll, plan: Plan, fit: Fit, evaluate: Evaluate) -> Arrivals:
    """What a poll brought, as columns; NotColumns if it is no columns, or if a change may be a bad one."""
    keys = tuple(fit.target.column(k).name for k in plan.keys)
    exact = [*(fit.target.column(k).type for k in keys), *([plan.sequence_type] if plan.sequence_type else ())]
    is_other = not plan.source.arrow.equals(poll.delta.schema.arrow)
    if isinstance(poll.changes, tuple) or is_other or not all(map(compares, exact)):
        raise NotColumns
    given = _given_in_sets(poll) if poll.changes is None else _given_each(poll.changes)
    ignored, at = int(given.reported.sum()) if plan.is_feed else 0, poll.at or datetime.now(UTC)
    given = given.without_deletions() if plan.is_feed else given
    try:
        images, values = fit.stored(given.rows), _values(given, plan, at, evaluate)
    except (QueryFailed, TypeMismatch, FieldMismatch) as error:
        if isinstance(error, SparkFailed):
            raise
        raise NotColumns from error
    count, reported = given.rows.num_rows, given.reported
    type_ = plan.sequence_type.arrow if plan.sequence_type else pa.null()
    sequences = values.get("sequence", pa.chunked_array([pa.nulls(count, type_)]))
    lacks = bool(plan.flow.sequence) and pc.is_null(sequences).to_numpy()[~reported].any()
    if sequences.type != type_ or lacks:
        raise NotColumns
    deletes, truncates = (_is_true(values.get(name), count) for name in ("d", "t"))
    masks = (reported | deletes, truncates & ~reported, reported)
    schema = Schema(fit.target.columns, keys)
    return Arrivals(SequencedColumns(schema, images, sequences, *masks, at, given.places), ignored=ignored)


def _values(given: _GivenChanges, plan: Plan, at: datetime, evaluate: Evaluate) -> dict[str, pa.ChunkedArray]:
    """The sequences of changes, and the values of the conditions, as far as the flow has them."""
    plain, expressions = plan.plain_sequence, _expressions(plan)
    found: dict[str, pa.ChunkedArray] = {} if plain is None else {"sequence": given.seen.column(plain)}
    if not expressions or not given.rows.num_rows:
        return found
    table, schema = _with_kinds(given.seen, plan.source, given.kinds.tolist(), [at] * given.rows.num_rows)
    return {**found, **dict(zip(expressions, evaluate(table, schema, list(expressions.values())), strict=True))}


def _is_true(values: pa.ChunkedArray | None, count: int) -> np.ndarray:
    """Which values are TRUE; none if there are no values, or if they are no truth values."""
    if values is None or values.type != pa.bool_():
        return np.zeros(count, dtype=bool)
    found: np.ndarray = pc.fill_null(values, False).to_numpy()
    return found
