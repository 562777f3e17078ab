"""Selections above inner joins, so that plans with other selections over the same joins have these in common.

    σp(A) ⋈θ B  =  σp(A ⋈θ B)  =  A ⋈θ σp(B)        inner joins; p over columns of the one side

Law: the tree gives the same bag, or fails where it did not: θ meets rows that p excluded before.
"""

from __future__ import annotations

from dataclasses import replace

from freshview.algebra.nodes import Filter, Join, Node, conjunction, conjuncts
from freshview.algebra.traversal import rewrite


def loosened(root: Node) -> Node:
    """The tree with the selections of inner joins above these, as far up as the joins go."""
    return rewrite(root, _above)


def _above(node: Node) -> Node:
    if not isinstance(node, Join) or node.kind != "inner":
        return node
    left, right = (side.input if isinstance(side, Filter) else side for side in node.inputs)
    selected = conjunction([c for side in node.inputs if isinstance(side, Filter) for c in conjuncts(side.predicate)])
    return node if selected is None else Filter(replace(node, left=left, right=right), selected)
