"""Where deltas are condensed (LAZY §4): what cancels is dropped as early as it can be.

Table 1 decides per key by the first and the last change. The rules of Figures 3 and 4:

- A *partial* condense stands on the delta of every source, by its key (of a bag: by whole rows), below all joins and
  after the columns that the view does not use are gone: all changes of a run become one change from the version before
  to the version after, so intermediate versions meet no join.
- The *full* condense stands on the view's delta, before it is applied: rows of several terms may cancel each other. A
  view is stored as a bag, so it is by whole rows: of a row that was deleted and inserted again nothing is left.
- It is pushed through the joins, onto the delta of a source, if the view's rows have that source's key and nothing else
  has changed: then delta rows that touch one view row are delta rows of one key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlglot import exp

from freshview.algebra.nodes import Filter, Join, Node, Project, Scan, equalities
from freshview.algebra.traversal import scans
from freshview.delta.forms import Form


@dataclass(frozen=True)
class Condense:
    """One condense operator of a view's delta plan."""

    on: str  # a source, or the view
    kind: str  # "partial" | "full"
    by: tuple[str, ...]  # its key; empty: whole rows
    pushed: bool = False  # it is the full one whenever nothing else has changed


def condenses(name: str, form: Form, keys: Mapping[str, tuple[str, ...]]) -> tuple[Condense, ...]:
    """The condense operators of a view; `keys` are those of its sources."""
    below = [
        Condense(s, "partial", key, pushed=bool(key) and _keeps_key(form, s, keys)) for s, key in sorted(keys.items())
    ]
    return (*below, Condense(name, "full", ()))


def _keeps_key(form: Form, source: str, keys: Mapping[str, tuple[str, ...]]) -> bool:
    """Has every row of the view one row of this source, and does it show that one's key?"""
    if form.root is not None or sum(s.relation == source for s in scans(form.tree)) != 1:
        return False
    found = _key_columns(form.tree, source, keys)
    return found is not None and set(found) <= set(form.tree.columns)


def _key_columns(node: Node, source: str, keys: Mapping[str, tuple[str, ...]]) -> tuple[str, ...] | None:
    """The columns of a node that hold the source's key, if at most one row of the node has each."""
    if isinstance(node, Scan):
        shown = dict(node.fields)
        key = keys[node.relation] if node.relation == source else ()
        return tuple(shown[k] for k in key) if key and all(k in shown for k in key) else None
    if isinstance(node, Filter):
        return _key_columns(node.input, source, keys)
    if isinstance(node, Project):
        found = _key_columns(node.input, source, keys)
        plain = {e.name: n for n, e in node.items if isinstance(e, exp.Column)}
        return tuple(plain[c] for c in found) if found is not None and all(c in plain for c in found) else None
    if isinstance(node, Join) and node.kind in ("inner", "left", "semi", "anti"):
        for side, other in ((node.left, node.right), (node.right, node.left)):
            found = _key_columns(side, source, keys)
            if found is not None and (node.kind == "inner" or side is node.left):
                return found if node.kind in ("semi", "anti") or _is_looked_up(node, other, keys) else None
    return None


def _is_looked_up(join: Join, other: Node, keys: Mapping[str, tuple[str, ...]]) -> bool:
    """Does the join meet at most one row of its other side: does it compare that one's whole key?"""
    inner = other
    while isinstance(inner, Filter):
        inner = inner.input
    if not isinstance(inner, Scan):
        return False
    shown = dict(inner.fields)
    compared = {side.name for pair in equalities(join, ()) for side in pair[:2] if isinstance(side, exp.Column)}
    key = keys[inner.relation]
    return bool(key) and all(k in shown and shown[k] in compared for k in key)
