"""Signed bags in Spark: frames whose last column is a weight, for changes that are too large for the driver.

The laws are those of the driver: `cancelled` is `delta/signed.net`, `changes` is `refresh/deltas.changes`. Equal rows
cancel by bit identity. Inside, columns are named by place (c0 …), so that no two names collide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from freshview.algebra.nodes import WEIGHT
from freshview.catalog.records import Relation, RelationState, Segment
from freshview.delta.condense import Condense
from freshview.relation.delta import DELETE, DELETE_KEY, INSERT, UPSERT
from freshview.relation.names import backticked
from freshview.relation.schema import ACTION, STMTSN, Schema
from freshview.spark.scan import ORDER, Scanner, named, places_of, widened
from freshview.spark.types import identity_sql

_APPLIED = (ORDER, STMTSN, ACTION)  # the order in which delta rows apply
_BLIND = (DELETE_KEY, UPSERT)


def cancelled(signed: DataFrame, schema: Schema) -> DataFrame:
    """A signed bag in which equal rows are one row with the sum of their weights; rows with a sum of 0 are left out.

    Rows are grouped by their columns, not by structs, and a column is carried along only if its identity is not its
    value: Spark can then group by hashing, where structs would have to be sorted.
    """
    places = places_of(schema)
    identities = {p: identity_sql(p, c.type) for p, c in zip(places, schema.columns, strict=True)}
    carried = [p for p in places if identities[p] != p]
    groups = signed.toDF(*places, WEIGHT).groupBy(*(F.expr(e).alias(f"i{p}") for p, e in identities.items()))
    sums = groups.agg(F.sum(WEIGHT).cast("int").alias(WEIGHT), *(F.first(p).alias(p) for p in carried))
    rows = [F.col(p if p in carried else f"i{p}").alias(p) for p in places]
    return named(sums.where(f"{WEIGHT} <> 0").select(*rows, WEIGHT), schema, WEIGHT)


def one_by_one(signed: DataFrame) -> DataFrame:
    """A signed bag with one row per copy, each with a weight of 1 or -1: delta rules read changes so."""
    own = [backticked(c) for c in signed.columns if c != WEIGHT]
    copies = F.explode(F.expr(f"array_repeat(CAST(sign({WEIGHT}) AS INT), abs({WEIGHT}))")).alias(WEIGHT)
    return signed.select(*own, copies)


def changes(
    scanner: Scanner,
    relation: Relation,
    states: tuple[RelationState, RelationState],
    segments: Sequence[Segment],
    columns: Sequence[str],
    member: str | None = None,
    *,
    condense: Condense,
    grows: bool = False,
) -> DataFrame:
    """Δ of a relation between two states, before and after these segments, over some of its columns.

    `member` is the column that marks the rows of a view which belong to it; others do not count. `condense` is the
    partial condense: if it does not run, the rows of the segments are Δ as they are; if it is by key only, equal rows
    of Δ may be left. A change that `grows` removes no rows.
    """
    schema = relation.schema
    signed = _signed(scanner, relation, states, segments, by_key=bool(condense.key), grows=grows)
    if member is not None:
        signed = signed.where(f"c{schema.position(member)}")
    wanted = Schema(tuple(schema.column(c) for c in columns))
    placed = [F.col(f"c{schema.position(c)}").alias(f"c{i}") for i, c in enumerate(columns)]
    chosen = named(signed.select(*placed, WEIGHT), wanted, WEIGHT)
    return one_by_one(cancelled(chosen, wanted)) if condense.runs and condense.cancels else chosen


def _signed(
    scanner: Scanner,
    relation: Relation,
    states: tuple[RelationState, RelationState],
    segments: Sequence[Segment],
    *,
    by_key: bool,
    grows: bool,
) -> DataFrame:
    """Images with their signs, by place; those of equal rows may not have cancelled yet."""
    schema, (before, after) = relation.schema, states
    if any(s.replaces for s in segments):
        new, old = (widened(scanner.scan(state), state.schema, schema) for state in (after, before))
        return new.withColumn(WEIGHT, F.lit(1)).unionAll(old.withColumn(WEIGHT, F.lit(-1)))
    here = replace(after, relation=relation)
    if relation.is_external:
        return scanner.foreign_changes(here, segments, grows=grows)
    rows = reduce(DataFrame.unionAll, scanner.deltas(here, segments))
    if by_key:
        return _by_key(scanner, before, rows, schema)
    return rows.select(*places_of(schema), F.when(F.col(ACTION) >= INSERT, 1).otherwise(-1).alias(WEIGHT))


def _by_key(scanner: Scanner, before: RelationState, rows: DataFrame, schema: Schema) -> DataFrame:
    """Last image per key − old image per key: that of the key's first row if it carries one, else the one stored before
    (law 11.1)."""
    places, keys = places_of(schema), [f"c{p}" for p in schema.key_positions]
    image = F.struct(*places, ACTION)
    ends = rows.groupBy(*keys).agg(
        F.min_by(image, F.struct(*_APPLIED)).alias("first"), F.max_by(image, F.struct(*_APPLIED)).alias("last")
    )
    new = _images(ends, "last", F.col(f"last.{ACTION}") >= INSERT, places, 1)
    old = _images(ends, "first", F.col(f"first.{ACTION}") == DELETE, places, -1)
    images = new.unionAll(old)
    if not rows.where(F.col(ACTION).isin(*_BLIND)).select(ACTION).head(1):
        return images  # no row is blind: the state before need not be read
    blind = ends.where(F.col(f"first.{ACTION}").isin(*_BLIND)).select(*keys)
    stored = widened(scanner.scan(before), before.schema, schema)
    found = stored.join(blind, on=keys, how="left_semi").select(*places, F.lit(-1).alias(WEIGHT))
    return images.unionAll(found)


def _images(ends: DataFrame, end: str, condition: Column, places: Sequence[str], weight: int) -> DataFrame:
    return ends.where(condition).select(*(F.col(f"{end}.{p}").alias(p) for p in places), F.lit(weight).alias(WEIGHT))
