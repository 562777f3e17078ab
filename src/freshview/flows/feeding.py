"""Writing the changes of a flow inside a transaction: the target's rows, and what the flow remembers of them.

Law: target, memory and position change in one commit. Keys are looked up in the transaction's snapshot, so a write of
somebody else to one of them is a write conflict, and the poll is repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import pyarrow as pa

from freshview.catalog.records import Relation
from freshview.cdc.columns import NotColumns
from freshview.cdc.fitting import Fit
from freshview.cdc.flow import AT, DELETED, END, FLOOR, SEQUENCE, START, Plan, set_at
from freshview.cdc.history import History, Period, Rules, after, visible
from freshview.cdc.model import PartialDelta, keys_of
from freshview.cdc.sequenced import Image, Key, Last, Latest, SequencedChange, in_sequence, latest, rank
from freshview.cdc.sequenced_columns import SequencedColumns, latest_of_columns
from freshview.cdc.source import Quarantined
from freshview.relation.delta import first_positions
from freshview.relation.schema import Schema, fold
from freshview.transactions.user_transaction import UserTransaction

_NO_END = (
    "its sequence is not after {!r}, that of the row's last change (SEQUENCE BY an expression that is later for "
    "deletions, such as one of _change_type and _change_time)"
)


@dataclass(frozen=True)
class Feed:
    """The tables of a flow: its target, and its memory if it has one.

    `is_sized`: the source's values have the lengths of its types, as those of a server have.
    """

    plan: Plan
    target: Relation
    memory: Relation | None = None
    is_sized: bool = False

    @cached_property
    def fit(self) -> Fit:
        """The chosen columns of the source as the target has them; `check_target` refuses one that lacks some."""
        columns = [self.target.schema.column(c.name) for c in self.plan.values if self.target.schema.has(c.name)]
        return Fit(self.target.name, self.plan.source, Schema(tuple(columns)), self.is_sized)

    def _lacks(self, image: Image | None) -> str:
        """Why the target cannot take a row that lacks a value which it requires; an empty text if it has all."""
        for i, column in enumerate(self.plan.values) if image is not None else ():
            if image is not None and image[i] is None and not self.target.schema.column(column.name).nullable:
                return f"its column {column.name} is NULL, and the table requires a value"
        return ""

    # -- type 1 --------------------------------------------------------------------------------

    def write_latest(
        self,
        transaction: UserTransaction,
        changes: Sequence[SequencedChange] | SequencedColumns,
        truncated: Any,
        bad: list[Quarantined],
        *,
        whole: bool = False,
    ) -> tuple[int, Any]:
        """Apply changes of SCD type 1; return the changed rows, and the sequence of the last truncation.

        Changes of rows that the target cannot take are added to `bad`, and left out.

        `whole`: the changes are all rows that the source has, which count also if later ones were taken: these are lost
        there, as after a failover.
        """
        if isinstance(changes, SequencedColumns):
            try:
                return self._write_columns(transaction, changes, truncated, whole=whole), truncated
            except NotColumns:
                changes = changes.rows()
        plan, keys = self.plan, _distinct(c.key for c in changes if not c.truncates)
        stored = self._stored(transaction, keys)
        if whole:
            there = {c.key for c in changes if not c.is_reported}
            stored = {key: Last(None, last.image) if key in there else last for key, last in stored.items()}
        found = latest(changes, stored, truncated, ignore_nulls=plan.flow.ignore_null_updates)
        causes = {key: cause for key, last in found.changed.items() if (cause := self._lacks(last.image))}
        if causes:
            bad += [self._bad(c, causes[c.key]) for c in changes if c.key in causes and not c.truncates]
            changes = [c for c in changes if c.key not in causes or c.truncates]
            found = latest(changes, stored, truncated, ignore_nulls=plan.flow.ignore_null_updates)
        rows = self._empty(transaction, found) if found.is_emptied else 0
        live = [last.image for last in found.changed.values() if last.image is not None]
        gone = [key for key, last in found.changed.items() if last.image is None]
        names = [c.name for c in plan.values]
        rows += _upsert(transaction, self.target, live, names)
        rows += _delete(transaction, self.target, gone, plan.keys)
        if self.memory is not None:
            now = datetime.now(UTC)
            states = [
                (*key, last.sequence, last.image is None, now, *self._known(last))
                for key, last in found.changed.items()
            ]
            _upsert(transaction, self.memory, states, [*plan.keys, SEQUENCE, DELETED, AT, *self._known_names])
        return rows, found.truncated

    def _write_columns(
        self, transaction: UserTransaction, changes: SequencedColumns, truncated: Any, *, whole: bool
    ) -> int:
        """Apply changes of SCD type 1 as columns; NotColumns, before anything is written, if they are to be applied row
        by row: where NULL means "as before", all rows go, or the target cannot take a row."""
        plan, memory = self.plan, self.memory
        if plan.flow.ignore_null_updates or changes.truncates.any():
            raise NotColumns
        keys, sequences = changes.keys.slice(0, 0), changes.sequences.slice(0, 0)
        if memory is not None:
            distinct = changes.keys.take(first_positions(changes.identities))
            found = transaction.lookup(memory.name, _columns_of(memory, plan.keys, distinct))
            keys, sequences = _chosen(found, plan.keys), _chosen(found, [SEQUENCE]).column(0)
        last = latest_of_columns(changes, keys, sequences, truncated, whole=whole)
        live = last.places[~changes.deletes[last.places]]
        gone = last.places[changes.deletes[last.places]]
        images = changes.images.take(live)
        required = [i for i, c in enumerate(plan.values) if not self.target.schema.column(c.name).nullable]
        if any(images.column(i).null_count for i in required):
            raise NotColumns
        rows = _upsert_rows(transaction, self.target, images)
        rows += _delete_rows(transaction, self.target, _columns_of(self.target, plan.keys, changes.keys.take(gone)))
        if memory is not None:
            deleted = pa.array(changes.deletes[last.places])
            now = pa.repeat(pa.scalar(datetime.now(UTC), memory.schema.column(AT).type.arrow), len(last.places))
            state = [*changes.keys.take(last.places).columns, last.sequences, deleted, now]
            _upsert_rows(transaction, memory, pa.table(state, names=[*plan.keys, SEQUENCE, DELETED, AT]))
        return rows

    def _stored(self, transaction: UserTransaction, keys: Sequence[Key]) -> dict[Key, Last]:
        """The last change of each key so far, with its row where NULLs mean "as before"."""
        plan = self.plan
        rows: dict[Key, Image] = {}
        if plan.flow.ignore_null_updates:
            names = [c.name for c in plan.values]
            places = [names.index(k) for k in plan.keys]
            for image in _rows(
                transaction.lookup(self.target.name, table_of(keys, plan.keys, self.target.schema)), names
            ):
                rows[tuple(image[p] for p in places)] = image
        if self.memory is None:
            return {key: Last(None, image) for key, image in rows.items()}
        found = transaction.lookup(self.memory.name, table_of(keys, plan.keys, self.memory.schema))
        width, names = len(plan.keys), self._known_names
        stored: dict[Key, Last] = {}
        for row in _rows(found, [*plan.keys, SEQUENCE, DELETED, *names]):
            key, sequence, is_deleted, known = row[:width], row[width], row[width + 1], row[width + 2 :]
            by_column = dict(zip(plan.others, known[1:], strict=False))
            at = tuple(by_column.get(c.name, sequence) for c in plan.values) if names else None
            stored[key] = Last(sequence, None if is_deleted else rows.get(key), at, known[0] if names else None)
        return stored

    @property
    def _known_names(self) -> list[str]:
        """The columns of the memory that IGNORE NULL UPDATES needs; none if an earlier version made it without them."""
        names = [FLOOR, *map(set_at, self.plan.others)] if self.plan.flow.ignore_null_updates else []
        return names if self.memory is not None and all(map(self.memory.schema.has, names)) else []

    def _known(self, last: Last) -> list[Any]:
        """The values of these columns for the last change of a key."""
        if not self._known_names:
            return []
        known = dict(zip((c.name for c in self.plan.values), last.set_at or (), strict=False))
        return [last.floor, *(known.get(name) for name in self.plan.others)]

    def _empty(self, transaction: UserTransaction, found: Latest) -> int:
        """Remove all rows whose last change is not after the truncation, except for those that changed since.

        A row of which no change is remembered was there before the flow.
        """
        plan, limit = self.plan, rank(found.truncated)
        assert self.memory is not None
        width = len(plan.keys)
        known = _rows(transaction.contents(self.memory.name), [*plan.keys, SEQUENCE])
        kept = {row[:width] for row in known if rank(row[width]) > limit} | found.changed.keys()
        _delete(transaction, self.memory, [row[:width] for row in known if row[:width] not in kept], plan.keys)
        here = _rows(transaction.contents(self.target.name), plan.keys)
        return _delete(transaction, self.target, [key for key in here if key not in kept], plan.keys)

    # -- type 2 --------------------------------------------------------------------------------

    def write_history(
        self, transaction: UserTransaction, changes: Sequence[SequencedChange], bad: list[Quarantined]
    ) -> int:
        """Apply changes of SCD type 2; return the changed rows of the target.

        Deletions that cannot end a row, and changes of rows that the target cannot take, are added to `bad` and left
        out.
        """
        plan = self.plan
        assert self.memory is not None
        by_key: dict[Key, list[SequencedChange]] = {}
        for change in changes:
            by_key.setdefault(change.key, []).append(change)
        before = self._histories(transaction, list(by_key))
        rules = Rules(plan.tracked, plan.flow.ignore_null_updates)
        names = [c.name for c in plan.values]
        rows: list[Image] = []
        gone: list[Key] = []
        hidden: list[Image] = []
        no_longer_hidden: list[Key] = []
        now = datetime.now(UTC)
        for key, own in by_key.items():
            old = before.get(key, History())
            new = self._advanced(old, own, rules, bad)
            if cause := next(filter(None, (self._lacks(p.image) for p in new.periods)), ""):
                bad += [self._bad(change, cause) for change in own]
                continue
            was = {p.start: p for p in old.periods}
            rows += [(*p.image, p.start, p.end) for p in new.periods if was.get(p.start) != p]
            starts = {p.start for p in new.periods}
            gone += [(*key, p.start) for p in old.periods if p.start not in starts]
            known = dict(old.hidden)
            hidden += [
                self._hidden_row(key, s, image, now)
                for s, image in new.hidden.items()
                if s not in known or known[s] != image
            ]
            no_longer_hidden += [(*key, s) for s in known if s not in new.hidden]
        written = _upsert(transaction, self.target, rows, [*names, START, END])
        written += _delete(transaction, self.target, gone, [*plan.keys, START])
        _upsert(transaction, self.memory, hidden, self._hidden_names)
        _delete(transaction, self.memory, no_longer_hidden, [*plan.keys, SEQUENCE])
        return written

    def _advanced(
        self, old: History, changes: Sequence[SequencedChange], rules: Rules, bad: list[Quarantined]
    ) -> History:
        """The history of one key after changes; deletions that the source reports end the present row.

        The sequence of such a deletion is that of the row before, or later. So it never takes the place of an event
        that has a row: a row that ended already was deleted by the same report, which is repeated.
        """
        new = old
        for change in changes:
            sequence = change.sequence
            if change.is_reported:
                events = {**visible(new.periods), **new.hidden}
                present = new.periods[-1] if new.periods and new.periods[-1].end is None else None
                if _is_ended(events, sequence, present):
                    continue
                if present is not None:
                    last = max((s for s, image in events.items() if image is not None), key=rank)
                    if rank(sequence) <= rank(last):
                        sequence = change.at if self.plan.ends_by_time else None
                        if sequence is None or rank(sequence) <= rank(last):
                            bad.append(self._bad(change, _NO_END.format(last)))
                            continue
            new = after(new, [(sequence, change.image)], rules)
        return new

    def _bad(self, change: SequencedChange, cause: str) -> Quarantined:
        key = ", ".join(f"{k}={v!r}" for k, v in zip(self.plan.keys, change.key, strict=True))
        what = f"deletion of ({key})" if change.image is None else f"change of ({key})"
        row = dict(zip((c.name for c in self.plan.values), change.image, strict=True)) if change.image else key
        return Quarantined(change.place or what, f"{what}: {cause}", repr(row))

    def _histories(self, transaction: UserTransaction, keys: Sequence[Key]) -> dict[Key, History]:
        """What is stored of these keys."""
        plan = self.plan
        assert self.memory is not None
        width, names = len(plan.keys), [c.name for c in plan.values]
        places = [names.index(k) for k in plan.keys]
        periods: dict[Key, list[Period]] = {}
        for *image, start, end in _rows(
            transaction.lookup(self.target.name, table_of(keys, plan.keys, self.target.schema)), [*names, START, END]
        ):
            periods.setdefault(tuple(image[p] for p in places), []).append(Period(start, end, tuple(image)))
        hidden: dict[Key, dict[Any, Image | None]] = {}
        found = transaction.lookup(self.memory.name, table_of(keys, plan.keys, self.memory.schema))
        for row in _rows(found, [*plan.keys, SEQUENCE, DELETED, *names]):
            event = None if row[width + 1] else tuple(row[width + 2 :])
            hidden.setdefault(row[:width], {})[row[width]] = event
        return {
            key: History(tuple(sorted(periods.get(key, ()), key=lambda p: rank(p.start))), hidden.get(key, {}))
            for key in periods.keys() | hidden.keys()
        }

    @property
    def _hidden_names(self) -> list[str]:
        rest = [c.name for c in self.plan.values if c.name not in self.plan.keys]
        return [*self.plan.keys, SEQUENCE, DELETED, AT, *rest]

    def _hidden_row(self, key: Key, sequence: Any, image: Image | None, at: datetime) -> Image:
        keys, names = set(self.plan.keys), [c.name for c in self.plan.values]
        rest = [v for n, v in zip(names, image or (None,) * len(names), strict=True) if n not in keys]
        return (*key, sequence, image is None, at, *rest)


def take_rows(transaction: UserTransaction, relation: Relation, delta: PartialDelta, columns: Sequence[str]) -> int:
    """Write the changes of a source, in these columns; return their number.

    All changes are blind, upserts and deletions by key: the versions of the table have the old rows, also where the
    source's idea of them differs.
    """
    new = pa.concat_tables([delta.ins, delta.un, delta.up, delta.ups]).select(list(columns))
    gone = pa.concat_tables([keys_of(delta.deleted, delta.schema), delta.delk])
    return _upsert_rows(transaction, relation, new) + _delete_rows(transaction, relation, gone)


def _is_ended(events: Mapping[Any, Image | None], sequence: Any, present: Period | None) -> bool:
    """Whether there is nothing that a reported deletion could end: no row, or the row of its sequence ended already."""
    if sequence is None or events.get(sequence) is None:
        return present is None and sequence is None
    later = [image for s, image in in_sequence(events) if rank(s) > rank(sequence)]
    return present is None or (bool(later) and later[0] is None)


def forgettable(memory: pa.Table, keys: Sequence[str], scd_type: int, before: datetime) -> list[Key]:
    """Keys of the memory's rows that are older than a time: deletions (type 1), all events of a key (type 2)."""
    width = len(keys)
    rows = _rows(memory, [*keys, SEQUENCE, DELETED, AT])
    if scd_type == 1:
        return [row[:width] for row in rows if row[width + 1] and row[width + 2] < before]
    newest: dict[Key, datetime] = {}
    for row in rows:
        newest[row[:width]] = max(row[width + 2], newest.get(row[:width], row[width + 2]))
    return [row[: width + 1] for row in rows if newest[row[:width]] < before]


def _distinct(keys: Iterable[Key]) -> list[Key]:
    return list(dict.fromkeys(keys))


def _rows(table: pa.Table, names: Sequence[str]) -> list[tuple[Any, ...]]:
    """Rows in these columns, whose names may be spelled in another way."""
    by_name = {fold(n): n for n in table.column_names}
    return list(zip(*(table.column(by_name[fold(n)]).to_pylist() for n in names), strict=True))


def table_of(rows: Sequence[Sequence[Any]], names: Sequence[str], schema: Schema) -> pa.Table:
    """Rows as Arrow columns, named and typed as a relation's."""
    columns = [schema.column(n) for n in names]
    cells: list[Sequence[Any]] = list(zip(*rows, strict=True)) if rows else [()] * len(columns)
    arrays = [pa.array(list(c), column.type.arrow) for c, column in zip(cells, columns, strict=True)]
    return pa.table(arrays, names=[c.name for c in columns])


def _chosen(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """These columns of a table, which may spell their names in another way."""
    by_name = {fold(n): n for n in table.column_names}
    return table.select([by_name[fold(n)] for n in names])


def _columns_of(relation: Relation, names: Sequence[str], rows: pa.Table) -> pa.Table:
    """Rows as these columns of a relation; NotColumns if it has them with other types."""
    columns = [relation.schema.column(n) for n in names]
    if rows.schema.types != [c.type.arrow for c in columns]:
        raise NotColumns
    return rows.rename_columns([c.name for c in columns])


def _upsert(transaction: UserTransaction, relation: Relation, rows: Sequence[Image], names: Sequence[str]) -> int:
    return _upsert_rows(transaction, relation, table_of(rows, names, relation.schema))


def _upsert_rows(transaction: UserTransaction, relation: Relation, rows: pa.Table) -> int:
    return transaction.upsert(relation.name, rows).rows if rows.num_rows else 0


def _delete(transaction: UserTransaction, relation: Relation, keys: Sequence[Key], names: Sequence[str]) -> int:
    return _delete_rows(transaction, relation, table_of(keys, names, relation.schema))


def _delete_rows(transaction: UserTransaction, relation: Relation, keys: pa.Table) -> int:
    return transaction.delete(relation.name, keys).rows if keys.num_rows else 0
