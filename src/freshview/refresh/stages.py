"""Results that a job keeps in files while it runs; if the job gives way, the next one goes on from them.

Law: a job goes on from what an earlier one computed only if it is the same job: the same query for the same view over
the same span, with the same condense steps. And it takes a kept result only for what it was computed as: which results
a job asks for depends on the plan, which is chosen anew by cost, so each has a label, and the first one that the job
does not ask for goes with all after it. Results are removed when their job ends, when another job of the view begins,
when the job gives way again without a further result (a smaller one follows), ten minutes after it gave way, and when
the warehouse is closed; if the process dies, with its leases.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from freshview.catalog.records import DataFile, Relation
from freshview.catalog.writer import Catalog
from freshview.errors import Cancelled, FreshviewError
from freshview.refresh.points import Point
from freshview.refresh.span import Span
from freshview.storage.segments import Written, in_files
from freshview.storage.store import Storage

if TYPE_CHECKING:
    from freshview.spark.engine import SparkEngine

LIFETIME = 600.0  # seconds for which results wait for their job to go on


class Stages:
    """The results of one job, in the order in which it needs them; as a context manager: of work that is not taken up
    again."""

    def __init__(self, catalog: Catalog, storage: Storage) -> None:
        self._catalog = catalog
        self._storage = storage
        self._results: list[tuple[Hashable, Written]] = []  # with their labels
        self._used = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def __len__(self) -> int:
        return len(self._results)

    def restart(self) -> None:
        """Begin with the first result again."""
        self._used = 0

    def files(self, label: Hashable, frame: Any, engine: SparkEngine) -> tuple[DataFile, ...]:
        """The rows of a frame in files, as the next result: it is computed now, unless the job had it before.

        The label names all that the rows depend on, beside the job's query and span.
        """

        def write() -> Written:
            lease = self._catalog.lease(0, self._storage.layout.new_folder("stage"))
            assert lease is not None
            empty = Written(in_files(0, ()), lease.path, lease.id)
            try:
                return replace(empty, segment=in_files(0, engine.write(frame, 0, lease.path, "view")))
            except BaseException:
                self._remove([empty])
                raise

        return self.written(label, write).segment.files

    def written(self, label: Hashable, write: Callable[[], Written]) -> Written:
        """What `write` writes, as the next result: now, unless the job had it before, under this label."""
        if self._used < len(self._results) and self._results[self._used][0] != label:
            self._remove(self._taken(self._used))
        if self._used == len(self._results):
            self._results.append((label, write()))
        self._used += 1
        return self._results[self._used - 1][1]

    def given_up(self, result: Written) -> None:
        """Leave a result to the caller, who publishes it or removes it."""
        self._results = [kept for kept in self._results if kept[1] is not result]
        self._used -= 1

    @property
    def rows(self) -> int:
        """The number of rows of the result that was asked for last."""
        return self._results[self._used - 1][1].num_rows

    def held(self, label: Hashable, frame: Any, engine: SparkEngine) -> Any:
        """A frame that reads the rows of a frame from files: queries that use it more than once do not compute it
        again."""
        if not engine.fits_files(frame):
            return frame
        places = [f"c{i}" for i in range(len(frame.columns))]
        return engine.reread(self.files(label, frame.toDF(*places), engine), frame)

    def are_kept(self) -> bool:
        """Are the leases on all results still held?"""
        return self._catalog.holds([result.lease for _, result in self._results])

    def remove(self) -> None:
        """Remove all files."""
        self._used = 0
        self._remove(self._taken(0))

    def _taken(self, place: int) -> list[Written]:
        """Take the results from a place on out of those that are kept."""
        taken, self._results = self._results[place:], self._results[:place]
        return [result for _, result in taken]

    def _remove(self, results: Sequence[Written]) -> None:
        for result in results:
            self._storage.discard(result.segment.relation_id, result.folder)
        if results:
            self._catalog.drop_leases([result.lease for result in results])


@dataclass(frozen=True)
class _Paused:
    """A job that gave way."""

    start: Point
    end: Point
    query: Hashable
    stages: Stages
    until: float  # on the monotonic clock: its results are wanted


class Pauses:
    """The jobs of one warehouse that gave way, with their results; one of a view at most."""

    def __init__(self, catalog: Catalog, storage: Storage, clock: Callable[[], float] = time.monotonic) -> None:
        self._catalog = catalog
        self._storage = storage
        self._clock = clock
        self._jobs: dict[int, _Paused] = {}
        self._guard = threading.Lock()

    @contextmanager
    def job(self, view: Relation, span: Span, query: Hashable) -> Iterator[Stages]:
        """The results of a job: those of the same job that gave way before, and those that are added in the block. They
        are kept if the block has added some and is left to give way; otherwise they are removed."""
        stages = self._resumed(view, span, query)
        before, goes_on = len(stages), False
        try:
            yield stages
        except Cancelled:
            goes_on = len(stages) > before
            raise
        finally:
            if goes_on:
                until = self._clock() + LIFETIME
                with self._guard:
                    self._jobs[view.id] = _Paused(span.start, span.end, query, stages, until)
            else:
                stages.remove()

    def end(self, view: Relation, start: int) -> int | None:
        """The CSN at which the job of a view that gave way was to end; None if none from this start did."""
        with self._guard:
            paused = self._jobs.get(view.id)
        if paused is None or paused.start.csn != start or paused.until <= self._clock():
            return None
        return paused.end.csn

    def close(self) -> None:
        """Remove the results of all jobs."""
        with self._guard:
            left, self._jobs = self._jobs, {}
        _remove(left.values())

    def _resumed(self, view: Relation, span: Span, query: Hashable) -> Stages:
        with self._guard:
            known = self._jobs.pop(view.id, None)
            late = [i for i, paused in self._jobs.items() if paused.until <= self._clock()]
            gone = [self._jobs.pop(i) for i in late]
        _remove(gone)
        if known is not None:
            is_same = (known.start, known.end, known.query) == (span.start, span.end, query)
            if is_same and known.stages.are_kept():
                known.stages.restart()
                return known.stages
            _remove([known])
        return Stages(self._catalog, self._storage)


def _remove(jobs: Iterable[_Paused]) -> None:
    """Remove the results of jobs that are not taken up again."""
    for job in jobs:
        with suppress(FreshviewError):  # the next vacuum removes what is left
            job.stages.remove()
