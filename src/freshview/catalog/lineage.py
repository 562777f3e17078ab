"""The relations that a view reads by its record, and the order that follows from it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from graphlib import TopologicalSorter

from freshview.catalog.records import Relation

REWRITING = "rewriting"  # a fact of a view: other relations from which its rows are maintained (`rewritings.py`)
AUXILIARY = "auxiliary"  # a fact of a view that the optimiser stores: why it is stored


def source_ids(view: Relation) -> dict[str, int]:
    """Names in a view's definition, with the ids of the relations that they refer to."""
    return {name: entry["id"] for name, entry in json.loads(view.facts.get("sources", "{}")).items()}


def rewriting_ids(view: Relation) -> dict[str, int]:
    """Names in a view's rewriting, with the ids of the relations that they refer to; empty if it has none."""
    return {name: entry["id"] for name, entry in json.loads(view.facts.get(REWRITING, "{}")).get("sources", {}).items()}


def read_ids(view: Relation) -> set[int]:
    """The ids of the relations that a view's definition or its rewriting names."""
    return {*source_ids(view).values(), *rewriting_ids(view).values()}


def is_auxiliary(relation: Relation) -> bool:
    """Is a relation a view that the optimiser stores in addition to the users'?"""
    return AUXILIARY in relation.facts


def sorted_column(relation: Relation) -> str:
    """The column on which the files of a relation are sorted instead of its key; empty if it is none."""
    name = json.loads(relation.facts.get(AUXILIARY, "{}")).get("sorted_by", "")
    return name if name in relation.schema.names else ""


def lower_first(relations: Iterable[Relation]) -> list[Relation]:
    """Sort all relations of a warehouse so that each comes after those that it reads."""
    known = {relation.id: relation for relation in sorted(relations, key=lambda r: r.id)}
    reads = {id_: [i for i in read_ids(relation) if i in known] for id_, relation in known.items()}
    return [known[id_] for id_ in TopologicalSorter(reads).static_order()]
