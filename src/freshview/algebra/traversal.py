"""Walking and rebuilding trees, written once: rules never recurse by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from freshview.algebra.nodes import (
    Aggregate,
    Filter,
    Generate,
    Join,
    Node,
    Project,
    Scan,
    SetOperation,
    TopK,
    Union,
    Values,
    Window,
)


def bottom_up(root: Node) -> Iterator[Node]:
    """Every node once, inputs before those who use them."""
    seen: set[int] = set()
    stack: list[tuple[Node, bool]] = [(root, False)]
    while stack:
        node, ready = stack.pop()
        if id(node) in seen:
            continue
        if ready:
            seen.add(id(node))
            yield node
        else:
            stack.append((node, True))
            stack.extend((child, False) for child in reversed(node.inputs))


def scans(root: Node) -> list[Scan]:
    return [n for n in bottom_up(root) if isinstance(n, Scan)]


def relations(root: Node) -> set[str]:
    """Names of the stored relations that a tree reads."""
    return {s.relation for s in scans(root)}


def with_inputs(node: Node, inputs: tuple[Node, ...]) -> Node:
    """The same operator over other inputs."""
    if all(a is b for a, b in zip(node.inputs, inputs, strict=True)):
        return node
    match node:
        case Filter() | Project() | Aggregate() | Window() | Generate() | TopK():
            return replace(node, input=inputs[0])
        case Join() | SetOperation():
            return replace(node, left=inputs[0], right=inputs[1])
        case Union():
            return replace(node, parts=inputs)
        case Scan() | Values():
            return node
    raise TypeError(type(node).__name__)


def rewrite(root: Node, rule: Callable[[Node], Node]) -> Node:
    """Apply a rule to every node, inputs first; shared nodes stay shared."""
    done: dict[int, Node] = {}
    for node in bottom_up(root):
        done[id(node)] = rule(with_inputs(node, tuple(done[id(i)] for i in node.inputs)))
    return done[id(root)]


def per_use(root: Node, own: Callable[[Node], int]) -> int:
    """What the nodes of a tree come to, each counted once per use: Spark computes a shared part for each of them."""
    known: dict[int, int] = {}
    for node in bottom_up(root):
        known[id(node)] = own(node) + sum(known[id(i)] for i in node.inputs)
    return known[id(root)]


def columns_read(tree: Node) -> dict[str, tuple[str, ...]]:
    """The columns of each relation that the scans of a tree read."""
    used: dict[str, dict[str, None]] = {}
    for scan in scans(tree):
        used.setdefault(scan.relation, {}).update(dict.fromkeys(c for c, _ in scan.fields))
    return {relation: tuple(columns) for relation, columns in used.items()}
