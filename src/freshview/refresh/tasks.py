"""Tasks: the commits that a view has not seen yet, and how many of them one job takes (LAZY §2.2, §3.1, §3.4, §3.5).

A task is a commit beyond the view's frontier to a table that the view reads, directly or through other views. No task
is stored: it appears with the transaction's own commit, and goes with the maintenance commit or with the view.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from freshview.catalog.records import Frontier, Relation, Task
from freshview.catalog.views import ViewCatalog


@dataclass(frozen=True)
class Pending:
    """The tasks of one view up to a CSN, in commit order."""

    frontier: Frontier
    tasks: tuple[Task, ...]

    def upto(self, csn: int) -> Pending:
        """The tasks that a job up to a CSN takes."""
        return Pending(self.frontier, tuple(task for task in self.tasks if task.csn <= csn))

    def after(self, csn: int) -> Pending:
        """The tasks that a job up to a CSN leaves."""
        return Pending(Frontier(csn), tuple(task for task in self.tasks if task.csn > csn))

    @property
    def rows(self) -> int:
        return sum(task.rows for task in self.tasks)

    @property
    def reset(self) -> bool:
        return any(task.reset for task in self.tasks)

    def age(self, now: int) -> timedelta:
        """How long the oldest task has been waiting."""
        return timedelta(microseconds=max(now - self.tasks[0].committed_at, 0)) if self.tasks else timedelta(0)


def pending(views: ViewCatalog, view: Relation, csn: int) -> Pending:
    """The tasks of a view up to a CSN."""
    frontier, tasks = views.pending(view, csn)
    return Pending(frontier, tuple(tasks))


def combined(tasks: Sequence[Task], snapshots: Sequence[int], most_rows: int | None = None) -> int:
    """The CSN at which a combined run of these tasks ends: the last task's, or an earlier one's.

    Law: a run never goes past a snapshot that may still be read, if the view changes on both sides of it; nor
    does it take more than `most_rows` delta rows (None: any number), unless its first task alone does. It always takes
    one task.
    """
    first, last = tasks[0].csn, tasks[-1].csn
    limit = min((s for s in snapshots if first <= s < last), default=last)
    end, rows = first, tasks[0].rows
    for task in tasks[1:]:
        rows += task.rows
        if task.csn > limit or (most_rows is not None and rows > most_rows):
            break
        end = task.csn
    return end
