"""The Spark sessions of one warehouse: the user's own, and one for each set of settings that views have."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from freshview.spark.engine import SparkEngine


class Engines:
    """Finds the session for a purpose; sessions of our own are made when first needed, and kept."""

    def __init__(self, user: Callable[[], SparkEngine]) -> None:
        self.user = user  # the session in which the user's queries run
        self._own: dict[tuple[str, bool], SparkEngine] = {}
        self._guard = threading.Lock()

    def under(self, settings: Mapping[str, str], *, small: bool = False) -> SparkEngine:
        """A session of our own under these settings; `small`: for small jobs."""
        key = (json.dumps(dict(settings), sort_keys=True), small)
        with self._guard:
            if key not in self._own:
                self._own[key] = self.user().sibling(settings, small=small)
            return self._own[key]

    def close(self) -> None:
        for engine in self._own.values():
            engine.close()
