"""Which condense steps the change of a source needs (LAZY §4.2), decided before anything is read.

A change on the driver is always condensed: that takes milliseconds. A change that stays in Spark is shuffled and
written once for it, so that the step is left out where it has no effect, or where the full condense has the same:

    rows are only added                         no two rows cancel
    one statement that only deletes             no two rows cancel: all weights are negative
    one statement with old and new images       of a key there is no version in between, so that it need not be found;
                                                old and new rows may be equal in the columns that the view uses
      read once, through filters and projections only
                                                the full condense cancels these too: one step in place of two

Law: what is left out changes no result. A statement has one old and one new image of a key at most, both of which are
states that the definition is computed from; between several statements there may be others, on which an expression of
the view may fail.
"""

from __future__ import annotations

from collections.abc import Sequence

from freshview.algebra.nodes import Filter, Node, Project, Scan
from freshview.algebra.traversal import bottom_up
from freshview.catalog.records import Relation, Segment
from freshview.delta.condense import BY_ROWS, Condense
from freshview.relation.delta import DELETE

_ONE = "one statement wrote it, so that no key has a version in between"


def condensed(relation: Relation) -> Condense:
    """The condense step of a source: by its key, if its delta rows may be blind or of several versions.

    The segments of a view and the versions of an external table have both images of an update.
    """
    return Condense(relation.schema.key if relation.kind != "view" and not relation.is_external else ())


def condensed_in_spark(relation: Relation, segments: Sequence[Segment], *, grows: bool, is_linear: bool) -> Condense:
    """The condense step of a change that stays in Spark. `is_linear`: the view reads it through filters and projections
    only."""
    if grows:
        return Condense(runs=False, why="it only adds rows")
    if not _has_images_of_one_statement(relation, segments):
        return BY_ROWS if any(s.replaces for s in segments) else condensed(relation)
    if segments[0].action == DELETE:
        return Condense(runs=False, why="one statement wrote it, which only deletes rows")
    if is_linear:
        return Condense(runs=False, why=f"{_ONE}, and the full condense cancels equal rows")
    return Condense(why=_ONE if relation.schema.key else "")


def _has_images_of_one_statement(relation: Relation, segments: Sequence[Segment]) -> bool:
    """Do these segments hold the old and new images that one statement wrote to a table?

    A segment that names its statement has rows of that one alone; blind rows of a table have an action in common.
    """
    return (
        relation.kind == "table"
        and len(segments) == 1
        and segments[0].stmtsn is not None
        and segments[0].action in (None, DELETE)
    )


def is_linear(tree: Node) -> bool:
    """Does a tree read one relation, once, through filters and projections only?"""
    return all(isinstance(n, Scan | Filter | Project) for n in bottom_up(tree))
