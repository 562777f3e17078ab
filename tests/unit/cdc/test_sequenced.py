"""SCD type 1: the sequence decides, whatever the order of arrival; an oracle sorts all changes at once."""

from __future__ import annotations

import random
from typing import Any

import pytest

from freshview.cdc.sequenced import Last, SequencedChange, latest, rank


def _oracle(changes: list[SequencedChange]) -> dict[Any, Any]:
    """The rows after all changes: of each key the greatest (sequence, arrival), if no truncation is after it."""
    truncated = max(
        ((c.sequence, i) for i, c in enumerate(changes) if c.truncates), default=(float("-inf"), float("-inf"))
    )
    rows = {}
    for key in {c.key for c in changes if not c.truncates}:
        order = [((c.sequence, i), c.image) for i, c in enumerate(changes) if c.key == key and not c.truncates]
        last, image = max(order, key=lambda item: item[0])
        if image is not None and last > truncated:
            rows[key] = image
    return rows


@pytest.mark.parametrize("seed", range(60))
def test_the_result_is_that_of_all_changes_in_the_order_of_their_sequences(seed: int) -> None:
    """Changes arrive in random order and in random batches."""
    draw = random.Random(seed)
    numbers = draw.sample(range(1000), 40)
    changes = []
    for n in numbers:
        kind = draw.choice(["row"] * 8 + ["delete"] * 3 + ["truncate"])
        image = (draw.randrange(4), f"v{n}") if kind == "row" else None
        key = (image[0],) if image else (draw.randrange(4),)
        changes.append(SequencedChange(key, n, image, truncates=kind == "truncate"))
    stored: dict[Any, Last] = {}
    truncated: Any = None
    rest = list(changes)
    while rest:
        size = draw.randint(1, 7)
        batch, rest = rest[:size], rest[size:]
        known = {c.key: stored[c.key] for c in batch if c.key in stored}
        found = latest(batch, known, truncated)
        truncated = found.truncated
        if found.is_emptied:
            stored = {k: last for k, last in stored.items() if last.sequence > truncated}
        stored.update(found.changed)
    assert {k: last.image for k, last in stored.items() if last.image is not None} == _oracle(changes)


def test_of_equal_sequences_the_later_arrival_wins() -> None:
    changes = [SequencedChange((1,), 5, (1, "a")), SequencedChange((1,), 5, (1, "b"))]
    assert latest(changes, {}).changed == {(1,): Last(5, (1, "b"))}
    assert latest(changes[:1], {(1,): Last(5, (1, "b"))}).changed[(1,)].image == (1, "a")


def test_a_deletion_without_a_sequence_comes_after_what_arrived() -> None:
    gone = SequencedChange((1,), None, None, is_reported=True)
    found = latest([gone], {(1,): Last(7, (1, "a"))})
    assert found.changed == {(1,): Last(7, None)}
    late, again = SequencedChange((1,), 6, (1, "b")), SequencedChange((1,), 7, (1, "c"))
    assert latest([late], found.changed).changed == {}
    assert latest([again], found.changed).changed == {(1,): Last(7, (1, "c"))}


def test_nulls_keep_what_was_there_but_not_across_a_deletion() -> None:
    stored = {(1,): Last(1, (1, "a", "b"))}
    update = SequencedChange((1,), 2, (1, None, "c"))
    assert latest([update], stored, ignore_nulls=True).changed[(1,)].image == (1, "a", "c")
    assert latest([update], stored).changed[(1,)].image == (1, None, "c")
    gone = SequencedChange((1,), 2, None)
    back = SequencedChange((1,), 3, (1, None, "d"))
    assert latest([gone, back], stored, ignore_nulls=True).changed[(1,)].image == (1, None, "d")


def test_sequences_are_ordered_as_spark_orders_them() -> None:
    ordered = [None, float("-inf"), 1.5, float("inf"), float("nan")]
    assert sorted([ordered[i] for i in (4, 2, 0, 3, 1)], key=rank) == ordered
    structs = [{"a": 1, "b": None}, {"a": 1, "b": 2}, {"a": 2, "b": 1}]
    assert sorted([structs[i] for i in (2, 0, 1)], key=rank) == structs


# -- IGNORE NULL UPDATES -----------------------------------------------------------------------------------------------


def _filled_oracle(changes: list[SequencedChange]) -> dict[Any, Any]:
    """The rows after all changes in the order of (sequence, arrival), where NULL keeps what was there."""
    rows: dict[Any, Any] = {}
    for _, _, change in sorted((c.sequence, i, c) for i, c in enumerate(changes)):
        if change.image is None:
            rows.pop(change.key, None)
        else:
            before = rows.get(change.key, change.image)
            rows[change.key] = tuple(b if a is None else a for a, b in zip(change.image, before, strict=True))
    return rows


@pytest.mark.parametrize("seed", range(200))
def test_nulls_keep_what_was_there_whatever_the_order_of_arrival(seed: int) -> None:
    """Changes of some columns and deletions arrive in random order and batches, also with equal sequences."""
    draw = random.Random(seed)
    changes = []
    for i in range(25):
        key = draw.randrange(3)
        image = (key, *(draw.choice([None, f"{name}{i}"]) for name in "abc"))
        changes.append(
            SequencedChange((key,), draw.randrange(20), None if draw.random() < 0.2 else image, place=str(i))
        )
    stored: dict[Any, Last] = {}
    rest = list(changes)
    while rest:
        size = draw.randint(1, 5)
        batch, rest = rest[:size], rest[size:]
        stored.update(
            latest(batch, {c.key: stored[c.key] for c in batch if c.key in stored}, ignore_nulls=True).changed
        )
    assert {k: last.image for k, last in stored.items() if last.image is not None} == _filled_oracle(changes)


def test_of_a_row_whose_columns_nobody_noted_earlier_changes_are_not_taken() -> None:
    """As an earlier version left it: which change set which column is not known."""
    stored = {(1,): Last(5, (1, "a", None))}
    late, next_ = SequencedChange((1,), 4, (1, "old", "old")), SequencedChange((1,), 6, (1, None, "new"))
    assert latest([late], stored, ignore_nulls=True).changed == {}
    assert latest([next_], stored, ignore_nulls=True).changed[(1,)].image == (1, "a", "new")
