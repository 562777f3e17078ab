"""Sets of views for the optimiser: views with their stored forms, and the DAG of a set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tests.unit.delta.cases import all_of
from tests.unit.sql.view_grammar import KINDS, SCHEMAS

from freshview.algebra.nodes import Lowered
from freshview.delta.forms import choose_form
from freshview.optimizer.cost import NOT_STORED, PERMANENT, TRANSIENT, Cluster, Costs, Decision, Share, Store
from freshview.optimizer.dag import Dag, View
from freshview.optimizer.operations import StoredRelation
from freshview.optimizer.prices import Prices
from freshview.optimizer.rules import expand
from freshview.sql.lowering import lower

_TYPES = {"int": "bigint", "text": "string", "double": "double"}
COLUMNS = {t: {c: _TYPES[KINDS.get(c, "int")] for c in columns} for t, columns in SCHEMAS.items()}

# A lakehouse without an index in memory: all lookups read files, so that much is worth storing.
WITHOUT_INDEX = Prices(index_memory=0.0)


# Sets of views to which a rule applies, so that no rule is left to chance.
RULE_SETS = {
    "select subsumption": ["SELECT a, b FROM t WHERE a < 1", "SELECT b, c FROM t WHERE a < 2"],
    "select subsumption of a list": ["SELECT a, b FROM t WHERE a = 1", "SELECT b FROM t WHERE a IN (1, 2)"],
    "select subsumption of a join": [
        "SELECT t.b, u.d FROM t JOIN u ON t.a = u.a WHERE t.b >= 1 AND u.d = 1",
        "SELECT t.c, u.d FROM t JOIN u ON t.a = u.a WHERE t.b > 0",
    ],
    "select subsumption of what both imply": [
        "SELECT t.b, u.d FROM t JOIN u ON t.a = u.a WHERE t.b = 1",
        "SELECT t.c, u.d FROM t JOIN u ON t.a = u.a WHERE u.d = 2",
    ],
    "grouped selection": [
        "SELECT a, SUM(b) AS s, COUNT(*) AS n FROM t WHERE c = 'x' GROUP BY a",
        "SELECT a, MAX(b) AS s FROM t WHERE c = 'y' GROUP BY a",
        "SELECT a, b FROM t",
    ],
    "coarser grouping": [
        "SELECT a, SUM(b) AS s, MIN(b) AS lo, COUNT(b) AS k, AVG(b) AS m FROM t GROUP BY a",
        "SELECT a, c, COUNT(*) AS n FROM t GROUP BY a, c",
        "SELECT SUM(b) AS s, COUNT(*) AS n FROM t",
    ],
    "coarser grouping by an expression": [
        "SELECT a + 1 AS x, SUM(b) AS s FROM t GROUP BY a + 1",
        "SELECT a, COUNT(*) AS n FROM t GROUP BY a",
    ],
    "coarser grouping that adds a sum of the other side": [  # which a grouping pushed below the join does not have
        "SELECT t.c, u.d, SUM(t.b) AS s FROM t JOIN u ON t.a = u.a GROUP BY t.c, u.d",
        "SELECT t.c, SUM(u.d) AS s FROM t JOIN u ON t.a = u.a GROUP BY t.c",
    ],
    "coarser grouping from the union of keys": [
        "SELECT a, SUM(b) AS s FROM t GROUP BY a",
        "SELECT c, SUM(b) AS s FROM t GROUP BY c",
    ],
    "eager aggregation": [
        "SELECT u.d, SUM(t.b) AS s, COUNT(*) AS n, COUNT(u.d) AS k, MAX(u.d) AS m FROM t JOIN u USING (a) GROUP BY u.d"
    ],
    "eager aggregation of all rows": [
        "SELECT COUNT(*) AS n, COUNT(u.d) AS k, SUM(t.b) AS s FROM t JOIN u ON t.a = u.a"
    ],
    "eager aggregation along a chain": [
        "SELECT v.y, SUM(t.b) AS s, MIN(u.d) AS lo FROM t JOIN u ON t.a = u.a JOIN v ON u.d = v.d GROUP BY v.y"
    ],
    "eager aggregation of a self-join": [
        "SELECT p.c, SUM(q.b) AS s, COUNT(p.b) AS k FROM t p JOIN t q ON p.a = q.a JOIN u ON q.b = u.d GROUP BY p.c"
    ],
    "eager aggregation below a key over both": [
        "SELECT t.b + u.d AS x, SUM(t.b) AS s FROM t JOIN u ON t.a = u.a GROUP BY t.b + u.d"
    ],
    "join": [
        "SELECT p.a, q.d FROM t p JOIN u q ON p.a = q.a JOIN t r ON r.b = q.d",
        "SELECT u.d FROM u JOIN t ON t.b = u.d",
    ],
}


def view(name: str, lowered: Lowered, *, adds_up: bool = True, pinned: str = "") -> View:
    """A view in the best form that its definition allows; all types are integers if its aggregates add up."""
    names = tuple(f"n{i}" for i, _ in enumerate(lowered.outputs))
    form = choose_form(lowered, names, all_of("int" if adds_up else "double"))
    return View(name, form, dict.fromkeys(form.stored, "bigint"), pinned)


def built(views: Iterable[View], columns: Mapping[str, Mapping[str, str]] = COLUMNS) -> Dag:
    """The DAG of a set of views, with all rules applied."""
    dag = Dag(columns)
    for each in views:
        dag.add_view(each)
    expand(dag)
    return dag


def from_sql(texts: Mapping[str, str], columns: Mapping[str, Sequence[str] | Mapping[str, str]]) -> list[View]:
    """Views of these texts over relations with these columns."""
    schemas = {t: tuple(c) for t, c in columns.items()}
    return [view(name, lower(text, schemas)) for name, text in texts.items()]


def changes(costs: Costs) -> list[Decision]:
    """Every change of what is stored, kept or sorted that a choice may make, and those that take it back."""
    nodes = [n for n in costs.nodes if not isinstance(n, StoredRelation) and n.number not in costs.owner and n.needs]
    found: list[Decision] = [Store(n.number, m) for n in nodes for m in (PERMANENT, TRANSIENT, NOT_STORED)]
    found += [Share(n.number, on) for n in nodes for on in (True, False) if costs.changes[n.number]]
    found += [Share(n.number, on, p) for n in nodes for on in (True, False) for p in costs.changes[n.number][:1]]
    found += [Cluster(n, by) for n, columns in costs.lookups_by.items() for by in columns if costs.mode[n] == PERMANENT]
    return found
