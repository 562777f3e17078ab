"""A condense step as data (LAZY §4): by what the rows of a change are condensed, or why they are not.

partial   of a source, below all joins: of each key the first old and the last new image are left (Table 1), then
          equal rows cancel in the columns that the view uses
full      of the view, before its change is applied: equal rows cancel; of a key of the view at most one old and one
          new row are left, which are applied as one update (`delta/signed.net`)
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Condense:
    """One condense step of a job."""

    key: tuple[str, ...] = ()  # of the source, if versions of a key are condensed first; (): equal rows cancel, no more
    runs: bool = True  # False: the step is left out
    why: str = ""  # why the step is left out, or is not by key


BY_ROWS = Condense()
