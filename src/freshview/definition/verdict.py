"""Whether Spark reads a view's text as we do: the verdict, as it is stored with the view and printed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.metadata import version

from freshview.display import counted

# Increased whenever a text may be read otherwise than before: verdicts of an earlier number are asked for again.
READING = 8
PLAN, TESTED, UNTESTED, RECOMPUTED = "plan", "tested", "untested", "recomputed"
FACT = "reading"


@cache
def present() -> str:
    """The versions that a verdict holds for: this program, its way of reading, and this Spark."""
    return f"{version('freshview')}/{READING}/{version('pyspark')}"


@dataclass(frozen=True)
class Verdict:
    """Whether a definition may be maintained by delta rules, and why."""

    kind: str  # PLAN | TESTED | UNTESTED | RECOMPUTED
    rows: int = 0
    rounds: int = 0
    reason: str = ""  # why it is recomputed
    since: int = 0  # the CSN from which on the stored rows are right: an earlier program may have read it otherwise
    version: str = field(default_factory=present)
    answers: int | None = None  # rows that the text gave over the made tables; None: an earlier program did not count
    unmet: str = ""  # columns that were NULL in all these rows

    def __str__(self) -> str:
        match self.kind:
            case "plan":
                return "proven by plan"
            case "tested":
                return f"tested on {counted(self.rows, 'row')} in {counted(self.rounds, 'round')}{self._answered}"
            case "untested":
                return "not tested ('selftest' = 'off')"
        return f"recomputed: {self.reason}"

    @property
    def _answered(self) -> str:
        """What the text answered during the test: of a definition without answers, nothing was compared but that."""
        if self.answers is None:
            return ""
        if not self.answers:
            return ", NO ROW of answers"
        unmet = f", only NULL in {self.unmet}" if self.unmet else ""
        return f", {counted(self.answers, 'row')} of answers{unmet}"

    @property
    def is_current(self) -> bool:
        return self.version == present()

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)

    @staticmethod
    def of(facts: Mapping[str, str]) -> Verdict | None:
        """The verdict among a view's facts; None if there is none, or this version of the program cannot read it."""
        try:
            return Verdict(**json.loads(facts[FACT])) if FACT in facts else None
        except (ValueError, TypeError):
            return None
