"""Advice on the mode of a view (LAZY §6.1): from numbers alone, with a margin; followed only where it is asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshview.catalog.records import Backlog, Relation
from freshview.catalog.reports import Measures, ViewReport
from freshview.errors import NotMaintainable, SparkFailed
from freshview.events import Event, Events
from freshview.relation.schema import Column, Schema
from freshview.relation.types import parse_type
from freshview.schedule.advice import MARGIN, advise, advised, apply_advice

RARE = Measures(hours=24.0, updates=24, rows=5.0, uses=1000, queries_per_hour=240.0, jobs=24, seconds=0.5)

some = st.builds(
    Measures,
    hours=st.floats(0, 24),
    updates=st.integers(0, 100_000),
    rows=st.floats(0, 1e7),
    uses=st.integers(0, 100_000),
    queries_per_hour=st.none() | st.floats(0, 1e6),
    jobs=st.integers(0, 1000),
    seconds=st.floats(0, 1000),
)


def test_rare_small_updates_that_queries_follow_at_once_are_for_eager() -> None:
    for eager in (False, True):
        advice = advise(RARE, eager)
        assert advice.mode == "eager"
        assert (
            "queries follow at once: 1 updates and 240 queries an hour, 5 rows an update, 0.5 s a job" in advice.reason
        )


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"updates": 24_000}, "combining them saves work"),
        ({"queries_per_hour": 6.0, "updates": 10}, "late enough to find it maintained"),
        ({"rows": 100_000.0}, "updates are large"),
        ({"seconds": 8.0}, "maintenance takes long"),
    ],
)
def test_each_reason_alone_is_for_lazy(change: dict[str, Any], why: str) -> None:
    for eager in (False, True):
        advice = advise(replace(RARE, **change), eager)
        assert advice.mode == "lazy"
        assert why in advice.reason


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"updates": 9}, "9 updates, 10 are needed"),
        ({"uses": 0, "queries_per_hour": None}, "0 queries, 10 are needed"),
        ({"jobs": 2}, "2 jobs, 3 are needed"),
        ({"queries_per_hour": None}, "0.25 hours of use are needed"),
        ({"hours": 0.2}, "0.25 hours of use are needed"),
    ],
)
def test_where_little_is_known_nothing_is_changed(change: dict[str, Any], why: str) -> None:
    for eager, mode in ((False, "lazy"), (True, "eager")):
        advice = advise(replace(RARE, **change), eager)
        assert (advice.mode, f"not enough is known ({why})") == (mode, advice.reason)


@given(some, st.booleans())
def test_advice_does_not_swing(measures: Measures, eager: bool) -> None:
    """Law: advice that was followed stays the same."""
    first = advise(measures, eager)
    assert advise(measures, first.mode == "eager").mode == first.mode


@given(some, st.floats(1 / MARGIN, MARGIN))
def test_a_change_needs_a_margin(measures: Measures, factor: float) -> None:
    """Law: what was just changed is not changed back by numbers that differ by less than the margin each way."""
    if measures.queries_per_hour is None or measures.updates < 20:
        return
    for eager in (False, True):
        mode = advise(measures, eager).mode
        if (mode == "eager") != eager:
            busier = replace(measures, queries_per_hour=measures.queries_per_hour * factor)
            assert advise(busier, not eager).mode == mode


@given(some, st.floats(1, 100), st.booleans())
def test_more_queries_never_speak_for_lazy(measures: Measures, factor: float, eager: bool) -> None:
    if measures.queries_per_hour is None or advise(measures, eager).mode == "lazy":
        return
    assert advise(replace(measures, queries_per_hour=measures.queries_per_hour * factor), eager).mode == "eager"


# -- for all views ---------------------------------------------------------------------------------

SCHEMA = Schema((Column("k", parse_type("INT")),))


def relation(id_: int, name: str, kind: str, mode: str = "auto") -> Relation:
    return Relation(id_, name, kind, 1, 1, SCHEMA, 1, None, {"maintenance": mode})


def report(view: Relation, *sources: Relation, eager: bool = False, measures: Measures = RARE) -> ViewReport:
    return ViewReport(view, sources, 1, eager, None, False, None, measures)


TABLE, EXTERNAL = relation(1, "t", "table"), relation(2, "e", "external")
LOW, HIGH = relation(3, "low", "view"), relation(4, "high", "view")
BUSY = replace(RARE, updates=24_000)


def test_what_a_view_reads_can_keep_it_lazy() -> None:
    """Law: all that an eager view reads changes only by commits that maintain it; the advice says what hinders."""
    over_lazy = advised([report(LOW, TABLE, measures=BUSY), report(HIGH, LOW)])[HIGH.id]
    assert over_lazy.mode == "lazy"
    assert over_lazy.reason.startswith("it reads low, which is lazy, although eager would be better: ")
    over_eager = advised([report(LOW, TABLE, eager=True), report(HIGH, LOW)])[HIGH.id]
    assert over_eager.mode == "eager"
    over_external = advised([report(LOW, EXTERNAL)])[LOW.id]
    assert over_external.mode == "lazy"
    assert over_external.reason.startswith("others write e, which it reads, although eager would be better")


def test_what_reads_a_view_can_keep_it_eager() -> None:
    found = advised([report(LOW, TABLE, eager=True, measures=BUSY), report(HIGH, LOW, eager=True)])[LOW.id]
    assert found.mode == "eager"
    assert found.reason.startswith("the eager view high reads it, although lazy would be better")


def heard_from(reports: list[ViewReport], error: Exception | None = None) -> tuple[list[tuple[str, bool]], list[Event]]:
    asked: list[tuple[str, bool]] = []
    heard: list[Event] = []
    events = Events()
    events.listen(heard.append)

    def set_eager(view: Relation, eager: bool) -> None:
        asked.append((view.name, eager))
        if error is not None:
            raise error

    changed = apply_advice(reports, set_eager, events)
    assert changed == ({} if error else {n: "eager" if e else "lazy" for n, e in asked})
    return asked, heard


def test_advice_is_followed_only_where_it_was_asked_for() -> None:
    mine = relation(5, "mine", "view", "lazy")
    asked, heard = heard_from([report(LOW, TABLE), report(mine, TABLE), report(HIGH, TABLE, eager=True, measures=BUSY)])
    assert asked == [("low", True), ("high", False)]
    assert [(e.name, e.details["view"], e.details["mode"]) for e in heard] == [
        ("advice.applied", "low", "eager"),
        ("advice.applied", "high", "lazy"),
    ]
    assert heard_from([report(LOW, TABLE, eager=True), report(HIGH, TABLE, measures=BUSY)]) == ([], [])


def test_a_view_with_tasks_becomes_eager_when_it_has_been_brought_up_to_date() -> None:
    waiting = Backlog(LOW.id, 1, 1, 1, 1, 1)
    assert heard_from([replace(report(LOW, TABLE), backlog=waiting)]) == ([], [])
    to_lazy = replace(report(LOW, TABLE, eager=True, measures=BUSY), backlog=waiting)
    assert heard_from([to_lazy])[0] == [("low", False)]


@pytest.mark.parametrize(
    "error", [NotMaintainable("view low", "it reads x", "Leave it lazy."), SparkFailed("job", "memory", "Try again.")]
)
def test_what_cannot_be_changed_stays_and_the_others_go_on(error: Exception) -> None:
    asked, heard = heard_from([report(LOW, TABLE), report(HIGH, TABLE)], error)
    assert asked == [("low", True), ("high", True)]
    assert [e.name for e in heard] == ["advice.refused"] * 2
