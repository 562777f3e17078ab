"""Views without Spark, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.catalog.view_world import Process, World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.close()


@pytest.fixture
def process(world: World) -> Process:
    return world.process()


@pytest.fixture
def p(process: Process) -> Process:
    """A short name of the fixture `process`, for tests that use it often."""
    return process
