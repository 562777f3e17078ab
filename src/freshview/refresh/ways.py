"""The ways to compute a view's change, kept: views are changed again and again by the same tables.

Law: ways depend on the definition, on which sources have changed, which of these changes only add rows, and whether
they are small (`plan.alternatives`). Nothing that is kept holds rows.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable

from cachetools import LRUCache

from freshview.catalog.records import Relation
from freshview.definition.analysis import Definition
from freshview.refresh.plan import SourceChanges, Way, alternatives, are_small

_KEPT = 512  # sets of ways


class Ways:
    """Keeps the ways of the views of one warehouse."""

    def __init__(self) -> None:
        self._kept: LRUCache[Hashable, tuple[Definition, tuple[Way, ...]]] = LRUCache(_KEPT)
        self._lock = threading.Lock()

    def of(self, view: Relation, definition: Definition, changes: SourceChanges) -> tuple[Way, ...]:
        """All ways to compute the change of a view by these changes of its sources."""
        key = (view.id, are_small(changes), frozenset((c.source, c.grows) for c in changes))
        with self._lock:
            known = self._kept.get(key)
        if known is not None and known[0] is definition:  # it is analysed anew when the view or its sources change
            return known[1]
        ways = alternatives(definition, changes)
        with self._lock:
            self._kept[key] = (definition, ways)
        return ways
