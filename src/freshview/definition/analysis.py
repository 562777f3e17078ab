"""What a view is: its text, the relations it reads, how it is stored, and how it can be maintained."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa
from sqlglot import exp

from freshview.algebra.keys import Dependencies, SourceFacts, dependencies
from freshview.algebra.nodes import Aggregate, Lowered, Node, Project, TopK, Window
from freshview.algebra.traversal import bottom_up
from freshview.catalog.records import Relation
from freshview.definition.coercion import coerced
from freshview.definition.collations import refuse_collated_words, require_no_collated_groups
from freshview.definition.determinism import best_by_pairs, refuse_open_ties, refuse_ordered_copies, with_tie_breaks
from freshview.definition.verdict import RECOMPUTED, Verdict
from freshview.delta.aggregates import TypesOf
from freshview.delta.forms import Form, choose_form, hidden, rows_form
from freshview.delta.report import operator_of
from freshview.delta.top import unkept
from freshview.errors import FreshviewError, InvalidStatement, NotMaintainable
from freshview.relation.schema import Schema
from freshview.relation.types import INTEGERS, can_be_key, parse_type
from freshview.sql.lowering import Unsupported, lower
from freshview.sql.tokens import word_set

_DOUBLES = re.compile("double|float")
_INEXACT = (
    *(exp.Min, exp.Max, exp.Sum, exp.Avg, exp.Stddev, exp.StddevPop, exp.StddevSamp, exp.Variance, exp.VariancePop),
    *(exp.Corr, exp.CovarPop, exp.CovarSamp, exp.Skewness, exp.Kurtosis, exp.RegrSlope, exp.RegrIntercept, exp.RegrR2),
    *(exp.RegrAvgx, exp.RegrAvgy, exp.RegrSxx, exp.RegrSxy, exp.RegrSyy),
)
_INEXACT_NAMES = word_set("MEAN STD TRY_SUM TRY_AVG SKEWNESS KURTOSIS VECTOR_SUM VECTOR_AVG")
# Of doubles, these depend on the order only if 0.0 meets -0.0; of all else they are exact, though they give doubles.
_OF_ZEROS = (exp.Median, exp.Quantile)
_OF_ZEROS_NAMES = word_set("MEDIAN PERCENTILE")

Sources = Mapping[str, Relation]  # the relations that a definition reads, by their names in its text
Columns = Mapping[str, tuple[str, ...]]  # the columns of the sources that the definition may read


@dataclass(frozen=True)
class Definition:
    """A view's definition, ready to be maintained."""

    text: str
    sources: dict[str, Relation]
    names: tuple[str, ...]
    refresh: str  # "auto" | "incremental" | "full"
    lowered: Lowered | None
    form: Form | None
    types: dict[str, str]  # of stored columns
    reason: str  # why it is recomputed; empty if it is maintained incrementally
    obstacles: tuple[tuple[Node, str], ...] = ()  # operators that would be recomputed, each with its reason
    columns: Columns = field(default_factory=dict)  # of the sources, as they were at CREATE
    as_written: bool = True  # the text determines its rows: no tie-break had to be added
    plain: Lowered | None = None  # the tree before ties are broken
    verdict: Verdict | None = None  # whether Spark reads the text in the same way; None: it was not asked
    key: tuple[str, ...] = ()  # stored columns on which no two stored rows agree; (): a bag
    rewriting: Definition | None = None  # the same stored rows over other relations, by which rules may maintain them
    original: Definition | None = None  # of a rewriting: the definition as the user wrote it

    @property
    def incremental(self) -> bool:
        return not self.reason and self.refresh != "full"

    @property
    def why_recomputed(self) -> str:
        """The operators that would be recomputed, and why."""
        if self.lowered is None or not self.obstacles:
            return self.reason
        return "; ".join(f"{operator_of(self.lowered, node)}: {reason}" for node, reason in self.obstacles)


def analyse(
    text: str, sources: Sources, columns: Columns, names: tuple[str, ...], refresh: str, types_of: TypesOf
) -> Definition:
    """The definition of a view: how it can be stored and maintained. `columns` are its sources' columns at CREATE."""
    kept = partial(unread, text, sources, columns, names, refresh)
    try:
        read = lower(text, columns, names)
    except Unsupported as unsupported:
        return kept(f"{unsupported} has no delta rule")
    except FreshviewError:  # of the text itself: the user sees it
        raise
    except Exception as error:  # of the reading: Spark has accepted the text
        return kept(f"it could not be read here ({type(error).__name__})")
    try:
        require_no_collated_groups(text, read, types_of)
        plain = coerced(read, types_of, _char_columns(sources))
        refuse_ordered_copies(plain, _facts(sources))
        lowered = with_tie_breaks(best_by_pairs(plain, types_of), types_of)
        form = choose_form(lowered, names, types_of)
        obstacles = tuple(_obstacles(lowered, form, types_of))
        if obstacles:
            form = rows_form(lowered, names)
        types = dict(types_of(form.tree))
    except Unsupported as unsupported:
        return kept(f"{unsupported} has no delta rule")
    except NotMaintainable:
        raise
    except (FreshviewError, pa.ArrowException) as error:  # Spark has accepted the text: the error is ours
        cause = error.cause if isinstance(error, FreshviewError) else str(error)
        return kept(f"Spark refuses what was made of it ({cause})")
    except Exception as error:  # of a rule
        return kept(f"it could not be read here ({type(error).__name__})")
    reason = "; ".join(dict.fromkeys(why for _, why in obstacles))
    found = Definition(text, dict(sources), names, refresh, lowered, form, types, reason, obstacles, dict(columns))
    found = replace(found, as_written=lowered == plain and not _has_top(lowered), plain=plain)
    found = replace(found, key=_key(form, types, sources))
    _require_incremental(found)
    return found


def unread(
    text: str, sources: Sources, columns: Columns, names: tuple[str, ...], refresh: str, reason: str
) -> Definition:
    """A definition that keeps its text and is recomputed from it; raise if the text does not determine its rows."""
    refuse_open_ties(text, reason)
    refuse_collated_words(text)
    found = Definition(text, dict(sources), names, refresh, None, None, {}, reason, (), dict(columns))
    _require_incremental(found)
    return found


# SQL equality of these is identity. Spark pads CHAR before it compares.
_EXACT = word_set("boolean decimal string varchar binary date timestamp timestamp_ntz").union(INTEGERS)


def _key(form: Form, types: Mapping[str, str], sources: Sources) -> tuple[str, ...]:
    """The key of the stored rows, of visible columns and of integers where there is a choice; () if there is none."""

    def rank(name: str) -> tuple[bool, bool]:
        return name not in form.visible, types[name] not in INTEGERS

    usable = [c for c in form.stored if _can_be_key(types[c])]
    return _dependencies(form, sources).key(sorted(usable, key=rank))


def _can_be_key(type_: str) -> bool:
    try:
        return can_be_key(parse_type(type_))
    except FreshviewError:  # a type that cannot be stored in tables
        return False


def _dependencies(form: Form, sources: Sources) -> Dependencies:
    return dependencies(form.tree, _facts(sources))


def _facts(sources: Sources) -> dict[str, SourceFacts]:
    return {name: _source(relation) for name, relation in sources.items()}


def _source(relation: Relation) -> SourceFacts:
    """What is known of a source. The key of an external table is not: others write it."""
    schema, visible = relation.schema, visible_columns(relation)
    known = not relation.is_external and all(k in visible for k in schema.key)
    exact = {c.name: str(c.type) for c in schema.columns if c.type.kind in _EXACT}
    return SourceFacts(schema.key if known else (), exact)


def identified(definition: Definition, key: tuple[str, ...]) -> bool:
    """Does it follow from a definition that no two stored rows agree on a key?"""
    return definition.form is not None and _dependencies(definition.form, definition.sources).identified(key)


def as_stored(definition: Definition, stored: tuple[str, ...]) -> Definition:
    """The definition of a view whose rows another version of the program stored in these columns: it is recomputed."""
    d, reason = definition, "its rows were stored in another form, by another version"
    if d.lowered is None or d.form is None or d.names != stored:
        verdict = Verdict(RECOMPUTED, reason=reason)
        return replace(unread(d.text, d.sources, d.columns, d.names, d.refresh, reason), verdict=verdict)
    obstacle = (d.form.top.source if d.form.top is not None else d.lowered.node, reason)
    types = {name: d.types[name] for name in d.names}
    return replace(d, form=rows_form(d.lowered, d.names), types=types, reason=reason, obstacles=(obstacle,))


def _require_incremental(definition: Definition) -> None:
    if definition.refresh == "incremental" and definition.reason:
        cause = f"it would have to be recomputed: {definition.why_recomputed}"
        raise NotMaintainable("view", cause, "Rewrite it, or leave 'refresh' at 'auto'.")


def _char_columns(sources: Mapping[str, Relation]) -> set[tuple[str, str]]:
    """The (relation, column) pairs of type CHAR: Spark pads those in some comparisons."""
    return {(n, c.name) for n, r in sources.items() for c in r.schema.columns if c.type.kind == "char"}


def _has_top(lowered: Lowered) -> bool:
    """Does a tree keep the first rows of an order? Lowering breaks ties there."""
    return any(isinstance(node, TopK) for node in bottom_up(lowered.node))


def _obstacles(lowered: Lowered, form: Form, types_of: TypesOf) -> list[tuple[Node, str]]:
    """The operators for which the general rules would not be exact or not be better than recomputing, and why."""
    found: list[tuple[Node, str]] = []
    for node in bottom_up(lowered.node):
        if isinstance(node, TopK):
            if form.top is None or node is not form.top.source:
                found.append((node, unkept(node)))
        elif isinstance(node, Window) and not node.partition:
            found.append((node, "a window without PARTITION BY has no key"))
        elif isinstance(node, Aggregate | Window) and node is not form.root:
            calls = [(n, e) for n, e in node.items if any(map(is_inexact, e.walk()))]
            types = types_of(node) if calls else {}
            inexact = [e.sql(dialect="spark") for n, e in calls if _DOUBLES.search(types[n])]
            inexact += _of_zeros(node, types_of)
            if inexact:
                found.append((node, f"{inexact[0]} is inexact and stands below another operator"))
    return found


def is_inexact(node: exp.Expr) -> bool:
    """Does a call on doubles depend on the order of its rows? Sums do, and MIN and MAX may keep 0.0 or -0.0."""
    return isinstance(node, _INEXACT) or (isinstance(node, exp.Anonymous) and node.name.upper() in _INEXACT_NAMES)


def _of_zeros(node: Aggregate | Window, types_of: TypesOf) -> list[str]:
    """The calls of a node that are inexact if their arguments are doubles, and are of doubles."""
    asked = [(e, _first_argument(c)) for _, e in node.items for c in e.walk() if is_of_zeros(c)]
    if not asked:
        return []
    types = types_of(Project(node.input, tuple((f"x{i}", argument) for i, (_, argument) in enumerate(asked))))
    return [e.sql(dialect="spark") for i, (e, _) in enumerate(asked) if _DOUBLES.search(types[f"x{i}"])]


def _first_argument(call: exp.Expr) -> exp.Expr:
    found: exp.Expr = call.expressions[0] if isinstance(call, exp.Anonymous) else call.this
    return found.copy()


def is_of_zeros(node: exp.Expr) -> bool:
    return isinstance(node, _OF_ZEROS) or (isinstance(node, exp.Anonymous) and node.name.upper() in _OF_ZEROS_NAMES)


def sources_to_json(sources: Mapping[str, Relation]) -> str:
    return json.dumps({n: {"id": r.id, "columns": visible_columns(r)} for n, r in sources.items()})


def visible_columns(relation: Relation) -> tuple[str, ...]:
    """The columns of a relation that queries see: all but a view's hidden ones."""
    if relation.kind != "view":
        return relation.schema.names
    return tuple(json.loads(relation.facts["columns"]))


def visible_schema(relation: Relation) -> Schema:
    """The columns of a relation that queries see, with their types."""
    return Schema(tuple(relation.schema.column(name) for name in visible_columns(relation)))


def member_column(relation: Relation) -> str | None:
    """The hidden column that is true for stored rows that belong to a view; None if all do."""
    if relation.kind != "view":
        return None
    name = hidden("shown", visible_columns(relation))
    return name if name in relation.schema.names else None


def check_output_names(names: tuple[str, ...]) -> None:
    seen: set[str] = set()
    for name in names:
        if name.casefold() in seen:
            remedy = "Give each column a name of its own with AS."
            raise InvalidStatement(f"column {name}", "the view gives it twice", remedy)
        seen.add(name.casefold())
