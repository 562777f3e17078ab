"""The rewriting of a view: its stored rows from auxiliary views and others, as it is kept and read again.

The text of a rewriting gives the view's stored columns, hidden ones included. Delta rules use it in place of the
definition, where all that it reads has a version at both ends of a job. `check`, queries that the definition answers,
and recomputing never do. It holds for the versions of the program and of Spark that proved it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from freshview.algebra.traversal import bottom_up
from freshview.catalog.lineage import AUXILIARY, REWRITING
from freshview.catalog.records import Relation
from freshview.definition.analysis import Columns, Definition, Sources, member_column, visible_columns
from freshview.definition.verdict import RECOMPUTED, Verdict, present
from freshview.delta.forms import rows_form
from freshview.delta.rewriting import rewritten
from freshview.errors import NotMaintainable
from freshview.sql.lowering import Unsupported, lower


@dataclass(frozen=True)
class Rewriting:
    """A rewriting as it is kept with its view."""

    text: str
    sources: Mapping[str, int]  # names in the text, with the ids of the relations
    columns: Columns  # of the sources, when it was proven
    proof: str = ""  # how it was proven, in words
    saves: float = 0.0  # seconds that it was expected to save per refresh
    before: float = 0.0  # mean seconds of the view's jobs before it was rewritten; 0: there were none
    since: int = 0  # the CSN of the commit before which it was attached
    version: str = field(default_factory=present)

    @classmethod
    def over(cls, text: str, sources: Sources) -> Rewriting:
        """A rewriting over the columns that these relations have now."""
        ids = {name: relation.id for name, relation in sources.items()}
        return cls(text, ids, {name: visible_columns(relation) for name, relation in sources.items()})

    @classmethod
    def of(cls, view: Relation) -> Rewriting | None:
        """The rewriting of a view; None if it has none, or another version of the program proved it."""
        kept = json.loads(view.facts.get(REWRITING, "{}"))
        if kept.get("version") != present():
            return None
        ids = {name: entry["id"] for name, entry in kept["sources"].items()}
        columns = {name: tuple(entry["columns"]) for name, entry in kept["sources"].items()}
        return cls(kept["text"], ids, columns, kept["proof"], kept["saves"], kept["before"], kept["since"])

    def to_json(self) -> str:
        sources = {name: {"id": id_, "columns": self.columns[name]} for name, id_ in self.sources.items()}
        rest = {key: getattr(self, key) for key in ("proof", "saves", "before", "since", "version")}
        return json.dumps({"text": self.text, "sources": sources, **rest}, ensure_ascii=False)


@dataclass(frozen=True)
class Auxiliary:
    """Why an auxiliary view is stored, as it is kept with it."""

    what: str  # what it holds, in words of the definitions
    content: str = ""  # a name for what it holds, by the names of the tables that it is made of
    settings: Mapping[str, str] = field(default_factory=dict, compare=False)  # under which its text is read
    sorted_by: str = ""  # the column on which its files are sorted
    seconds: float = 0.0  # expected, per refresh, to maintain it
    saves: float = 0.0  # expected, per refresh, its own cost taken off

    @classmethod
    def of(cls, view: Relation) -> Auxiliary:
        return cls(**json.loads(view.facts[AUXILIARY]))

    def to_json(self) -> str:
        kept = {key: getattr(self, key) for key in ("what", "content", "sorted_by", "seconds", "saves")}
        return json.dumps(kept, ensure_ascii=False)


def rewrite(definition: Definition, rewriting: Rewriting, sources: Sources) -> Definition:
    """The definition that maintains the view's stored rows over the relations of a rewriting.

    NotMaintainable, with the reason, if rules cannot keep the rows so.
    """
    refused = partial(NotMaintainable, "rewriting", remedy="The view is maintained by its own text.")
    if definition.form is None or definition.lowered is None or not definition.incremental:
        raise refused(cause=f"the view is recomputed ({definition.reason or 'asked for'})")
    own = {source.id for source in definition.sources.values()}
    for source in sources.values():
        if member_column(source) is not None:
            raise refused(cause=f"{source.name} stores groups that it does not show")
        verdict = Verdict.of(source.facts)
        if source.kind == "view" and source.id not in own:
            if verdict is None or not verdict.is_current:
                raise refused(cause=f"{source.name} was read by another version of the program")
            if verdict.kind == RECOMPUTED:
                raise refused(cause=f"{source.name} is recomputed: {verdict.reason}")
    trees = (definition.form.tree, definition.lowered.node)
    used = {c for tree in trees for node in bottom_up(tree) for c in node.columns}
    stored = definition.form.stored
    try:
        tree = rows_form(lower(rewriting.text, rewriting.columns, stored, used), stored).tree
    except Unsupported as unsupported:
        raise refused(cause=f"{unsupported} has no algebra") from unsupported
    form = rewritten(definition.form, definition.lowered, definition.types, tree)
    if form is None:
        raise refused(cause=f"a view that is stored as {definition.form.rule} is not kept so")
    found = replace(definition, sources=dict(sources), columns=rewriting.columns, form=form, rewriting=None)
    return replace(found, original=definition)
