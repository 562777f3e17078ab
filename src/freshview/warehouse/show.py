"""What SHOW and DESCRIBE answer: names of the columns and rows of text, from the catalog alone."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from freshview.catalog.records import Relation
from freshview.catalog.writer import Catalog
from freshview.relation.schema import fold
from freshview.sql.statements import Describe, Show
from freshview.warehouse.overview import overview, pending_tasks, told_condition, told_mode


@dataclass(frozen=True)
class Listing:
    """A small table of text."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def show(catalog: Catalog, statement: Show) -> Listing:
    """SHOW TABLES | MATERIALIZED VIEWS | TASKS | COLUMNS."""
    if statement.what == "columns":
        return Listing(("col_name",), [(c.name,) for c in catalog.relation(statement.name).schema.columns])
    if statement.what == "tasks":
        return _tasks(catalog, statement)
    if statement.what == "views":
        return _views(catalog, statement)
    kinds = ("table", "external")
    found = [r for r in catalog.relations() if r.kind in kinds and _matches(r.name, statement.pattern)]
    return Listing(("name", "kind", "primary_key"), [(r.name, r.kind, ", ".join(r.schema.key)) for r in found])


def _views(catalog: Catalog, statement: Show) -> Listing:
    """One row per view: how it is maintained, how far it is, and how long its oldest task has been waiting."""
    found = [v for v in overview(catalog) if _matches(v.name, statement.pattern)]
    rows = [
        (
            v.name, told_mode(v), str(v.frontier), str(v.pending_tasks), str(v.pending_rows),
            f"{v.age.total_seconds():.1f} s" if v.pending_tasks else "", told_condition(v), v.next_runs,
        )
        for v in found
    ]  # fmt: skip
    return Listing(("name", "mode", "frontier", "tasks", "rows", "age", "status", "next"), rows)


def _tasks(catalog: Catalog, statement: Show) -> Listing:
    """One row per view and transaction that it has not seen; `stmtsn` is set where it has seen a part."""
    rows = [
        (
            task.view, str(task.txsn), str(task.csn), str(task.stmtsn), ", ".join(task.tables), str(task.rows),
            f"{task.age.total_seconds():.1f} s", task.status,
        )
        for task in pending_tasks(catalog)
        if _matches(task.view, statement.pattern)
    ]  # fmt: skip
    return Listing(("view", "txsn", "csn", "stmtsn", "tables", "rows", "age", "status"), rows)


def _matches(name: str, pattern: str) -> bool:
    """Spark's LIKE of SHOW: * for anything, | between alternatives."""
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


def _details(catalog: Catalog, relation: Relation) -> list[tuple[str, str, str]]:
    main = catalog.latest_main(relation.id)
    segments, rows, size = catalog.backlog().get(relation.id, (0, 0, 0))
    details = [
        ("Name", relation.name),
        ("Kind", relation.kind),
        ("Primary key", ", ".join(relation.schema.key) or "none (a bag)"),
        ("Created at CSN", str(relation.created_csn)),
        ("Location", relation.location or "in the warehouse"),
        ("Checkpoint", f"CSN {main.csn}, Delta version {main.delta_version}, {main.rows} rows" if main else "none yet"),
        ("Since then", f"{segments} segments, {rows} delta rows, {size} bytes"),
    ]
    details += [("Definition", relation.facts["definition"])] if "definition" in relation.facts else []
    details += [(f"Property {k}", v) for k, v in relation.properties.items()]
    return [(k, v, "") for k, v in details]
