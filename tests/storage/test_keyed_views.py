"""Views with keys: whatever jobs, checkpoints and composing do, every version holds the rows that its job computed.

No Spark: a job sets the view to a state that the test draws. Keys are of all types, and NULL is a value in them.
"""

from __future__ import annotations

import datetime
import tempfile
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.catalog.view_world import Process, World
from tests.effort import examples

from freshview.algebra.nodes import WEIGHT
from freshview.catalog.records import Relation, RelationState
from freshview.delta.signed import net, weighted
from freshview.refresh.deltas import changes
from freshview.refresh.execute import Change
from freshview.refresh.jobs import JobRunner
from freshview.refresh.span import Span
from freshview.relation.delta import key_table
from freshview.relation.schema import Column, Schema
from freshview.relation.types import parse_type
from freshview.storage import checkpoint as checkpoint_module
from freshview.storage import segments
from freshview.storage.checkpoint import Checkpointer, CheckpointReport

_UTC = datetime.UTC
_KEYS: dict[str, list[Any]] = {
    "TINYINT": [-128, 0, 127],
    "SMALLINT": [-(2**15), 0, 7],
    "INT": [-(2**31), 0, 2**31 - 1],
    "BIGINT": [-(2**63), 0, 2**63 - 1],
    "DECIMAL(38,2)": [Decimal("-0.01"), Decimal(0), Decimal(10) ** 35],
    "STRING": ["", "it's", "é"],
    "CHAR(3)": ["a  ", "b  ", "abc"],
    "VARCHAR(3)": ["a", "a ", "A"],
    "BINARY": [b"", b"\x00", b"\xff"],
    "BOOLEAN": [True, False],
    "DATE": [datetime.date(1, 1, 1), datetime.date(1970, 1, 1), datetime.date(9999, 12, 31)],
    "TIMESTAMP": [datetime.datetime(1500, 1, 1, tzinfo=_UTC), datetime.datetime(2020, 1, 1, 0, 0, 0, 1, tzinfo=_UTC)],
    "TIMESTAMP_NTZ": [datetime.datetime(1500, 1, 1), datetime.datetime(2020, 1, 1, 0, 0, 0, 1)],
}
State = dict[tuple[Any, ...], float | None]
_values = st.sampled_from([None, 0.0, -0.0, 1.5])


class _Jobs:
    """Sets the view to the state that the test has drawn."""

    def __init__(self, process: Process) -> None:
        self.reader = process.storage.reader
        self.target: State = {}

    def change(self, view: Relation, span: Span, stored: RelationState, *, full: bool = False) -> Change:  # noqa: ARG002
        columns = zip(*((*key, value) for key, value in self.target.items()), strict=True)
        arrays = list(columns) or [()] * len(view.schema.columns)
        new = pa.table(
            [pa.array(c, f.type) for c, f in zip(arrays, view.schema.arrow, strict=True)], schema=view.schema.arrow
        )
        old = self.reader.contents(stored)
        rows = net(pa.concat_tables([weighted(new, 1, view.schema), weighted(old, -1, view.schema)]), view.schema)
        return Change("incremental", rows, rows.num_rows)

    def applied(self, state: RelationState) -> None:
        """There is nothing to do."""


def _view(process: Process, table: Relation, types: tuple[str, ...]) -> Relation:
    columns = (*(Column(f"__key{i}", parse_type(t)) for i, t in enumerate(types)), Column("v", parse_type("DOUBLE")))
    schema = Schema(columns, tuple(c.name for c in columns[:-1]))
    facts = {"sources": f'{{"t": {{"id": {table.id}, "columns": ["k"]}}}}', "columns": '["v"]'}
    new_id, properties, csn = process.catalog.reserve_id(), {"maintenance": "deferred"}, process.catalog.snapshot()
    return process.views.create(new_id, "v", schema, properties, facts, [table], [], [], csn, deferred=True)[0]


def _checkpoint(process: Process, view: Relation) -> CheckpointReport:
    def engine() -> Any:
        raise AssertionError("small checkpoints need no Spark")

    return Checkpointer(process.catalog, process.storage, process.events, engine).run(view)


def _read(process: Process, view: Relation, csn: int) -> dict[Any, str]:
    rows = process.storage.reader.contents(process.views.stored(view, csn)).to_pylist()
    found = {tuple(v for k, v in row.items() if k != "v"): repr(row["v"]) for row in rows}
    assert len(found) == len(rows)
    return found


@settings(max_examples=examples(6), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_version_of_a_keyed_view_holds_what_its_job_computed(data: st.DataObject) -> None:
    types = tuple(data.draw(st.lists(st.sampled_from(sorted(_KEYS)), min_size=1, max_size=2), label="types"))
    keys = st.tuples(*(st.sampled_from([None, *_KEYS[t]]) for t in types))
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint_module, "_MERGE_SHARE", data.draw(st.sampled_from([0.0, 50.0]), label="merge share"))
        world = World(Path(place))
        process = world.process()
        table = process.table("t")
        view, jobs = _view(process, table, types), _Jobs(process)
        runner = JobRunner(process.catalog, process.storage, process.events, jobs)
        seen: dict[int, dict[Any, str]] = {}
        strategies = set()
        for step in range(data.draw(st.integers(2, 5), label="steps")):
            patch.setattr(segments, "INLINE_BYTES", data.draw(st.sampled_from([0, 1 << 20]), label="inline"))
            jobs.target = data.draw(st.dictionaries(keys, _values, max_size=5), label="state")
            csn = process.put({"t": {1: step}})
            runner.bring(view, csn)
            seen[csn] = {key: repr(value) for key, value in jobs.target.items()}
            match data.draw(st.sampled_from(["", "checkpoint", "compose"]), label="then"):
                case "checkpoint":
                    strategies.add(_checkpoint(process, view).strategy)
                case "compose":
                    process.deferred.compose(view)
        versions = [c for c in sorted(seen) if process.views.stored_at(view, c) == c]
        for csn in versions:
            assert _read(process, view, csn) == seen[csn]
        _changes_are_differences(process, view, seen, versions)
        assert not strategies & {"busy"}
        world.close()


def _changes_are_differences(process: Process, view: Relation, seen: dict[int, Any], versions: list[int]) -> None:
    """What a view above reads as the change between two versions has both images of every row that changed."""
    for before, after in pairwise(versions):
        rows = changes(Span.between(process.catalog, process.storage, before, after), view).to_pylist()
        found = {(*(v for k, v in r.items() if k not in ("v", WEIGHT)), repr(r["v"]), r[WEIGHT]) for r in rows}
        gone, come = seen[before].items() - seen[after].items(), seen[after].items() - seen[before].items()
        assert found == {(*k, v, -1) for k, v in gone} | {(*k, v, 1) for k, v in come}
        assert len(rows) == len(found)


@pytest.mark.parametrize("files", [1, 3])
def test_a_merge_replaces_the_row_whose_key_is_null(tmp_path: Path, files: int) -> None:
    """In files of one and of several rows, by one key column with NULLs and one without; files without it stay."""
    world = World(tmp_path)
    process = world.process()
    view, jobs = _view(process, process.table("t"), ("INT", "STRING")), _Jobs(process)
    runner = JobRunner(process.catalog, process.storage, process.events, jobs)
    state: State = {}
    for i in range(files):
        state |= {(None, f"n{i}"): 0.0, (i, None): 1.0, (i, "x"): 2.0, (None, None): 3.0}
        state |= {(100 * i + j, f"{j}"): 0.5 for j in range(1, 50)}
        jobs.target = dict(state)
        runner.bring(view, process.put({"t": {1: i}}))
        _checkpoint(process, view)
    del state[None, "n0"], state[0, None]
    state[None, None], state[0, "x"], state[None, "new"] = 7.0, 8.0, 9.0
    jobs.target = state
    csn = process.put({"t": {1: 99}})
    runner.bring(view, csn)
    overlay = process.storage.reader.overlay(process.views.stored(view, csn))
    assert key_table(overlay.rows, view.schema).num_rows == 5
    assert _checkpoint(process, view).strategy == "merge"
    assert not process.views.stored(view, csn).segments
    assert _read(process, view, csn) == {k: repr(v) for k, v in state.items()}
    world.close()
