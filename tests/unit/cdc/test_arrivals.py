"""What a poll brought, as columns, is what it is row by row."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshview.cdc.arrivals import arrivals, arrivals_by_row
from freshview.cdc.captures import Capture
from freshview.cdc.columns import DELETED, INSERTED, UPDATED, ChangeColumns
from freshview.cdc.fitting import Fit
from freshview.cdc.flow import Plan
from freshview.cdc.model import SETS, key_schema, partial_delta
from freshview.cdc.net import as_table
from freshview.cdc.sequenced_columns import SequencedColumns
from freshview.cdc.source import Poll
from freshview.errors import QueryFailed, SparkFailed
from freshview.relation.schema import Column, Schema
from freshview.relation.types import parse_type
from freshview.sql.statements import ColumnChoice, CreateFlow

SOURCE = Schema(
    (
        Column("v", parse_type("STRING")),
        Column("Id", parse_type("INT"), nullable=False),
        Column("n", parse_type("BIGINT")),
    ),
    ("Id",),
)
AT = datetime(2026, 3, 1, tzinfo=UTC)
_CAPTURE = Capture("all", frozenset(SETS))
_EXPRESSIONS = {"n + 1": 0, "n > 2": 1, "_change_type = 'insert'": 2}


def _evaluate(rows: pa.Table, schema: Schema, expressions: Sequence[str]) -> list[pa.ChunkedArray]:
    """These expressions, as Spark evaluates them."""
    assert schema.names == (*SOURCE.names, "_change_type", "_change_time")
    assert set(rows.column("_change_time").to_pylist()) <= {AT}
    n = rows.column("n")
    if pc.any(pc.equal(n, 9)).as_py():
        raise QueryFailed("n", "it is nine", "Choose another number.")
    values = [pc.add(n, 1), pc.greater(n, 2), pc.equal(rows.column("_change_type"), "insert")]
    return [values[_EXPRESSIONS[text]] for text in expressions]


@st.composite
def _polls(draw: st.DrawFn) -> Poll:
    """Each key is in one set; now and then without a sequence, with one on which expressions fail, or with a text that
    the target cannot hold."""
    sets: dict[str, list[Any]] = {name: [] for name in (*SETS, "uo")}
    text, number = st.sampled_from([None, "a", "b", "long"]), st.sampled_from([None, 1, 2, 3, 4, 9])
    rare = draw(st.booleans())
    places = {}
    for key in range(draw(st.integers(0, 8))):
        name = draw(st.sampled_from(SETS))
        pair = [(draw(text), key, draw(number)) for _ in range(2)]
        if not rare:
            pair = [("a" if v == "long" else v, k, 1 if n in (None, 9) else n) for v, k, n in pair]
        sets[name].append((key,) if name == "delk" else pair[0])
        sets["uo"].extend([pair[1]] * (name == "un/uo"))
        places[(key,)] = f"line {key}"
    rows = {name: as_table(found, key_schema(SOURCE) if name == "delk" else SOURCE) for name, found in sets.items()}
    pairs = (rows.pop("un/uo"), rows.pop("uo"))
    delta = partial_delta("t", SOURCE, deleted=rows.pop("del"), pairs=pairs, **rows)
    return Poll(_CAPTURE, delta, "p", at=AT, places=places if draw(st.booleans()) else {})


@st.composite
def _logs(draw: st.DrawFn) -> Poll:
    """Each change of a log, with old images or without, whose rows may change again and again."""
    text, number = (
        st.sampled_from([None, "a", "b"]),
        st.sampled_from([None, 1, 2, 3, 4] if draw(st.booleans()) else [1]),
    )
    kinds = draw(st.lists(st.sampled_from([INSERTED, UPDATED, DELETED]), max_size=8))
    keys = [(draw(st.integers(0, 3)),) for _ in kinds]
    none = (None,) * len(SOURCE.columns)
    new, old = ([(draw(text), key[0], draw(number)) for key in keys] for _ in range(2))
    changes = ChangeColumns(
        SOURCE,
        np.array(kinds, dtype=np.int8),
        as_table(keys, key_schema(SOURCE)),
        as_table([none if kind == DELETED else row for row, kind in zip(new, kinds, strict=True)], SOURCE),
        as_table([none if kind == INSERTED else row for row, kind in zip(old, kinds, strict=True)], SOURCE)
        if draw(st.booleans())
        else None,
        pa.chunked_array([pa.array(list(map(str, range(len(kinds)))), pa.string())]),
        "record",
    )
    return Poll(_CAPTURE, partial_delta("t", SOURCE), "p", changes=changes, at=AT)


def _plan(keys: tuple[str, ...], sequence: str, chosen: ColumnChoice, *, conditions: bool) -> Plan:
    delete, truncate = ("_change_type = 'insert'", "n > 2" if sequence else "") if conditions else ("", "")
    flow = CreateFlow("f", "t", "s", "t", (), keys, sequence, delete, truncate, chosen)
    return Plan(flow, SOURCE, _CAPTURE, parse_type("BIGINT") if sequence else None)


@given(
    st.one_of(_polls(), _logs()),
    st.sampled_from(["n", "n + 1", ""]),
    st.booleans(),
    st.sampled_from([("id",), ("v", "id"), ("n",)]),
    st.sampled_from([ColumnChoice(), ColumnChoice(("n",)), ColumnChoice(("id", "v"), is_except=False)]),
    st.sampled_from(["STRING", "VARCHAR(2)"]),
)
def test_what_a_poll_brought_as_columns_is_what_it_is_row_by_row(
    poll: Poll, sequence: str, conditions: bool, keys: tuple[str, ...], chosen: ColumnChoice, text: str
) -> None:
    chosen = ColumnChoice() if keys == ("n",) else chosen
    if keys != ("id",) and not sequence:
        keys = ("id",)  # rows that are events need a sequence
    plan = _plan(keys, sequence, chosen, conditions=conditions)
    types = {"v": parse_type(text), "Id": parse_type("BIGINT")}
    target = Schema(tuple(Column(c.name.upper(), types.get(c.name, c.type)) for c in plan.values))
    fit = Fit("t", SOURCE, target)
    found = arrivals(poll, plan, fit, _evaluate)
    wanted = arrivals_by_row(poll, plan, fit, _evaluate)
    if isinstance(found.changes, SequencedColumns):
        assert (found.bad, found.bad_keys, found.failed) == ([], set(), 0)
        found.changes = found.changes.rows()
    assert found == wanted


def test_all_that_can_be_taken_is_taken_as_columns() -> None:
    delta = partial_delta("t", SOURCE, ups=as_table([("a", 1, 5)], SOURCE), delk=as_table([(2,)], key_schema(SOURCE)))
    plan = _plan(("id",), "n", ColumnChoice(), conditions=True)
    found = arrivals(Poll(_CAPTURE, delta, "p", at=AT), plan, Fit("t", SOURCE, Schema(SOURCE.columns)), _evaluate)
    assert isinstance(found.changes, SequencedColumns)
    assert found.changes.deletes.tolist() == [True, False]
    assert found.changes.truncates.tolist() == [False, True]


def test_an_error_of_spark_is_none_of_the_changes() -> None:
    def lost(*_: object) -> list[pa.ChunkedArray]:
        raise SparkFailed("n", "Spark is gone", "Start it.")

    delta = partial_delta("t", SOURCE, ups=as_table([("a", 1, 5)], SOURCE))
    plan = _plan(("id",), "n + 1", ColumnChoice(), conditions=False)
    with pytest.raises(SparkFailed, match=re.escape("Spark is gone")):
        arrivals(Poll(_CAPTURE, delta, "p", at=AT), plan, Fit("t", SOURCE, Schema(SOURCE.columns)), lost)
