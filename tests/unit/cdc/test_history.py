"""SCD type 2: histories equal those of an oracle that has all events, in whatever order and batches they arrive."""

from __future__ import annotations

import random
from typing import Any

import pytest

from freshview.cdc.history import History, Period, Rules, after, history, visible


def _oracle(events: dict[int, Any], rules: Rules) -> list[tuple[int, int | None, Any]]:
    """The state at every moment, cut where it changes in a tracked column. It shares no code with `history`."""
    states: list[tuple[int, Any]] = []
    image: Any = None
    for moment in sorted(events):
        given = events[moment]
        if given is not None and image is not None and rules.ignore_nulls:
            given = tuple(image[i] if v is None else v for i, v in enumerate(given))
        image = given
        states.append((moment, image))
    rows: list[list[Any]] = []
    for moment, state in states:
        if rows and rows[-1][1] is None and state is not None:
            if [rows[-1][2][i] for i in rules.tracked] == [state[i] for i in rules.tracked]:
                rows[-1][2] = state
                continue
        if rows and rows[-1][1] is None:
            rows[-1][1] = moment
        if state is not None:
            rows.append([moment, None, state])
    return [tuple(row) for row in rows]


def _draw(draw: random.Random, rules: Rules) -> dict[int, Any]:
    values = [1, 2] if not rules.ignore_nulls else [1, 2, None]
    return {
        moment: None if draw.random() < 0.25 else ("k", draw.choice(values), draw.choice(values))
        for moment in draw.sample(range(100), draw.randint(1, 12))
    }


@pytest.mark.parametrize("rules", [Rules((1, 2)), Rules((1,)), Rules((2,), True), Rules((1, 2), True)], ids=str)
@pytest.mark.parametrize("seed", range(50))
def test_late_and_disordered_changes_leave_the_history_of_all_events(seed: int, rules: Rules) -> None:
    draw = random.Random(seed)
    events = _draw(draw, rules)
    order = list(events.items())
    draw.shuffle(order)
    state = History()
    seen: dict[int, Any] = {}
    while order:
        size = draw.randint(1, 4)
        batch, order = order[:size], order[size:]
        state = after(state, batch, rules)
        seen.update(batch)
        assert [(p.start, p.end, p.image) for p in state.periods] == _oracle(seen, rules)


@pytest.mark.parametrize("seed", range(50))
def test_rows_alone_tell_their_own_history(seed: int) -> None:
    """So what is remembered besides may be forgotten at any time."""
    draw = random.Random(seed)
    rules = Rules((1,), draw.random() < 0.5)
    rows = history(_draw(draw, rules), rules)
    assert history(visible(rows), rules) == rows
    assert after(History(rows), (), rules).periods == rows


def test_a_late_change_splits_the_row_it_falls_into() -> None:
    rules = Rules((1,))
    early = after(History(), [(1, ("k", "a")), (9, ("k", "c"))], rules)
    assert early.periods == (Period(1, 9, ("k", "a")), Period(9, None, ("k", "c")))
    late = after(early, [(5, ("k", "b"))], rules)
    assert late.periods == (Period(1, 5, ("k", "a")), Period(5, 9, ("k", "b")), Period(9, None, ("k", "c")))


def test_a_deletion_is_remembered_for_changes_before_it() -> None:
    rules = Rules((1,))
    deleted = after(History(), [(5, None)], rules)
    assert deleted.periods == ()
    assert after(deleted, [(3, ("k", "a"))], rules).periods == (Period(3, 5, ("k", "a")),)


def test_an_untracked_column_changes_in_place_and_is_split_exactly() -> None:
    rules = Rules((1,))
    run = after(History(), [(1, ("k", "a", "x")), (5, ("k", "a", "y"))], rules)
    assert run.periods == (Period(1, None, ("k", "a", "y")),)
    split = after(run, [(3, ("k", "b", "z"))], rules)
    assert [(p.start, p.image) for p in split.periods] == [
        (1, ("k", "a", "x")),
        (3, ("k", "b", "z")),
        (5, ("k", "a", "y")),
    ]
