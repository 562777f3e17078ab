"""Is a definition read here as Spark reads it? Spark is asked before a view is maintained by delta rules.

    the text    The parsed query, written back with every operator in brackets, means the same to Spark as the text.
    the parts   What is taken for a scalar expression is one, and is determined: Spark counts its values.
    the tree    The algebra, written as SQL, has Spark's columns and types, names inside types to the letter; and its
                optimised plan is that of the text. Where plans differ, or do not prove enough, the self-test decides
                (`selftest.py`).

A definition that does not pass keeps its text and is recomputed from it. The verdict is stored with the view.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
from sqlglot import exp

from freshview.algebra.nodes import Aggregate, Filter, Generate, Join, Node, Project, TopK, Union, Window, names_in
from freshview.algebra.traversal import bottom_up, columns_read
from freshview.definition.analysis import Definition
from freshview.definition.selftest import SelfTest, brief
from freshview.definition.verdict import PLAN, RECOMPUTED, TESTED, UNTESTED, Verdict
from freshview.delta.forms import rows_form
from freshview.errors import Cancelled, FreshviewError
from freshview.relation.schema import Schema
from freshview.relation.types import INTEGERS
from freshview.spark.running import Frame, PlanRunner
from freshview.sql.binding import UNREADABLE
from freshview.sql.brackets import bracketed
from freshview.sql.fragments import Unsupported
from freshview.sql.plans import normal, optimised, renumbered
from freshview.sql.tokens import word_set

# Settings of the session for proofs and self-tests: plans are printed whole; for a few rows no code is generated, and
# nothing is broadcast, which would take jobs of its own.
TRIAL = {
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.optimizer.disableHints": "true",
    "spark.sql.join.preferSortMergeJoin": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.debug.maxToStringFields": "100000",
    "spark.sql.maxPlanStringLength": "100000000",
}
SELFTEST = "on"  # the default of the view property 'selftest'

Progress = Callable[[str], None]


def wants_selftest(properties: Mapping[str, str]) -> bool:
    """Is a view with these properties to be tested if its plan does not prove it?"""
    return properties.get("selftest", SELFTEST).lower() != "off"


class _Differs(Exception):
    """Spark reads the definition otherwise; the message describes the difference."""


@dataclass(frozen=True)
class Reader:
    """Asks Spark about one definition; `runner` has a session with the definition's settings and TRIAL."""

    definition: Definition
    runner: PlanRunner
    schemas: Mapping[str, Schema]  # of the sources, in the columns that they had at CREATE
    strict: bool = True  # the arithmetic is Spark's default: overflow is an error, decimals lose digits as documented

    def verdict(self, *, selftest: bool = True, progress: Progress = lambda _: None) -> Verdict:
        """Spark's verdict; errors on the way to it become the reason for a verdict of RECOMPUTED."""
        if self.definition.form is None:
            return Verdict(RECOMPUTED, reason=self.definition.reason)
        try:
            return self._asked(selftest, progress)
        except (_Differs, Unsupported) as differs:
            reason = str(differs)
        except Cancelled:  # Spark is asked again: a job that gave way says nothing of the definition
            raise
        except (FreshviewError, pa.ArrowException, *UNREADABLE) as error:
            reason = f"what was made of it cannot be asked about ({brief(error)})"
        return Verdict(RECOMPUTED, reason=reason)

    def _asked(self, selftest: bool, progress: Progress) -> Verdict:
        progress("text")
        frames = self._opaque_frames()
        text = self.runner.original(self.definition.text, frames)
        own_plan = self._require_same_text(text, frames)
        progress("tree")
        self._require_scalars(frames)
        assert self.definition.plain is not None
        tree = rows_form(self.definition.plain, self.definition.names).tree
        made = self.runner.run(tree, lambda s: frames[s.relation])
        theirs, ours = self.runner.engine.columns_of(text), self.runner.engine.columns_of(made)
        for (name, type_), (_, own) in zip(theirs, ours, strict=True):
            if type_ != own:
                raise _Differs(f"column {name} is {type_} to Spark, and {own} as it was read here")
        if self._plan_says_all() and self._same_plan(own_plan, tree, frames):
            return Verdict(PLAN)
        if not selftest:
            return Verdict(UNTESTED)
        progress("self-test")
        assert self.definition.form is not None
        rows = self.runner.run(self.definition.form.tree, lambda s: frames[s.relation])
        stored = self.runner.engine.schema_of(rows, self.definition.key)
        tested = SelfTest(self.definition, self.runner, self.schemas, stored).run()
        if tested.difference:
            raise _Differs(tested.difference)
        return Verdict(TESTED, tested.rows, tested.rounds, answers=tested.answers, unmet=", ".join(tested.unmet))

    def _opaque_frames(self) -> dict[str, Frame]:
        return {name: self.runner.engine.opaque(name, schema) for name, schema in self.schemas.items()}

    # -- the text ----------------------------------------------------------------------------------

    def _require_same_text(self, text: Frame, frames: Mapping[str, Frame]) -> str | None:
        """Raise if the text and its bracketed form differ; return the optimised plan of the text."""
        again = bracketed(self.definition.text)
        own = self._plan(self.definition.text, frames)
        try:
            other = self.runner.original(again, frames)
            if self.runner.engine.means_the_same(text, other):
                return own
            theirs = self._plan(again, frames)
        except Cancelled:
            raise
        except FreshviewError as error:
            raise _Differs(f"read here as {again:.200}, which Spark refuses ({brief(error)})") from error
        if own is None or theirs is None or renumbered(own) != renumbered(theirs):
            one, two = (normal(p) if p is not None else None for p in (own, theirs))
            if one is None or one != two:
                raise _Differs(f"read here as {again:.300}, which is another query to Spark")
        return own

    def _plan(self, text: str, frames: Mapping[str, Frame]) -> str | None:
        return optimised(self.runner.engine.explained(*self.runner.bound(text, frames)))

    # -- the parts ---------------------------------------------------------------------------------

    def _require_scalars(self, frames: Mapping[str, Frame]) -> None:
        """Raise if an expression is not a scalar determined by its row: Spark counts the values of no other."""
        assert self.definition.plain is not None
        parts: list[Node] = []
        doubtful: list[exp.Expr] = []
        for node in bottom_up(self.definition.plain.node):
            for below, expressions in _scalars(node):
                asked = [e for e in expressions if _is_doubtful(e) and names_in(e) <= set(below.columns)]
                if asked:
                    doubtful += asked
                    count = exp.Count(this=asked[0].copy(), expressions=[e.copy() for e in asked[1:]])
                    parts.append(Aggregate(below, (), (("n", count),)))
        if not parts:
            return
        asked_all = parts[0] if len(parts) == 1 else Union(tuple(parts), ("n",))
        try:
            self.runner.run(asked_all, lambda s: frames[s.relation])
        except Cancelled:
            raise
        except FreshviewError as error:
            texts = ", ".join(dict.fromkeys(e.sql(dialect="spark") for e in doubtful))
            raise _Differs(f"{texts:.200}: not all of it is a scalar to Spark ({brief(error)})") from error

    # -- the tree ----------------------------------------------------------------------------------

    def _plan_says_all(self) -> bool:
        """Does an equal plan prove the delta rules too? It does for calls and types that their laws are tested on."""
        definition = self.definition
        if not definition.as_written or not self.strict or "#" in definition.text:
            return False
        assert definition.lowered is not None
        for name, columns in columns_read(definition.lowered.node).items():
            schema = self.schemas[name]
            if any(schema.column(c).type.kind not in _ORDINARY for c in columns):
                return False
        calls = (e for node in bottom_up(definition.lowered.node) if isinstance(node, Aggregate) for _, e in node.items)
        return all(isinstance(e, _ORDINARY_CALLS) for e in calls)

    def _same_plan(self, own: str | None, tree: Node, frames: Mapping[str, Frame]) -> bool:
        text, placed = self.runner.text(tree, lambda s: frames[s.relation])
        theirs = optimised(self.runner.engine.explained(text, placed))
        one, two = (normal(p) if p is not None else None for p in (own, theirs))
        return one is not None and one == two


_ORDINARY = word_set("boolean decimal string date timestamp timestamp_ntz double float").union(INTEGERS)
_ORDINARY_CALLS = (exp.Count, exp.Sum, exp.Min, exp.Max, exp.Avg)
_KNOWN_SCALARS = (
    *(exp.And, exp.Or, exp.Not, exp.Case, exp.If, exp.Cast, exp.TryCast, exp.Coalesce, exp.Nullif),
    *(exp.Lower, exp.Upper, exp.Substring, exp.Length, exp.Trim, exp.Concat),
    *(exp.Abs, exp.Round, exp.Year, exp.Month, exp.Day),
)


def _scalars(node: Node) -> Iterator[tuple[Node, list[exp.Expr]]]:
    """The expressions of a node that are taken for scalars, with the input whose columns they use."""
    match node:
        case Project():
            yield node.input, [e for _, e in node.items]
        case Filter():
            yield node.input, [node.predicate]
        case Join() if node.condition is not None:
            yield replace(node, kind="inner", condition=None, small=""), [node.condition]
        case Generate():
            yield node.input, [a for a in node.generator.iter_expressions() if isinstance(a, exp.Expr)]
        case TopK():
            yield node.input, [o.this for o in node.order]
        case Window():
            yield node.input, [o.this for _, e in node.items for o in e.find_all(exp.Ordered)]


def _is_doubtful(expression: exp.Expr) -> bool:
    """Does an expression contain a call that is not known to be a scalar?"""
    return any(isinstance(n, exp.Func) and not isinstance(n, _KNOWN_SCALARS) for n in expression.walk())
