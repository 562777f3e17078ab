"""What a poll brought, as the flow means it: its net effect, or each change with its sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from freshview.cdc.arrivals import Evaluate, arrivals
from freshview.cdc.dumps import Dumps, difference
from freshview.cdc.event_files import EventFiles
from freshview.cdc.fitting import fitting
from freshview.cdc.flow import END
from freshview.cdc.model import PartialDelta
from freshview.cdc.opening import on_error_of
from freshview.cdc.sequenced import Key, SequencedChange
from freshview.cdc.sequenced_columns import SequencedColumns
from freshview.cdc.source import Poll, Quarantined, bad_events
from freshview.errors import CaptureFailed
from freshview.flows.opened import Opened
from freshview.relation.ingest import to_table
from freshview.relation.schema import Schema
from freshview.transactions.user_transaction import UserTransaction

_FAILING = 100  # changes of one poll on which expressions may fail: each takes several queries to be found


class TooManyBad(CaptureFailed):
    """Expressions fail on many changes of one poll; `place` is that of the last one that was looked at."""

    place = ""

    def at(self, place: str) -> TooManyBad:
        self.place = place
        return self


@dataclass(frozen=True)
class Delivery:
    """What a poll brought: its net effect (`delta`), or else each change with its sequence."""

    poll: Poll
    delta: PartialDelta | None
    changes: Sequence[SequencedChange] | SequencedColumns = ()
    bad: list[Quarantined] = field(default_factory=list)
    ignored: int = 0
    bad_keys: frozenset[Key] = frozenset()

    @property
    def number(self) -> int:
        return self.delta.num_changes if self.delta is not None else len(self.changes)


def taken(poll: Poll, opened: Opened, evaluate: Evaluate) -> Delivery:
    """Return what a poll brought, as the flow means it. `evaluate` evaluates the flow's expressions over its rows."""
    plan, fit = opened.feed.plan, opened.feed.fit
    stops = on_error_of(opened.options) == "stop"
    if plan.is_plain and poll.changes is None:
        delta, unfit, keys = fitting(poll.delta, fit, plan.keys)
        if unfit and stops:
            raise bad_events(opened.origin, unfit)
        return Delivery(poll, delta, bad=unfit, bad_keys=keys)
    limit = 1 if stops else _FAILING
    found = arrivals(poll, plan, fit, evaluate, limit=limit)
    is_net = isinstance(opened.source, EventFiles) and poll.changes is None
    if found.bad and (stops or is_net):  # without a bad event, the net effect of the others of its row is another
        raise bad_events(opened.origin, found.bad)
    if found.failed >= limit:
        last = found.bad[-1]
        raise TooManyBad(
            f"flow {plan.flow.name}",
            f"its expressions fail on {limit} changes of one poll or more, such as {last.place}: {last.cause}",
            "Correct the expressions: drop the flow, and create it anew.",
        ).at(last.place)
    return Delivery(poll, None, found.changes, found.bad, found.ignored, frozenset(found.bad_keys))


def differing(transaction: UserTransaction, delivery: Delivery, opened: Opened) -> Delivery:
    """Return what was taken, which is all rows of the source, as the difference to the rows that are here."""
    feed, plan = opened.feed, opened.feed.plan
    here, schema = transaction.contents(feed.target.name), feed.target.schema
    if plan.flow.scd_type == 2:
        here = here.filter(pc.is_null(here.column(schema.column(END).name)))
    if isinstance(opened.source, Dumps) and here.num_rows:
        opened.source.check_first(delivery.poll.position, delivery.poll.delta.num_changes, here.num_rows)
    if delivery.delta is not None:
        part = Schema(
            tuple(schema.column(c.name) for c in plan.values), tuple(schema.column(k).name for k in plan.keys)
        )
        if delivery.bad_keys:  # rows that cannot be taken are there all the same
            keys = zip(*(here.column(schema.column(k).name).to_pylist() for k in plan.keys), strict=True)
            here = here.filter(pa.array([key not in delivery.bad_keys for key in keys], pa.bool_()))
        all_rows = [delivery.delta.ins, delivery.delta.un, delivery.delta.up, delivery.delta.ups]
        there = pa.concat_tables(all_rows).select([c.name for c in plan.values])
        there = to_table(there, part, feed.target.name)
        return replace(delivery, delta=difference(feed.target.name, part, here.select(list(part.names)), there))
    if plan.is_feed:
        return delivery
    names = [schema.column(k).name for k in plan.keys]
    if isinstance(delivery.changes, SequencedColumns):
        return replace(delivery, changes=delivery.changes.without(here.select(names)))
    known = set(zip(*(here.column(n).to_pylist() for n in names), strict=True))
    gone = sorted(known - {change.key for change in delivery.changes} - delivery.bad_keys, key=repr)
    ended = [SequencedChange(key, None, None, delivery.poll.at, is_reported=True) for key in gone]
    return replace(delivery, changes=[*delivery.changes, *ended])
