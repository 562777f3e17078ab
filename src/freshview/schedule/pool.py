"""Work on different views side by side: each view after those below it, and an error of one holds up no other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from graphlib import TopologicalSorter
from typing import Generic, TypeVar

from freshview.interruption import Interruption, stop_if_asked

Result = TypeVar("Result")


@dataclass
class Outcomes(Generic[Result]):
    """What became of each view, by id. A view above one that failed is in neither."""

    done: dict[int, Result] = field(default_factory=dict)
    failed: dict[int, Exception] = field(default_factory=dict)

    def note(self, view_id: int, result: Callable[[], Result]) -> None:
        """Note what a call returns or raises."""
        try:
            self.done[view_id] = result()
        except Exception as error:  # of ours too: a defect that one view meets holds up no other
            self.failed[view_id] = error


def side_by_side(
    below: Mapping[int, Collection[int]], run: Callable[[int, Interruption], Result], workers: int
) -> Outcomes[Result]:
    """Call `run` for each view, by id, in so many threads; `below` has the views that go before it.

    One worker is this thread. If this thread is interrupted, all calls are asked to stop, and are waited for. What is
    no Exception (KeyboardInterrupt) stops the others too, and is raised.
    """
    outcomes: Outcomes[Result] = Outcomes()
    order = TopologicalSorter(below)
    order.prepare()
    asked = Interruption()
    if workers == 1:
        while order.is_active():
            for view_id in order.get_ready():
                if all(lower in outcomes.done for lower in below[view_id]):
                    outcomes.note(view_id, partial(run, view_id, asked))
                order.done(view_id)
        return outcomes

    def work(view_id: int) -> Result:
        with asked.here():
            return run(view_id, asked)

    running: dict[Future[Result], int] = {}
    with ThreadPoolExecutor(workers, thread_name_prefix="freshview-maintain") as pool:
        try:
            while order.is_active():
                stop_if_asked("maintenance")
                for view_id in order.get_ready():
                    if all(lower in outcomes.done for lower in below[view_id]):
                        running[pool.submit(work, view_id)] = view_id
                    else:
                        order.done(view_id)
                for future in wait(running, return_when=FIRST_COMPLETED).done if running else ():
                    view_id = running.pop(future)
                    outcomes.note(view_id, future.result)
                    order.done(view_id)
        except BaseException:
            asked.request()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return outcomes
