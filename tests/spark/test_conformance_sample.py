"""A few queries of the benchmarks as views, by the code of `make conformance`: exact, and by delta rules."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import sqlglot
from sqlglot import exp
from tests.effort import IS_SOAK

from freshview import Warehouse
from freshview.bench.conformance import benchmark, change, create, in_spark, judge, load, named_apart

# Self-tests of queries as long as these take most of the time; here views are right by themselves, but in a soak.
pytestmark = [pytest.mark.spark, pytest.mark.selftest if IS_SOAK else pytest.mark.reading]

# NOT EXISTS and a scalar subquery; a full join. In a soak also the first of many groups, a filter and a sum; joins, a
# correlated count under OR, an outer join. `make conformance` has all queries.
SAMPLES = {"tpch": (3, 6, 22), "tpcds": (3, 41, 93, 97)} if IS_SOAK else {"tpch": (22,), "tpcds": (97,)}


@pytest.mark.parametrize("name", SAMPLES)
def test_queries_of_a_benchmark_are_exact_as_views(swh: Warehouse, name: str) -> None:
    """Created, changed, maintained incrementally, and equal to what Spark answers to the query's text."""
    if find_spec(f"duckdb_extension_{name}") is None:
        pytest.skip(f"duckdb-extension-{name} is not installed, so there is no data")
    tables, queries = benchmark(name)
    texts = {n: named_apart(in_spark(q)) for n, q in queries if n in SAMPLES[name]}
    used = {t.name for text in texts.values() for t in sqlglot.parse_one(text, read="spark").find_all(exp.Table)}
    load(swh, {t: rows for t, rows in tables.items() if t in used})
    created = {n: create(swh, n, text) for n, text in texts.items()}
    assert all(v.accepted and v.rows for v in created.values()), created
    assert change(swh, sorted(used & set(tables)), seed=1) > 0
    verdicts = [judge(swh, created[n], text) for n, text in texts.items()]
    assert all(v.exact and v.incremental for v in verdicts), verdicts
    assert any(v.changed for v in verdicts)
