"""Walking and rebuilding trees, written once: rules never recurse by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

from freshview.algebra.nodes import Join, Node, Scan, SetOperation, Unary, Union, Values

T = TypeVar("T")


def bottom_up(root: Node) -> Iterator[Node]:
    """Every node once, after its inputs."""
    seen: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(root, False)]
    while stack:
        node, ready = stack.pop()
        if node in seen:
            continue
        if ready:
            seen.add(node)
            yield node
        else:
            stack.append((node, True))
            stack.extend((child, False) for child in reversed(node.inputs))


def fold(root: Node, function: Callable[[Node, tuple[T, ...]], T]) -> T:
    """The function's result for the root; it is called once per node, with the results of the node's inputs."""
    done: dict[Node, T] = {}
    for node in bottom_up(root):
        done[node] = function(node, tuple(done[i] for i in node.inputs))
    return done[root]


def scans(root: Node) -> list[Scan]:
    """Every scan of a tree once."""
    return [n for n in bottom_up(root) if isinstance(n, Scan)]


def relations(root: Node) -> set[str]:
    """Names of the stored relations that a tree reads."""
    return {s.relation for s in scans(root)}


def with_inputs(node: Node, inputs: tuple[Node, ...]) -> Node:
    """A node's operator over other inputs."""
    if all(a is b for a, b in zip(node.inputs, inputs, strict=True)):
        return node
    match node:
        case Unary():
            return replace(node, input=inputs[0])
        case Join() | SetOperation():
            return replace(node, left=inputs[0], right=inputs[1])
        case Union():
            return replace(node, parts=inputs)
        case Scan() | Values():
            return node
    raise TypeError(type(node).__name__)


def rewrite(root: Node, rule: Callable[[Node], Node]) -> Node:
    """The tree with a rule applied to every node, inputs first; shared nodes stay shared."""
    return fold(root, lambda node, inputs: rule(with_inputs(node, inputs)))


def per_use(root: Node, own: Callable[[Node], int]) -> int:
    """The sum of `own` over the nodes, each counted once per use: Spark computes a shared part for every use."""
    return fold(root, lambda node, inputs: own(node) + sum(inputs))


def columns_read(tree: Node) -> dict[str, tuple[str, ...]]:
    """The columns of each relation that the scans of a tree read."""
    used: dict[str, dict[str, None]] = {}
    for scan in scans(tree):
        used.setdefault(scan.relation, {}).update(dict.fromkeys(c for c, _ in scan.fields))
    return {relation: tuple(columns) for relation, columns in used.items()}
