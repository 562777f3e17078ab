"""Processes of tests that start Spark servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.servers import Processes


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """Processes in a folder of their own, all ended with the test."""
    folder = tmp_path / "processes"
    folder.mkdir()
    started = Processes(folder)
    try:
        yield started
    finally:
        started.stop()
