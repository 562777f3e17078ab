"""How a view is to be maintained: its properties, checked and changed.

Law: commits maintain a view only if all that it reads changes by such commits. Another mode or scenario keeps the
view's rows, and begins with what they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from freshview.catalog.records import Relation
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
        """Change properties, and with them the mode; the CSN of that."""
        given = dict(properties)
        merged = {**view.properties, **given}
        refresh = checked_refresh(given, merged)
        if "refresh" in given:
            given["refresh"] = refresh
        if given.get("refresh") == "incremental" and (why := self.definitions.of(view).hindrance):
            raise NotMaintainable(f"view {view.name}", why, "Leave 'refresh' at 'auto'.")
        if not {"maintenance", "scenario"}.intersection(given):
            return self.views.set_properties(view, given)
        mode = mode_in(merged)
        eager = None if mode == AUTO else commits_maintain(merged)  # 'auto' goes on from what it is
        if eager is not None:
            self._require_may_be(view, eager)
        if eager or (mode == DEFERRED and not is_deferred(view)):
            self._bring(view)  # what it begins to show is not older than what was seen of it
        csn = self.views.set_properties(view, given, eager=eager, deferred=mode == DEFERRED)
        if mode == DEFERRED and scenario_in(merged) == BASE_LOG:
            self.deferred.catalog.show(view)  # there are no differential tables any more
        return csn

    def set_eager(self, view: Relation, eager: bool) -> None:
        """Have commits maintain a view from now on, or no more."""
        self._require_may_be(view, eager)
        if eager:
            self._bring(view)
        self.views.set_eager(view, eager)

    def _bring(self, view: Relation) -> None:
        self.maintenance.bring(view, self.views.catalog.snapshot())

    def _require_may_be(self, view: Relation, eager: bool) -> None:
        """Can commits maintain a view; can they do without?"""
        if eager:
            self.require_eager_sources(view.name, self.views.sources(view).values())
        elif above := [d.name for d in self.views.dependents(view) if self.views.is_eager(d)]:
            raise NotMaintainable(
                f"view {view.name}", f"the eager view {above[0]} reads it", "Make that one lazy first."
            )

    def require_eager_sources(self, name: str, sources: Iterable[Relation]) -> None:
        """NotMaintainable if a view over these sources cannot be maintained by commits."""
        source = keeps_lazy(sources, self.views.is_eager)
        if source is not None and source.is_external:
            raise NotMaintainable(
                f"view {name}", f"others write {source.name}, so no commit can maintain the view", "Leave it lazy."
            )
        if source is not None:
            raise NotMaintainable(
                f"view {name}", f"it reads {source.name}, which is not eager", f"Make {source.name} eager first."
            )
