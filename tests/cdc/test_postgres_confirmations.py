"""What a confirmation removes at the server is missed by no poll: one from an older position is an error.

Law: a poll delivers all changes since its position, or raises; whatever other readers of the same capture confirmed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
from tests.cdc.servers import Captured, Consumer

from freshview.cdc.postgres.tracking import Tracking
from freshview.cdc.postgres.triggers import TriggerLog
from freshview.errors import CaptureFailed

pytestmark = pytest.mark.postgres
_LOGS = ["triggers", "triggers, cheap", "tracking", "decoding"]
_ANEW = r"REFRESH FLOW … FULL; of a view: REFRESH MATERIALIZED VIEW … FULL"


@pytest.fixture(params=_LOGS)
def captured(request: pytest.FixtureRequest, database: str) -> Captured:
    return Captured(database, request.param)


@pytest.fixture
def consumer(captured: Captured) -> Iterator[Consumer]:
    """A reader that took two rows."""
    source: Any = captured.source()
    consumer = Consumer(source)
    _insert(captured, 1, 2)
    consumer.poll()
    consumer.confirm()
    yield consumer
    source.drop()


def _insert(captured: Captured, *keys: int) -> None:
    for key in keys:
        with captured.connect() as connection:
            captured.insert(connection, key, 0, "a")


def _copy(consumer: Consumer) -> Consumer:
    """A reader with the same rows and position, as of a copied or restored warehouse."""
    copy = Consumer(consumer.source)
    copy.rows, copy.position = consumer.rows, consumer.position
    return copy


def test_a_position_older_than_the_confirmed_one_is_refused(captured: Captured, consumer: Consumer) -> None:
    backup = _copy(consumer)
    _insert(captured, 3)
    consumer.poll()
    consumer.confirm()
    _insert(captured, 4)
    for _ in range(2):
        with pytest.raises(CaptureFailed, match=_ANEW) as raised:
            backup.poll()
    if isinstance(consumer.source, Tracking | TriggerLog):
        assert raised.value.what == f"table {captured.name}"
        assert "by freshview from 127.0.0.1, and what was noted of them is removed" in raised.value.cause
    assert consumer.poll() & {"ins", "ups"}  # the reader that confirmed goes on
    assert consumer.rows.num_rows == 4


def test_a_position_since_which_nothing_was_removed_is_as_good_as_a_later_one(
    captured: Captured, consumer: Consumer
) -> None:
    """A warehouse that is restored while its tables rest goes on without loading them anew."""
    backup = _copy(consumer)
    with captured.connect() as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS another (id int)")
    if captured.technique != "decoding":  # a slot does not know the tables that commits are about
        for _ in range(2):
            consumer.poll()
            consumer.confirm()
    _insert(captured, 3)
    backup.poll()
    assert backup.rows.num_rows == 3


def test_a_late_confirmation_of_an_older_position_changes_nothing(captured: Captured, consumer: Consumer) -> None:
    """Of two copies that polled from one position the one with the later snapshot confirmed first."""
    early = _copy(consumer)
    _insert(captured, 3)
    early.poll()
    _insert(captured, 4)
    consumer.poll()
    consumer.confirm()
    early.confirm()
    _insert(captured, 5)
    with pytest.raises(CaptureFailed, match=_ANEW):
        early.poll()
    consumer.poll()
    assert consumer.rows.num_rows == 5


def test_a_crash_between_commit_and_confirmation_is_no_error(captured: Captured, consumer: Consumer) -> None:
    for key in (3, 4, 5):
        _insert(captured, key)
        consumer.poll()
        if key == 4:
            consumer.confirm()
    _insert(captured, 6)
    consumer.poll()
    assert consumer.rows.num_rows == 6


@pytest.mark.parametrize("seed", range(4))
def test_copies_that_poll_and_confirm_at_will_are_right_or_refused(captured: Captured, seed: int) -> None:
    """With transactions that are open for long, whose changes are noted before later ones and seen after them.

    `Consumer.poll` compares all rows with the table in the snapshot of the poll.
    """
    draw, source = random.Random(f"{captured.technique} {seed}"), captured.source()
    readers = [Consumer(source)]
    readers[0].poll()
    polled = 0
    with ExitStack() as stack:
        writers = [stack.enter_context(psycopg.connect(captured.url)) for _ in range(3)]
        for _ in range(150):
            n = draw.randrange(len(readers))
            match draw.choice(["write", "write", "commit", "poll", "poll", "confirm", "copy"]):
                case "write":
                    w = draw.randrange(3)  # each writes keys of its own, and waits for none
                    writers[w].execute("SELECT 1")
                    captured.insert(writers[w], draw.randrange(3) * 3 + w, 0, draw.choice("abc"))
                    if draw.random() < 0.3:
                        captured.delete(writers[w], draw.randrange(3) * 3 + w)
                case "commit":
                    writers[draw.randrange(3)].commit()
                case "poll":
                    if _polls(readers[n]):
                        polled += 1
                    elif len(readers) > 1:
                        del readers[n]
                    else:
                        readers = [Consumer(source)]
                        readers[0].poll()
                case "confirm":
                    readers[n].confirm()
                case "copy":
                    readers = [*readers[-2:], _copy(readers[n])]
    assert polled > 10
    source.drop()  # type: ignore[attr-defined]


def _polls(reader: Consumer) -> bool:
    """Poll and compare; whether that was not refused."""
    try:
        reader.poll()
        return True
    except CaptureFailed as error:
        if "FULL" not in error.remedy:
            raise
        return False


@pytest.mark.parametrize("captured", ["triggers", "tracking"], indirect=True)
def test_what_an_earlier_version_installed_learns_to_keep_the_confirmed_position(
    captured: Captured, consumer: Consumer
) -> None:
    source: Any = consumer.source
    with psycopg.connect(captured.url) as connection:
        for column in ("taken", "taken_at", "taken_by"):
            connection.execute(f"ALTER TABLE {source._helper.name} DROP COLUMN {column}".encode())
        connection.execute(f"DELETE FROM {source._helper.name}".encode())
    backup = _copy(consumer)
    _insert(captured, 3)
    consumer.poll()
    consumer.confirm()
    with pytest.raises(CaptureFailed, match=_ANEW):
        backup.poll()
    _insert(captured, 4)
    consumer.poll()
    assert consumer.rows.num_rows == 4
