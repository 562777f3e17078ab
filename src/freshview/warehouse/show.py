"""The answers of SHOW and DESCRIBE: column names and rows of text, from the catalog alone."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from freshview.catalog.flows import FlowCatalog
from freshview.catalog.lineage import source_ids
from freshview.catalog.records import DIMENSION, REMOTE, Relation
from freshview.catalog.writer import Catalog
from freshview.flows.remote_states import remote_states
from freshview.flows.states import flow_states
from freshview.relation.schema import fold
from freshview.sql.statements import Describe, Show
from freshview.views.cycles import left_behind
from freshview.warehouse.overview import condition_text, mode_text, overview, pending_tasks


@dataclass(frozen=True)
class Listing:
    """A table of text."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def listed(catalog: Catalog, statement: Show | Describe) -> Listing:
    """Return the answer of a SHOW or DESCRIBE statement."""
    return show(catalog, statement) if isinstance(statement, Show) else describe(catalog, statement)


def show(catalog: Catalog, statement: Show) -> Listing:
    """SHOW TABLES | MATERIALIZED VIEWS | TASKS | COLUMNS | SOURCES | FLOWS | QUARANTINE."""
    if statement.what == "columns":
        return Listing(("col_name",), [(c.name,) for c in catalog.relation(statement.name).schema.columns])
    if statement.what in _LISTS:
        return _LISTS[statement.what](catalog, statement)
    kinds = ("table", "external", REMOTE)
    found = [r for r in catalog.relations() if r.kind in kinds and _matches(r.name, statement.pattern)]
    return Listing(("name", "kind", "primary_key"), [(r.name, r.kind, ", ".join(r.schema.key)) for r in found])


def _views(catalog: Catalog, statement: Show) -> Listing:
    """Return a row per view: its mode, its frontier, its pending tasks and rows, and the age of its oldest task."""
    rows = []
    for v in overview(catalog):
        if _matches(v.name, statement.pattern):
            numbers, age = (v.frontier, v.pending_tasks, v.pending_rows), _seconds(v.age) if v.pending_tasks else ""
            rows.append((v.name, mode_text(v), *map(str, numbers), age, condition_text(v), v.next_runs, v.about))
    warnings = {s.name: s.warning for s in remote_states(catalog) if s.warning != "ok"}
    for r in catalog.relations():
        if r.kind == DIMENSION and _matches(r.name, statement.pattern):
            tables = [t.name for t in catalog.relations_by_id(source_ids(r).values()).values() if t.name in warnings]
            condition = f"{tables[0]}: {warnings[tables[0]]}" if tables else "as of the last poll"
            if cause := left_behind(catalog.positions([r.id]).get(r.id)):
                condition = f"left behind: {cause}"
            newest = max((c.csn for c in catalog.commits(r.id)), default=r.created_csn)
            rows.append((r.name, "remote", str(newest), "0", "0", "", condition, "", ""))
    return Listing(("name", "mode", "frontier", "tasks", "rows", "age", "status", "next", "about"), sorted(rows))


def _tasks(catalog: Catalog, statement: Show) -> Listing:
    """Return a row per view and commit beyond its frontier; `stmtsn` is set where the view has seen a part of it."""
    rows = [
        (t.view, *map(str, (t.txsn, t.csn, t.stmtsn)), ", ".join(t.tables), str(t.rows), _seconds(t.age), t.status)
        for t in pending_tasks(catalog)
        if _matches(t.view, statement.pattern)
    ]
    return Listing(("view", "txsn", "csn", "stmtsn", "tables", "rows", "age", "status"), rows)


def _sources(catalog: Catalog, statement: Show) -> Listing:
    """Return a row per source: how it is read, its options, and what reads it."""
    flows = FlowCatalog(catalog)
    readers = {s.id: [f.name for f in flows.flows() if f.source_id == s.id] for s in flows.sources()}
    named = [r for r in catalog.relations() if r.kind == REMOTE]
    remote = {s.id: [r.name for r in named if r.facts["source"] == s.name] for s in flows.sources()}
    rows = []
    for s in flows.sources():
        if _matches(s.name, statement.pattern):
            options = ", ".join(f"{k} '{v}'" for k, v in s.options.items())
            rows.append((s.name, s.kind, options, ", ".join(readers[s.id]), ", ".join(remote[s.id])))
    return Listing(("name", "kind", "options", "flows", "remote_tables"), rows)


def _flows(catalog: Catalog, statement: Show) -> Listing:
    """Return a row per flow: from where it feeds which table, when it was last polled, and its last error."""
    rows = [
        (f.name, f.target, f.origin, f"SCD {f.scd_type}", f.poll, f.polled, str(f.set_aside), f.warning)
        for f in flow_states(catalog)
        if _matches(f.name, statement.pattern)
    ]
    return Listing(("name", "target", "source", "type", "poll", "polled", "quarantined", "status"), rows)


def _quarantine(catalog: Catalog, statement: Show) -> Listing:
    """Return a row per event that a flow set aside."""
    records = FlowCatalog(catalog)
    names = {f.id: f.name for f in records.flows()}
    rows = [
        (names[e.flow_id], e.place, e.cause, e.text, _iso(e.at))
        for e in records.set_aside()
        if e.flow_id in names and _matches(names[e.flow_id], statement.pattern)
    ]
    return Listing(("flow", "place", "cause", "text", "at"), rows)


_LISTS = {"tasks": _tasks, "views": _views, "sources": _sources, "flows": _flows, "quarantine": _quarantine}


def _seconds(age: timedelta) -> str:
    return f"{age.total_seconds():.1f} s"


def _matches(name: str, pattern: str) -> bool:
    """Return whether a name matches a pattern of SHOW … LIKE, as in Spark: * for anything, | between alternatives."""
    return not pattern or any(fnmatch.fnmatchcase(fold(name), fold(p.strip())) for p in pattern.split("|"))


def describe(catalog: Catalog, statement: Describe) -> Listing:
    """DESCRIBE [EXTENDED | HISTORY] table."""
    relation = catalog.relation(statement.name)
    if statement.history:
        commits = reversed(catalog.commits(relation.id))
        return Listing(
            ("csn", "timestamp", "operation", "rows", "txsn"),
            [(str(c.csn), _iso(c.committed_at), c.kind, str(c.rows), str(c.txsn)) for c in commits],
        )
    rows = [(c.name, _type(c.type, c.nullable), c.comment) for c in relation.schema.columns]
    if statement.extended:
        rows += [("", "", ""), *_details(catalog, relation)]
    return Listing(("col_name", "data_type", "comment"), rows)


def _iso(micros: int) -> str:
    return datetime.fromtimestamp(micros / 1e6, UTC).isoformat()


def _type(type_: object, nullable: bool) -> str:
    return f"{type_}" if nullable else f"{type_} NOT NULL"


def _location(relation: Relation) -> str:
    if relation.kind == REMOTE:
        return f"at its source: {relation.facts['source']}.{relation.facts['table']}"
    return relation.location or "in the warehouse"


def _details(catalog: Catalog, relation: Relation) -> list[tuple[str, str, str]]:
    main = catalog.latest_main(relation.id)
    segments, rows, size = catalog.backlog().get(relation.id, (0, 0, 0))
    details = [
        ("Name", relation.name),
        ("Kind", relation.kind),
        ("Primary key", ", ".join(relation.schema.key) or "none (a bag)"),
        ("Created at CSN", str(relation.created_csn)),
        ("Location", _location(relation)),
        ("Checkpoint", f"CSN {main.csn}, Delta version {main.delta_version}, {main.rows} rows" if main else "none yet"),
        ("Since then", f"{segments} segments, {rows} delta rows, {size} bytes"),
    ]
    details += [("Definition", relation.facts["definition"])] if "definition" in relation.facts else []
    details += [(f"Property {k}", v) for k, v in relation.properties.items()]
    return [(k, v, "") for k, v in details]
