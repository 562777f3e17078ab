"""The proof of a rewriting: a view's own text against its rewriting, over small tables and through a few changes.

Law: for every state of the tables the rewriting gives the view's stored rows, hidden columns included, if each view
that it reads holds what its own text gives; and stored rows ⊕ what the delta rules give over the rewriting are the
stored rows after the change. This is the self-test of a view, with the texts of auxiliary views computed on the way.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from freshview.algebra.facts import most_joined
from freshview.algebra.nodes import Scan
from freshview.algebra.traversal import columns_read
from freshview.catalog.records import Relation
from freshview.definition.analysis import Definition, visible_schema
from freshview.definition.selftest import SelfTest, Tested, brief, differs
from freshview.definition.worlds import Profile, World, empty
from freshview.errors import Cancelled, FreshviewError, NotMaintainable
from freshview.relation.schema import Schema
from freshview.relation.types import DataType, quote
from freshview.spark.running import PlanRunner

# Groups of several finer groups: without them, the sum of partial results might equal the best of them.
_MANY = tuple(
    Profile(f"many rows {seed}", seed, rows=24, first=0.3, nulls=0.08, strings=("a", "b"), small=True)
    for seed in (21, 22, 23)
)


@dataclass(frozen=True)
class Derived:
    """A view that a rewriting reads, as the proof computes it: its text, and the relations that this names."""

    text: str
    sources: Mapping[str, int]  # relation ids, by name
    columns: Mapping[str, Sequence[str]]
    schema: Schema

    @classmethod
    def of(cls, view: Relation) -> Derived:
        named = json.loads(view.facts["sources"])
        ids, columns = ({n: entry[what] for n, entry in named.items()} for what in ("id", "columns"))
        return cls(view.facts["definition"], ids, columns, visible_schema(view))


class RewritingTest(SelfTest):
    """Tests the rewriting of one view; `derived` are the views that it reads, by id, and those below them."""

    def __init__(
        self,
        rewriting: Definition,
        runner: PlanRunner,
        schemas: Mapping[str, Schema],
        stored: Schema,
        derived: Mapping[int, Derived],
    ) -> None:
        super().__init__(rewriting, runner, schemas, stored)
        assert rewriting.original is not None
        self._original = rewriting.original
        assert self._original.form is not None
        self._joined = max(self._joined, most_joined(self._original.form.tree))
        self._derived = derived
        self._tables = {source.id: name for name, source in self._original.sources.items()}
        self._computed: dict[tuple[int, int], pa.Table] = {}

    def run(self) -> Tested:
        try:
            return super().run()
        except Cancelled:
            raise
        except (FreshviewError, pa.ArrowException) as error:
            return Tested(difference=f"it could not be tested ({brief(error)})")

    def _further(self) -> Iterator[list[World]]:
        yield from super()._further()
        yield from (list(self._states(profile, 2)) for profile in _MANY)
        (full,), nothing = self._states(_MANY[0], 1), empty(self._schemas)
        yield [full, *({**full, name: rows} for name, rows in sorted(nothing.items()))]  # one table empty, by turns

    def _types(self) -> Iterator[DataType]:
        assert self._original.form is not None
        for name, columns in columns_read(self._original.form.tree).items():
            yield from (self._schemas[name].column(column).type for column in columns)

    def _schema(self, name: str) -> Schema:
        found = self._definition.sources.get(name) or self._original.sources[name]
        if found.id in self._tables:
            return self._schemas[self._tables[found.id]]
        return self._derived[found.id].schema

    def _rows(self, name: str, state: World) -> pa.Table:
        found = self._definition.sources.get(name) or self._original.sources[name]
        return self._table(found.id, state)

    def _table(self, relation_id: int, state: World) -> pa.Table:
        """The rows of a table, or of a view by its text."""
        if relation_id in self._tables:
            return state[self._tables[relation_id]]
        key = (relation_id, id(state))
        if key not in self._computed:
            if relation_id not in self._derived:
                remedy = "The view is maintained by its own text."
                raise NotMaintainable("rewriting", "it reads a table that the view's text does not name", remedy)
            self._kept.append(state)  # so that no other state gets its id
            view, engine = self._derived[relation_id], self._runner.engine
            frames = {}
            for name, id_ in view.sources.items():
                table = self._tables.get(id_)
                schema = self._schemas[table] if table is not None else self._derived[id_].schema
                frames[name] = engine.frame(self._table(id_, state), schema).select(*map(quote, view.columns[name]))
            rows = engine.arrow(self._runner.original(view.text, frames), "view")
            self._computed[key] = view.schema.conform(rows)
        return self._computed[key]

    def _equal(self, expected: pa.Table, stored: pa.Table, state: World) -> bool:
        """Are the rows those of the text, and all stored columns those that the view's own tree gives?"""
        if not super()._equal(expected, stored, state):
            return False
        assert self._original.form is not None

        def frame(scan: Scan) -> object:
            return self._runner.engine.frame(state[scan.relation], self._schemas[scan.relation])

        own = self._ran_alone(self._original.form.tree, frame, self._stored)
        return not isinstance(own, str) and not differs(own, stored)
