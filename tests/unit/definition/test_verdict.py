"""What is stored of a view's reading comes back as it was; what is not known here counts as not asked."""

from __future__ import annotations

import pytest

from freshview.definition.verdict import FACT, PLAN, RECOMPUTED, TESTED, UNTESTED, Verdict, present


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        (Verdict(PLAN), "proven by plan"),
        (Verdict(TESTED, 31, 1), "tested on 31 rows in 1 round"),
        (Verdict(TESTED, 31, 2, answers=1), "tested on 31 rows in 2 rounds, 1 row of answers"),
        (Verdict(TESTED, 31, 2, answers=0, unmet="a, b"), "tested on 31 rows in 2 rounds, NO ROW of answers"),
        (
            Verdict(TESTED, 3, 2, answers=9, unmet="a"),
            "tested on 3 rows in 2 rounds, 9 rows of answers, only NULL in a",
        ),
        (Verdict(UNTESTED), "not tested ('selftest' = 'off')"),
        (Verdict(RECOMPUTED, reason="pipes have no delta rule"), "recomputed: pipes have no delta rule"),
    ],
)
def test_a_verdict_is_stored_and_shown(verdict: Verdict, words: str) -> None:
    assert str(verdict) == words
    assert Verdict.of({FACT: verdict.to_json()}) == verdict
    assert verdict.is_current


def test_a_verdict_of_another_version_is_not_current() -> None:
    assert not Verdict(PLAN, version="0.0.1/1/4.1.0").is_current
    assert present().count("/") == 2


@pytest.mark.parametrize("stored", ["", "no JSON", '{"kind": "plan", "moon": "full"}', "[]"])
def test_what_is_not_known_here_is_asked_about_again(stored: str) -> None:
    assert Verdict.of({FACT: stored}) is None
    assert Verdict.of({}) is None


def test_a_verdict_of_a_program_that_did_not_count_answers_can_still_be_read() -> None:
    stored = '{"kind": "tested", "rows": 31, "rounds": 3, "reason": "", "since": 7, "version": "0.1.0/5/4.2.0"}'
    found = Verdict.of({FACT: stored})
    assert str(found) == "tested on 31 rows in 3 rounds"
    assert found is not None
    assert found.since == 7
    assert not found.is_current
