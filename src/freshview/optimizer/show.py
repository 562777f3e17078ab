"""A choice as text: what is stored, shared and sorted for how much, each view's way, near alternatives, and the DAG."""

from __future__ import annotations

from collections.abc import Iterable

from freshview.optimizer.choice import Choice, SharedResult, StoredResult, described
from freshview.optimizer.cost import PERMANENT, TRANSIENT, Costs
from freshview.optimizer.operations import Equivalence, StoredRelation
from freshview.optimizer.words import column_in_words


def text_of(choice: Choice) -> str:
    """What is chosen and for how much, and what lost."""
    costs = choice.selection.costs
    share = f" ({choice.after / choice.before:.0%})" if choice.before else ""
    part = f", {_seconds(choice.executed)} with what is executed of it" if choice.executed > choice.after else ""
    default = "default prices, not calibrated" if costs.prices.is_default else "calibrated prices"
    lines = [
        f"views: {len(choice.views)}, queries: {len(choice.queries)}; {_seconds(choice.before)} per refresh as it is, "
        f"{_seconds(choice.after)} with this choice{share}{part}; {default}"
    ]
    lines += _section("store permanently", map(_auxiliary, choice.auxiliaries))
    lines += _section("share in one refresh", map(_shared, choice.shared))
    lines += _section("sort files", (f"{s.relation} by {s.column}: saves {_seconds(s.saves)}" for s in choice.sortings))
    lines += _section(
        "views",
        (
            f"{v.name}: {v.way}, {_seconds(v.seconds)} ({v.other_way} {_seconds(v.other_seconds)}: {v.why}); "
            f"reads {', '.join(v.reads)}"
            for v in choice.views
        ),
    )
    lines += _section(
        "queries",
        (
            f"{q.name}: {_seconds(q.seconds)}, {q.rate:g} times per refresh; reads {', '.join(q.reads)}"
            for q in choice.queries
        ),
    )
    lines += _section(
        "near alternatives",
        (
            f"{a.what}: alone {_saved(a.alone)}, beside the choice {_saved(a.saves)}; {a.why}"
            for a in choice.alternatives
        ),
    )
    return "\n".join(lines)


def dag_of(choice: Choice) -> str:
    """Every node that a plan can use, with its size, its costs and its operations; the cheapest one is marked."""
    costs = choice.selection.costs
    lines = []
    for node in reversed(costs.nodes):
        lines.append(f"e{node.number} {described(costs.dag, node)}{_state(costs, node)}")
        if isinstance(node, StoredRelation):
            continue
        best = costs.by_full(node)
        for operation in node.operations:
            inputs = ", ".join(f"e{u.node.number}" for u in operation.inputs)
            lines.append(f"  {'*' if operation is best else '-'} {operation.rule}({inputs})")
    return "\n".join(lines)


def _section(title: str, items: Iterable[str]) -> list[str]:
    found = [f"  {item}" for item in items]
    return [title, *found] if found else []


def _auxiliary(one: StoredResult) -> str:
    order = f", sorted by {one.sorted_by}" if one.sorted_by else ""
    size = f"{one.rows:,.0f} rows, {_bytes(one.bytes)}{order}"
    return f"{one.name}: {one.what}; {size}; costs {_seconds(one.seconds)}, saves {_seconds(one.saves)} per refresh"


def _shared(one: SharedResult) -> str:
    parts = ["the full result"] if one.full else []
    parts += [f"its differentials by {', '.join(one.differentials)}"] if one.differentials else []
    size = f"{' and '.join(parts)}, {_bytes(one.bytes)}"
    return f"shared {one.number}: {one.what}; {size}; costs {_seconds(one.seconds)}, saves {_seconds(one.saves)}"


def _state(costs: Costs, node: Equivalence) -> str:
    number, size = node.number, costs.size(node)
    words = [f"{size.rows:,.0f} rows", f"full {_seconds(costs.compcost(number))}"]
    for place in costs.changes[number]:
        relation = costs.updated[place]
        rows = f"{size.deltas[relation]:,.0f} rows"
        words.append(f"δ{relation} {rows} {_seconds(costs.computed_delta(number, place))}")
    owner = costs.owner.get(number)
    words += [f"stored as {owner.name}"] if owner is not None else []
    if owner is None and not isinstance(node, StoredRelation):
        words += {PERMANENT: ["to be stored"], TRANSIENT: ["to be shared"]}.get(costs.mode[number], [])
    words += ["differentials to be shared"] if number in costs.shared else []
    words += [f"sorted by {column_in_words(costs.dag, costs.clustered[number])}"] if number in costs.clustered else []
    return f" | {'; '.join(words)}"


def _seconds(value: float) -> str:
    return f"{value:.3f} s" if abs(value) < 10 else f"{value:,.0f} s"


def _saved(value: float) -> str:
    return f"saves {_seconds(value)}" if value >= 0 else f"costs {_seconds(-value)} more"


def _bytes(value: float) -> str:
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}"
        value /= 1000
    return f"{value:,.1f} GB"
