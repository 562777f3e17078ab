"""What the optimiser chooses to share in one refresh, and what a refresh of several views shares (MQO §7.1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from freshview.algebra.loosening import loosened
from freshview.algebra.nodes import Node, Scan, Shared, Stored, Table
from freshview.algebra.together import Together, put_together
from freshview.algebra.traversal import relations, scans
from freshview.bench.variants import chosen
from freshview.bench.workload import TYPES, VIEWS
from freshview.delta.forms import choose_form, delta_plan
from freshview.delta.semijoin import reduced
from freshview.optimizer.choice import Choice, SharedResult
from freshview.optimizer.greedy import Limits
from freshview.optimizer.prices import Prices
from freshview.refresh.cost import Rates
from freshview.refresh.together import seconds_in_process, worth_a_table
from freshview.sql.lowering import lower


def _types(node: Node) -> dict[str, str]:
    return dict.fromkeys(node.columns, "bigint")


def _delta(text: str) -> Node:
    """The delta query of a view after all its tables have grown."""
    lowered = lower(text, {table: tuple(columns) for table, columns in TYPES.items()})
    form = choose_form(lowered, tuple(n for _, n in lowered.outputs), _types)
    changed = set(relations(lowered.node))
    plan = delta_plan(form, lowered, changed, _types(form.tree), small=True, inserts_only=frozenset(changed))
    assert plan is not None
    return plan


def _made_of(choice: Choice, part: SharedResult) -> set[str]:
    """The tables that a shared result is made of."""
    parts = {p.number: p for p in choice.shared}
    found: set[str] = set()
    for scan in scans(part.tree):
        found |= _made_of(choice, parts[scan.source.number]) if isinstance(scan.source, Shared) else {scan.relation}
    return found


def _read(together: Together, node: Node) -> frozenset[tuple[str, str]]:
    """The tables and versions that a part reads, also through other parts."""
    found: set[tuple[str, str]] = set()
    for scan in scans(node):
        if isinstance(scan.source, Shared):
            found |= _read(together, together.parts[-1 - scan.source.number].node)
        elif not isinstance(scan.source, Stored):
            found.add((scan.relation, scan.version))
    return frozenset(found)


def test_the_parts_of_a_refresh_have_the_differentials_that_the_choice_shares_among_views() -> None:
    """Alone or as a piece of a larger part. Selections stand above the joins, as in what is chosen: so does Spark plan
    large changes, where that is expected to pay. No full result is shared in a refresh."""
    choice = chosen(Limits(permanent=False, clustering=False))
    names = list(VIEWS)
    together = put_together([loosened(_delta(text)) for text in VIEWS.values()], worth=worth_a_table)
    parts = [(_read(together, part.node), {names[user] for user in part.users}) for part in together.parts]
    asked = 0
    for shared in choice.shared:
        readers = {view.name for view in choice.views if f"shared {shared.number}" in view.reads}
        for relation in shared.differentials if len(readers) > 1 else ():
            asked += 1
            wanted = {(relation, "delta"), *((t, "any") for t in _made_of(choice, shared) - {relation})}
            covering = [
                users for read, users in parts if wanted <= {(t, v if v == "delta" else "any") for t, v in read}
            ]
            assert any(readers <= users for users in covering), (shared.what, relation, readers, covering)
    assert asked >= 3


def test_small_changes_share_what_they_look_up() -> None:
    """In the embedded engine selections stay below the joins. Which rows are looked up does not depend on them: views
    that select otherwise ask for the same rows, and these are read once."""
    plans = [reduced(_delta(text)) for text in VIEWS.values()]
    together = put_together(plans, worth=worth_a_table)
    asked = [
        (scan.relation, scan.version, scan.semijoins)
        for plan in plans
        for scan in map(together.scans.__getitem__, set(scans(plan)))
        if isinstance(scan.source, Table) and scan.version != "delta" and scan.semijoins
    ]
    assert len(set(asked)) < 0.6 * len(asked)
    of_lineitem = [asking for asking in asked if asking[0] == "lineitem"]
    assert len(set(of_lineitem)) < 0.5 * len(of_lineitem)


@pytest.mark.parametrize(("views", "rows", "is_loosened"), [(2, 100, False), (2, 200_000, False), (10, 200_000, True)])
def test_selections_stand_above_joins_that_many_rows_would_go_into_again_and_again(
    views: int, rows: int, is_loosened: bool
) -> None:
    """Views that select otherwise have their joins in common then; a part costs a query of its own."""
    texts = [
        f"SELECT o_orderkey, l_linenumber, c_name FROM orders, lineitem, customer WHERE o_orderkey = l_orderkey"
        f" AND c_custkey = o_custkey AND l_quantity > {least}"
        for least in range(views)
    ]
    assert (_loosened_seconds(texts, rows) < _seconds(texts, rows)) is is_loosened


def test_selections_that_keep_most_rows_out_of_the_joins_stay_below() -> None:
    """Those of the workload of §7.1 do: of large changes, fewer rows go into all of its joins than into the common
    ones."""
    texts = list(VIEWS.values())
    assert _seconds(texts, 60_000) < _loosened_seconds(texts, 60_000)


def _seconds(texts: Sequence[str], rows: int) -> float:
    plans = [reduced(_delta(text)) for text in texts]
    return seconds_in_process(put_together(plans, worth=worth_a_table), _sizes(rows), Rates.of(Prices()))


def _loosened_seconds(texts: Sequence[str], rows: int) -> float:
    plans = [loosened(reduced(_delta(text))) for text in texts]
    return seconds_in_process(put_together(plans, worth=worth_a_table), _sizes(rows), Rates.of(Prices()))


def _sizes(rows: int) -> Callable[[Scan], int]:
    """The rows of deltas: so many of lineitem, a quarter of orders, few of all others."""
    shares = {"lineitem": 1.0, "orders": 0.25}
    return lambda scan: int(rows * shares.get(scan.relation, 0.01))
