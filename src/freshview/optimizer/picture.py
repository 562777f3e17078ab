"""A choice as a picture (SVG): the nodes that the chosen plans use, relations at the bottom, views at the top."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from freshview.optimizer.choice import Choice, described, operator
from freshview.optimizer.cost import FULL, INCREMENTAL, PERMANENT, TRANSIENT, Costs
from freshview.optimizer.operations import Block, Equivalence, Grouping, Other, StoredRelation
from freshview.optimizer.words import text_in_words

_WIDTH, _HEIGHT, _GAP, _LAYER = 176, 40, 16, 104
_LETTERS = 26  # of a line in a box
_FILL = {
    "relation": ("#eef1f4", "#6b7785"),
    "view": ("#dbe9fb", "#2b62a8"),
    "stored": ("#dff3e1", "#2e7d3a"),
    "shared": ("#fdeccb", "#a86a12"),
    "step": ("#ffffff", "#9aa4b0"),
}
_MEANING = {
    "relation": "table or view that is read",
    "view": "materialized view",
    "stored": "to be stored",
    "shared": "to be shared in one refresh",
    "step": "step of a plan",
}


@dataclass(frozen=True)
class _Box:
    kind: str
    title: str
    detail: str
    tip: str


def svg_of(choice: Choice) -> str:
    """The picture of a choice."""
    boxes, edges = _graph(choice)
    rows = _layers(boxes, edges)
    columns = max(map(len, rows), default=1)
    width = max(columns * (_WIDTH + _GAP) + _GAP, len(_FILL) * 190)
    height = len(rows) * _LAYER + 40
    place: dict[str, tuple[float, float]] = {}
    for depth, row in enumerate(rows):
        step = width / (len(row) or 1)
        for i, key in enumerate(row):
            place[key] = (step * (i + 0.5), height - 24 - (depth + 0.5) * _LAYER)
    drawn = [_edge(place[a], place[b]) for a, b in edges]
    drawn += [_drawn(boxes[key], *place[key]) for key in place]
    drawn += [_legend(i, kind, height) for i, kind in enumerate(_FILL)]
    style = "text{font:11px sans-serif;fill:#1d2733}.d{font-size:10px;fill:#55606c}path{fill:none;stroke:#9aa4b0}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}">'
    return "\n".join([head, f"<style>{style}</style>", *drawn, "</svg>"])


def _graph(choice: Choice) -> tuple[dict[str, _Box], list[tuple[str, str]]]:
    """The boxes, and the edges from what is read to what reads it."""
    costs = choice.selection.costs
    boxes: dict[str, _Box] = {}
    edges: dict[tuple[str, str], None] = {}
    waiting: list[tuple[Equivalence, str]] = []
    for root in costs.dag.roots:
        key = f"view {root.name}"
        plan = next((v for v in choice.views if v.name == root.name), None)
        detail = f"{plan.way} {plan.seconds:.3f} s" if plan is not None else f"query, {root.rate:g} per refresh"
        boxes[key] = _Box("view", root.name, detail, described(costs.dag, root.node))
        way = plan.way if plan is not None else FULL
        if costs.owner.get(root.node.number) is not root and _is_stop(costs, root.node, way):
            edges[(_key(costs, root.node), key)] = None
            waiting.append((root.node, way))
        else:
            _connect(costs, root.node, key, way, edges, waiting)
    while waiting:
        node, way = waiting.pop()
        key = _key(costs, node)
        if key not in boxes:
            boxes[key] = _box(costs, node)
            if not isinstance(node, StoredRelation):
                _connect(costs, node, key, way, edges, waiting)
    return boxes, list(edges)


def _connect(
    costs: Costs,
    node: Equivalence,
    key: str,
    way: str,
    edges: dict[tuple[str, str], None],
    waiting: list[tuple[Equivalence, str]],
) -> None:
    operation = costs.by_deltas(node) if way == INCREMENTAL else costs.by_full(node)
    for use in operation.inputs:
        edges[(_key(costs, use.node), key)] = None
        kept = costs.mode[use.node.number] == TRANSIENT
        waiting.append((use.node, FULL if kept else way))


def _is_stop(costs: Costs, node: Equivalence, way: str) -> bool:
    return bool(costs.mode[node.number]) or (way == INCREMENTAL and node.number in costs.shared)


def _key(costs: Costs, node: Equivalence) -> str:
    owner = costs.owner.get(node.number)
    return f"view {owner.name}" if owner is not None else f"e{node.number}"


def _box(costs: Costs, node: Equivalence) -> _Box:
    size = costs.size(node)
    kind = "step"
    if isinstance(node, StoredRelation):
        kind = "relation"
    elif costs.mode[node.number] == PERMANENT:
        kind = "stored"
    elif costs.mode[node.number] == TRANSIENT or node.number in costs.shared:
        kind = "shared"
    changed = sum(size.deltas.values())
    detail = f"{_count(size.rows)} rows" + (f", δ {_count(changed)}" if changed else "")
    return _Box(kind, _title(costs, node), detail, described(costs.dag, node))


def _title(costs: Costs, node: Equivalence) -> str:
    match node:
        case StoredRelation():
            return node.name
        case Block():
            names = [_short(costs.dag.nodes[n]) for n, _ in node.leaves]
            return " ⋈ ".join(names) if len(names) > 1 else f"σ {names[0]}"
        case Grouping():
            return f"γ {', '.join(text_in_words(costs.dag, t).split('.')[-1] for _, t in node.keys) or 'all'}"
        case Other():
            return operator(node)
    return f"e{node.number}"


def _short(node: Equivalence) -> str:
    return node.name if isinstance(node, StoredRelation) else "γ" if isinstance(node, Grouping) else operator_of(node)


def operator_of(node: Equivalence) -> str:
    """A word for a leaf that is no relation."""
    return operator(node) if isinstance(node, Other) else f"e{node.number}"


def _layers(boxes: Mapping[str, _Box], edges: Sequence[tuple[str, str]]) -> list[list[str]]:
    """The boxes by their distance from the relations, each row ordered by where its inputs stand."""
    below: dict[str, list[str]] = defaultdict(list)
    for a, b in edges:
        below[b].append(a)
    depth: dict[str, int] = {}

    def deep(key: str) -> int:
        if key not in depth:
            depth[key] = 0
            depth[key] = 1 + max(map(deep, below[key]), default=-1)
        return depth[key]

    rows: dict[int, list[str]] = defaultdict(list)
    for key in boxes:
        rows[deep(key)].append(key)
    place: dict[str, float] = {}
    found = []
    for number in sorted(rows):
        row = sorted(rows[number], key=lambda k: sum(place[b] for b in below[k]) / len(below[k]) if below[k] else 0.0)
        place.update({key: (i + 0.5) / len(row) for i, key in enumerate(row)})
        found.append(row)
    return found


def _drawn(box: _Box, x: float, y: float) -> str:
    fill, line = _FILL[box.kind]
    left, top = x - _WIDTH / 2, y - _HEIGHT / 2
    shape = (
        f'<rect x="{left:.0f}" y="{top:.0f}" width="{_WIDTH}" height="{_HEIGHT}" rx="6" fill="{fill}" stroke="{line}"/>'
    )
    title = f'<text x="{x:.0f}" y="{y - 3:.0f}" text-anchor="middle">{escape(_cut(box.title))}</text>'
    detail = f'<text class="d" x="{x:.0f}" y="{y + 12:.0f}" text-anchor="middle">{escape(_cut(box.detail))}</text>'
    return f"<g><title>{escape(box.tip)}</title>{shape}{title}{detail}</g>"


def _edge(a: tuple[float, float], b: tuple[float, float]) -> str:
    (x1, y1), (x2, y2) = (a[0], a[1] - _HEIGHT / 2), (b[0], b[1] + _HEIGHT / 2)
    middle = (y1 + y2) / 2
    return f'<path d="M{x1:.0f} {y1:.0f} C{x1:.0f} {middle:.0f} {x2:.0f} {middle:.0f} {x2:.0f} {y2:.0f}"/>'


def _legend(i: int, kind: str, height: float) -> str:
    fill, line = _FILL[kind]
    x, y = 12 + i * 190, height - 20
    mark = f'<rect x="{x}" y="{y:.0f}" width="12" height="12" rx="2" fill="{fill}" stroke="{line}"/>'
    return f'{mark}<text x="{x + 18}" y="{y + 10:.0f}">{_MEANING[kind]}</text>'


def _cut(text: str) -> str:
    return text if len(text) <= _LETTERS else f"{text[: _LETTERS - 1]}…"


def _count(value: float) -> str:
    for unit in ("", "k", "M"):
        if value < 1000:
            return f"{value:.0f}{unit}"
        value /= 1000
    return f"{value:.0f}G"
