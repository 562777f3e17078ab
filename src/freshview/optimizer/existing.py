"""Results that an earlier choice has stored, found again in a search space by what they hold."""

from __future__ import annotations

from collections.abc import Mapping

from freshview.optimizer.cost import PERMANENT, Cluster, Costs, Store
from freshview.optimizer.identity import Identities
from freshview.optimizer.operations import StoredRelation


def count_stored(costs: Costs, stored: Mapping[str, str]) -> dict[str, int]:
    """Have costs count stored results; return their nodes by name. One that the search space does not have is left out.

    `stored` has the name of each, which depends on what it holds, and the column that its files are sorted by, or "".
    """
    names, found = Identities(costs.dag), dict[str, int]()
    for node in costs.nodes if stored else ():
        if isinstance(node, StoredRelation) or node.number in costs.owner or names.table(node) not in stored:
            continue
        found[names.table(node)] = node.number
        costs.apply(Store(node.number, PERMANENT))
        sorted_by = stored[names.table(node)]
        for by in costs.lookups_by[node.number]:
            if sorted_by and names.stored(by) == sorted_by:
                costs.apply(Cluster(node.number, by))
    return found
