"""What each capture technique delivers (PARTIAL §2, Figure 2), and what it cannot.

An audit column is overwritten by the next change, so a row that was updated and then deleted has no old image: the
third column then delivers a key. The cheap net effect reads only the last change of a key, whose image is not the old
one either (Definition 1 asks for Rdel ⊆ Rold), so it delivers keys of deleted rows, where the paper's table has `del`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

# Which sets report a kind of change.
_REPORTED_BY = {
    "insertions": frozenset({"ins", "ups"}),
    "updates": frozenset({"un/uo", "up", "ups"}),
    "deletions": frozenset({"del", "delk"}),
}
# The complete sets that hold what a partial set lacks (Figure 1, from the lower sets to the upper ones).
_COMPLETED_BY = {"up": ("un/uo",), "ups": ("ins", "un/uo"), "delk": ("del",)}


@dataclass(frozen=True)
class Capture:
    """A technique, the sets it may deliver, and the kinds of change that the owner declares never to happen."""

    technique: str
    sets: frozenset[str]
    never: frozenset[str] = frozenset()

    @property
    def partial_sets(self) -> tuple[str, ...]:
        """The delivered sets that lack old images, or do not distinguish insertions from updates."""
        return tuple(s for s in _COMPLETED_BY if s in self.sets)

    @property
    def missing_sets(self) -> tuple[str, ...]:
        """The complete sets that a view without keys would need instead of the partial ones."""
        return tuple(dict.fromkeys(c for s in self.partial_sets for c in _COMPLETED_BY[s] if c not in self.sets))

    @property
    def undetected(self) -> tuple[str, ...]:
        """The kinds of change that may happen and that no set reports."""
        return tuple(kind for kind, sets in _REPORTED_BY.items() if kind not in self.never and not sets & self.sets)

    @property
    def for_views(self) -> Capture:
        """The capture with the sets that delta rules may rely on: by times alone, an insertion may be of a key that
        was there, was deleted by a mark and came back; so it is an upsert (ups)."""
        if self.technique != THREE_AUDIT_COLUMNS.technique:
            return self
        return replace(self, sets=self.sets - {"ins"} | {"ups"})

    def without(self, *kinds: str) -> Capture:
        """The capture of a table to which these kinds of change never happen."""
        return replace(self, never=self.never | frozenset(kinds))


def reporting(kind: str) -> tuple[str, ...]:
    """The sets that report a kind of change."""
    return tuple(sorted(_REPORTED_BY[kind]))


ONE_AUDIT_COLUMN = Capture("one audit column", frozenset({"ups"}))
TWO_AUDIT_COLUMNS = Capture("two audit columns", frozenset({"ins", "up"}))
THREE_AUDIT_COLUMNS = Capture("three audit columns", frozenset({"ins", "del", "up", "delk"}))
LOG = Capture("log", frozenset({"ins", "del", "un/uo"}))
LOG_WITHOUT_OLD_IMAGES = Capture("log without old images", frozenset({"ins", "up", "delk"}))
LOG_CHEAP = Capture("log with cheap net effect", frozenset({"ups", "delk"}))
TRACKING = Capture("change tracking", frozenset({"ins", "up", "delk"}))
DELTA_VERSIONS = Capture("versions of a Delta table", frozenset({"ins", "del", "un/uo"}))
SNAPSHOTS = Capture("snapshot differential", frozenset({"ins", "del", "un/uo"}))
