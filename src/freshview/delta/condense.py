"""A condense step as data (LAZY §4): by what the rows of a change are condensed, or why they are not.

partial   of a source, below all joins: of each key the first old and the last new image are left (Table 1), then
          equal rows cancel in the columns that the view uses
full      of the view, before its change is applied: of each key of the view the first old and the last new image are
          left (Table 1), which are applied as one update; in a bag equal rows cancel (`delta/signed.net`)
"""

from __future__ import annotations

from dataclasses import dataclass

_NOTICEABLE = 0.1  # seconds: a step that is expected to cost less than this is not left out


@dataclass(frozen=True)
class Expected:
    """What cancelling the equal rows of a change is expected to cost and to save, in seconds."""

    rows: int
    left: int
    costs: float
    saves: float

    @property
    def pays(self) -> bool:
        return self.costs <= self.saves + _NOTICEABLE


@dataclass(frozen=True)
class Condense:
    """One condense step of a job."""

    key: tuple[str, ...] = ()  # of the relation, if images of one key are condensed; (): equal rows cancel, no more
    runs: bool = True  # False: the step is left out
    why: str = ""  # why the step is left out, or is not by key
    cancels: bool = True  # False: of a partial condense by key, equal rows that are left do not cancel
    expected: Expected | None = None  # of cancelling equal rows, where that is a choice

    @property
    def step(self) -> tuple[tuple[str, ...], bool, bool]:
        """What the step does, without the reasons: equal ones leave the same rows of the same change."""
        return self.key, self.runs, self.cancels


BY_ROWS = Condense()
