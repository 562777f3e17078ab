"""The order of events in the log: interleaved transactions, events that come late, and odd places."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.unit.cdc.applying import applied
from tests.unit.cdc.running_example import cells, schema_of

from freshview.cdc.canal import Canal
from freshview.cdc.debezium import Debezium
from freshview.cdc.event_files import EventFiles, EventFormat
from freshview.cdc.maxwell import Maxwell
from freshview.errors import CaptureFailed

T = schema_of("id int, name string", "id")


def _event(
    op: str, lsn: Any, key: int, name: str | None = None, last_commit: Any = ..., **source: Any
) -> dict[str, Any]:
    """A change; `last_commit` is the first part of its sequence, which is left out if it is not given."""
    more = {} if last_commit is ... else {"sequence": json.dumps([last_commit and str(last_commit), str(lsn)])}
    row = {"id": key, "name": name}
    images = {"before": row if op == "d" else None, "after": None if op == "d" else row}
    return {**images, "op": op, "source": {"schema": "public", "table": "t", "lsn": lsn, **more, **source}}


def _write(file: Path, *documents: Any) -> None:
    with file.open("a") as stream:
        stream.writelines((d if isinstance(d, str) else json.dumps(d)) + "\n" for d in documents)


def _source(path: Path, format: EventFormat | None = None, **options: Any) -> EventFiles:
    return EventFiles(path, "public.t", T, format or Debezium(), **options)


class _Reader:
    def __init__(self, source: EventFiles) -> None:
        self.source = source
        self.rows: dict[int, str | None] = {}
        self.position: str | None = None
        self.quarantined: list[str] = []

    def poll(self, source: EventFiles | None = None) -> None:
        """Take a poll as flows do: what a row was before does not matter."""
        poll = (source or self.source).poll(self.position)
        for rows in (poll.delta.ins, poll.delta.up, poll.delta.ups):
            self.rows.update(cells(rows))
        for (key,) in cells(poll.delta.delk):
            self.rows.pop(key, None)
        self.position = poll.position
        self.quarantined += [q.cause for q in poll.quarantined]


# -- transactions at the same time -----------------------------------------------------------------------------------


def test_transactions_count_in_the_order_of_their_commits(tmp_path: Path) -> None:
    """An INSERT is logged before its key is checked, so it may stand before the deletion that let it in."""
    file = tmp_path / "e.json"
    _write(file, _event("c", 3, 1, "old", last_commit=None))
    deleted, inserted = _event("d", 20, 1, last_commit=5), _event("c", 10, 1, "new", last_commit=30)
    _write(file, deleted, inserted)
    reader = _Reader(_source(file))
    reader.poll()
    assert reader.rows == {1: "new"}


def test_a_poll_may_end_between_transactions_that_interleave(tmp_path: Path) -> None:
    file = tmp_path / "e.json"
    _write(file, _event("c", 20, 2, "B", last_commit=5))
    reader = _Reader(_source(file))
    reader.poll()
    _write(file, _event("c", 10, 1, "A", last_commit=30), _event("c", 40, 3, "A", last_commit=30))
    reader.poll()
    assert reader.rows == {1: "A", 2: "B", 3: "A"}


@settings(max_examples=examples(60))
@given(st.integers(0, 2**32))
def test_whatever_interleaves_the_rows_are_those_of_the_last_commits(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    """Transactions write to the log at the same time, and are sent when they commit; polls end anywhere."""
    rng, folder = random.Random(seed), tmp_path_factory.mktemp("in")
    events: list[dict[str, Any]] = []
    expected: dict[int, str | None] = {}
    running: list[list[int]] = [[], [], []]
    last_commit = None
    for lsn in range(1, 60):
        writer = rng.choice(running)
        if rng.random() < 0.7:
            writer.append(lsn)
            continue
        for own in writer:  # the writer commits at this LSN
            key = rng.randrange(6)
            op = rng.choice("du") if key in expected else "c"
            at = lsn * 120_000  # commits are minutes apart
            events.append(_event(op, own, key, f"v{own}", last_commit=last_commit, ts_ms=at))
            expected.pop(key, None)
            expected.update({key: f"v{own}"} if op != "d" else {})
        writer.clear()
        last_commit = lsn
    reader, sent = _Reader(_source(folder)), 0
    while sent < len(events):
        step = rng.randint(1, 4)
        _write(folder / f"{rng.randrange(2)}", *events[sent : sent + step], *rng.choices(events[: sent + step], k=1))
        sent += step
        reader.poll()
    assert reader.rows == expected, f"seed {seed}"


def test_a_position_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "e.json"
    _write(file, _event("c", 20, 1, "a"))
    reader = _Reader(_source(file))
    reader.poll()
    assert reader.position is not None
    reader.position = json.dumps({**json.loads(reader.position), "sequence": [20]})
    _write(file, _event("c", 20, 1, "a"), _event("u", 25, 1, "b", last_commit=5))  # sent again, and sent on
    reader.poll()
    assert reader.rows == {1: "b"}
    assert reader.quarantined == []


# -- late events -----------------------------------------------------------------------------------------------------


def test_a_late_event_is_taken_unless_its_row_has_changed_since(tmp_path: Path) -> None:
    """Without the last commit, transactions that ran at the same time look as if events came late."""
    file = tmp_path / "e.json"
    _write(file, _event("c", 5, 9, "first"), _event("c", 20, 1, "new"), _event("d", 30, 2))
    reader = _Reader(_source(file))
    reader.poll()
    late = [_event("c", 10, 1, "old"), _event("c", 11, 2, "gone"), _event("c", 12, 3, "late")]
    _write(file, *late, late[2])
    reader.poll()
    _write(file, late[0], late[2])
    reader.poll()
    assert reader.rows == {1: "new", 3: "late", 9: "first"}


def test_an_event_before_all_others_is_an_error_and_a_replay_takes_it(tmp_path: Path) -> None:
    file = tmp_path / "e.json"
    _write(file, _event("c", 20, 2, "B"))
    reader = _Reader(_source(file, on_error="quarantine"))
    reader.poll()
    size = file.stat().st_size
    _write(file, _event("c", 10, 1, "A"), _event("c", 9, 2, "old"))
    with pytest.raises(CaptureFailed) as raised:
        _source(file).poll(reader.position)
    assert f"event of public.t, e.json at byte {size}: its sequence 10 is before 20" in str(raised.value)
    poll = reader.source.poll(reader.position)
    reader.position = reader.source.rewound([q.place for q in poll.quarantined], poll.position)
    reader.poll(reader.source.replaying())
    assert reader.rows == {1: "A", 2: "B"}
    assert reader.quarantined == []


def test_a_late_event_is_an_error_where_delivered_files_are_gone(tmp_path: Path) -> None:
    _write(tmp_path / "1", _event("c", 5, 9, "first"), _event("c", 20, 1, "new"))
    reader = _Reader(_source(tmp_path, on_error="quarantine"))
    reader.poll()
    (tmp_path / "1").unlink()
    _write(tmp_path / "2", _event("c", 10, 1, "old"), _event("c", 30, 3, "c"))
    reader.poll()
    assert reader.rows == {9: "first", 1: "new", 3: "c"}
    assert "the file 1, which may have a later change of its row, is gone" in reader.quarantined[0]


def test_a_replay_is_refused_where_files_behind_the_event_are_gone(tmp_path: Path) -> None:
    """What these held would be overwritten by what is read again."""
    _write(tmp_path / "1", "{bad", _event("c", 5, 1, "old"))
    _write(tmp_path / "2", _event("u", 6, 1, "new"))
    source = _source(tmp_path, on_error="quarantine")
    poll = source.poll(None)
    (tmp_path / "2").unlink()
    with pytest.raises(
        CaptureFailed, match=r"event of public\.t, 1 at byte 0: .* the file 2, which was delivered, is gone"
    ):
        source.rewound([poll.quarantined[0].place], poll.position)


# -- another log -----------------------------------------------------------------------------------------------------


def _row(binlog: str, pos: int, key: int, name: str, ts: int | None = None, **more: Any) -> dict[str, Any]:
    """An insertion as Debezium reports it from a binlog; `ts` is in seconds."""
    return _event("c", None, key, name, file=binlog, pos=pos, **({"ts_ms": ts * 1000} if ts else {}), **more)


_OLD = [_row("binlog.000100", 4, 9, "first", 100, server_id=1), _row("binlog.000123", 7, 1, "a", 200, server_id=1)]
_FAILOVERS = {
    "another server": (_OLD, _row("binlog.000121", 5, 1, "b", 201, server_id=2)),
    "a log that began anew": (_OLD, _row("binlog.000001", 5, 1, "b", 300, server_id=1)),
    "a restored PostgreSQL": (
        [
            _event("c", 10, 9, "first", last_commit=9, ts_ms=100_000),
            _event("c", 30, 1, "a", last_commit=29, ts_ms=200_000),
        ],
        _event("c", 20, 1, "b", last_commit=19, ts_ms=300_000),
    ),
}


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("case", _FAILOVERS)
def test_events_of_another_log_are_no_late_ones(tmp_path: Path, case: str, at_once: bool) -> None:
    """After a failover places go back: what is new there would look as if it were superseded."""
    file, (old, new) = tmp_path / "e.json", _FAILOVERS[case]
    reader = _Reader(_source(file, on_error="quarantine"))
    _write(file, *old)
    if not at_once:
        reader.poll()
    _write(file, new)
    with pytest.raises(CaptureFailed, match=r"its log is another one.*start a flow over its files"):
        _source(file).poll(reader.position)
    reader.poll()
    assert reader.rows == {9: "first", 1: "a"}
    (cause,) = reader.quarantined
    assert "its log is another one" in cause


def test_maxwell_names_its_server_if_it_is_asked_to(tmp_path: Path) -> None:
    file = tmp_path / "e.json"
    _write(file, _maxwell(position="b.9:1", xoffset=0, server_id=1), _maxwell(position="b.7:1", xoffset=0, server_id=2))
    with pytest.raises(CaptureFailed, match="it is of server 2, not 1: its log is another one"):
        _source(file, Maxwell()).poll(None)


@pytest.mark.parametrize(
    "late",
    [
        _row("binlog.000110", 5, 3, "late", 199, server_id=2),  # of servers that write to each other
        _row("binlog.000110", 5, 3, "late", 259, server_id=1),  # a statement that ran while others committed
        _row("binlog.000110", 5, 3, "late", server_id=0),  # a row of a snapshot names no server
        _row("binlog.000110", 5, 3, "late"),
    ],
)
def test_late_events_of_one_log_are_taken(tmp_path: Path, late: dict[str, Any]) -> None:
    reader = _Reader(_source(tmp_path))
    _write(tmp_path / "1", *_OLD)
    reader.poll()
    _write(tmp_path / "2", late)
    reader.poll()
    assert reader.rows == {9: "first", 1: "a", 3: "late"}
    again = _Reader(_source(tmp_path))
    again.poll()
    assert again.rows == reader.rows


def test_a_position_without_server_and_time_goes_on(tmp_path: Path) -> None:
    reader = _Reader(_source(tmp_path))
    _write(tmp_path / "1", *_OLD)
    reader.poll()
    assert reader.position is not None
    stored = json.loads(reader.position)
    reader.position = json.dumps({"files": stored["files"], "sequence": stored["sequence"]})
    _write(tmp_path / "2", _row("binlog.000124", 5, 1, "c", 300, server_id=1))
    reader.poll()
    assert reader.rows == {9: "first", 1: "c"}


# -- odd events ------------------------------------------------------------------------------------------------------


def _maxwell(**more: Any) -> dict[str, Any]:
    return {"database": "public", "table": "t", "type": "insert", "data": {"id": 1, "name": "a"}, **more}


@pytest.mark.parametrize(
    ("format", "bad", "cause"),
    [
        (Debezium(), "[" * 100_000, "its JSON is nested too deeply"),
        (
            Debezium(),
            json.dumps(_event("c", 1, 1, "X")).replace('"X"', "[" * 90_000 + "]" * 90_000),
            "nested too deeply",
        ),
        (Debezium(), json.dumps(_event("c", 1, 1)).replace('"lsn": 1', '"lsn": 1e400000'), "is no LSN"),
        (Debezium(), _event("c", "0/16B3748", 1), "is no LSN"),
        (Debezium(), _event("c", -1, 1), "is no LSN"),
        (Debezium(), _event("c", 7, 1, sequence="[1]"), "is no pair of LSNs"),
        (Debezium(), _event("c", 7, 1, sequence="{"), "it has not the form of such an event"),
        (Debezium(), _event("c", 7, 1, last_commit="x"), "is no last commit"),
        (Debezium(), _event("c", None, 1, file="b.1", pos=[4]), r"\[4\] is no position"),
        (Debezium(), _event("c", None, 1, file="b.1", pos="x"), "'x' is no position"),
        (Debezium(), _event("c", None, 1, file=1, pos=4), "1 is no name of a binlog file"),
        (Debezium(), _event("c", None, 1, file="b.1", pos=4), "of another kind of log than 5 before it"),
        (Maxwell(), _maxwell(position="a:1", xoffset="z"), "'z' is no row"),
        (Canal(), _maxwell(type="INSERT", data=json.loads("[" * 900 + "]" * 900)), "it has not the form"),
    ],
)
def test_an_odd_event_is_set_aside_or_stops_with_its_place(
    tmp_path: Path, format: EventFormat, bad: Any, cause: str
) -> None:
    good = {
        Debezium: [_event("c", 5, 5, "good"), _event("c", 6, 6, "after")],
        Maxwell: [_maxwell(data={"id": n, "name": "g"}, position=f"a:{n}", xoffset=0) for n in (5, 6)],
        Canal: [_maxwell(type="INSERT", data=[{"id": str(n), "name": "g"}]) for n in (5, 6)],
    }[type(format)]
    file = tmp_path / "e.json"
    _write(file, good[0], bad, good[1])
    place = f"e.json at byte {len(json.dumps(good[0])) + 1}"
    with pytest.raises(CaptureFailed, match=f"event of public.t, {place}: .*{cause}"):
        _to_the_end(_source(file, format))
    poll = _source(file, format, on_error="quarantine").poll(None)
    assert [row[0] for row in cells(poll.delta.ins)] == [5, 6]
    assert [q.place for q in poll.quarantined] == [place]


def _to_the_end(source: EventFiles) -> None:
    first = source.poll(None)
    assert first.delta.num_changes == 1
    source.poll(first.position)


# -- rows as a bootstrap or snapshot found them ----------------------------------------------------------------------


def test_a_bootstrap_may_repeat_rows_that_are_there(tmp_path: Path) -> None:
    file = tmp_path / "e.json"
    loaded = _maxwell(type="bootstrap-insert", data={"id": 1, "name": "loaded"})
    _write(file, _maxwell(), loaded)
    source = _source(file, Maxwell())
    rows = applied(T.arrow.empty_table(), source.poll(None).delta)
    assert cells(rows) == [(1, "loaded")]
    _write(file, {**loaded, "data": {"id": 1, "name": "again"}}, {**loaded, "data": {"id": 2, "name": "b"}})
    assert sorted(cells(applied(T.arrow.empty_table(), source.poll(None).delta))) == [(1, "again"), (2, "b")]


def test_the_log_goes_on_while_rows_are_loaded(tmp_path: Path) -> None:
    """A row is loaded with a state that the log reports behind it, or is deleted at once."""
    file = tmp_path / "e.json"
    loaded = [_maxwell(type="bootstrap-insert", data={"id": n, "name": "new"}) for n in (1, 2, 3)]
    changed = _maxwell(type="update", data={"id": 1, "name": "new"}, old={"name": "old"})
    made, gone = _maxwell(data={"id": 2, "name": "new"}), _maxwell(type="delete", data={"id": 3, "name": "new"})
    _write(file, *loaded, changed, made, gone)
    poll = _source(file, Maxwell()).poll(None)
    assert cells(poll.delta.ups) == [(1, "new"), (2, "new")]
    assert cells(poll.delta.delk) == [(3,)]


def test_a_row_of_a_snapshot_may_be_deleted_before_the_next_poll(tmp_path: Path) -> None:
    file = tmp_path / "e.json"
    _write(file, _event("r", 1, 1, "a"), _event("d", 2, 1, "a"))
    assert cells(_source(file, Debezium(old_images=True)).poll(None).delta.delk) == [(1,)]
