"""The search scales as the bench measures it: seconds of the processor, and bytes that are allocated."""

from __future__ import annotations

import time

import pytest

from freshview.bench.optimizer import memory_of, stars


@pytest.mark.parametrize(("views", "most"), [(10, 1.0), (100, 30.0)])
def test_star_views_are_optimised_within_the_limit(views: int, most: float) -> None:
    stars(1)
    begun = time.process_time()
    choice = stars(views)
    assert time.process_time() - begun < most
    assert len(choice.views) == views
    assert choice.after < choice.before


def test_ten_star_views_over_22_relations_take_less_than_100_megabytes() -> None:
    assert memory_of(10) < 100e6
