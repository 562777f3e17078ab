"""Rewritings and auxiliary views in the catalog.

A view's *rewriting* names other relations, auxiliary views among them, from which its rows are maintained. It is a fact
of the view; the definition stays what the view is.

Law: a rewriting is attached, with what the view then reads, or taken away, in one transaction. It reads relations that
are there, and no view that reads the rewritten one. An auxiliary view is dropped in a transaction that has seen no
reader of it, so that no rewriting loses what it reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import sqlalchemy as sa

from freshview.catalog import tables as t
from freshview.catalog.commits import check_unchanged
from freshview.catalog.lineage import REWRITING, is_auxiliary, lower_first, read_ids, rewriting_ids
from freshview.catalog.records import Relation
from freshview.catalog.views import ViewCatalog
from freshview.errors import WriteConflict

_LEASE = "optimise"  # of the process that applies a choice


@dataclass(frozen=True)
class RewritingCatalog:
    """Attaches rewritings, takes them away, and drops auxiliary views that nothing reads."""

    views: ViewCatalog

    def attach(self, view: Relation, rewriting: str, sources: Iterable[Relation]) -> None:
        """Give a view a rewriting over these relations, in place of the one that it has.

        WriteConflict if one of them was dropped or altered meanwhile, if the rewriting would read the view itself, or
        if what its present one reads was recomputed (see `detach`).
        """
        with self.views.catalog.database.write() as c:
            self.views.catalog.database.lock_clock(c)
            self._require_seen(c, view)
            for relation in (view, *sources):
                check_unchanged(c, relation)
            f = t.frontiers.c
            place = c.execute(sa.select(f.eager, f.shown).where(f.view_id == view.id)).one()
            if place.eager or place.shown is not None:
                raise WriteConflict(f"view {view.name}", "only lazy views are rewritten", "Optimise again.")
            known = {r.id: r for r in self.views.catalog.relations_in(c)}
            if view.id in _closure({r.id for r in sources}, known):
                raise WriteConflict(f"view {view.name}", "its rewriting would read it", "Optimise again.")
            self._note(c, view, rewriting)

    def detach(self, view: Relation) -> bool:
        """Take a view's rewriting away; return whether it had one.

        WriteConflict if what the rewriting reads was recomputed, and the view, or one above it, has not seen that yet:
        its task would be lost with what it reads.
        """
        with self.views.catalog.database.write() as c:
            self.views.catalog.database.lock_clock(c)
            self._require_seen(c, view)
            return self._note(c, view, None)

    def _require_seen(self, c: sa.Connection, view: Relation) -> None:
        known = {relation.id: relation for relation in self.views.catalog.relations_in(c)}
        if view.id not in known or not rewriting_ids(known[view.id]):
            return
        for one in (view, *self.views.above(view)):
            if any(task.reset for task in self.views.pending(one, self.views.catalog.snapshot())[1]):
                cause = "what it is rewritten over was recomputed, and it has not been maintained since"
                raise WriteConflict(f"view {one.name}", cause, f"Run REFRESH MATERIALIZED VIEW {one.name} first.")

    def rewritten_over(self, relation: Relation) -> list[Relation]:
        """The views whose rewriting reads a relation."""
        return [v for v in self.views.catalog.relations() if relation.id in rewriting_ids(v).values()]

    def auxiliaries(self) -> list[Relation]:
        """All auxiliary views, lower ones first."""
        return [r for r in lower_first(self.views.catalog.relations()) if is_auxiliary(r)]

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Keep other processes from applying choices; yield False if one does so now.

        While a choice is applied, auxiliary views are there before views read them.
        """
        lease = self.views.catalog.lease(0, "", _LEASE)
        try:
            yield lease is not None
        finally:
            if lease is not None:
                self.views.catalog.drop_leases([lease.id])

    def drop_unread(self) -> list[Relation]:
        """Drop the auxiliary views that no view reads, in one transaction; return them. The caller is `alone`."""
        dropped: list[Relation] = []
        with self.views.catalog.database.write() as c:
            self.views.catalog.database.lock_clock(c)
            left = lower_first(self.views.catalog.relations_in(c))
            for relation in reversed(left.copy()):  # an auxiliary view may be all that reads another one
                if is_auxiliary(relation) and not any(relation.id in read_ids(r) for r in left):
                    self.views.drop_in(c, relation)
                    left.remove(relation)
                    dropped.append(relation)
        return dropped

    def _note(self, c: sa.Connection, view: Relation, rewriting: str | None) -> bool:
        """Store a rewriting, or remove it, and set what the view and those above it read; return if there was one."""
        r = t.relations.c
        found = c.execute(sa.select(r.facts).where(r.id == view.id, r.dropped_csn.is_(None))).scalar()
        if found is None:
            return False
        facts = json.loads(found)
        had = facts.pop(REWRITING, None) is not None
        if rewriting is not None:
            facts[REWRITING] = rewriting
        elif not had:
            return False
        c.execute(t.relations.update().where(r.id == view.id).values(facts=json.dumps(facts)))
        known = {relation.id: relation for relation in self.views.catalog.relations_in(c)}
        above = {view.id}
        for relation in lower_first(known.values()):
            if relation.id in above or above & read_ids(relation):
                above.add(relation.id)
                self.views.set_inputs(c, relation.id, [known[i] for i in read_ids(relation) if i in known])
        return had


def _closure(ids: set[int], known: dict[int, Relation]) -> set[int]:
    """The ids of relations, and of all that those read."""
    found, left = set[int](), list(ids)
    while left:
        if (one := left.pop()) not in found and one in known:
            found.add(one)
            left += read_ids(known[one])
    return found
