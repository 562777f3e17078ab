"""Jobs that replace all rows of a view, without Spark: readers, views above, checkpoints and crashes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
from tests.catalog.view_world import BAG, Process, World, waits
from tests.conftest import PostgresServer

from freshview.catalog import tables as t
from freshview.catalog.frontiers import Job, ViewStep
from freshview.catalog.records import Relation, RelationState
from freshview.catalog.views import ViewCatalog
from freshview.refresh.execute import Change
from freshview.refresh.span import Span
from freshview.relation.delta import REPLACE
from freshview.storage.checkpoint import Checkpointer
from freshview.storage.segments import Written, in_files
from freshview.storage.vacuum import vacuum


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


@dataclass
class Replacing(Process):
    """A process whose jobs replace the rows of views, always or with a probability."""

    share: float = 1.0
    draw: random.Random = field(default_factory=lambda: random.Random(7))

    def change(self, view: Relation, span: Span, stored: RelationState | None = None) -> Change:
        if stored is None or self.draw.random() >= self.share:
            return super().change(view, span, stored)
        rows = list(self.defined(view, span.end.csn).elements())
        table = pa.table([pa.array(column, pa.int32()) for column in zip(*rows, strict=True)] or [[], []], ["k", "v"])
        lease = self.catalog.lease(view.id, self.storage.layout.new_folder("bulk"))
        assert lease is not None
        files = self.storage.write_parquet(view.id, lease.path, BAG.conform(table))
        segment = in_files(view.id, files, stmtsn=1, action=REPLACE)
        return Change("full", Written(segment, lease.path, lease.id), 0, replaced="asked for")

    @property
    def checkpointer(self) -> Checkpointer:
        def no_engine() -> None:
            raise AssertionError("nothing here is large")

        return Checkpointer(self.catalog, self.storage, self.events, no_engine)  # type: ignore[arg-type]


def _replacing(world: World, share: float = 1.0) -> Replacing:
    process = world.process()
    return Replacing(world, process.catalog, process.storage, share=share)


def test_a_replaced_view_is_its_definition_at_every_version_it_has(world: World) -> None:
    """Law: whatever jobs, checkpoints and vacuums do, a view's readable rows are its definition's; so are those of the
    view above, which takes the difference."""
    p = _replacing(world, share=0.5)
    for name in ("a", "b"):
        p.table(name)
    low = p.view("low", *(p.catalog.relation(n) for n in ("a", "b")))
    high = p.view("high", low)
    draw = random.Random(3)
    versions = []
    for _ in range(40):
        rows = {draw.randrange(6): draw.randrange(3) for _ in range(draw.randrange(3))}
        if rows:
            p.put({draw.choice(["a", "b"]): rows})
        match draw.randrange(4):
            case 0:
                p.checkpointer.run(draw.choice([low, high]))
            case 1:
                p.jobs.bring(high, p.catalog.snapshot())
            case 2:
                p.jobs.bring(low, p.catalog.snapshot())
        for view in (low, high):
            csn = p.views.frontier(view)
            versions.append((view, csn))
            assert p.stored(view, csn) == p.defined(view, csn)
    assert any(s.replaces for s in p.catalog.segments([low.id], -1))
    world.forget()
    assert all(p.stored(view, csn) == p.defined(view, csn) for view, csn in versions)  # time travel
    vacuum(p.catalog, p.storage, p.events)
    assert all(p.stored(view, csn) == p.defined(view, csn) for view, csn in versions)


def test_the_files_of_a_replacement_become_main_as_they_are(world: World) -> None:
    p = _replacing(world)
    low = p.view("low", p.table("a"))
    p.put({"a": {1: 1, 2: 2}})
    p.jobs.bring(low, p.catalog.snapshot())
    assert p.checkpointer.run(low).strategy == "adopt"
    first = p.catalog.snapshot()
    p.put({"a": {1: 5}})
    (job,) = p.jobs.bring(low, p.catalog.snapshot())
    assert (job.strategy, job.view_rows, job.replaced) == ("full", 2, "asked for")
    (segment,) = p.catalog.segments([low.id], first)
    p.checkpointer.adopt(low)
    main = p.catalog.latest_main(low.id)
    assert main is not None
    assert p.storage.mains.files(low.id, main.delta_version) == segment.files
    assert p.stored(low, p.catalog.snapshot()) == {(1, 5): 1, (2, 2): 1}
    assert p.stored(low, first) == {(1, 1): 1, (2, 2): 1}


def test_a_view_that_becomes_empty_stays_so(world: World) -> None:
    p = _replacing(world)
    a = p.table("a")
    low = p.view("low", a)
    p.put({"a": {1: 1}})
    p.jobs.bring(low, p.catalog.snapshot())
    p.checkpointer.run(low)
    tx = p.begin()
    tx.delete_keys("a", [1])
    tx.commit()
    p.jobs.bring(low, p.catalog.snapshot())
    assert p.stored(low, p.catalog.snapshot()) == {}
    assert p.checkpointer.run(low).strategy == "nothing"
    p.put({"a": {4: 4}})
    p.jobs.bring(low, p.catalog.snapshot())
    p.checkpointer.run(low)
    assert p.stored(low, p.catalog.snapshot()) == {(4, 4): 1}


def test_a_kill_before_or_after_the_commit_leaves_the_old_rows_or_the_new(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = _replacing(world)
    low = p.view("low", p.table("a"))
    start = p.put({"a": {1: 1}})
    p.jobs.bring(low, start)
    end = p.put({"a": {2: 2}})

    def killed(*_: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ViewCatalog, "apply", killed)
        with pytest.raises(KeyboardInterrupt):
            p.jobs.bring(low, end)
    assert (p.views.frontier(low), p.stored(low, start)) == (start, {(1, 1): 1})
    assert not [f for f in p.storage.layout.relation(low.id).rglob("*.parquet") if not _is_known(p, low, f)]
    p.jobs.bring(low, end)
    with monkeypatch.context() as patch:  # between the Delta commit and the catalog's
        patch.setattr(type(p.catalog), "record_main", killed)
        with pytest.raises(KeyboardInterrupt):
            p.checkpointer.run(low)
    assert p.stored(low, end) == {(1, 1): 1, (2, 2): 1}
    p.checkpointer.run(low)
    assert p.stored(low, end) == {(1, 1): 1, (2, 2): 1}
    assert p.stored(low, start) == {(1, 1): 1}


def _is_known(p: Process, view: Relation, file: Path) -> bool:
    return str(file.relative_to(p.storage.layout.relation(view.id))) in p.catalog.referenced_files(view.id)


def test_a_view_that_was_made_deferred_meanwhile_is_not_replaced(world: World) -> None:
    """Law: the segments of a deferred view are its differential tables: none of them replaces rows."""
    p = _replacing(world)
    step = _replacement(p)
    p.views.set_properties(step.view, {"maintenance": "deferred"}, deferred=True)
    assert p.views.apply([step]) is False
    assert p.catalog.segments([step.view.id], -1) == []


def _replacement(p: Replacing) -> ViewStep:
    """A step that replaces the rows of a view, computed and not yet published."""
    low = p.view("low", p.table("a"))
    end = p.put({"a": {1: 1}})
    change = p.change(low, Span.between(p.catalog, p.storage, p.views.frontier(low), end), p.views.stored(low, end))
    assert isinstance(change.rows, Written)
    job = Job(view_id=low.id, from_csn=0, to_csn=end, strategy="full", seconds=0.0)
    return ViewStep(low, p.views.position(low), end, (change.rows.segment,), (change.rows.lease,), job)


@pytest.mark.postgres
def test_a_view_that_becomes_deferred_while_its_job_publishes_is_not_replaced(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    """Law: on PostgreSQL the job's update waits for the ALTER, and then looks at what the ALTER has left."""
    world = World(tmp_path, url=postgres.new_database())
    p = _replacing(world)
    step, database, f = _replacement(p), p.catalog.database, t.frontiers.c
    with ThreadPoolExecutor(1) as pool:
        with database.write() as altering:
            altering.execute(t.frontiers.update().where(f.view_id == step.view.id).values(shown=f.csn))
            published = pool.submit(p.views.apply, [step])
            while not waits(database):
                assert not published.done()
        assert published.result() is False
    assert p.catalog.segments([step.view.id], -1) == []
    world.close()
