"""One stream of events: progress, steps and their sizes. Whoever renders or tests listens here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Event:
    """Something that happened, by name, with what belongs to it."""

    name: str
    details: dict[str, Any] = field(default_factory=dict)


Listener = Callable[[Event], None]


class Events:
    """Delivers events to listeners in the thread that emits them."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def emit(self, name: str, **details: Any) -> None:
        for listener in self._listeners:
            listener(Event(name, details))
