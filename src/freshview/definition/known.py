"""The definitions of stored views, analysed once per process; a new version of the program asks Spark again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from freshview.catalog.lineage import REWRITING
from freshview.catalog.records import Relation
from freshview.catalog.views import ViewCatalog
from freshview.definition.analysis import (
    Columns,
    Definition,
    Sources,
    analyse,
    as_stored,
    check_output_names,
    member_column,
    unread,
    visible_columns,
    visible_schema,
)
from freshview.definition.determinism import refuse_indeterminate
from freshview.definition.plan_checks import UNFOLDED, is_planned, refuse_by_plans
from freshview.definition.reading import TRIAL, Reader, wants_selftest
from freshview.definition.rewriting import Rewriting, rewrite
from freshview.definition.verdict import RECOMPUTED, Verdict
from freshview.errors import InvalidStatement, NotMaintainable, ViewUnusable
from freshview.events import Events
from freshview.relation.schema import Schema
from freshview.relation.types import quote
from freshview.spark.engines import Engines
from freshview.spark.running import Frame, PlanRunner

if TYPE_CHECKING:
    from freshview.spark.engine import SparkEngine

# Under another arithmetic than Spark's default, a plan does not prove the delta rules: they are tested.
_STRICT = ("spark.sql.ansi.enabled", "spark.sql.decimalOperations.allowPrecisionLoss")

# Of a definition: id, epoch and key of its view, whether Spark reads it otherwise (None: it is to be asked), the
# property 'refresh', and the rewriting.
_Key = tuple[int, int, tuple[str, ...], bool | None, str, str]


class Definitions:
    """Knows the definitions of one warehouse's views."""

    def __init__(self, views: ViewCatalog, engines: Engines, events: Events) -> None:
        self._views = views
        self._engines = engines
        self._events = events
        self._known: dict[_Key, Definition] = {}

    def of(self, view: Relation) -> Definition:
        """A view's definition, analysed once per process and epoch; and again when another process has found that
        Spark reads the view otherwise, or that it has no key."""
        refresh, rewriting = view.properties.get("refresh", "auto"), view.facts.get(REWRITING, "")
        verdict = Verdict.of(view.facts)
        is_unread = verdict.kind == RECOMPUTED if verdict is not None and verdict.is_current else None
        key = (view.id, view.epoch, view.schema.key, is_unread, refresh, rewriting)
        known = self._known.get(key)
        if known is None:
            plain = (*key[:5], "")
            own = self._known.get(plain)
            if own is None:
                own = self._known[plain] = self._opened(view)
            known = self._known[key] = replace(own, rewriting=self._rewriting(own, view)) if rewriting else own
        return known

    def forget(self) -> None:
        """Analyse all definitions again when they are asked for."""
        self._known.clear()

    def _rewriting(self, definition: Definition, view: Relation) -> Definition | None:
        """The definition over the relations of a view's rewriting; None if it cannot be used, or not any more."""
        kept = Rewriting.of(view)
        if kept is None:
            return None
        found = self._views.catalog.relations_by_id(kept.sources.values())
        sources = {name: found[id_] for name, id_ in kept.sources.items() if id_ in found}
        try:
            return rewrite(definition, kept, sources) if len(sources) == len(kept.sources) else None
        except NotMaintainable:
            return None

    def _opened(self, view: Relation) -> Definition:
        """The definition of a stored view. A verdict by another version of the program is asked for again."""
        sources = self._views.sources(view)
        columns = {n: tuple(e["columns"]) for n, e in json.loads(view.facts["sources"]).items()}
        names = tuple(json.loads(view.facts["columns"]))
        text, refresh = view.facts["definition"], view.properties.get("refresh", "auto")
        verdict = Verdict.of(view.facts)
        runner = PlanRunner(self._engines.under(settings_of(view)))
        try:
            if verdict is not None and verdict.is_current and verdict.kind == RECOMPUTED:
                known = unread(text, sources, columns, names, refresh, verdict.reason)
                return replace(known, verdict=verdict, key=view.schema.key)
            if verdict is None or not verdict.is_current:  # another version may have accepted what this one refuses
                refuse_indeterminate(text)
                self.refuse_undetermined(text, sources, columns, settings_of(view))
            frames = {n: empty_rows(runner.engine, r) for n, r in sources.items()}
            known = analyse(text, sources, columns, names, refresh, runner.types_of(frames))
            if verdict is None or not verdict.is_current:
                known, verdict = self.asked(known, view.name, settings_of(view), view.properties)
            if known.form is not None and known.form.stored != view.schema.names:
                known = as_stored(known, view.schema.names)
                verdict = known.verdict or verdict
        except NotMaintainable as error:
            cause = f"this version of Freshview cannot keep it ({error})"
            remedy = "Create it again: CREATE OR REPLACE MATERIALIZED VIEW."
            raise ViewUnusable(f"view {view.name}", cause, remedy) from error
        return replace(known, verdict=verdict, key=view.schema.key)

    def of_query(self, text: str, sources: Mapping[str, Relation], settings: Mapping[str, str]) -> Definition:
        """A query as if it were the definition of a view, for estimates alone: Spark is not asked how it reads it."""
        runner = PlanRunner(self._engines.under(settings))
        frames = {n: empty_rows(runner.engine, r) for n, r in sources.items()}
        names = tuple(runner.original(text, frames).columns)
        columns = {n: visible_columns(r) for n, r in sources.items()}
        try:
            check_output_names(names)
            return analyse(text, sources, columns, names, "auto", runner.types_of(frames))
        except (InvalidStatement, NotMaintainable) as error:  # a query may be what no view is
            return Definition(text, dict(sources), names, "auto", None, None, {}, error.cause)

    def tested(self, view: Relation, properties: Mapping[str, str]) -> Verdict:
        """The verdict on a stored view under other properties than its own; nothing changes by asking."""
        return self.asked(self.of(view), view.name, settings_of(view), properties)[1]

    def refuse_undetermined(self, text: str, sources: Sources, columns: Columns, settings: Mapping[str, str]) -> None:
        """Raise if Spark's plans show that a definition is not a function of its sources (`plan_checks.py`)."""

        def explained(settings: Mapping[str, str]) -> str:
            runner = PlanRunner(self._engines.under(settings, small=True))
            frames = {n: runner.engine.opaque(n, as_at_create(r, columns[n])) for n, r in sources.items()}
            return runner.engine.explained(*runner.bound(text, frames))

        unfolded = explained({**settings, **UNFOLDED})
        if is_planned(unfolded):
            refuse_by_plans(text, unfolded)
        else:
            refuse_by_plans(text, explained(settings), is_unfolded=False)

    def asked(
        self, definition: Definition, name: str, settings: Mapping[str, str], properties: Mapping[str, str]
    ) -> tuple[Definition, Verdict]:
        """A definition with Spark's verdict: one that Spark reads otherwise keeps its text and is recomputed."""

        def progress(step: str) -> None:
            self._events.emit("view.reading", view=name, step=step)

        schemas = {n: as_at_create(r, definition.columns[n]) for n, r in definition.sources.items()}
        runner = PlanRunner(self._engines.under({**settings, **TRIAL}, small=True))
        strict = all(settings.get(key, "true").lower() == "true" for key in _STRICT)
        reader = Reader(definition, runner, schemas, strict)
        verdict = reader.verdict(selftest=wants_selftest(properties), progress=progress)
        progress("read")
        if verdict.kind == RECOMPUTED and definition.form is not None:
            d = definition
            definition = unread(d.text, d.sources, d.columns, d.names, d.refresh, verdict.reason)
        return replace(definition, verdict=verdict), verdict


def as_at_create(relation: Relation, columns: Sequence[str]) -> Schema:
    """The schema of a source in the columns that a definition may read, as far as its tests have to know it."""
    schema, required = visible_schema(relation), relation.schema.required if relation.kind != "view" else ()
    found = tuple(replace(schema.column(c), nullable=schema.column(c).name not in required) for c in columns)
    key = relation.schema.key
    return Schema(found, key if set(key) <= {c.name for c in found} else ())


def settings_of(view: Relation) -> dict[str, str]:
    """The settings of the session in which a view was created: they decide what its text means."""
    settings: dict[str, str] = json.loads(view.facts["settings"])
    return settings


def empty_rows(engine: SparkEngine, relation: Relation) -> Frame:
    """An empty frame with the columns of a relation that queries see."""
    return visible_rows(relation, engine.frame(relation.schema.arrow.empty_table(), relation.schema))


def visible_rows(relation: Relation, frame: Frame) -> Frame:
    """The stored rows that queries see: all but a view's hidden columns and rows."""
    if relation.kind != "view":
        return frame
    return members(frame, visible_columns(relation), member_column(relation))


def members(frame: Frame, columns: Sequence[str], member: str | None) -> Frame:
    """Some columns of the rows that belong to a view; `member` is the column that marks them."""
    rows = frame.where(quote(member)) if member else frame
    return rows.select(*map(quote, columns))
