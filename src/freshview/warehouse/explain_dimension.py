"""EXPLAIN of dimension views: what their tables deliver, the rules that apply, and what that costs where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from freshview.catalog.records import Relation
from freshview.cdc.dimension import Extend, KeyJoin, Projection, Remote, RemoteNode, RowFilter, remotes
from freshview.cdc.model import SETS
from freshview.cdc.opening import poll_of
from freshview.cdc.trade import at_source, delivered, here, statements
from freshview.display import counted
from freshview.flows.explain import slot_text
from freshview.flows.remote_states import RemoteState, remote_states
from freshview.views.dimensions import DimensionViews
from freshview.views.shapes import Shape


def explain_dimension(dimensions: DimensionViews, view: Relation) -> str:
    """Return how a dimension view is kept: tables, rules, sets, statements, and the last cycle of this process."""
    shape = dimensions.shape(view)
    states = {s.name: s for s in remote_states(dimensions.views.catalog)}
    key = ", ".join(shape.schema.key)
    sets = delivered(shape.node)
    stored = frozenset({"ups", "delk"}) if shape.is_blind else sets
    lines = [
        f"dimension view {view.name}",
        f"  key: {key or 'none, a bag: all sets are complete'}",
        f"  maintained: from partial deltas, by cycles of its {_servers(shape)}",
        "  tables:",
        *(f"    {line}" for line in _tables(shape, states)),
        "  rules:",
        *(f"    {line}" for line in _rules(shape.node, shape)),
        f"  delta of the view: {_sets(sets)}",
        f"  applied by: {statements(stored)}",
        "  what is paid where:",
        *(f"    at {t.label}: {at_source(t.table.capture)}" for t in shape.tables),
        f"    here: {here(stored)}",
        f"  computed by Spark: {', '.join(shape.by_spark) or 'nothing, the embedded engine is proven for all'}",
    ]
    last = dimensions.cycles.last.get(view.id)
    if last is not None:
        changes = "; ".join(f"{name} {_counts(sizes)}" for name, sizes in last.tables.items() if sizes)
        lines.append(
            f"  last cycle: {changes} → {_counts(last.view) or 'no change'}; {counted(last.fetched_rows, 'row')} and "
            f"{last.fetched_bytes} bytes fetched, {last.seconds:.3f} s"
        )
    return "\n".join(lines)


def _servers(shape: Shape) -> str:
    number = len({t.server for t in shape.tables})
    if number == 1:
        return "server (one snapshot of it, one commit here)"
    return f"{number} servers (one snapshot of each, read together, and one commit here; no moment is common to them)"


def _tables(shape: Shape, states: Mapping[str, RemoteState]) -> Iterator[str]:
    for table in shape.tables:
        capture = table.capture
        never = f"; {', '.join(sorted(capture.never))} never happen" if capture.never else ""
        polled = poll_of(table.record.options)
        when = polled if isinstance(polled, str) else f"every {polled.total_seconds():g} s"
        yield (
            f"{table.relation.name} = {table.label}: {capture.technique} delivers {_sets(capture.sets)}{never}; "
            f"polled {when}"
        )
        if slot := slot_text(table.table):
            state = states[table.relation.name]
            warning = "" if state.warning == "ok" else f"; {state.warning}"
            yield f"  {slot}{warning}"


def _rules(node: RemoteNode, shape: Shape) -> Iterator[str]:
    """The operators of a view, inputs first, each with its rule."""
    for below in node.inputs:
        yield from _rules(below, shape)
    sets = _sets(delivered(node))
    match node:
        case RowFilter():
            yield f"σ {node.condition.text}: partial rows pass, up becomes ups (§5.5) → {sets}"
        case Extend():
            yield f"ε {node.text}: computed from new and old images → {sets}"
        case KeyJoin():
            right = ", ".join(dict.fromkeys(t.name for t in remotes(node.right)))
            left = delivered(node.left) - {"ins", "del", "un/uo"}
            extra = f", extra term for {_sets(left)} of the left side" if left else ""
            yield f"⋈ {right}: flags by j{extra} (§5.6) → {sets}"
        case Projection() if not isinstance(node.input, Remote):
            test = "with the effectiveness test" if shape.effectiveness else "without the effectiveness test"
            yield f"π ({len(node.columns)} columns): {test} (§5.4) → {sets}"


def _sets(sets: frozenset[str]) -> str:
    return ", ".join(s for s in SETS if s in sets)


def _counts(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {name}" for name, n in sizes.items())
