"""Can rows of a delta query cancel each other? If not, its result needs no full condense (LAZY §4.2, Figure 3(c))."""

from __future__ import annotations

from collections.abc import Collection

from sqlglot import exp

from freshview.algebra.nodes import WEIGHT, Filter, Generate, Join, Node, Project, Scan, Table, Union
from freshview.algebra.traversal import fold


def can_cancel(query: Node, growing: Collection[str]) -> bool:
    """May a row of the result have a negative weight, if the changes of these relations only add rows?

    Law: if not, no two rows of the result cancel. States have no weights; filters, projections, unions and joins pass
    the weights of changes on.
    """

    def negative(node: Node, inputs: tuple[bool, ...]) -> bool:
        if WEIGHT not in node.columns:
            return False
        match node:
            case Scan():
                return not isinstance(node.source, Table) or node.relation not in growing
            case Project():
                weight = dict(node.items)[WEIGHT]
                if isinstance(weight, exp.Literal):
                    return int(weight.this) <= 0  # 0 marks rows that are not stored
                return not isinstance(weight, exp.Column) or weight.name != WEIGHT or inputs[0]
            case Join(kind="left"):
                return WEIGHT in node.right.columns or inputs[0]  # a row without a match has no weight on the right
            case Join() | Filter() | Generate() | Union():  # a weight that is generated has both signs
                return any(inputs) or not any(WEIGHT in below.columns for below in node.inputs)
        return True

    return fold(query, negative)
