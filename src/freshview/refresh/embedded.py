"""May a job run in the embedded engine? Its rows are at hand, and all that it computes is proven to be Spark's."""

from __future__ import annotations

from collections.abc import Mapping

from freshview.algebra.nodes import Node
from freshview.catalog.records import Relation
from freshview.definition.known import settings_of
from freshview.delta.signed import with_weight
from freshview.local.plans import LocalPlan, Types, translated
from freshview.local.typed import Unproven
from freshview.refresh.job_input import JobInput
from freshview.spark.meaning import MEANING

ENGINE = "auto"  # "spark": no job runs in the embedded engine

# The settings on which proven constructs depend, at Spark's defaults.
REQUIRED = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.decimalOperations.allowPrecisionLoss": "true",
    "spark.sql.legacy.literal.pickMinimumPrecision": "true",
    "spark.sql.legacy.exponentLiteralAsDecimal.enabled": "false",
    "spark.sql.legacy.allowNegativeScaleOfDecimal": "false",
    "spark.sql.legacy.decimal.retainFractionDigitsOnTruncate": "false",
    "spark.sql.legacy.typeCoercion.datetimeToString.enabled": "false",
    "spark.sql.legacy.charVarcharAsString": "false",
    "spark.sql.readSideCharPadding": "true",
    "spark.sql.legacy.noCharPaddingInPredicate": "false",
    "spark.sql.function.concatBinaryAsString": "false",
    "spark.sql.legacy.integerGroupingId": "false",
    "spark.sql.timestampType": "timestamp_ltz",
}


def embedded(query: Node, given: JobInput) -> LocalPlan:
    """The delta query of a job for the embedded engine; raise Unproven if Spark has to run it."""
    if ENGINE == "spark" or given.view.properties.get("engine", "auto").lower() == "spark":
        raise Unproven("the property 'engine' = 'spark'")
    _require_defaults(settings_of(given.view))
    plan = translated(query, lambda scan: _types(given.relation(scan)))
    stored = {c.name: c.type.arrow for c in with_weight(given.view.schema).columns}
    for name, type_ in plan.columns:
        if stored[name] != type_.arrow:
            raise Unproven(name, f"{type_} here, {stored[name]} in the store")
    return plan


def _types(relation: Relation) -> Types:
    return {c.name: c.type for c in relation.schema.columns}


def _require_defaults(settings: Mapping[str, str]) -> None:
    for key, value in settings.items():
        if key not in MEANING or value.lower() != REQUIRED.get(key, value.lower()):
            raise Unproven(f"the setting {key} = {value}")
