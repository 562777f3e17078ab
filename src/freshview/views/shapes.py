"""The shapes of dimension views: their trees over remote tables, and how their deltas are stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from freshview.catalog.records import Relation
from freshview.cdc.application import delta_rows
from freshview.cdc.dimension import Remote, RemoteNode, check_maintainable, keyed
from freshview.cdc.dumps import difference
from freshview.cdc.model import PartialDelta, keys_of, partial_delta
from freshview.cdc.remote import RemoteTable, RemoteTables
from freshview.cdc.shaping import HOLD, shaped
from freshview.definition.analysis import Definition
from freshview.definition.known import Definitions, settings_of
from freshview.errors import InvalidStatement, NotMaintainable
from freshview.local.engine import LocalEngine
from freshview.refresh.evaluation import Evaluation
from freshview.refresh.runner import Runner
from freshview.relation.delta import DELETE, INSERT, subtract, tag
from freshview.relation.schema import Column, Schema

EFFECTIVENESS = "effectiveness test"  # the property that leaves the test out ('off')


@dataclass(frozen=True)
class Shape:
    """A dimension view, ready to be kept: the tree with its key, the stored columns, and the tables that it reads."""

    node: RemoteNode
    schema: Schema
    tables: tuple[RemoteTable, ...]
    effectiveness: bool
    by_spark: tuple[str, ...]  # expressions that Spark computes, not the embedded engine

    @property
    def is_blind(self) -> bool:
        """Whether all changes are stored as upserts and deletions by key.

        Between two polls a key may be deleted and inserted again; audit columns show that as an insertion.
        """
        return bool(self.schema.key) and any("audit" in t.table.capture.technique for t in self.tables)

    def rows(self, delta: PartialDelta, stmtsn: int) -> pa.Table:
        """The delta rows that apply a delta, by the cheapest statement that its sets allow."""
        if self.is_blind:
            delta = _blind(delta)
        rows = delta_rows(delta, stmtsn)
        return rows.select([*self.schema.names, *rows.column_names[-2:]])

    def difference(self, name: str, old: pa.Table, new: pa.Table, stmtsn: int) -> pa.Table:
        """The delta rows from the stored rows of the view, which are known here, to others."""
        if self.schema.key:
            return delta_rows(difference(name, self.schema, old, new), stmtsn)
        gone, added = subtract(old, new, self.schema), subtract(new, old, self.schema)
        parts = [tag(gone, self.schema, DELETE, stmtsn), tag(added, self.schema, INSERT, stmtsn)]
        return pa.concat_tables(parts)


class RunnerFor(Protocol):
    """Finds the session for a view's settings."""

    def __call__(self, settings: Mapping[str, str], *, small: bool) -> Runner: ...


class Shapes:
    """Finds the shapes of dimension views."""

    def __init__(self, tables: RemoteTables, definitions: Definitions, runner: RunnerFor) -> None:
        self.definitions = definitions
        self._tables = tables
        self._runner = runner
        self._local = LocalEngine()
        self._known: dict[tuple[int, int], Shape] = {}

    def close(self) -> None:
        self._local.close()

    def forget(self) -> None:
        """Have all views analysed anew, over tables as they are then."""
        self._known.clear()

    def of_view(self, view: Relation) -> Shape:
        """The shape of a stored view; analysed once per process."""
        key = (view.id, view.epoch)
        if key not in self._known:
            definition, settings = self.definitions.of(view), settings_of(view)
            self._known[key] = self.of(view.name, definition, settings, view.properties)
        return self._known[key]

    def of(
        self, name: str, definition: Definition, settings: Mapping[str, str], properties: Mapping[str, str]
    ) -> Shape:
        """The shape of a definition; NotMaintainable if it cannot be kept from what the sources deliver."""
        opened = {n: self._tables.open(r) for n, r in definition.sources.items()}
        if definition.lowered is None:
            raise NotMaintainable(f"view {name}", definition.why_recomputed, f"Rewrite it; or {HOLD}.")
        evaluation = Evaluation(lambda: self._runner(settings, small=True), settings, self._local)
        remotes = {n: Remote(t.relation.name, t.relation.schema, t.capture) for n, t in opened.items()}
        view = shaped(definition.lowered, remotes, evaluation)
        check_maintainable(view, name)
        stored = Schema(tuple(Column(c.name, c.type) for c in view.schema.columns), view.schema.key)
        tested = properties.get(EFFECTIVENESS, "on") == "on"
        return Shape(keyed(view), stored, tuple(opened.values()), tested, tuple(evaluation.by_spark))


def all_rows(delta: PartialDelta) -> pa.Table:
    """The rows of a table whose changes were polled from the beginning."""
    return pa.concat_tables([delta.ins, delta.un, delta.up, delta.ups])


def _blind(delta: PartialDelta) -> PartialDelta:
    """A delta as upserts and keys alone."""
    new = all_rows(delta)
    gone = pa.concat_tables([keys_of(delta.deleted, delta.schema), delta.delk])
    return partial_delta(delta.name, delta.schema, ups=new, delk=gone)


def checked_properties(given: Mapping[str, str]) -> dict[str, str]:
    """The properties of a dimension view; raise if it cannot have one of them."""
    for name, value in given.items():
        if name not in (EFFECTIVENESS, "selftest", "comment"):
            raise InvalidStatement(
                f"property {name!r}", "a view of remote tables does not have it", "It is polled as its source says."
            )
        if name == EFFECTIVENESS and value not in ("on", "off"):
            raise InvalidStatement(f"property {name!r}", f"{value!r} is not known", "Use 'on' or 'off'.")
    return dict(given)
