"""The net effect of a run of changes: several changes of a key become one (PARTIAL §2, log-based capture).

Precise: the first change of a key has whether it existed and its old image, the last one its new image.
Cheap: the last change alone; insertions and updates are then one set (ups), and deletions have no old image (delk).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from freshview.cdc.model import PartialDelta, partial_delta
from freshview.errors import CaptureFailed
from freshview.relation.delta import key_table, positions_in
from freshview.relation.schema import Schema

Row = tuple[Any, ...]  # typed values in the order of the schema
Key = tuple[Any, ...]


@dataclass(frozen=True)
class LoggedChange:
    """One change as a log reports it: `key` is that of the row before it (of an insertion, the new one).

    `new` is None for a deletion. `old` is the whole old image, or None if the log does not have it. `existed` is False
    for an insertion and None if the log does not have it. `at` is when it happened, if the log has it.
    """

    key: Key
    existed: bool | None
    new: Row | None
    old: Row | None = None
    place: str = ""
    at: datetime | None = None


@dataclass
class _Net:
    existed: bool | None
    old: Row | None
    now: Row | None
    is_loaded: bool = False  # the last change is a row as a snapshot or bootstrap found it


def net_effect(
    name: str,
    schema: Schema,
    changes: Iterable[LoggedChange],
    *,
    precise: bool = True,
    aside: Callable[[LoggedChange, str], None] | None = None,
) -> PartialDelta:
    """The six sets of changes in the order in which they happened.

    A change that contradicts the one before it raises CaptureFailed or, with `aside`, is passed there and left out.
    """
    nets: dict[Key, _Net] = {}
    for change in of_one_key(changes, schema):
        net = nets.get(change.key)
        if net is None:
            nets[change.key] = _Net(change.existed, change.old, change.new, change.existed is None)
            continue
        cause = _contradiction(schema, net, change)
        if cause is None:
            net.now, net.is_loaded = change.new, change.existed is None
        elif aside is not None:
            aside(change, cause)
        else:
            raise CaptureFailed(
                f"change of {name} at {change.place}",
                cause,
                "Events are missing, repeated or out of order there: restore them, or load the table anew.",
            )
    return (_precise if precise else _cheap)(name, schema, nets)


def row_of_key(change: LoggedChange, schema: Schema) -> Row:
    """A row with the key of a change alone."""
    by_place = dict(zip(schema.key_positions, change.key, strict=True))
    return tuple(by_place.get(i) for i in range(len(schema.columns)))


def key_of(row: Sequence[Any], schema: Schema) -> Key:
    return tuple(row[i] for i in schema.key_positions)


def of_one_key(changes: Iterable[LoggedChange], schema: Schema) -> Iterable[LoggedChange]:
    """Changes of one key each: an update of a key is a deletion and an insertion."""
    for change in changes:
        if change.new is None or key_of(change.new, schema) == change.key:
            yield change
        else:
            yield LoggedChange(change.key, True, None, change.old, change.place, change.at)
            yield LoggedChange(key_of(change.new, schema), False, change.new, None, change.place, change.at)


def _contradiction(schema: Schema, net: _Net, change: LoggedChange) -> str | None:
    """Why a change does not fit the one before it, if so: events are missing, repeated or out of order.

    A change after a row that was loaded is not compared with it: a bootstrap reads rows while the log goes on, so the
    row may have the state already that an event behind it reports.
    """
    exists = net.now is not None
    if net.is_loaded:
        return None
    if change.existed is not None and change.existed != exists:
        cause = "exists already" if exists else "does not exist"
    elif net.now is not None and change.old is not None and repr(net.now) != repr(change.old):
        cause = "has another old image than the change before left"
    else:
        return None
    key = ", ".join(f"{k}={v!r}" for k, v in zip(schema.key, change.key, strict=True))
    return f"the row ({key}) {cause}"


def _precise(name: str, schema: Schema, nets: dict[Key, _Net]) -> PartialDelta:
    found = nets.items()
    live = [(k, n, n.now) for k, n in found if n.now is not None]
    gone = [(k, n) for k, n in found if n.now is None and n.existed is not False]
    pairs = [(new, n.old) for _, n, new in live if n.existed and n.old is not None]
    return partial_delta(
        name,
        schema,
        ins=as_table([new for _, n, new in live if n.existed is False], schema),
        deleted=as_table([n.old for _, n in gone if n.old is not None], schema),
        pairs=_changed(
            as_table([new for new, _ in pairs], schema), as_table([old for _, old in pairs], schema), schema
        ),
        up=as_table([new for _, n, new in live if n.existed and n.old is None], schema),
        ups=as_table([new for _, n, new in live if n.existed is None], schema),
        delk=_keys([k for k, n in gone if n.old is None], schema),
    )


def _cheap(name: str, schema: Schema, nets: dict[Key, _Net]) -> PartialDelta:
    live = [n.now for n in nets.values() if n.now is not None]
    gone = [k for k, n in nets.items() if n.now is None]
    return partial_delta(name, schema, ups=as_table(live, schema), delk=_keys(gone, schema))


def _changed(un: pa.Table, uo: pa.Table, schema: Schema) -> tuple[pa.Table, pa.Table]:
    """Update pairs without those that changed nothing, to the bit."""
    row = Schema(schema.columns)
    changed = positions_in(key_table(un, row), key_table(uo, row), inside=False)
    return un.take(changed), uo.take(changed)


def as_table(rows: Sequence[Row], schema: Schema) -> pa.Table:
    """Typed rows as Arrow columns."""
    columns = zip(*rows, strict=True) if rows else ((),) * len(schema.columns)
    return pa.table(
        [pa.array(list(c), f.type) for c, f in zip(columns, schema.arrow, strict=True)], schema=schema.arrow
    )


def _keys(keys: Sequence[Key], schema: Schema) -> pa.Table:
    fields = [schema.arrow.field(i) for i in schema.key_positions]
    columns = zip(*keys, strict=True) if keys else ((),) * len(fields)
    return pa.table([pa.array(list(c), f.type) for c, f in zip(columns, fields, strict=True)], schema=pa.schema(fields))
