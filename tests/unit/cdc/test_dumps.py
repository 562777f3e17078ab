"""Snapshot differentials: changes inferred from dumps in CSV, JSON lines and Parquet."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.cdc.applying import applied
from tests.unit.cdc.running_example import CUST, CUST_NEW, CUST_OLD, cells, rows_of, schema_of

from freshview.cdc.dumps import Dumps, StateDifference, difference
from freshview.cdc.source import Source
from freshview.errors import CaptureFailed
from freshview.relation.schema import Schema


def _csv(rows: pa.Table, file: Path) -> None:
    pyarrow.csv.write_csv(rows, file)


def _json(rows: pa.Table, file: Path) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows.to_pylist()))


def _parquet(rows: pa.Table, file: Path) -> None:
    pyarrow.parquet.write_table(rows, file)


_WRITERS = [("csv", _csv), ("json", _json), ("jsonl", _json), ("parquet", _parquet)]


@pytest.mark.parametrize(("suffix", "write"), _WRITERS)
def test_two_dumps_of_the_running_example(tmp_path: Path, suffix: str, write: Callable[[pa.Table, Path], None]) -> None:
    write(CUST_OLD, tmp_path / f"2026-01-01.{suffix}")
    source: Source = Dumps(tmp_path, "Cust", CUST)
    first = source.poll(None)
    assert first.delta.filled == {"ins"}
    assert cells(first.delta.ins) == cells(CUST_OLD)
    write(CUST_NEW, tmp_path / f"2026-01-02.{suffix}")
    (tmp_path / "README.txt").write_text("not a dump")
    second = source.poll(first.position)
    assert second.delta.filled == {"ins", "del", "un/uo"} == source.capture.sets
    assert cells(second.delta.un) == [(1, "Adam", "5%", 1), (2, "Bob", "0%", 4)]
    assert cells(second.delta.uo) == [(1, "Adam", "0%", 1), (2, "Bob", "0%", 2)]
    assert cells(second.delta.deleted) == [(3, "Carl", "0%", 3)]
    assert cells(second.delta.ins) == [(4, "Dave", "0%", 4)]
    source.confirm(second.position)
    third = source.poll(second.position)
    assert (third.delta.num_changes, third.position) == (0, second.position)


_T = schema_of("k int, v double, s string", "k")


@given(st.integers(0, 2**32))
def test_a_difference_leads_from_one_state_to_the_other(seed: int) -> None:
    rng = random.Random(seed)

    def state() -> pa.Table:
        values = [0.0, -0.0, None, float("nan")]
        rows = [(k, rng.choice(values), rng.choice(["", None, "x"])) for k in range(5) if rng.random() < 0.7]
        rng.shuffle(rows)
        return rows_of(_T, *rows)

    old, new = state(), state()
    delta = difference("t", _T, old, new)
    assert repr(cells(applied(old, delta))) == repr(cells(new))
    assert not {repr(r) for r in cells(delta.un)} & {repr(r) for r in cells(delta.uo)}, "to the bit, each pair differs"
    assert difference("t", _T, new, new).num_changes == 0


def test_an_empty_text_is_not_null(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text('k,v,s\n1,,""\n2,1.5,\n')
    assert cells(Dumps(tmp_path, "t", _T).poll(None).delta.ins) == [(1, None, ""), (2, 1.5, "")]


def test_a_dump_that_is_being_written_under_a_hidden_name_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("k,v,s\n1,,x\n")
    source = Dumps(tmp_path, "t", _T)
    position = source.poll(None).position
    for name in ("_2.csv", ".2.csv"):
        (tmp_path / name).write_text("k,v,s\n1,,x\n2,,half")
    assert source.poll(position).delta.num_changes == 0


def test_a_folder_in_place_of_a_dump_is_named(tmp_path: Path) -> None:
    (tmp_path / "1.parquet").mkdir()
    with pytest.raises(CaptureFailed, match=r"dumps of t in .*1\.parquet"):
        Dumps(tmp_path, "t", _T).poll(None)


@pytest.mark.parametrize("rows", ["", "k,v,s\n", "k,v,s\n1,,x\n2,,x\n"])
def test_a_dump_that_is_suddenly_small_is_held_back_until_it_is_confirmed(tmp_path: Path, rows: str) -> None:
    (tmp_path / "1.csv").write_text("k,v,s\n" + "".join(f"{n},,x\n" for n in range(5)))
    (tmp_path / "2.csv").write_text(rows)
    source = Dumps(tmp_path, "t", _T)
    position = source.poll(None).position
    with pytest.raises(CaptureFailed) as raised:
        source.poll(position)
    left = max(0, rows.count("\n") - 1)
    assert f"dump 2.csv of t: it has {left} rows, and the dump before had 5" in str(raised.value)
    assert "confirm it: Dumps(…, confirmed={'2.csv'})" in str(raised.value)
    poll = Dumps(tmp_path, "t", _T, confirmed=frozenset({"2.csv"})).poll(position)
    assert poll.delta.deleted.num_rows == 5 - left


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("k,v,s\n1,,x\n1,,y\n", r"the key \(k=1\) occurs twice"),
        ("k,v\n1,\n", "column s: the dump does not have it"),
        ("k,v,s,new\n1,,x,1\n", "column new of t"),
        ("k,v,s\none,,x\n", "conversion error to int32"),
        ("k,v,s\n,,x\n", "row 0 has NULL"),
    ],
)
def test_a_bad_dump_is_named(tmp_path: Path, text: str, cause: str) -> None:
    (tmp_path / "1.csv").write_text(text)
    with pytest.raises(CaptureFailed, match=f"dump 1.csv of t: .*{cause}"):
        Dumps(tmp_path, "t", _T).poll(None)


def _not_called(*_: object, **__: object) -> StateDifference:
    raise AssertionError("dumps that are not as they were are not compared")


@pytest.mark.parametrize("is_large", [False, True])
def test_the_dump_of_the_position_must_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_large: bool
) -> None:
    monkeypatch.setattr("freshview.cdc.dumps.LARGE", 0 if is_large else 2**30)
    (tmp_path / "1.csv").write_text("k,v,s\n1,,x\n")
    source = Dumps(tmp_path, "t", _T, compare=_not_called)
    position = source.poll(None).position
    (tmp_path / "1.csv").unlink()
    (tmp_path / "2.csv").write_text("k,v,s\n1,,x\n")
    with pytest.raises(CaptureFailed, match=r"dump 1.csv of t: it is gone, and the next one is compared with it"):
        source.poll(position)


def test_a_large_dump_that_is_written_while_it_is_compared_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("freshview.cdc.dumps.LARGE", 0)

    def compared(
        old: Iterable[pa.Table], new: Iterable[pa.Table], schema: Schema, check: Callable[[int, int], None]
    ) -> StateDifference:
        check(1, 2)
        assert (_rows(old), _rows(new)) == ([1], [1, 2])
        (tmp_path / "2.csv").write_text("k,v,s\n1,,x\n2,,yy\n")
        return StateDifference(schema.arrow.empty_table(), schema.arrow.empty_table())

    (tmp_path / "1.csv").write_text("k,v,s\n1,,x\n")
    (tmp_path / "2.csv").write_text("k,v,s\n1,,x\n2,,y\n")
    source = Dumps(tmp_path, "t", _T, compare=compared)
    position = source.poll(None).position
    with pytest.raises(CaptureFailed, match=r"dumps 1.csv and 2.csv of t: one of them was written"):
        source.poll(position)
    (tmp_path / "1.csv").write_text("k,v,s\n1,,z\n")
    with pytest.raises(CaptureFailed, match=r"dump 1.csv of t: it has changed since it was delivered"):
        Dumps(tmp_path, "t", _T, compare=_not_called).poll(position)


@pytest.mark.parametrize("delivered", [False, True])
def test_a_dump_that_is_written_while_it_is_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delivered: bool
) -> None:
    source = Dumps(tmp_path, "t", _T)
    (tmp_path / "1.csv").write_text("k,v,s\n1,,x\n")
    position = source.poll(None).position if delivered else None
    file = tmp_path / f"{1 + delivered}.csv"
    file.write_text("k,v,s\n1,,x\n")
    read = Path.read_bytes

    def growing(path: Path) -> bytes:
        found = read(path)
        if path == file:
            path.write_bytes(found + b"2,,y\n")
        return found

    monkeypatch.setattr(Path, "read_bytes", growing)
    with pytest.raises(CaptureFailed, match=rf"dumps? .*{file.name} of t: .* was written while"):
        source.poll(position)


def test_a_dump_whose_name_is_before_those_that_were_taken_is_an_error(tmp_path: Path) -> None:
    """Nobody would ever take it."""
    for n in (8, 9):
        (tmp_path / f"dump-{n}.csv").write_text("k,v,s\n1,,x\n")
    source = Dumps(tmp_path, "t", _T)
    position = source.poll(source.poll(None).position).position
    (tmp_path / "dump-10.csv").write_text("k,v,s\n1,,y\n")
    with pytest.raises(CaptureFailed, match=r"dump dump-10.csv of t: its name is before dump-9.csv, .* dump-010"):
        source.poll(position)
    (tmp_path / "dump-8.csv").unlink()
    earlier = {k: v for k, v in json.loads(position).items() if k != "before"}
    assert source.poll(json.dumps(earlier)).delta.num_changes == 0
    (tmp_path / "dump-10.csv").rename(tmp_path / "dump-910.csv")
    assert cells(source.poll(position).delta.un) == [(1, None, "y")]


def _rows(parts: Iterable[pa.Table]) -> list[int]:
    return list(pa.concat_tables(parts).column("k").to_pylist())


@pytest.mark.parametrize("later", [True, False])
def test_the_dump_of_the_position_must_be_unchanged(tmp_path: Path, later: bool) -> None:
    """Compared with a dump that was written anew, what changed before that would be lost."""
    first = "k,v,s\n1,,x\n2,,y\n"
    (tmp_path / "1.csv").write_text(first)
    source = Dumps(tmp_path, "t", _T)
    taken = source.poll(None)
    (tmp_path / "1.csv").write_text(first.replace("x", "z"))
    if later:
        (tmp_path / "2.csv").write_text(first.replace("x", "z"))
    with pytest.raises(CaptureFailed, match=r"dump 1.csv of t: it has changed since it was delivered"):
        source.poll(taken.position)
    (tmp_path / "1.csv").write_text(first)
    assert cells(source.poll(taken.position).delta.un) == ([(1, None, "z")] if later else [])


def test_a_position_of_an_earlier_version_has_no_checksum(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("k,v,s\n1,,x\n")
    source = Dumps(tmp_path, "t", _T)
    earlier = json.dumps({"dump": "1.csv"})
    assert source.poll(earlier).position == earlier
    (tmp_path / "2.csv").write_text("k,v,s\n1,,y\n")
    poll = source.poll(earlier)
    assert cells(poll.delta.un) == [(1, None, "y")]
    (tmp_path / "2.csv").write_text("k,v,s\n1,,z\n")
    with pytest.raises(CaptureFailed, match=r"dump 2.csv of t: it has changed"):
        source.poll(poll.position)


def test_a_delivered_dump_may_be_missing_until_there_is_another(tmp_path: Path) -> None:
    source = Dumps(tmp_path, "t", _T)
    nothing = source.poll(None)
    assert nothing.delta.num_changes == 0
    (tmp_path / "1.csv").write_text("k,v,s\n1,,x\n")
    first = source.poll(nothing.position)
    assert cells(first.delta.ins) == [(1, None, "x")]
    (tmp_path / "1.csv").unlink()
    assert source.poll(first.position).position == first.position
