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


def is_read_once(query: Node) -> bool:
    """Does a delta query read one change, once, through operators that are linear in it?

    Law: then it deletes only rows that the view has, and inserts only rows that the view will have, if that change does
    so: of a key of the view, one of each at most.
    """

    def linear(node: Node, inputs: tuple[bool, ...]) -> bool:
        weighted = [WEIGHT in below.columns for below in node.inputs]
        if WEIGHT not in node.columns:  # a state
            return all(inputs) and not any(weighted)
        match node:
            case Scan():
                return isinstance(node.source, Table)
            case Project():
                weight = dict(node.items)[WEIGHT]
                return all(inputs) and isinstance(weight, exp.Column) and weight.name == WEIGHT
            case Filter() | Generate():
                return all(inputs) and all(weighted)
            case Join():
                is_one = weighted[0] is not weighted[1] if node.kind == "inner" else weighted == [True, False]
                return all(inputs) and is_one
        return False

    return WEIGHT in query.columns and fold(query, linear)
