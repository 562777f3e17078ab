"""A batch of the hunt: definitions over some tables, the rows of those, changes of them, and settings."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.hunt.tables import Change, State, Table, changed, draw_changes, initial

ROUNDS = (1, 1, 2, 2, 2, 3)  # most failures show in the first


@dataclass(frozen=True)
class Definition:
    """The text of a view. `below` are views that it reads, by name and text, lower ones first."""

    text: str
    label: str = ""  # what it was made to try
    below: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Batch:
    """Definitions that share tables, and what happens to these. The first state and each round are one transaction."""

    kind: str
    seed: str
    tables: Sequence[Table]
    definitions: Sequence[Definition]
    start: State
    rounds: Sequence[Sequence[Change]]
    settings: Mapping[str, str] = field(default_factory=dict)
    selftest: bool = True  # of the views, when they are created
    foreign: frozenset[str] = frozenset()  # tables that others write, with delta-rs
    maintained: bool = False  # after each round all views are maintained at once, not each by the query that reads it

    def states(self) -> list[State]:
        """The rows of all tables at first, and after each round."""
        found = [self.start]
        for changes in self.rounds:
            found.append(changed(found[-1], changes))
        return found


def with_rows(
    kind: str,
    seed: str,
    draw: random.Random,
    tables: Sequence[Table],
    definitions: Sequence[Definition],
    settings: Mapping[str, str] | None = None,
    start: State | None = None,
) -> Batch:
    """A batch with rows and changes drawn at random."""
    first = initial(draw, tables) if start is None else start
    state, drawn = first, []
    for _ in range(draw.choice(ROUNDS)):
        drawn.append(draw_changes(draw, tables, state))
        state = changed(state, drawn[-1])
    return Batch(kind, seed, tables, definitions, first, drawn, settings or {})
