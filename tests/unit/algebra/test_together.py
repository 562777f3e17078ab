"""Plans put together: each gives what it gave alone, and what they have in common is one part."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import sqlglot
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.unit.algebra.oracle import Bag, Row, evaluate, signed
from tests.unit.delta.cases import VIEWS
from tests.unit.sql.view_grammar import Change, State, lowered_view, noises, states, views

from freshview.algebra.classes import exactly
from freshview.algebra.loosening import loosened
from freshview.algebra.nodes import Aggregate, Join, Node, Scan, ScanSource, Shared, Table
from freshview.algebra.together import Together, put_together
from freshview.algebra.traversal import bottom_up, scans
from freshview.delta.derive import derive
from freshview.delta.semijoin import reduced
from freshview.sql.lowering import lower

Noise = dict[str, list[Row]]
laws = settings(deadline=None, max_examples=examples(40, commit=25), suppress_health_check=list(HealthCheck))
SCHEMAS = {"t": ("a", "b", "c"), "u": ("a", "b", "c"), "v": ("a", "d")}
_View = st.one_of(views(), st.sampled_from(sorted(VIEWS.values())))


def bags(together: Together, read: Callable[[Scan], Bag], of: Callable[..., Bag] = evaluate) -> list[Bag]:
    """The rows of each plan; the parts are computed once, and read by the plans."""
    rows: dict[object, Bag] = {}

    def find(scan: Scan) -> Bag:
        return rows[scan.source] if isinstance(scan.source, Shared) else read(scan)

    for part in together.parts:
        rows[part.scan.source] = evaluate(part.node, find)
    return [of(plan, find) for plan in together.plans]


def _plans(texts: Sequence[str]) -> list[Node]:
    return [lower(text, SCHEMAS).node for text in texts]


def _all_nodes(together: Together) -> list[Node]:
    return [n for root in (*(p.node for p in together.parts), *together.plans) for n in bottom_up(root)]


@laws
@given(texts=st.lists(_View, min_size=2, max_size=4), run=states(2), noise=noises())
def test_delta_plans_together_give_the_same_bags(texts: list[str], run: list[State], noise: Noise) -> None:
    """Also where a delta has rows that cancel: it has more columns than one of its readers uses; and with selections
    above joins."""
    change = Change(run[0], run[1], noise)
    derived = [derive(lowered_view(text).node, change.changed) for text in texts]
    plans = [reduced(plan) for plan in derived if plan is not None]
    for together in (put_together(plans), put_together([loosened(plan) for plan in plans])):
        assert bags(together, change.read, signed) == [signed(plan, change.read) for plan in plans]
        assert [p.columns for p in together.plans] == [p.columns for p in plans]


def test_plans_that_select_otherwise_have_their_joins_in_common_with_selections_above_these() -> None:
    texts = [
        "SELECT t.b, v.d FROM t JOIN u ON t.a = u.a JOIN v ON v.a = u.b WHERE t.b > 1 AND u.c = 2",
        "SELECT t.c, v.d FROM t JOIN u ON t.a = u.a JOIN v ON v.a = u.b WHERE u.c IN (3, 4) AND v.d <> 1",
    ]
    derived = [derive(plan, {"t", "u"}) for plan in _plans(texts)]
    plans = [plan for plan in derived if plan is not None]
    given = (plans, [loosened(plan) for plan in plans])
    joins = [[n for p in put_together(g).parts for n in bottom_up(p.node) if isinstance(n, Join)] for g in given]
    assert [len(found) for found in joins] == [0, 4]


@laws
@given(texts=st.lists(_View, min_size=1, max_size=3), run=states(1))
def test_definitions_put_together_give_the_same_bags(texts: list[str], run: list[State]) -> None:
    change = Change(run[0], run[0])
    plans = [lowered_view(text).node for text in texts]
    assert bags(put_together(plans), change.read) == [evaluate(plan, change.read) for plan in plans]


@laws
@given(text=_View, run=states(2))
def test_a_plan_beside_itself_is_one_part(text: str, run: list[State]) -> None:
    change = Change(run[0], run[1])
    plans = [p for p in (derive(lowered_view(text).node, change.changed) for _ in range(2)) if p is not None]
    if not plans:
        return
    together = put_together(plans)
    assert all(len(list(bottom_up(plan))) <= 2 for plan in together.plans)  # a projection of the part
    assert bags(together, change.read, signed) == [signed(plan, change.read) for plan in plans]


def test_a_join_that_two_plans_need_in_other_columns_is_computed_once() -> None:
    plans = _plans(
        [
            "SELECT t.b, u.c FROM t JOIN u ON t.a = u.a WHERE t.b > 1",
            "SELECT u.b, count(*) AS n FROM t JOIN u ON t.a = u.a WHERE t.b > 1 GROUP BY u.b",
        ]
    )
    together = put_together(plans)
    nodes = _all_nodes(together)
    assert len([n for n in nodes if isinstance(n, Join)]) == 1
    assert len([n for n in nodes if isinstance(n, Aggregate)]) == 1
    (part,) = together.parts
    assert part.users == {0, 1}
    assert len(part.scan.fields) == 3  # t.b, u.c, u.b: what neither reads is left out


def test_plans_with_nothing_in_common_have_no_part() -> None:
    together = put_together(_plans(["SELECT a FROM t WHERE b = 1", "SELECT d FROM v"]))
    assert together.parts == ()
    assert sorted(s.relation for plan in together.plans for s in scans(plan)) == ["t", "v"]


def test_a_part_that_is_not_worth_it_stays_in_both_plans() -> None:
    plans = _plans(["SELECT a FROM t WHERE b = 1", "SELECT c FROM t WHERE b = 1"])
    assert len(put_together(plans).parts) == 1
    together = put_together(plans, worth=lambda _node, users: users > 2)
    assert together.parts == ()
    assert together.plans[0].inputs == together.plans[1].inputs  # one node, which each of them computes


def test_the_largest_common_parts_are_taken_with_those_inside_that_others_read() -> None:
    """a and b have γ(t ⋈ u) in common, c only t ⋈ u: two parts, one over the other."""
    group = "SELECT u.b, count(*) AS n FROM t JOIN u ON t.a = u.a GROUP BY u.b"
    texts = [f"SELECT n FROM ({group}) WHERE n > 1", f"SELECT b FROM ({group}) WHERE n > 2"]
    together = put_together(_plans([*texts, "SELECT t.a FROM t JOIN u ON t.a = u.a"]))
    assert [part.users for part in together.parts] == [{0, 1, 2}, {0, 1}]
    (below,) = set(scans(together.parts[1].node))
    assert below.source == together.parts[0].scan.source


def test_scans_are_one_where_they_read_the_same_whatever_they_are_called() -> None:
    first, second = _plans(["SELECT a FROM t WHERE b = 1", "SELECT a, c FROM u WHERE b = 1"])

    def read(_: int, scan: Scan) -> tuple[ScanSource, str]:
        return Table("one relation"), scan.version

    together = put_together([first, second], read)
    assert len(together.parts) == 1
    (scan,) = set(together.scans.values())
    assert scan.source == Table("one relation")
    assert {c for c, _ in scan.fields} == {"a", "b", "c"}
    assert set(together.scans) == {*scans(first), *scans(second)}
    apart = put_together([first, second], lambda place, scan: (Table(f"{place}"), scan.version))
    assert apart.parts == ()


def test_strings_that_differ_in_their_spaces_alone_are_two_expressions() -> None:
    """sqlglot's own form of a tree strips them, and two filters would be one."""
    raw = [sqlglot.parse_one(f"c = r'{text}'", read="spark") for text in ("a", " a", "a ", "")]
    assert len({exactly(e) for e in raw}) == len(raw)
