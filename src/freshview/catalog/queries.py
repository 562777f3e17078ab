"""Texts of queries that ran, for the optimiser: how often and when, and not by whom or with which result.

Texts may have secrets in literals. They are stored in this table alone, and never part of an event.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from freshview.catalog import tables as t
from freshview.catalog.writer import Catalog

MOST = 500  # texts that are kept, those that ran last
LONGEST = 10_000  # characters of a text that is kept


@dataclass(frozen=True)
class KeptQuery:
    """The text of a query, and how often and when it ran; times in µs."""

    text: str
    runs: int
    first_at: int  # to within a heartbeat
    last_at: int


@dataclass(frozen=True)
class QueryCatalog:
    """Stores and reads the texts of queries."""

    catalog: Catalog

    def note(self, ran: Mapping[str, tuple[int, int]]) -> None:
        """Add runs: text → (how often, last time). Only the texts that ran last stay."""
        q, bound = t.queries.c, sa.bindparam
        by_digest = {hashlib.sha256(text.encode()).hexdigest(): (text, *seen) for text, seen in ran.items()}
        with self.catalog.database.write(durable=False) as c:
            self.catalog.database.lock_clock(c)  # other processes add runs of the same texts
            known = set(c.execute(sa.select(q.digest).where(q.digest.in_(by_digest))).scalars())
            again = [{"key": d, "more": n, "at": at} for d, (_, n, at) in by_digest.items() if d in known]
            new = [
                {"digest": d, "text": text, "runs": n, "first_at": at, "last_at": at}
                for d, (text, n, at) in by_digest.items()
                if d not in known
            ]
            if again:
                values = {"runs": q.runs + bound("more"), "last_at": bound("at")}
                c.execute(t.queries.update().where(q.digest == bound("key")).values(values), again)
            if new:
                c.execute(t.queries.insert(), new)
                last = sa.select(q.digest).order_by(q.last_at.desc(), q.digest).limit(MOST)
                c.execute(t.queries.delete().where(q.digest.not_in(last)))

    def kept(self) -> list[KeptQuery]:
        """All texts that are kept, those that ran most often first."""
        q = t.queries.c
        query = sa.select(q.text, q.runs, q.first_at, q.last_at).order_by(q.runs.desc(), q.last_at.desc(), q.digest)
        with self.catalog.database.read() as c:
            return [KeptQuery(*row) for row in c.execute(query)]
