"""One stream of events (progress, steps and their sizes), to which displays and tests listen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Event:
    """Something that happened: its name (`commit.done`) and details."""

    name: str
    details: dict[str, Any] = field(default_factory=dict)


Listener = Callable[[Event], None]


class Events:
    """Delivers events to listeners in the thread that emits them.

    >>> wh = freshview.connect(folder)
    >>> commits = []
    >>> wh.events.listen(lambda event: commits.append(event.details["csn"]) if event.name == "commit.done" else None)
    >>> table = wh.sql("CREATE TABLE orders (id INT PRIMARY KEY, amount INT)")
    >>> wh.sql("INSERT INTO orders VALUES (1, 10)")
    Outcome(rows=1, csn=2)
    >>> commits
    [2]
    """

    def __init__(self) -> None:
        self._listeners: list[Listener] = []

    def listen(self, listener: Listener) -> None:
        """Call `listener` with every event from now on, in the thread that emits it: the listener should be quick."""
        self._listeners.append(listener)

    def emit(self, name: str, **details: Any) -> None:
        """Call all listeners with a new event."""
        for listener in self._listeners:
            listener(Event(name, details))
