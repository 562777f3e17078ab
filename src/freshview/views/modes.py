"""The mode of a view and its other properties, checked and changed.

Law: commits maintain a view only if all its sources change by such commits alone. A change of mode or scenario keeps
the view's rows. Only lazy views are rewritten: one that becomes eager or deferred is maintained by its own text. A view
whose self-test was off is tested when it is turned on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from freshview.catalog.records import Relation
from freshview.catalog.rewritings import RewritingCatalog
from freshview.catalog.views import ViewCatalog
from freshview.definition.known import Definitions
from freshview.definition.properties import (
    AUTO,
    BASE_LOG,
    DEFERRED,
    checked_refresh,
    commits_maintain,
    is_deferred,
    keeps_lazy,
    mode_in,
    scenario_in,
)
from freshview.definition.reading import wants_selftest
from freshview.definition.verdict import UNTESTED, Verdict
from freshview.errors import NotMaintainable
from freshview.views.deferred import Deferred
from freshview.views.maintenance import Maintenance


@dataclass(frozen=True)
class Modes:
    """Changes how the views of one warehouse are maintained."""

    views: ViewCatalog
    deferred: Deferred
    maintenance: Maintenance
    definitions: Definitions

    def set_properties(self, view: Relation, properties: Mapping[str, str]) -> int:
        """Change properties, and with them the mode; return the CSN of the change."""
        given = dict(properties)
        merged = {**view.properties, **given}
        refresh = checked_refresh(given, merged)
        if "refresh" in given:
            given["refresh"] = refresh
        if given.get("refresh") == "incremental" and (why := self.definitions.of(view).why_recomputed):
            raise NotMaintainable(f"view {view.name}", why, "Leave 'refresh' at 'auto'.")
        verdict = Verdict.of(view.facts)
        if verdict is not None and verdict.kind == UNTESTED and wants_selftest(merged):
            found = self.definitions.tested(view, merged)
            csn = self._set(view, given, merged)
            self.maintenance.judge(view, found)
            return csn
        return self._set(view, given, merged)

    def _set(self, view: Relation, given: Mapping[str, str], merged: Mapping[str, str]) -> int:
        if not {"maintenance", "scenario"}.intersection(given):
            return self.views.set_properties(view, given)
        mode = mode_in(merged)
        eager = None if mode == AUTO else commits_maintain(merged)  # 'auto' begins with the present mode
        if eager is not None:
            self._require_may_be(view, eager)
        if eager or (mode == DEFERRED and not is_deferred(view)):
            self._bring(view)  # a deferred view begins to show rows that are not older than those seen before
        if eager or mode == DEFERRED:
            RewritingCatalog(self.views).detach(view)
        csn = self.views.set_properties(view, given, eager=eager, deferred=mode == DEFERRED)
        if mode == DEFERRED and scenario_in(merged) == BASE_LOG:
            self.deferred.catalog.show(view)  # 'base-log' has no differential tables
        return csn

    def set_eager(self, view: Relation, eager: bool) -> None:
        """Make a view eager or lazy."""
        self._require_may_be(view, eager)
        if eager:
            RewritingCatalog(self.views).detach(view)
            self._bring(view)
        self.views.set_eager(view, eager)

    def _bring(self, view: Relation) -> None:
        self.maintenance.bring(view, self.views.catalog.snapshot())

    def _require_may_be(self, view: Relation, eager: bool) -> None:
        """Raise if a view cannot become eager, or cannot become lazy because an eager view reads it."""
        if eager:
            self.require_eager_sources(view.name, self.views.sources(view).values())
        elif above := [d.name for d in self.views.dependents(view) if self.views.is_eager(d)]:
            cause = f"the eager view {above[0]} reads it"
            raise NotMaintainable(f"view {view.name}", cause, "Make that one lazy first.")

    def require_eager_sources(self, name: str, sources: Iterable[Relation]) -> None:
        """Raise if a view over these sources cannot be maintained by commits."""
        source = keeps_lazy(sources, self.views.is_eager)
        if source is not None and source.is_external:
            cause = f"others write {source.name}, so no commit can maintain the view"
            raise NotMaintainable(f"view {name}", cause, "Leave it lazy.")
        if source is not None:
            cause = f"it reads {source.name}, which is not eager"
            raise NotMaintainable(f"view {name}", cause, f"Make {source.name} eager first.")
