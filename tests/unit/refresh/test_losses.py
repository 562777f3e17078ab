"""What rules would cost is not found out for every job that recomputes its view: when it is, and when it is not."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.definition.analysed import with_sources
from tests.unit.refresh.planning import taking

from freshview.refresh.cost import Calibration, Estimate
from freshview.refresh.losses import Losses
from freshview.refresh.plan import FULL, INCREMENTAL, SPARK, JobPlan, SourceChange, recompute, recompute_instead
from freshview.refresh.plan import Rejected as Rejection

JOIN = with_sources("SELECT t.b, u.d FROM t JOIN u ON t.a = u.a")
FULL_COST = Estimate(1_000_000, 4)


def _given(definition: Any = JOIN, full: Estimate = FULL_COST, learnt: dict[str, float] | None = None) -> Any:
    view, calibration = SimpleNamespace(id=1), Calibration(learnt or {})
    return SimpleNamespace(
        view=view, definition=definition, full=full, calibration=calibration, takes=taking("v", 1, 2)
    )


def _changes(rows: int = 100, *, grows: bool = False) -> tuple[SourceChange, ...]:
    return (SourceChange("t", rows, rows, grows),)


def _lost(given: Any, changes: tuple[SourceChange, ...], seconds: float) -> JobPlan:
    """The plan of a job whose rules were found to take so many seconds."""
    dearer = Rejection(INCREMENTAL, "found", seconds, SPARK)
    plan = recompute_instead(dearer, changes, given.full, given.calibration.factors(), given.takes)
    assert plan is not None
    return plan


@pytest.fixture
def losses() -> Losses:
    """After one job of 100 rows, whose rules would have taken a minute."""
    losses, given = Losses(), _given()
    losses.note(given, _lost(given, _changes(), 60.0))
    return losses


def test_the_next_job_recomputes_by_what_the_last_one_found(losses: Losses) -> None:
    assert Losses().plan(_given(), _changes()) is None
    plan = losses.plan(_given(), _changes(101))
    assert plan is not None
    assert (plan.strategy, plan.changes, plan.estimate) == (FULL, _changes(101), FULL_COST)
    assert plan.otherwise == 60.0
    assert plan.seconds == pytest.approx(FULL_COST.seconds)


def test_the_cost_of_a_smaller_change_is_smaller_in_proportion(losses: Losses) -> None:
    plan = losses.plan(_given(), _changes(50))
    assert plan is not None
    assert plan.otherwise == 30.0
    assert losses.plan(_given(), _changes(1)) is None  # it would be 0.6 s


def test_rows_are_looked_up_where_recomputing_has_become_dearer(losses: Losses) -> None:
    times = 61 / FULL_COST.seconds
    assert losses.plan(_given(learnt={"spark": 1.0, "full": times}), _changes()) is None


def test_rows_are_looked_up_where_rules_have_become_cheaper(losses: Losses) -> None:
    faster = FULL_COST.seconds / 61
    assert losses.plan(_given(learnt={"spark": faster, "full": 1.0}), _changes()) is None
    assert losses.plan(_given(learnt={"embedded": faster, "spark": 1.0, "full": 1.0}), _changes()) is not None


def test_what_past_jobs_teach_is_not_kept_in_a_loss() -> None:
    losses, given = Losses(), _given(learnt={"spark": 4.0, "full": 2.0})
    losses.note(given, _lost(given, _changes(), 60.0))
    plan = losses.plan(_given(learnt={"spark": 2.0, "full": 2.0}), _changes())
    assert plan is not None
    assert plan.otherwise == 30.0


@pytest.mark.parametrize(
    ("given", "changes"),
    [
        (_given(with_sources("SELECT t.b, u.d FROM t JOIN u ON t.a = u.a")), _changes()),  # analysed anew
        (_given(), _changes(grows=True)),
        (_given(), (*_changes(), SourceChange("u", 100, 100, False))),
        (_given(), (SourceChange("u", 100, 100, False),)),
        (_given(), _changes(1_000_000)),  # too many to look up what they meet
    ],
    ids=["other definition", "another kind of change", "more sources", "another source", "a large change"],
)
def test_a_loss_says_nothing_of_other_jobs(losses: Losses, given: Any, changes: tuple[SourceChange, ...]) -> None:
    assert losses.plan(given, changes) is None


def test_one_job_in_ten_looks_rows_up_again(losses: Losses) -> None:
    for _ in range(9):
        plan = losses.plan(_given(), _changes())
        assert plan is not None
        losses.note(_given(), plan)
    assert losses.plan(_given(), _changes()) is None
    losses.note(_given(), _lost(_given(), _changes(), 50.0))
    assert losses.plan(_given(), _changes()) is not None


def test_a_job_by_rules_ends_a_loss(losses: Losses) -> None:
    losses.note(_given(), JobPlan(INCREMENTAL, _changes(), rejected=(Rejection(FULL, "", 9.0),)))
    assert losses.plan(_given(), _changes()) is None


def test_rules_that_failed_have_lost_nothing() -> None:
    losses = Losses()
    by_rules = JobPlan(INCREMENTAL, _changes(), rejected=(Rejection(FULL, "", 9.0),), takes=_given().takes)
    losses.note(_given(), by_rules.instead("a lookup failed"))
    losses.note(_given(), recompute(None, rejected=[Rejection(INCREMENTAL, "asked for")]))
    assert losses.plan(_given(), _changes()) is None


def test_where_all_is_small_nothing_is_kept() -> None:
    """There rows are read in no time, and what is expected says little."""
    losses, given = Losses(), _given(full=Estimate(0, 4))
    losses.note(given, _lost(given, _changes(), 60.0))
    assert losses.plan(given, _changes()) is None


def test_a_view_that_is_to_go_by_rules_never_loses(losses: Losses) -> None:
    forced = replace(JOIN, refresh=INCREMENTAL)
    given = _given(forced)
    losses.note(given, _lost(given, _changes(), 60.0))
    assert losses.plan(given, _changes()) is None
