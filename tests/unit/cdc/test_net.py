"""The net effect of a run of changes: precise and cheap, by cases and against the states before and after."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.cdc.applying import applied
from tests.unit.cdc.running_example import cells, rows_of, schema_of

from freshview.cdc.net import LoggedChange, net_effect
from freshview.errors import CaptureFailed

T = schema_of("k int, v string, d double", "k")


def _row(key: int, value: str = "x", number: float = 0.0) -> tuple[Any, ...]:
    return (key, value, number)


def _insert(key: int, value: str = "x") -> LoggedChange:
    return LoggedChange((key,), False, _row(key, value))


def _update(key: int, old: str | None, new: str) -> LoggedChange:
    return LoggedChange((key,), True, _row(key, new), None if old is None else _row(key, old))


def _delete(key: int, old: str | None = None) -> LoggedChange:
    return LoggedChange((key,), True, None, None if old is None else _row(key, old))


@pytest.mark.parametrize(
    ("changes", "precise", "cheap"),
    [
        ([_insert(1)], "ins", "ups"),
        ([_insert(1), _update(1, "x", "y")], "ins", "ups"),
        ([_insert(1), _delete(1, "x")], "-", "delk"),
        ([_update(1, "a", "b"), _update(1, "b", "c")], "un/uo", "ups"),
        ([_update(1, "a", "b"), _update(1, "b", "a")], "-", "ups"),
        ([_update(1, None, "b"), _update(1, None, "c")], "up", "ups"),
        ([_update(1, "a", "b"), _delete(1, "b")], "del", "delk"),
        ([_update(1, None, "b"), _delete(1)], "delk", "delk"),
        ([_delete(1, "a"), _insert(1, "b")], "un/uo", "ups"),
        ([_delete(1), _insert(1, "b")], "up", "ups"),
        ([LoggedChange((1,), None, _row(1)), _update(1, "x", "y")], "ups", "ups"),
        ([LoggedChange((1,), None, _row(1)), _delete(1, "x")], "delk", "delk"),
    ],
)
def test_the_first_and_the_last_change_of_a_key_decide(changes: list[LoggedChange], precise: str, cheap: str) -> None:
    for wanted, is_precise in ((precise, True), (cheap, False)):
        delta = net_effect("t", T, changes, precise=is_precise)
        assert delta.filled == ({wanted} if wanted != "-" else set())


def test_the_old_image_is_that_before_the_first_change() -> None:
    delta = net_effect("t", T, [_update(1, "a", "b"), _update(1, "b", "c"), _update(2, "a", "b"), _delete(2, "b")])
    assert cells(delta.un) == [_row(1, "c")]
    assert cells(delta.uo) == [_row(1, "a")]
    assert cells(delta.deleted) == [_row(2, "a")]


def test_a_changed_key_is_a_deletion_and_an_insertion() -> None:
    delta = net_effect("t", T, [LoggedChange((1,), True, _row(2), _row(1)), _update(2, "x", "y")])
    assert (cells(delta.deleted), cells(delta.ins)) == ([_row(1)], [_row(2, "y")])


def test_pairs_are_compared_to_the_bit() -> None:
    delta = net_effect("t", T, [LoggedChange((1,), True, _row(1, "x", -0.0), _row(1, "x", 0.0))])
    assert delta.filled == {"un/uo"}


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ([_insert(1), _insert(1)], "the row (k=1) exists already"),
        ([_delete(1), _delete(1)], "the row (k=1) does not exist"),
        ([_delete(1), _update(1, "a", "b")], "the row (k=1) does not exist"),
        ([_update(1, "a", "b"), _update(1, "a", "b")], "has another old image than the change before left"),
    ],
)
def test_changes_that_contradict_each_other_are_an_error(changes: list[LoggedChange], cause: str) -> None:
    placed = [LoggedChange(c.key, c.existed, c.new, c.old, f"line {i}") for i, c in enumerate(changes)]
    with pytest.raises(CaptureFailed) as raised:
        net_effect("t", T, placed)
    assert cause in str(raised.value)
    assert "change of t at line 1" in str(raised.value)


@given(st.integers(0, 2**32), st.booleans(), st.booleans())
def test_a_random_log_leads_from_the_old_state_to_the_new_one(seed: int, precise: bool, images: bool) -> None:
    rng = random.Random(seed)
    state = {k: _row(k, rng.choice("ab")) for k in range(4) if rng.random() < 0.6}
    old, log = rows_of(T, *state.values()), []
    for _ in range(rng.randrange(12)):
        key = rng.randrange(4)
        before = state.get(key)
        shown = before if images else None
        after = _row(rng.choice([key, rng.randrange(4)]), rng.choice("ab"))
        if before is not None and rng.random() < 0.4:
            log.append(LoggedChange((key,), True, None, shown))
            del state[key]
        elif before is not None and (after[0] == key or after[0] not in state):
            log.append(LoggedChange((key,), True, after, shown))
            del state[key]
            state[after[0]] = after
        elif before is None:
            state[key] = _row(key, rng.choice("ab"))
            log.append(LoggedChange((key,), False, state[key]))
    delta = net_effect("t", T, log, precise=precise)
    assert cells(applied(old, delta)) == cells(rows_of(T, *state.values()))
    assert {*cells(delta.deleted), *cells(delta.uo)} <= set(cells(old))
