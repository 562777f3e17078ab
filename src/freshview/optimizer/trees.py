"""A plan of the search space as an algebra tree: of a node, or of a view's stored columns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from freshview.algebra.nodes import Node, Project, chosen
from freshview.optimizer.dag import Root
from freshview.optimizer.operations import Equivalence, Operation, OperationInput

Picked = Callable[[Equivalence], Operation]
Given = Mapping[int, Callable[[tuple[str, ...]], Node]]  # stored nodes: how their columns are read


def plan_tree(node: Equivalence, needs: Iterable[str], picked: Picked, given: Given) -> Node:
    """The algebra tree of a node, by the operations picked, down to the nodes that are `given`."""
    wanted, uses = _wanted(node, set(needs), picked, given)
    made: dict[int, Node] = {}
    for current in uses:
        names = tuple(sorted(wanted[current.number]))
        if current.number in given and current is not node:
            made[current.number] = given[current.number](names)
            continue
        operation = picked(current)
        tree = operation.tree([made[u.node.number] for u in operation.inputs], names)
        made[current.number] = chosen(tree, names) if names else tree
    return made[node.number]


def _wanted(
    top: Equivalence, needs: set[str], picked: Picked, given: Given
) -> tuple[dict[int, set[str]], list[Equivalence]]:
    """The columns that a plan takes from each of its nodes, and these nodes, each after its inputs."""

    def inputs(node: Equivalence) -> tuple[OperationInput, ...]:
        return () if node.number in given and node is not top else picked(node).inputs

    order: list[Equivalence] = []
    seen: set[int] = set()
    stack: list[tuple[Equivalence, bool]] = [(top, False)]
    while stack:
        node, ready = stack.pop()
        if ready:
            order.append(node)
        elif node.number not in seen:
            seen.add(node.number)
            stack.append((node, True))
            stack += [(u.node, False) for u in inputs(node)]
    wanted: dict[int, set[str]] = defaultdict(set)
    wanted[top.number] = needs
    for node in reversed(order):
        if inputs(node):
            for use, names in zip(inputs(node), picked(node).asks(wanted[node.number]), strict=True):
                wanted[use.node.number] |= names
    return wanted, order


def root_tree(root: Root, picked: Picked, given: Given) -> Node:
    """The tree of a view's stored columns, or of a query, by the operations picked."""
    below = plan_tree(root.node, root.needs, picked, given)
    return Project(below, tuple((c, t.expression) for c, t in root.items))
