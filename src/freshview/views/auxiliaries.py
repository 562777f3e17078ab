"""Auxiliary views: what the optimiser chose to store is created, and views are rewritten over it.

Law: at every moment, also if the process dies between two steps, each view is maintained to the rows of its own text.
An auxiliary view is created first, as any view is; a rewriting is attached in one transaction, when it is proven;
auxiliary views that nothing reads are dropped last. What a crash leaves is an auxiliary view without readers, which the
next application drops. Applying the same choice again changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from graphlib import TopologicalSorter

from freshview.algebra.nodes import Node, Project, Scan, Shared, column
from freshview.algebra.traversal import rewrite as rewritten_tree
from freshview.algebra.traversal import scans
from freshview.catalog.lineage import is_auxiliary, rewriting_ids, source_ids
from freshview.catalog.records import Relation
from freshview.catalog.rewritings import RewritingCatalog
from freshview.catalog.views import ViewCatalog
from freshview.definition.analysis import visible_columns
from freshview.definition.known import Definitions, as_at_create, settings_of
from freshview.definition.proof import Derived, RewritingTest
from freshview.definition.properties import AUTO, EAGER, LAZY, leaves_auxiliaries, mode_in
from freshview.definition.reading import TRIAL
from freshview.definition.rewriting import Auxiliary, Rewriting, rewrite
from freshview.errors import Crowded, FreshviewError, NotMaintainable
from freshview.events import Events
from freshview.optimizer.choice import Choice, StoredResult, ViewPlan
from freshview.optimizer.cost import INCREMENTAL
from freshview.refresh.jobs import is_transient
from freshview.relation.names import backticked
from freshview.relation.schema import fold
from freshview.spark.engines import Engines
from freshview.spark.running import PlanRunner
from freshview.sql.rendering import render
from freshview.sql.statements import CreateView
from freshview.views.benefit import benefit, mean_seconds
from freshview.views.lifecycle import Lifecycle
from freshview.views.maintenance import Maintenance

CREATED, KEPT, DROPPED, REFUSED = "created", "kept", "dropped", "refused"
REWRITTEN, OWN_TEXT = "rewritten", "own text"
_ENOUGH = 5  # jobs by which an auxiliary view is judged
_LOST = "auxiliaries given up"  # a fact of a view: results that cost more than they saved


@dataclass(frozen=True)
class AppliedPart:
    """What became of one part of a choice."""

    what: str  # CREATED | KEPT | DROPPED | REFUSED of auxiliary views; REWRITTEN | KEPT | OWN_TEXT | REFUSED of views
    name: str
    why: str = ""


@dataclass(frozen=True)
class Auxiliaries:
    """Keeps the auxiliary views of one warehouse."""

    views: ViewCatalog
    engines: Engines
    definitions: Definitions
    maintenance: Maintenance
    lifecycle: Lifecycle
    events: Events

    @property
    def rewritings(self) -> RewritingCatalog:
        return RewritingCatalog(self.views)

    def apply(self, choice: Choice, *, alone: bool = True, without: Collection[str] = ()) -> tuple[AppliedPart, ...]:
        """Store what was chosen, rewrite the views over it, and drop auxiliary views that nothing reads any more.

        What cannot be created, or not be proven, is left out with the reason; its views keep their own text. Views that
        the choice does not concern get their own text back if it stands `alone`, else they stay as they are. Results
        that hold what is in `without` are not stored.
        """
        with self.rewritings.alone() as is_alone:
            if not is_alone:
                raise Crowded("optimise", "another process applies a choice", "Try again when it is done.")
            applying = _Applying(self, choice, frozenset(without))
            steps = (*applying.stored(), *applying.rewritten(), *(applying.others() if alone else ()))
        return (*steps, *(AppliedPart(DROPPED, view.name, "no view reads it") for view in self.lifecycle.drop_unread()))

    def keep(self, propose: Callable[[Sequence[Relation]], Choice]) -> tuple[AppliedPart, ...]:
        """Look after the views that leave their auxiliary views to the background; return what was done.

        Auxiliary views that have cost more than they saved, over enough jobs, are given up for good by the views that
        they were for; a view that is rewritten stays so until then. `propose` returns a choice for views; those without
        past jobs wait, since nothing could be measured.
        """
        every, history = self.views.catalog.relations(), self.views.history()
        mine = [v for v in every if v.kind == "view" and not is_auxiliary(v) and leaves_auxiliaries(v)]
        for auxiliary in filter(is_auxiliary, every):
            measured = benefit(auxiliary, every, history)
            if measured.helped >= _ENOUGH and measured.saved < measured.cost:
                for view in mine:
                    if auxiliary.id in rewriting_ids(view).values():
                        self._give_up(view, Auxiliary.of(auxiliary).what)
        mine = [self.views.catalog.view(v.name) for v in mine if mean_seconds(self.views, v)]
        mine = [v for v in mine if Rewriting.of(v) is None]
        if not mine:
            return ()
        lost = {what for view in mine for what in _given_up(view)}
        return self.apply(propose(mine), alone=False, without=lost)

    def _give_up(self, view: Relation, what: str) -> None:
        """Have a view go on by its own text, and note that a result did not help it."""
        self.rewritings.detach(view)
        self.views.note(view, _LOST, json.dumps([*_given_up(view), what]))
        self.events.emit("auxiliary.given_up", view=view.name, what=what)

    # -- rewriting one view ------------------------------------------------------------------------

    def rewrite(self, view: Relation, rewriting: Rewriting, sources: Mapping[str, Relation]) -> Rewriting:
        """Prove a rewriting of a view and attach it; return it. NotMaintainable, with the reason, if it is refused."""
        proof, since = self._proof(view, rewriting, sources), self.views.catalog.snapshot()
        proven = replace(rewriting, proof=proof, before=mean_seconds(self.views, view), since=since)
        self.rewritings.attach(view, proven.to_json(), sources.values())
        self.events.emit("view.rewritten", view=view.name, over=", ".join(sorted(sources)))
        return proven

    def _proof(self, view: Relation, rewriting: Rewriting, sources: Mapping[str, Relation]) -> str:
        if why := self.why_not_lazy(view):
            raise _refused(why)
        own, derived = self.definitions.of(view), self._derived(view, sources)
        definition = rewrite(replace(own, rewriting=None), rewriting, sources)
        schemas = {n: as_at_create(r, own.columns[n]) for n, r in own.sources.items()}
        runner = PlanRunner(self.engines.under({**settings_of(view), **TRIAL}, small=True))
        tested = RewritingTest(definition, runner, schemas, view.schema, derived).run()
        if tested.difference:
            raise _refused(tested.difference)
        return f"tested on {tested.rows} rows in {tested.rounds} rounds"

    def why_not_lazy(self, view: Relation) -> str:
        """Why a view cannot be rewritten in its present mode; empty if it can."""
        mode = EAGER if self.views.is_eager(view) else mode_in(view.properties)
        return "" if mode in (LAZY, AUTO) else f"the view is {mode}: only lazy views are rewritten"

    def _derived(self, view: Relation, sources: Mapping[str, Relation]) -> dict[int, Derived]:
        """The views that a rewriting reads and the view's text does not, with those below them, by id."""
        own = set(source_ids(view).values())
        found: dict[int, Derived] = {}
        left = [r for r in sources.values() if r.id not in own]
        while left:
            one = left.pop()
            if one.kind != "view":
                raise _refused(f"it reads {one.name}, which the view's text does not name")
            if settings_of(one) != settings_of(view):
                raise _refused(f"{one.name} was created under other settings of the session")
            found[one.id] = Derived.of(one)
            left += [r for r in self.views.sources(one).values() if r.id not in own and r.id not in found]
        return found


def _given_up(view: Relation) -> list[str]:
    """What results cost a view more than they saved."""
    found: list[str] = json.loads(view.facts.get(_LOST, "[]"))
    return found


def _refused(cause: str) -> NotMaintainable:
    return NotMaintainable("rewriting", cause, "The view is maintained by its own text.")


@dataclass
class _Applying:
    """One application of a choice."""

    to: Auxiliaries
    choice: Choice
    without: frozenset[str] = frozenset()
    known: dict[str, Relation] = field(default_factory=dict)  # auxiliary views that are stored, by their chosen names
    why_not: dict[str, str] = field(default_factory=dict)  # of those that could not be

    @property
    def _chosen(self) -> dict[str, StoredResult]:
        return {a.name: a for a in self.choice.auxiliaries}

    # -- auxiliary views ---------------------------------------------------------------------------

    def stored(self) -> Iterator[AppliedPart]:
        """Create the auxiliary views that are not there yet, lower ones first."""
        chosen = self._chosen
        reads = {name: _read(self._alone(a.tree)) & chosen.keys() for name, a in chosen.items()}
        for name in TopologicalSorter(reads).static_order():
            try:
                yield self._stored(chosen[name])
            except FreshviewError as error:
                if is_transient(error):
                    raise
                self.why_not[name] = str(error)
                yield AppliedPart(REFUSED, name, str(error))

    def _stored(self, chosen: StoredResult) -> AppliedPart:
        if chosen.what in self.without:
            raise _refused("it cost more than it saved before")
        text, sources = self._text(chosen.tree)
        users = self._users(chosen.name)
        if not users:
            raise _refused("no lazy view that is incremented reads it")
        settings = settings_of(users[0])
        facts = Auxiliary(chosen.what, chosen.name, settings, chosen.sorted_by, chosen.seconds, chosen.saves)
        for there in self.to.rewritings.auxiliaries():
            if self._holds(there, chosen, facts, sources.values()):
                self.to.maintenance.right_since(there)  # another version of the program may have read it
                self.known[chosen.name] = self.to.views.catalog.view(there.name)
                return AppliedPart(KEPT, there.name, chosen.what)
        name = self._free(chosen.name)
        rows, _ = self.to.lifecycle.create(CreateView(name, text), facts)
        self.known[chosen.name] = self.to.views.catalog.view(name)
        self.to.events.emit("auxiliary.created", view=name, rows=rows)
        return AppliedPart(CREATED, name, chosen.what)

    def _holds(self, there: Relation, chosen: StoredResult, facts: Auxiliary, sources: Iterable[Relation]) -> bool:
        """Does an auxiliary view hold what was chosen, from the same tables?

        Its name lists the tables of which it holds rows. If these were exchanged, the proof of a rewriting fails.
        """
        if Auxiliary.of(there) != replace(facts, seconds=Auxiliary.of(there).seconds, saves=Auxiliary.of(there).saves):
            return False
        ids = {i for r in sources for i in (self.to.views.inputs(r) if r.kind == "view" else (r.id,))}
        tables = {r.id for r in self.to.views.catalog.relations() if r.kind != "view"}
        has_columns = set(chosen.tree.columns) <= set(visible_columns(there))
        same_tables = ids & tables == set(self.to.views.inputs(there)) & tables
        return has_columns and same_tables and settings_of(there) == facts.settings

    def _users(self, name: str) -> list[Relation]:
        """The lazy views that are incremented and whose plans read an auxiliary view, directly or through others."""
        above = {name}
        while more := {a.name for a in self.choice.auxiliaries if _read(self._alone(a.tree)) & above} - above:
            above |= more
        plans = [p for p in self.choice.views if p.way == INCREMENTAL]
        names = [p.name for p in plans if not above.isdisjoint(_read(self._alone(p.tree)))]
        return [v for v in map(self.to.views.catalog.find, names) if v is not None and self.to.why_not_lazy(v) == ""]

    def _free(self, name: str) -> str:
        """The name of an auxiliary view depends on what it holds; one with other columns may be there already."""
        names = (name if i == 0 else f"{name}_{i}" for i in range(1000))
        return next(n for n in names if self.to.views.catalog.find(n) is None)

    def _text(self, tree: Node) -> tuple[str, dict[str, Relation]]:
        """The text of a tree over relations that are there, and these relations by their names in it."""
        sources: dict[str, Relation] = {}
        tree = self._alone(tree)

        def name(scan: Scan) -> str:
            found = self._relation(scan.relation)
            hidden = [c for c, _ in scan.fields if c not in visible_columns(found)]
            if hidden:
                raise _refused(f"it reads {hidden[0]} of {found.name}, which is hidden")
            sources[found.name] = found
            return backticked(found.name)

        prefix = _prefix(self._relation(s.relation).name for s in scans(tree))
        return render(tree, name, prefix=prefix), sources

    def _alone(self, tree: Node) -> Node:
        """A tree without results that are shared in one refresh: their own trees take the place of their scans."""
        parts = {part.number: part.tree for part in self.choice.shared}

        def rule(node: Node) -> Node:
            if not isinstance(node, Scan) or not isinstance(node.source, Shared):
                return node
            below = self._alone(parts[node.source.number])
            return Project(below, tuple((name, column(c)) for c, name in node.fields))

        return rewritten_tree(tree, rule)

    def _relation(self, name: str) -> Relation:
        if name in self._chosen:
            if name not in self.known:
                raise _refused(f"{name} is not stored: {self.why_not.get(name, 'it was not chosen')}")
            return self.known[name]
        return self.to.views.catalog.relation(name)

    # -- views -------------------------------------------------------------------------------------

    def rewritten(self) -> Iterator[AppliedPart]:
        """Rewrite the views over what is stored; those that read nothing of it get their own text back."""
        for plan in self.choice.views:
            view = self.to.views.catalog.find(plan.name)
            if view is not None:
                yield from self._rewritten(view, plan)

    def others(self) -> Iterator[AppliedPart]:
        """Give views that were not optimised their own text back."""
        planned = {fold(p.name) for p in self.choice.views}
        for view in self.to.views.catalog.relations():
            if fold(view.name) not in planned and self.to.rewritings.detach(view):
                yield AppliedPart(OWN_TEXT, view.name, "it is not among the views that were optimised")

    def _rewritten(self, view: Relation, plan: ViewPlan) -> Iterator[AppliedPart]:
        try:
            if plan.way != INCREMENTAL or not self._chosen.keys() & _read(self._alone(plan.tree)):
                if self.to.rewritings.detach(view):
                    yield AppliedPart(OWN_TEXT, view.name, "nothing that is stored helps it")
                return
            text, sources = self._text(plan.tree)
            rewriting, has = Rewriting.over(text, sources), Rewriting.of(view)
            if has is not None and (has.text, has.sources) == (rewriting.text, rewriting.sources):
                yield AppliedPart(KEPT, view.name, f"rewritten over {_names(sources.values())}")
                return
            if has is not None:  # the view has to see what its present rewriting reads, if that was recomputed
                self.to.maintenance.bring(view, self.to.views.catalog.snapshot())
            proven = self.to.rewrite(view, rewriting, sources)
            self.to.maintenance.bring(view, self.to.views.catalog.snapshot())  # from here on all move together
            yield AppliedPart(REWRITTEN, view.name, f"over {_names(sources.values())}; {proven.proof}")
        except FreshviewError as error:
            if is_transient(error):
                raise
            self.to.rewritings.detach(view)
            yield AppliedPart(REFUSED, view.name, error.cause if isinstance(error, NotMaintainable) else str(error))


def _read(tree: Node) -> set[str]:
    """The names of the relations that a tree reads."""
    return {s.relation for s in scans(tree)}


def _names(sources: Iterable[Relation]) -> str:
    return ", ".join(sorted(r.name for r in sources if is_auxiliary(r)))


def _prefix(names: Iterable[str]) -> str:
    """A beginning for the names of WITH queries that no table has."""
    taken, prefix = [fold(n) for n in names], "p"
    while any(n.startswith(prefix) for n in taken):
        prefix += "_"
    return prefix
