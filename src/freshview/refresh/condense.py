"""Which condense steps a job has (LAZY §4), decided before anything is read.

A change on the driver is always condensed: that takes milliseconds. A change that stays in Spark is shuffled and
written once for it. A step is left out where it has no effect, or where another step has the same:

    rows are only added                         no two rows cancel
    one statement that only deletes             no two rows cancel: all weights are negative
    one statement with old and new images       of a key there is no version in between, so that it need not be found;
                                                old and new rows may be equal in the columns that the view uses
      read once, through filters and projections only
                                                the full condense cancels these too: one step in place of two

Of several statements the first old and the last new image of each key are always found first. Whether equal rows of
what is left cancel below the joins is a choice by cost (`expected`): cancelling costs as much as reading the rows
several times; each row that goes is not read, joined, and condensed with the view's change.

The full condense is left out where no row of the result can cancel, and where one condense below the joins does for
both (Figure 3(c)): a change that is read once deletes and inserts one row of a key of the view at most.

Law: what is left out changes no result. A statement has one old and one new image of a key at most, both of which are
states that the definition is computed from; between several statements there may be others, on which an expression of
the view may fail. So these are never left to the full condense.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from freshview.algebra.nodes import Filter, Join, Node, Project, Scan, Table
from freshview.algebra.traversal import bottom_up, fold, relations, scans
from freshview.catalog.records import Relation, Segment
from freshview.delta.cancelling import can_cancel, is_read_once
from freshview.delta.condense import BY_ROWS, Condense, Expected
from freshview.delta.forms import Form
from freshview.refresh.cost import CANCELLED, DEFAULT, Rates
from freshview.relation.delta import DELETE

_ONE = "one statement wrote it, so that no key has a version in between"
_ADDED = "all changes add rows, so that no two rows of the result cancel"
_UNKNOWN = 0.5  # the share of rows that cancel, if no earlier job has cancelled any


@dataclass(frozen=True)
class ChangeUse:
    """How a view reads the change of a source, and what is known of it."""

    terms: int  # scans of the source: a delta query reads the change for each of them
    joins: int  # that a row of the change passes, at most
    fanout: float  # rows of another relation that it meets there
    is_grouped: bool  # the rows of the joins are grouped; else they are rows of the view's change, and are condensed
    size: int  # rows of the source
    spares_full: bool = False  # the full condense is left out if equal rows cancel below the joins
    cancelled: float | None = None  # the share of its rows that an earlier job has cancelled
    rates: Rates = DEFAULT


def use_of(
    form: Form,
    source: str,
    sizes: Callable[[str], int],
    *,
    alone: bool,
    is_keyed: bool,
    past: Sequence[int] | None = None,
) -> ChangeUse | None:
    """How a view reads a source; None for forms in which a row that did not cancel may cost far more than itself, since
    its whole group is computed again.

    `alone`: no other source has changed; `is_keyed`: the view has a key; `past`: the rows that an earlier job read and
    left of such a change.
    """
    if form.rule not in ("rows", "sums"):
        return None
    size = max(sizes(source), 1)

    def passed(node: Node, inputs: tuple[tuple[int, float] | None, ...]) -> tuple[int, float] | None:
        """The joins above the source, and the most rows that a row of it meets in one of them."""
        if isinstance(node, Scan):
            return (0, 1.0) if isinstance(node.source, Table) and node.relation == source else None
        below = [found for found in inputs if found is not None]
        if not below:
            return None
        joins, fanout = max(b[0] for b in below), max(b[1] for b in below)
        if not isinstance(node, Join):
            return joins, fanout
        others = {name for side in node.inputs for name in relations(side)} - {source}
        return joins + 1, max([fanout, *(sizes(other) / size for other in others)])

    terms = sum(isinstance(s.source, Table) and s.relation == source for s in scans(form.tree))
    joins, fanout = fold(form.tree, passed) or (0, 1.0)
    spares = alone and is_keyed and form.rule == "rows" and terms == 1 and joins > 0
    share = 1 - past[1] / past[0] if past is not None and past[0] else None
    return ChangeUse(terms, joins, fanout, form.rule != "rows", size, spares, share)


def expected(rows: int, use: ChangeUse, *, by_key: bool) -> Expected:
    """What cancelling the equal rows of a change is expected to cost and to save.

    `rows` are those that were written. `by_key`: the images of each key were condensed before, and are held in files.
    """
    if by_key:  # if updates are scattered evenly over the rows of the source; less is left if they are not
        rows = round(2 * use.size * -math.expm1(-rows / (2 * use.size)))
    left = round(rows * (1 - (_UNKNOWN if use.cancelled is None else use.cancelled)))
    rates = use.rates
    cancelling = CANCELLED * rates.row
    joined = use.terms * (rates.row + use.joins * (1 + use.fanout) * rates.joined)
    applied = use.fanout * (rates.joined if use.is_grouped else cancelling)
    costs, saves = rows * cancelling + left * rates.written, (rows - left) * (joined + applied)
    if by_key:
        saves += rows * rates.written
    if use.spares_full:
        saves += left * applied
    return Expected(rows, left, costs, saves)


def condensed(relation: Relation) -> Condense:
    """The condense step of a source: by its key, if its delta rows may be blind or of several versions.

    The segments of a view and the versions of an external table have both images of an update.
    """
    return Condense(relation.schema.key if relation.kind != "view" and not relation.is_external else ())


def condensed_in_spark(
    relation: Relation, segments: Sequence[Segment], *, grows: bool, is_linear: bool, use: ChangeUse | None = None
) -> Condense:
    """The condense step of a change that stays in Spark. `is_linear`: the view reads it through filters and projections
    only. `use`: how one view reads it; None: several do, and equal rows cancel."""
    if grows:
        return Condense(runs=False, why="it only adds rows")
    rows = sum(s.rows for s in segments)
    if not _has_images_of_one_statement(relation, segments):
        if any(s.replaces for s in segments):
            return BY_ROWS
        step = condensed(relation)
        return _priced(step, expected(rows, use, by_key=True)) if step.key and use is not None else step
    if segments[0].action == DELETE:
        return Condense(runs=False, why="one statement wrote it, which only deletes rows")
    if is_linear:
        return Condense(runs=False, why=f"{_ONE}, and the full condense cancels equal rows")
    step = Condense(why=_ONE if relation.schema.key else "")
    return _priced(step, expected(rows, use, by_key=False)) if use is not None else step


def _priced(step: Condense, cost: Expected) -> Condense:
    """A step in which equal rows cancel if that pays."""
    if cost.pays:
        return replace(step, expected=cost)
    dear = f"cancelling equal rows is expected to take {cost.costs:.2g} s and to save {cost.saves:.2g} s"
    why = f"{step.why}; {dear}" if step.why else dear
    return replace(step, runs=bool(step.key), cancels=False, why=why, expected=cost)


def full_step(query: Node, key: tuple[str, ...], growing: Collection[str], below: Condense | None) -> Condense:
    """The full condense of a delta query's result. `key` is that of the view, `below` the partial condense of the only
    change that the query reads; None: there are others, or it is small."""
    if not can_cancel(query, growing):
        return Condense(runs=False, why=_ADDED)
    if key and below is not None and below.runs and below.cancels and is_read_once(query):
        return Condense(runs=False, why="one source has changed, is read once, and is condensed below the joins")
    return Condense(key)


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
