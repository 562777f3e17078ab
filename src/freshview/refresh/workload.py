"""The views of a warehouse as one search space of the optimiser: a DAG over relations by their present names.

    names      a definition names its sources as its text did; in the DAG a relation has one name, its present one
    views      a view that another view reads is a leaf, read as it is stored: hidden columns are columns of the leaf,
               and a condition leaves out the rows that do not belong to the view
    settings   the settings of a session bear on what a text means: views share results only under equal settings

Law: a scan of a `Table` in any tree of a choice means the stored rows of the relation with that name.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from freshview.algebra.nodes import Filter, Node, Project, Scan, Table, column, same
from freshview.algebra.traversal import fold, relations, with_inputs
from freshview.catalog.records import Relation
from freshview.definition.analysis import Definition, member_column
from freshview.definition.known import settings_of
from freshview.delta.forms import Form
from freshview.optimizer.dag import Dag, View
from freshview.optimizer.operations import Block, Grouping, StoredRelation
from freshview.optimizer.rules import expand
from freshview.refresh.plan import FULL, INCREMENTAL

Settings = Mapping[str, str]  # of a session
Known = Sequence[tuple[Relation, Definition]]  # views with their definitions, lower views first


@dataclass(frozen=True)
class CountedQuery:
    """A query of the workload, read as if it were a view, and how often it runs between two refreshes."""

    name: str
    definition: Definition
    rate: float


def no_queries(settings: Settings) -> Sequence[CountedQuery]:  # noqa: ARG001
    return ()


@dataclass(frozen=True)
class Workload:
    """The search space of a set of views."""

    dag: Dag
    views: tuple[Relation, ...]  # the views in the DAG
    relations: Mapping[str, Relation]  # the leaves of the DAG, by name
    settings: Mapping[str, str]  # under which all these views were created
    left_out: tuple[tuple[str, str], ...] = ()  # views that are not in the DAG, each with the reason
    reads: Mapping[str, frozenset[str]] = field(default_factory=dict)  # by view: the leaves that it reads

    def compared(self) -> dict[str, set[str]]:
        """The columns of each leaf that conditions and groupings use: their distinct values bear on sizes."""
        found: dict[str, set[str]] = {name: set() for name in self.relations}
        for node in self.dag.ordered():
            terms = node.conditions if isinstance(node, Block) else ()
            keys = tuple(t for _, t in node.keys) if isinstance(node, Grouping) else ()
            for name in {c for t in (*terms, *keys) for c in t.columns}:
                owner, base, _ = self.dag.names.origins[name]
                leaf = self.dag.nodes[owner]
                if isinstance(leaf, StoredRelation):
                    found[leaf.name].add(leaf.fields[base])
        return found


def workload(
    known: Known, now: Iterable[Relation], queries: Callable[[Settings], Sequence[CountedQuery]] = no_queries
) -> Workload:
    """The search space of these views, and of queries that are read under their settings; `now` are all relations of
    the warehouse."""
    by_id = {relation.id: relation for relation in now}
    left_out: list[tuple[str, str]] = []
    usable: list[tuple[Relation, Definition]] = []
    for view, definition in known:
        if definition.form is None:
            left_out.append((view.name, f"it is recomputed from its text: {definition.reason}"))
        elif any(source.id not in by_id for source in definition.sources.values()):
            left_out.append((view.name, "a relation that it reads was dropped meanwhile"))
        else:
            usable.append((view, definition))
    settings = _commonest(settings_of(view) for view, _ in usable)
    strangers = [view for view, _ in usable if settings_of(view) != settings]
    left_out += [
        (view.name, "the session had other settings at its creation than at most views'") for view in strangers
    ]
    usable = [(view, definition) for view, definition in usable if view not in strangers]
    leaves: dict[str, Relation] = {}
    reads: dict[str, frozenset[str]] = {}
    made: list[tuple[View, float]] = []
    asked = [(query.name, query.definition, query.rate) for query in queries(settings)]
    left_out += [(name, f"the query is not understood here: {d.reason}") for name, d, _ in asked if d.form is None]
    for name, definition, rate in [
        *((v.name, d, 0.0) for v, d in usable),
        *(a for a in asked if a[1].form is not None),
    ]:
        sources = {name: by_id[source.id] for name, source in definition.sources.items()}
        one = optimizer_view(name, definition, sources)
        read = frozenset(relations(one.form.tree))
        leaves |= {r.name: r for r in sources.values() if r.name in read}
        reads |= {} if rate else {name: read}
        made.append((one, rate))
    dag = Dag({name: {c.name: str(c.type) for c in leaf.schema.columns} for name, leaf in leaves.items()})
    for one, rate in made:
        dag.add_query(one, rate) if rate else dag.add_view(one)
    expand(dag)
    return Workload(dag, tuple(v for v, _ in usable), leaves, settings, tuple(left_out), reads)


def optimizer_view(name: str, definition: Definition, sources: Mapping[str, Relation]) -> View:
    """A view for the optimiser; `sources` are the relations that its definition names, as they are now."""
    assert definition.form is not None
    pinned, why = "", ""
    if not definition.incremental:
        pinned, why = FULL, definition.reason or "'refresh' = 'full'"
    elif definition.refresh == INCREMENTAL:
        pinned, why = INCREMENTAL, "'refresh' = 'incremental'"
    return View(name, over_stored(definition.form, sources), definition.types, pinned, why)


def over_stored(form: Form, sources: Mapping[str, Relation]) -> Form:
    """A stored form whose scans name relations by their present names, and read views as they are stored."""
    done: dict[Node, Node] = {}

    def rebuilt(node: Node, inputs: tuple[Node, ...]) -> Node:
        if isinstance(node, Scan):
            done[node] = _stored(node, sources[node.relation], f"{len(done)}")
        else:
            done[node] = with_inputs(node, inputs)
        return done[node]

    tree = fold(form.tree, rebuilt)
    if form.root is None:
        return replace(form, tree=tree)
    return replace(form, tree=tree, root=replace(form.root, input=done[form.root.input]))


def _stored(scan: Scan, relation: Relation, label: str) -> Node:
    """A scan of a relation's stored rows that belong to it."""
    source, member = Table(relation.name), member_column(relation)
    if member is None:
        return replace(scan, source=source)
    marked = f"{member} {label}"  # no column of a tree has a space in its name
    every = Scan(source, (*scan.fields, (member, marked)))
    return Project(Filter(every, column(marked)), same(scan.columns))


def _commonest(found: Iterable[Mapping[str, str]]) -> Mapping[str, str]:
    """The settings that most views have; of equally many the first."""
    texts = Counter(json.dumps(dict(s), sort_keys=True) for s in found)
    common: dict[str, str] = json.loads(texts.most_common(1)[0][0]) if texts else {}
    return common
