"""What is stored of a view's reading comes back as it was; what is not known here counts as not asked."""

from __future__ import annotations

import pytest

from freshview.definition.verdict import FACT, PLAN, RECOMPUTED, TESTED, UNTESTED, Verdict, present


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        (Verdict(PLAN), "proven by plan"),
        (Verdict(TESTED, 31, 1), "tested on 31 rows in 1 round"),
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
