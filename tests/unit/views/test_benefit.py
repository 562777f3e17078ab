"""The measured benefit of auxiliary views: jobs after a rewriting against the mean of those before."""

from __future__ import annotations

import json

from freshview.catalog.frontiers import Job
from freshview.catalog.lineage import AUXILIARY, REWRITING
from freshview.catalog.records import Relation
from freshview.definition.rewriting import Rewriting
from freshview.relation.schema import Column, Schema
from freshview.relation.types import parse_type
from freshview.views.benefit import Benefit, about, benefit

_SCHEMA = Schema((Column("a", parse_type("INT")),))


def _view(number: int, name: str, **facts: str) -> Relation:
    return Relation(number, name, "view", 1, 1, _SCHEMA, 1, None, {}, facts)


def _job(view: Relation, start: int, seconds: float, strategy: str = "incremental", error: str | None = None) -> Job:
    end = start + 1
    return Job(view_id=view.id, from_csn=start, to_csn=end, seconds=seconds, strategy=strategy, error=error)


_AUX = _view(1, "aux", **{AUXILIARY: json.dumps({"what": "γ[a] (t)"})})
_REWRITTEN = Rewriting("SELECT …", {"aux": 1}, {"aux": ("a",)}, before=2.0, since=10).to_json()
_V = _view(2, "v", **{REWRITING: _REWRITTEN})


def test_jobs_after_the_rewriting_count_against_the_mean_before_and_its_own_jobs_cost() -> None:
    history = [
        _job(_V, 5, 9.0),  # before the rewriting
        _job(_V, 10, 0.5),
        _job(_V, 11, 3.0),
        _job(_V, 12, 0.0, strategy="nothing"),
        _job(_V, 13, 1.0, error="it failed"),
        _job(_AUX, 10, 0.25),
    ]
    found = benefit(_AUX, [_AUX, _V], history)
    assert found == Benefit(jobs=1, cost=0.25, helped=2, saved=1.5 - 1.0)
    assert str(found) == "cost 0.25 s in 1 jobs; saved 0.5 s in 2 jobs of the views that read it"
    assert about(_AUX, [_AUX, _V], history) == f"γ[a] (t); for v; {found}"
    assert about(_V, [_AUX, _V], history) == "rewritten over aux"


def test_without_jobs_before_nothing_is_compared() -> None:
    kept = Rewriting("SELECT …", {"aux": 1}, {"aux": ("a",)}).to_json()
    found = benefit(_AUX, [_AUX, _view(2, "v", **{REWRITING: kept})], [_job(_V, 10, 1.0)])
    assert (found.helped, str(found)) == (0, "cost 0 s in 0 jobs; nothing to compare yet")
