"""The Spark session of the soaks."""

from __future__ import annotations

import os
from typing import Any

import pytest


@pytest.fixture(scope="session")
def small_spark(request: pytest.FixtureRequest) -> Any:
    """A session whose heap is small, so that what it does not give back shows."""
    os.environ.setdefault("SPARK_DRIVER_MEMORY", "1g")
    return request.getfixturevalue("spark")
