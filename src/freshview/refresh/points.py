"""Points, between which spans lie.

A point is a CSN; or a place inside a commit, after some of its statements (a partial task begins there, LAZY §3.1); or
a CSN with uncommitted rows on top (a transaction's own view, and eager maintenance).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from freshview.catalog.records import Segment

Own = Mapping[int, tuple[Segment, ...]]  # by relation id, in the order of statements


@dataclass(frozen=True)
class Point:
    """A state of all relations."""

    csn: int
    stmtsn: int = 0  # of commit `csn` only the statements up to this one; 0: all of them
    own: Own = field(default_factory=lambda: MappingProxyType({}))
