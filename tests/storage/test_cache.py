"""Small mains that are kept in memory."""

from __future__ import annotations

import pyarrow as pa
import pytest

from freshview.catalog.records import Main
from freshview.storage.cache import MainCache


class Files:
    """Versions of main as files, and how often they were read."""

    def __init__(self) -> None:
        self.read: list[tuple[int, int]] = []

    def __call__(self, relation_id: int, version: int) -> pa.Table:
        self.read.append((relation_id, version))
        return pa.table({"k": pa.array(range(100), pa.int64())})  # 800 bytes


def main(version: int = 0, size: int = 100) -> Main:
    return Main(version, version, 1, 100, size)


@pytest.fixture
def files() -> Files:
    return Files()


def test_a_main_is_kept_when_it_is_asked_for_again(files: Files) -> None:
    cache = MainCache(files)
    assert cache.rows(1, main()) is None
    for _ in range(3):
        rows = cache.rows(1, main())
        assert rows is not None
        assert rows.num_rows == 100
    assert files.read == [(1, 0)]


def test_a_large_main_is_left_where_it_is(files: Files) -> None:
    cache = MainCache(files, largest=99)
    assert [cache.rows(1, main()) for _ in range(3)] == [None] * 3
    assert files.read == []


def test_a_newer_version_takes_the_place_of_an_older_one(files: Files) -> None:
    cache = MainCache(files)
    for version in (0, 0, 1, 1):
        cache.rows(1, main(version))
    assert cache.rows(1, main(0)) is None
    assert files.read == [(1, 0), (1, 1)]


def test_what_was_not_used_for_longest_goes_when_the_budget_is_spent(files: Files) -> None:
    cache = MainCache(files, budget=1600)
    for relation in (1, 2, 1, 2):
        cache.rows(relation, main())
    cache.rows(1, main())
    for _ in range(2):
        cache.rows(3, main())
    assert cache.rows(1, main()) is not None
    assert cache.rows(2, main()) is None  # forgotten: asked for as if for the first time
    assert files.read == [(1, 0), (2, 0), (3, 0)]


def test_what_alone_is_beyond_the_budget_is_read_each_time(files: Files) -> None:
    cache = MainCache(files, budget=100)
    for _ in range(3):
        cache.rows(1, main())
    assert files.read == [(1, 0)] * 2
