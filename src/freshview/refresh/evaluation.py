"""Expressions over rows of the driver, with the meaning that Spark gives them under a view's settings.

The embedded engine computes what is proven to be Spark's; Spark computes the rest, over local rows and without a job
where they are few. A value that the embedded engine refuses is left to Spark, so that errors are Spark's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
from sqlglot import exp

from freshview.algebra.nodes import Project, Scan, Table, column, names_in
from freshview.cdc.dimension import Extend, RemoteNode, RowTest
from freshview.errors import NotMaintainable
from freshview.local.engine import LocalEngine, LocalError
from freshview.local.plans import LocalPlan, translated
from freshview.local.typed import Unproven
from freshview.refresh.embedded import require_defaults
from freshview.refresh.runner import Runner
from freshview.relation.schema import Column, Schema
from freshview.relation.types import parse_type
from freshview.storage.reader import LOCAL_ROWS

_VALUE = "value"
Items = Sequence[tuple[str, exp.Expr]]


class Evaluation:
    """Evaluates the expressions of one dimension view."""

    def __init__(self, runner: Callable[[], Runner], settings: Mapping[str, str], local: LocalEngine) -> None:
        self._runner = runner
        self._local = local
        self.by_spark: list[str] = []  # expressions that the embedded engine does not compute
        try:
            require_defaults(settings)
            self._embeds = True
        except Unproven:
            self._embeds = False

    def condition(self, schema: Schema, predicate: exp.Expr) -> RowTest:
        """A predicate over rows of a schema."""
        one = _RowQueries(self, schema, [(_VALUE, predicate)])
        text = predicate.sql(dialect="spark")
        if one.columns[0].type.kind != "boolean":
            raise NotMaintainable(f"condition {text}", "it is no boolean", "Compare it with a value.")
        return RowTest(one.reads, lambda rows: one.values(rows).column(0), text)

    def extended(self, node: RemoteNode, items: Items) -> Extend:
        """A node with further columns."""
        some = _RowQueries(self, node.schema, items)
        text = ", ".join(e.sql(dialect="spark") for _, e in items)
        return Extend(node, some.columns, some.values, text)

    def types(self, plan: Project, schema: Schema) -> tuple[Column, ...]:
        """Spark's types of the columns of a plan over rows of a schema."""
        runner = self._runner()
        frame = runner.run(plan, lambda _: runner.engine.frame(schema.arrow.empty_table(), schema))
        return runner.engine.schema_of(frame, ()).columns

    def embedded(self, plan: Project, schema: Schema) -> LocalPlan | None:
        """The plan for the embedded engine; None if Spark has to compute it."""
        if not self._embeds:
            return None
        try:
            return translated(plan, lambda _: {c.name: c.type for c in schema.columns})
        except Unproven:
            self.by_spark += [e.sql(dialect="spark") for _, e in plan.items if not isinstance(e, exp.Column)]
            return None

    def run(self, plan: Project, local: LocalPlan | None, rows: pa.Table, schema: Schema, wanted: Schema) -> pa.Table:
        """The rows of a plan over rows of the driver."""
        if local is not None:
            try:
                found = self._local.run(local, lambda _: rows)
                if found.schema.equals(wanted.arrow):
                    return found
            except LocalError:
                pass
        runner = self._runner()
        frame = runner.run(plan, lambda _: runner.engine.frame(rows, schema))
        if rows.num_rows <= LOCAL_ROWS:
            return runner.engine.collect(frame, list(wanted.arrow), "view")
        return runner.fetch(frame, wanted)


class _RowQueries:
    """Some expressions over rows of one schema."""

    def __init__(self, evaluation: Evaluation, schema: Schema, items: Items) -> None:
        self._evaluation = evaluation
        used = {name for _, e in items for name in names_in(e)}
        self.reads = tuple(n for n in schema.names if n in used)
        others = (*self.reads, *(name for name, _ in items))
        self._number = "row" + "_" * max(map(len, others))  # longer than all others
        number = Column(self._number, parse_type("INT"))
        self._schema = Schema((*(schema.column(n) for n in self.reads), number))
        scan = Scan(Table("rows"), tuple((n, n) for n in self._schema.names))
        self._plan = Project(scan, ((self._number, column(self._number)), *items))
        self.columns = evaluation.types(self._plan, self._schema)[1:]
        self._wanted = Schema((number, *self.columns))
        self._local = evaluation.embedded(self._plan, self._schema)

    def values(self, rows: pa.Table) -> pa.Table:
        """The values of the expressions, a row for each row."""
        if not rows.num_rows:
            return Schema(self.columns).arrow.empty_table()
        numbers = pa.array(range(rows.num_rows), pa.int32())
        given = rows.select(list(self.reads)).append_column(pa.field(self._number, pa.int32()), numbers)
        found = self._evaluation.run(self._plan, self._local, given, self._schema, self._wanted)
        assert found.num_rows == rows.num_rows
        return found.sort_by(self._number).drop_columns([self._number])
