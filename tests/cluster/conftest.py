"""Processes of tests that start Spark servers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cluster.servers import Processes


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """Processes in a folder of their own, all ended with the module."""
    started = Processes(tmp_path_factory.mktemp("processes"))
    try:
        yield started
    finally:
        started.stop()
