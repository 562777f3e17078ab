"""May a job run in the embedded engine? Its rows are at hand, and all that it computes is proven to be Spark's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from weakref import WeakKeyDictionary

import pyarrow as pa
from sqlglot import exp

from freshview.algebra.nodes import Filter, Node, Project, Shared
from freshview.algebra.traversal import scans
from freshview.catalog.records import Relation
from freshview.definition.known import settings_of
from freshview.delta.signed import part as chosen
from freshview.delta.signed import with_weight
from freshview.errors import FreshviewError, first_line
from freshview.local.plans import LocalPlan, Prepare, Types, translated
from freshview.local.typed import Unproven
from freshview.refresh.job_input import JobInput, SourceInput
from freshview.relation.schema import Schema
from freshview.spark.meaning import DEFAULTS
from freshview.spark.running import PlanRunner
from freshview.storage.reader import LOCAL_ROWS

ENGINE = "auto"  # "spark": no job runs in the embedded engine

# Plans of queries that are kept and used again (`ways.py`), for scans of these schemas; none has parts by Spark.
_KNOWN: WeakKeyDictionary[Node, tuple[tuple[Schema, ...], LocalPlan]] = WeakKeyDictionary()

# Settings that may have any value, since no proven construct depends on them. The law is tested under other values.
HARMLESS = frozenset(
    {
        "spark.sql.session.timeZone",  # times are compared, never read, written or cut
        "spark.sql.caseSensitive",  # plans name columns by numbers of their own
    }
)


def embedded(query: Node, given: JobInput, runner: Callable[[], PlanRunner]) -> LocalPlan:
    """The delta query of a job for the embedded engine; raise Unproven if Spark has to run it.

    `runner` is asked for if Spark computes parts of the query, over few rows of the driver and without a job.
    """
    require_embeddable(given.view)
    schemas = tuple(given.relation(scan).schema for scan in scans(query))
    known = _KNOWN.get(query)
    if known is not None and known[0] == schemas:
        plan = known[1]
    else:
        plan = translated(query, lambda scan: types_of(given.relation(scan)), preparing(given, runner))
        if not plan.prepared:
            _KNOWN[query] = (schemas, plan)
    require_stored(plan, given.view)
    return plan


def require_embeddable(view: Relation) -> None:
    """Raise Unproven if a property or a setting of a view keeps its jobs on Spark."""
    if ENGINE == "spark" or view.properties.get("engine", "auto").lower() == "spark":
        raise Unproven("the property 'engine' = 'spark'")
    require_defaults(settings_of(view))


def require_stored(plan: LocalPlan, view: Relation) -> None:
    """Raise Unproven if a plan does not give the types that a view stores."""
    stored = {c.name: c.type.arrow for c in with_weight(view.schema).columns}
    for name, type_ in plan.columns:
        if stored[name] != type_.arrow:
            raise Unproven(name, f"{type_} here, {stored[name]} in the store")


def preparing(given: SourceInput, runner: Callable[[], PlanRunner]) -> Prepare:
    """How Spark computes parts of plans over this input, each once: their rows are kept with the input."""
    known: dict[Node, Types] = {}

    def prepare(part: Node) -> Types:
        if part not in known:
            schema, given.prepared[part] = _computed(part, given, runner())
            known[part] = {c.name: c.type for c in schema.columns}
        return known[part]

    return prepare


def types_of(relation: Relation) -> Types:
    """Spark's types of the columns of a relation."""
    return {c.name: c.type for c in relation.schema.columns}


def _computed(part: Node, given: SourceInput, runner: PlanRunner) -> tuple[Schema, pa.Table]:
    """The rows of filters and projections over one scan, by Spark; no job, since the rows of the scan are in the plan.

    Whatever goes wrong is left to the query as a whole on Spark: an error that a user sees is its own.
    """
    (scan,) = scans(part)
    if isinstance(scan.source, Shared):
        raise Unproven(part_text(part), "over a part that several views share, whose rows are not there yet")
    rows, relation = given.table(scan), given.relation(scan)
    if rows.num_rows > LOCAL_ROWS:
        raise Unproven(part_text(part), f"over {rows.num_rows:,} rows")
    schema = with_weight(relation.schema) if scan.version == "delta" else relation.schema
    try:
        frame = runner.run(part, lambda _: runner.engine.frame(rows, chosen(schema, rows.column_names)))
        found = runner.engine.schema_of(frame, ())
        return found, runner.engine.collect(frame, list(found.arrow), "view")
    except (FreshviewError, pa.ArrowException, ValueError, OverflowError) as error:
        raise Unproven(part_text(part), first_line(error)) from error


def part_text(part: Node) -> str:
    """What a part of a plan computes, in a few words."""
    above, texts = part, []
    while isinstance(above, Filter | Project):
        own = [above.predicate] if isinstance(above, Filter) else [e for _, e in above.items]
        texts += [e.sql(dialect="spark") for e in own if not isinstance(e, exp.Column)]
        above = above.input
    return ", ".join(texts)


def require_defaults(settings: Mapping[str, str]) -> None:
    """Raise Unproven if the view keeps a setting that is neither harmless nor at Spark's default: proofs hold there."""
    for key, value in settings.items():
        if key not in HARMLESS and value.lower() != DEFAULTS.get(key, "").lower():
            raise Unproven(f"the setting {key} = {value}")
