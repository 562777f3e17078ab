"""One database of the PostgreSQL server for all tests of this folder; each test has tables of its own."""

from __future__ import annotations

import pytest
from tests.conftest import PostgresServer


@pytest.fixture(scope="session")
def database(postgres: PostgresServer) -> str:
    return postgres.new_database()
