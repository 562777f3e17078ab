"""The self-test of a view is run on tables on which the view has rows; where it finds none, the verdict says so."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlglot import exp
from tests.internals import internals
from tests.spark.test_verdicts import create, lowered_otherwise

from freshview import Warehouse
from freshview.algebra.nodes import Filter
from freshview.definition import reading, selftest
from freshview.definition.verdict import Verdict

pytestmark = [pytest.mark.spark, pytest.mark.selftest]
VACUOUS = [
    "SELECT k, s FROM m WHERE date_format(ts, 'yyyy') = '1995' UNION ALL SELECT k, s FROM m WHERE year(d) = 1870",
    "SELECT k, max(get_json_object(s, '$.A[0].b')) AS x FROM m GROUP BY k",
    "SELECT k, s FROM m WHERE get_json_object(s, '$.kind') = 'order' UNION ALL SELECT k, s FROM m WHERE length(s) = 17",
    "SELECT k, d FROM m WHERE month(d) = 11 AND k = 40 UNION ALL SELECT k, d FROM m WHERE dayofweek(d) = 7 AND k < 3",
    "SELECT k, max(from_json(s, 'a INT, b STRING').b) AS x FROM m GROUP BY k",
    "SELECT k, max(try_to_date(s, 'dd.MM.yyyy')) AS x FROM m GROUP BY k",
]


@pytest.fixture
def moments(swh: Warehouse, monkeypatch: pytest.MonkeyPatch) -> Warehouse:
    monkeypatch.setattr(selftest, "_SECONDS", 60.0)  # however slow the machine is
    monkeypatch.setattr(reading.Reader, "_same_plan", lambda *_: False)
    swh.sql("CREATE TABLE m (k INT, s STRING, ts TIMESTAMP, d DATE)")
    return swh


@pytest.mark.parametrize("text", VACUOUS)
def test_a_definition_is_tested_on_tables_on_which_it_has_answers(moments: Warehouse, text: str) -> None:
    read = create(moments, text)
    assert read.startswith("tested on ")
    found = Verdict.of(internals(moments).relation("x").facts)
    assert found is not None
    assert found.answers
    assert not found.unmet


def test_a_mistake_behind_a_rare_condition_is_found(moments: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tree forgets the rows of the rare year: without rows of it, nobody would have noticed."""
    lowered_otherwise(
        monkeypatch,
        lambda n: replace(n, predicate=exp.false()) if isinstance(n, Filter) and "1995" in n.predicate.sql() else n,
    )
    assert create(moments, VACUOUS[0]).startswith("recomputed: the text gives [(")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("SELECT k, s FROM m WHERE md5(s) = 'no text has it' UNION ALL SELECT k, s FROM m WHERE false", "NO ROW"),
        (
            "SELECT k, max(get_json_object(s, md5('a'))) AS x, sum(k) AS y FROM m GROUP BY k",
            "rows of answers, only NULL in x",
        ),
    ],
)
def test_a_test_without_answers_says_so(moments: Warehouse, text: str, told: str) -> None:
    assert told in create(moments, text)
    assert told in moments.status().views[0].reading
