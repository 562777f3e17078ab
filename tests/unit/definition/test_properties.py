"""Policies of deferred views: what properties mean, and when something is due."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from freshview.catalog.records import Deferral
from freshview.definition.properties import (
    DeferredPolicy,
    Trigger,
    checked_refresh,
    commits_maintain,
    next_runs,
    parse_policy,
)
from freshview.errors import InvalidStatement

SECOND = 1_000_000
HOUR = 3600 * SECOND


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({}, DeferredPolicy("combined", Trigger("idle"))),
        ({"scenario": "BASE-LOG"}, DeferredPolicy("base-log")),
        ({"scenario": "differential"}, DeferredPolicy("differential")),
        ({"propagate": "every 90 seconds"}, DeferredPolicy("combined", Trigger("every", 90 * SECOND))),
        (
            {"propagate": "On Demand", "refresh.policy": "every 1 day"},
            DeferredPolicy("combined", Trigger(), Trigger("every", 24 * HOUR)),
        ),
        (
            {"propagate": "every 1 hour", "refresh.policy": "PARTIAL  every 24 hours"},
            DeferredPolicy("combined", Trigger("every", HOUR), Trigger("every", 24 * HOUR), partial=True),
        ),
        (
            {"refresh.policy": "partial on query"},
            DeferredPolicy("combined", Trigger("idle"), Trigger("query"), partial=True),
        ),
    ],
)
def test_what_properties_mean(properties: dict[str, str], expected: DeferredPolicy) -> None:
    assert parse_policy(properties) == expected


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({}, False),
        ({"maintenance": "auto"}, False),
        ({"maintenance": "Eager"}, True),
        ({"maintenance": "deferred"}, False),
        ({"maintenance": "deferred", "scenario": "base-log"}, False),
        ({"maintenance": "DEFERRED", "scenario": "Differential"}, True),
        ({"maintenance": "lazy", "scenario": "differential"}, False),
    ],
)
def test_which_views_commits_maintain(properties: dict[str, str], expected: bool) -> None:
    assert commits_maintain(properties) == expected


@pytest.mark.parametrize("text", ["", "often", "every hour", "every -1 hours", "every 1 hour or so", "partial"])
def test_what_is_no_policy_is_refused(text: str) -> None:
    with pytest.raises(InvalidStatement, match="is no policy"):
        parse_policy({"refresh.policy": text})


@pytest.mark.parametrize("partial", ["", "partial "])
@pytest.mark.parametrize(
    ("propagate", "refresh", "ok"),
    [
        ("every 1 hour", "every 24 hours", True),
        ("every 1 hour", "every 61 minutes", True),
        ("every 1 hour", "every 60 minutes", False),
        ("every 2 days", "every 1 day", False),
        ("idle", "every 1 second", True),
        ("on demand", "every 1 second", True),
        ("every 1 hour", "on demand", True),
    ],
)
def test_a_view_is_propagated_more_often_than_it_is_refreshed(
    propagate: str, refresh: str, ok: bool, partial: str
) -> None:
    """Law (DEFER §5.3): every k and every m, with m > k; a view that has another policy already keeps it."""
    policy = f"{partial}{refresh}" if refresh != "on demand" else refresh
    given = {"maintenance": "deferred", "propagate": propagate, "refresh.policy": policy}
    parse_policy(given)
    with nullcontext() if ok else pytest.raises(InvalidStatement, match="propagated no more often than that"):
        checked_refresh(given, given)


def test_due_is_the_last_moment_that_was_missed() -> None:
    hourly = Trigger("every", HOUR)
    assert hourly.due(0, HOUR - 1) is None
    assert hourly.due(0, HOUR) == HOUR
    assert hourly.due(0, 5 * HOUR + 1) == 5 * HOUR
    assert Trigger("idle").due(0, HOUR) is None


def test_a_job_is_wanted_for_what_was_committed_by_then() -> None:
    """What came later is left to the next moment, so that a stream of commits does not hold a refresh up for ever."""
    policy = DeferredPolicy("combined", Trigger("every", HOUR), Trigger("every", 24 * HOUR))
    stand = Deferral(1, 1, 0, 0)
    assert policy.wants_job(stand, HOUR // 2, HOUR - 1) == (False, None)
    assert policy.wants_job(stand, HOUR // 2, HOUR + 5) == (True, HOUR)
    assert policy.wants_job(stand, HOUR + 1, HOUR + 5) == (False, None)
    assert policy.wants_job(stand, 23 * HOUR, 24 * HOUR) == (True, 24 * HOUR)


def test_a_partial_refresh_needs_no_job_and_idle_time_is_always_right() -> None:
    partial = DeferredPolicy("combined", Trigger(), Trigger("every", HOUR), partial=True)
    assert partial.wants_job(Deferral(1, 1, 0, 0), 0, 5 * HOUR) == (False, None)
    assert DeferredPolicy("combined", Trigger("idle")).wants_job(Deferral(1, 1, 0, 0), 0, 1) == (True, None)


def test_next_runs_in_words() -> None:
    stand = Deferral(1, 1, 0, 0)
    policy = DeferredPolicy("combined", Trigger("every", HOUR), Trigger("every", 24 * HOUR), partial=True)
    assert next_runs(policy, stand) == (
        "propagate at 1970-01-01 01:00:00 UTC, partial refresh at 1970-01-02 00:00:00 UTC"
    )
    assert next_runs(DeferredPolicy("combined", Trigger("idle"), Trigger("query")), stand) == (
        "propagate when idle, refresh on query"
    )
    assert next_runs(DeferredPolicy("base-log"), stand) == ""
