"""Sets of views for the optimiser: views with their stored forms, and the DAG of a set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tests.unit.delta.cases import all_of
from tests.unit.sql.view_grammar import KINDS, SCHEMAS

from freshview.algebra.nodes import Lowered
from freshview.delta.forms import choose_form, rows_form
from freshview.optimizer.dag import Dag, View
from freshview.optimizer.rules import expand
from freshview.sql.lowering import lower

_TYPES = {"int": "bigint", "text": "string", "double": "double"}
COLUMNS = {t: {c: _TYPES[KINDS.get(c, "int")] for c in columns} for t, columns in SCHEMAS.items()}


def view(name: str, lowered: Lowered, *, adds_up: bool = True, pinned: str = "") -> View:
    """A view in the best form that its definition allows; all types are integers if its aggregates add up."""
    names = tuple(f"n{i}" for i, _ in enumerate(lowered.outputs))
    form = choose_form(lowered, names, all_of("int" if adds_up else "double"))
    return View(name, form, dict.fromkeys(form.stored, "bigint"), pinned)


def as_rows(name: str, lowered: Lowered) -> View:
    names = tuple(f"n{i}" for i, _ in enumerate(lowered.outputs))
    form = rows_form(lowered, names)
    return View(name, form, dict.fromkeys(form.stored, "bigint"))


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
