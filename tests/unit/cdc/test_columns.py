"""Changes as columns give what changes one by one give: the net effect, and lines of test_decoding."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshview.cdc.columns import DELETED, INSERTED, UPDATED, ChangeColumns, NotColumns, from_texts, net_of_columns
from freshview.cdc.model import SETS, PartialDelta, key_schema
from freshview.cdc.net import LoggedChange, as_table, key_of, net_effect
from freshview.cdc.postgres.decoding import _HEAD, _parsed
from freshview.cdc.postgres.lines import Lines
from freshview.errors import CaptureFailed
from freshview.relation.schema import Column, Schema
from freshview.relation.types import parse_type

T = Schema(
    (
        Column("id", parse_type("INT"), nullable=False),
        Column("v", parse_type("STRING")),
        Column("n", parse_type("DOUBLE")),
    ),
    ("id",),
)


def _columns(log: list[LoggedChange], *, images: bool) -> ChangeColumns:
    kinds = [DELETED if c.new is None else UPDATED if c.existed else INSERTED for c in log]
    none = (None,) * len(T.columns)
    return ChangeColumns(
        T,
        np.array(kinds, dtype=np.int8),
        as_table([c.key for c in log], key_schema(T)),
        as_table([c.new or none for c in log], T),
        as_table([c.old or none for c in log], T) if images else None,
        pa.chunked_array([[str(i) for i in range(len(log))]], pa.string()),
        "line",
    )


def _sets(delta: PartialDelta) -> dict[str, list[str]]:
    found = {name: [repr(row) for row in delta.sets[name].to_pylist()] for name in SETS}
    return found | {"uo": [repr(row) for row in delta.uo.to_pylist()]}


@given(st.integers(0, 2**32), st.booleans(), st.booleans())
def test_the_net_effect_of_columns_is_that_of_rows(seed: int, precise: bool, images: bool) -> None:
    """Logs at random, some of which contradict themselves."""
    rng = random.Random(seed)
    log: list[LoggedChange] = []
    state: dict[int, tuple[Any, ...]] = {k: (k, "a", 0.0) for k in range(3)}
    for _ in range(rng.randrange(1, 10)):
        key = rng.randrange(5)
        before = state.get(key)
        lies = rng.random() < 0.02
        existed = (before is not None) != lies
        old = (key, rng.choice("ab"), 0.0) if lies else before
        new = None if existed and rng.random() < 0.4 else (key, rng.choice(["a", "b", None]), rng.choice([0.0, -0.0]))
        log.append(LoggedChange((key,), existed, new, old if existed and images else None, f"line {len(log)}"))
        state.pop(key, None)
        if new is not None:
            state[key] = new
    columns = _columns(log, images=images)
    assert columns.rows() == log
    try:
        expected = net_effect("t", T, log, precise=precise)
    except CaptureFailed:
        with pytest.raises(NotColumns):
            net_of_columns("t", columns, precise=precise)
    else:
        assert _sets(net_of_columns("t", columns, precise=precise)) == _sets(expected)


LINES = [
    "table public.t: INSERT: id[integer]:1 gone[integer[]]:'{1,2}' v[text]:'it''s [x]: ''y'' ' n[double precision]:-0",
    "table public.t: UPDATE: id[integer]:1 gone[integer[]]:null v[text]:'' n[double precision]:null",
    "table public.t: UPDATE: old-key: id[integer]:1 new-tuple: id[integer]:2 gone[integer[]]:null v[text]:'null' "
    "n[double precision]:'NaN'",
    "table public.t: DELETE: id[integer]:2",
]
FULL = [
    LINES[0],
    "table public.t: UPDATE: old-key: id[integer]:1 v[text]:'two\nlines' new-tuple: id[integer]:1 gone[integer[]]:null "
    "v[text]:null n[double precision]:1e-320",
    "table public.t: DELETE: id[integer]:1 n[double precision]:1e-320",
    "table public.t: UPDATE: old-key: id[integer]:3 v[text]:'a' new-tuple: id[integer]:4 gone[integer[]]:null "
    "v[text]:'a' n[double precision]:null",
]


@pytest.mark.parametrize("is_full", [False, True])
def test_lines_as_columns_are_what_they_are_one_by_one(is_full: bool) -> None:
    lines = FULL if is_full else LINES
    form = Lines("table public.t:", T, ("id", "gone", "v", "n"), is_full)
    places = pa.chunked_array([[f"0/{i}" for i in range(len(lines))]])
    found = form.changes(pa.array(lines), places, "public.t").rows()
    expected: list[LoggedChange] = []
    for i, data in enumerate(lines):
        head = _HEAD.match(data)
        assert head is not None
        line = _parsed(head[2], data[head.end() :]).without({"gone"})
        old, new = (_typed(image) if image else None for image in (line.old, line.new))
        whole = old if is_full else None
        key = key_of(old or new or (), T)
        if old and new and key != key_of(new, T):
            expected.append(LoggedChange(key, True, None, whole, f"LSN 0/{i}"))
            expected.append(LoggedChange(key_of(new, T), False, new, None, f"LSN 0/{i}"))
        else:
            expected.append(LoggedChange(key, line.operation != "INSERT", new, whole, f"LSN 0/{i}"))
    assert repr(found) == repr(expected)


def _typed(image: dict[str, str | None]) -> tuple[Any, ...]:
    number = image.get("n")
    return int(str(image["id"])), image.get("v"), None if number is None else float(number)


@pytest.mark.parametrize(
    "line",
    [
        "table public.t: INSERT: id[integer]:1 gone[text]:null v[text]:unchanged-toast-datum n[double precision]:1",
        "table public.t: INSERT: id[integer]:1 v[text]:'a' n[double precision]:1",
        "table public.t: DELETE: (no-tuple-data)",
        "table public.t: TRUNCATE: (no-flags)",
        "table public.t: INSERT: id[integer]:one gone[text]:null v[text]:'a' n[double precision]:1",
    ],
)
def test_a_line_of_another_form_is_left_to_the_parser_of_lines(line: str) -> None:
    form = Lines("table public.t:", T, ("id", "gone", "v", "n"), is_full=False)
    with pytest.raises(NotColumns):
        form.changes(pa.array([LINES[0], line]), pa.chunked_array([["0/1", "0/2"]]), "public.t")


@pytest.mark.parametrize(
    ("text", "type_", "value"),
    [
        ("t", "BOOLEAN", True),
        ("false", "BOOLEAN", False),
        ("\\x00ff", "BINARY", b"\x00\xff"),
        ("-Infinity", "FLOAT", float("-inf")),
        ("null", "STRING", "null"),
    ],
)
def test_texts_are_values(text: str, type_: str, value: Any) -> None:
    assert from_texts(pa.chunked_array([[text, None]]), parse_type(type_)).to_pylist() == [value, None]


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        ("yes", "BOOLEAN"),
        ("00ff", "BINARY"),
        ("2147483648", "INT"),
        ("1.005", "DECIMAL(5,2)"),
        ("NaN", "DECIMAL(5,2)"),
        ("infinity", "TIMESTAMP"),
        ("0044-03-15 BC", "DATE"),
        ("{1}", "ARRAY<INT>"),
    ],
)
def test_texts_that_may_be_no_values_are_left_to_the_way_row_by_row(text: str, type_: str) -> None:
    with pytest.raises(NotColumns):
        from_texts(pa.chunked_array([[text]]), parse_type(type_))
