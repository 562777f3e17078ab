"""Kept results of a job that gave way: each is used only for what it was computed as."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from tests.internals import internals

from freshview import Warehouse
from freshview.catalog.records import Relation
from freshview.errors import Cancelled
from freshview.refresh.span import Span
from freshview.refresh.stages import Pauses
from freshview.relation.schema import Column, Schema
from freshview.relation.types import DataType

VIEW = Relation(7, "v", "view", 1, 1, Schema((Column("a", DataType("int")),), ()), 0)


class Job:
    """A job that asks for results by their labels; it writes Arrow tables as Spark would write frames."""

    def __init__(self, wh: Warehouse) -> None:
        here = internals(wh)
        self.catalog, self.storage = here.catalog, here.storage
        self.pauses = Pauses(self.catalog, self.storage)
        self.computed: list[str] = []

    def write(self, rows: Any, relation_id: int, folder: str, _: str) -> Any:
        self.computed.append(rows.column_names[0])
        return tuple(self.storage.write_parquet(relation_id, folder, rows))

    def run(self, labels: Sequence[str], *, gives_way: bool, steps: str = "") -> list[str]:
        """Ask for results; return those that were computed now."""
        self.computed = []
        span = Span.between(self.catalog, self.storage, 1, 2)
        try:
            with self.pauses.job(VIEW, span, ("query", steps)) as stages:
                engine: Any = self
                found = [stages.files(label, pa.table({label: [1]}), engine) for label in labels]
                folder = self.storage.layout.relation(0)
                names = [pa.parquet.read_schema(folder / file.path).names for files in found for file in files]
                assert names == [[label] for label in labels], "a result was taken for another"
                if gives_way:
                    raise Cancelled("view v", "gives way", "")
        except Cancelled:
            pass
        return self.computed


def _kept(wh: Warehouse) -> list[Path]:
    return list(wh.path.glob("**/stage*/*.parquet"))


def test_a_result_with_another_label_goes_with_all_after_it(wh: Warehouse) -> None:
    job = Job(wh)
    assert job.run(["delta", "part", "signed"], gives_way=True) == ["delta", "part", "signed"]
    assert job.run(["delta", "signed"], gives_way=False) == ["signed"]
    assert _kept(wh) == []


@pytest.mark.parametrize("labels", [["signed"], ["delta"], ["part", "delta", "signed"]])
def test_whatever_the_next_job_asks_for_it_gets_what_it_asks_for(wh: Warehouse, labels: list[str]) -> None:
    job = Job(wh)
    job.run(["delta", "part", "signed"], gives_way=True)
    assert job.run(labels, gives_way=False) == ([] if labels == ["delta"] else labels)
    assert _kept(wh) == []


def test_other_condense_steps_are_another_job(wh: Warehouse) -> None:
    job = Job(wh)
    job.run(["part"], gives_way=True, steps="t cancels")
    assert job.run(["part"], gives_way=False, steps="t does not") == ["part"]
    assert _kept(wh) == []
