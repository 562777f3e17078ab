"""Lemmas of DEFER that deferred maintenance relies on, on random bags; with composition as it is done here."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from freshview.delta.signed import undone, weighted
from freshview.relation.delta import DELETE, INSERT, tag
from freshview.relation.schema import Column, Schema
from freshview.relation.types import parse_type
from freshview.views.invariants import Differentials

Bag = Counter[int]
SCHEMA = Schema((Column("x", parse_type("INT")),))
bags = st.lists(st.integers(0, 3), max_size=6).map(Counter)


def within(bag: Bag, whole: Bag) -> Bag:
    """The part of a bag that is contained in another."""
    return bag & whole


@given(bags, bags, bags)
def test_lemma_1_cancellation(o: Bag, d: Bag, i: Bag) -> None:
    """N ≡ (O ∸ D) ⊎ I implies O ≡ (N ∸ I) ⊎ (O min D): the differentials, undone, lead back."""
    n = (o - d) + i
    assert (n - i) + (o & d) == o
    changed = [weighted(rows_of(some), sign, SCHEMA) for some, sign in ((o & d, -1), (i, 1))]
    assert bag(undone(rows_of(n), pa.concat_tables(changed), SCHEMA)) == o


@given(bags, bags, bags, bags, bags)
def test_lemma_3_weakly_minimal_composition(o: Bag, d1: Bag, i1: Bag, d2: Bag, i2: Bag) -> None:
    d1 = within(d1, o)
    d2 = within(d2, (o - d1) + i1)
    d3, i3 = d1 + (d2 - i1), (i1 - d2) + i2
    assert (((o - d1) + i1) - d2) + i2 == (o - d3) + i3
    assert d3 <= o


@given(bags, bags, bags, bags, bags)
def test_composed_differentials_are_those_of_lemma_3_without_what_cancels(
    o: Bag, d1: Bag, i1: Bag, d2: Bag, i2: Bag
) -> None:
    """Law: what is stored after composing is strongly minimal, and leads to the same bag."""
    d1 = within(d1, o)
    d2 = within(d2, (o - d1) + i1)
    parts = [stored(d1, DELETE), stored(i1, INSERT), stored(d2, DELETE), stored(i2, INSERT)]
    net = Differentials.of(parts, SCHEMA)
    deleted, inserted = bag(net.deleted), bag(net.inserted)
    d3, i3 = d1 + (d2 - i1), (i1 - d2) + i2
    assert (deleted, inserted) == (d3 - i3, i3 - d3)
    assert not deleted & inserted
    assert deleted <= o
    assert (o - deleted) + inserted == (o - d3) + i3


def stored(rows: Bag, action: int) -> pa.Table:
    return tag(rows_of(rows), SCHEMA, action, 1)


def rows_of(rows: Bag) -> pa.Table:
    return pa.table({"x": pa.array(sorted(rows.elements()), pa.int32())}, schema=SCHEMA.arrow)


def bag(rows: pa.Table) -> Bag:
    return Counter(rows.column("x").to_pylist())
