"""A view must be a function of its tables: other definitions are refused, or ties that Spark leaves open are broken.

Ties of window functions are broken by the whole row, those of max_by and min_by by the value they take.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import pairwise

import sqlglot
from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from freshview.algebra.keys import SourceFacts, dependencies
from freshview.algebra.nodes import Aggregate, Lowered, Node, Project, TopK, Window, column, same
from freshview.algebra.traversal import fold as folded
from freshview.algebra.traversal import rewrite
from freshview.definition.moments import takes_moment
from freshview.delta.aggregates import TypesOf, case
from freshview.delta.report import operator_of
from freshview.errors import NotMaintainable
from freshview.relation.types import fold
from freshview.sql.binding import UNREADABLE
from freshview.sql.fragments import Unsupported
from freshview.sql.literals import may_be_moment, may_be_time_of_day
from freshview.sql.one_row import is_idle
from freshview.sql.tokens import Cursor, is_word, tokenize, word_set

_RANDOM = word_set("""
    RAND RANDN RANDOM RANDSTR UNIFORM SHUFFLE UUID MONOTONICALLY_INCREASING_ID AES_ENCRYPT
    NOW CURRENT_TIMESTAMP CURRENT_DATE CURRENT_TIME CURRENT_TIMEZONE CURDATE CURTIME LOCALTIMESTAMP UNIX_TIMESTAMP
    CURRENT_USER USER SESSION_USER CURRENT_CATALOG CURRENT_SCHEMA CURRENT_DATABASE CURRENT_PATH VERSION
    SPARK_PARTITION_ID INPUT_FILE_NAME INPUT_FILE_BLOCK_START INPUT_FILE_BLOCK_LENGTH REFLECT JAVA_METHOD TRY_REFLECT
""")
_RANDOM_NODES = (
    *(exp.Rand, exp.Randn, exp.Uuid, exp.CurrentTimestamp, exp.CurrentDate, exp.CurrentTime),
    *(exp.CurrentUser, exp.QueryTransform),
)
_UNORDERED = (
    *(exp.First, exp.Last, exp.FirstValue, exp.LastValue, exp.AnyValue, exp.ArrayAgg, exp.ArrayUniqueAgg),
    *(exp.GroupConcat, exp.Mode),
    *(exp.ApproxQuantile, exp.ApproxTopK, exp.ApproxTopKAccumulate, exp.ApproxTopKCombine),
)
_UNORDERED_NAMES = word_set("""
    FIRST LAST FIRST_VALUE LAST_VALUE COLLECT_LIST COLLECT_SET ARRAY_AGG LISTAGG STRING_AGG MODE
    HISTOGRAM_NUMERIC HLL_SKETCH_AGG HLL_UNION_AGG SCHEMA_OF_VARIANT_AGG
""")
_UNORDERED_WORDS = _UNORDERED_NAMES | {"ANY_VALUE", "APPROX_PERCENTILE", "PERCENTILE_APPROX"}
_BARE = {n for n in _RANDOM if n.startswith("CURRENT_")} | {"LOCALTIMESTAMP", "SESSION_USER", "TRANSFORM"}
_SKETCHES = ("APPROX_TOP_K", "KLL_", "THETA_", "TUPLE_")  # their bytes depend on the order of the rows
_WAYS_OUT: dict[type[exp.Expr], str] = {
    exp.ArrayAgg: "Sort it: sort_array(collect_list(x)).",
    exp.ArrayUniqueAgg: "Sort it: sort_array(collect_set(x)).",
    exp.GroupConcat: "Use array_join(sort_array(collect_list(x)), ',').",
    exp.Mode: "Use mode(x, true), which takes the smallest of equally frequent values.",
    exp.ApproxQuantile: "Use percentile(x, p), which is exact.",
}
_POSITIONAL = (
    *(exp.RowNumber, exp.Ntile, exp.Lead, exp.Lag),
    *(exp.First, exp.Last, exp.FirstValue, exp.LastValue, exp.NthValue),
)


def refuse_indeterminate(text: str) -> None:
    """Raise if a text has a call whose value the tables do not determine."""
    if "${" in text:
        raise _random("${…}")
    _require_query(text)
    _refuse_computed_names(text)
    if _calls_strings(text):
        _refuse_words(text)
    try:
        tree = sqlglot.parse_one(text, read="spark")
    except UNREADABLE:
        _refuse_words(text)
        return
    for node in tree.walk():
        name = node.name.upper() if isinstance(node, exp.Anonymous) else node.key.upper()
        if isinstance(node, _RANDOM_NODES) or _is_random(node):
            raise _random(node.sql(dialect="spark"))
        if _is_undetermined(node, name):
            cause = "which row it takes, or in which order, is not determined"
            remedy = _WAYS_OUT.get(type(node), "Use min, max, min_by or max_by.")
            raise NotMaintainable(node.sql(dialect="spark"), cause, remedy)


def _require_query(text: str) -> None:
    """Raise for another statement: EXECUTE IMMEDIATE runs what is in a string, DESCRIBE and SET have answers too."""
    cursor = Cursor(text)
    if not cursor.starts_query(0) and not cursor.peek("MAP") and not cursor.peek("REDUCE"):
        cause = "is no query, so that its answer is not determined by the tables"
        raise NotMaintainable(f"{cursor.tokens[0].text} as the definition of a view", cause, "Write a SELECT.")


def _refuse_computed_names(text: str) -> None:
    """Raise for IDENTIFIER(…): which table or function it names is not seen in the tokens."""
    for token, after in pairwise(tokenize(text)):
        if is_word(token, "IDENTIFIER") and after.token_type == TokenType.L_PAREN:
            cause = "what it names is computed, so that it would not be seen whether it is a table of the warehouse"
            raise NotMaintainable("IDENTIFIER(…) in the definition of a view", cause, "Write the name itself.")


def refuse_users_functions(text: str, users: Collection[str]) -> None:
    """Raise if a text calls a function that is not Spark's own: to replace it would change the view unnoticed.

    `users` are the names of such functions in the user's current database and in that of the view's own session; a call
    that names a database is always refused.
    """
    tokens = tokenize(text)
    for before, token, after in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if after.token_type != TokenType.L_PAREN:
            continue
        if before.token_type == TokenType.DOT or fold(token.text) in users:
            cause = "it is not one of Spark's own, so that a change of it would not be seen"
            remedy = "Write what it computes into the definition."
            raise NotMaintainable(f"function {token.text} in the definition of a view", cause, remedy)


def _random(what: str) -> NotMaintainable:
    remedy = "Leave it out, or put the value into a table."
    return NotMaintainable(what, "its value is not determined by the tables", remedy)


_STRINGS = (TokenType.STRING, TokenType.RAW_STRING)


def _calls_strings(text: str) -> bool:
    """Does a bracket follow a string? Under ansi.doubleQuotedIdentifiers "rand"() is a call, which is not read here."""
    tokens = tokenize(text)
    return any(one.token_type in _STRINGS and two.token_type == TokenType.L_PAREN for one, two in pairwise(tokens))


def _refuse_words(text: str) -> None:
    """Raise if a text that cannot be parsed here has the words of a call whose value the tables do not determine."""
    tokens = tokenize(text)
    for i, token in enumerate(tokens):
        name = token.text.upper()
        is_call = i + 1 < len(tokens) and tokens[i + 1].token_type == TokenType.L_PAREN
        if token.token_type in _STRINGS and not is_call:
            typed = i > 0 and is_word(tokens[i - 1], "TIMESTAMP", "TIMESTAMP_LTZ")
            if may_be_moment(token.text) or (typed and may_be_time_of_day(token.text)):
                raise _random(f"'{token.text}'")
            continue
        if name == "TABLESAMPLE":
            raise NotMaintainable(token.text, "which rows it takes is not determined", _REWRITE)
        if (is_call and name in _RANDOM) or name in _BARE:
            raise _random(token.text)
        if is_call and (name in _UNORDERED_WORDS or name.startswith(_SKETCHES)):
            raise NotMaintainable(token.text, "which row it takes, or in which order, may not be determined", _REWRITE)


def _is_random(node: exp.Expr) -> bool:
    """Is a node a call whose value the tables do not determine, or a date that is written 'today'?"""
    names = [node.name.upper()] if isinstance(node, exp.Anonymous) else _names_of(node)
    return not _RANDOM.isdisjoint(names) or takes_moment(node, names)


def _names_of(node: exp.Expr) -> list[str]:
    return node.sql_names() if isinstance(node, exp.Func) else []


def _is_undetermined(node: exp.Expr, name: str) -> bool:
    """Does an aggregate depend on the order of its rows? Not if its result is sorted, nor in windows without ties."""
    named = isinstance(node, exp.Anonymous) and (name in _UNORDERED_NAMES or name.startswith(_SKETCHES))
    if not named and not isinstance(node, _UNORDERED):
        return False
    if isinstance(node, exp.Mode) and node.args.get("deterministic") == exp.true():
        return False
    above = node.parent
    while isinstance(above, exp.IgnoreNulls | exp.RespectNulls | exp.Filter):
        above = above.parent
    if isinstance(above, exp.ArraySort) and above.expression is None:
        return not isinstance(node, exp.ArrayAgg | exp.ArrayUniqueAgg)
    return not (isinstance(above, exp.Window) and isinstance(node, _POSITIONAL))


def refuse_open_ties(text: str, reason: str) -> None:
    """Raise if the rows of a text depend on ties: it runs as it is written, so that no order can be added."""
    why = f"is not determined, since no order can be added to the text: {reason}"
    if _calls_strings(text):
        _refuse_open_words(text, why)
    try:
        tree = sqlglot.parse_one(text, read="spark")
    except UNREADABLE:
        _refuse_open_words(text, why)
        return
    found = tree.find_all(exp.Limit, exp.Offset, exp.ArgMax, exp.ArgMin)
    undetermined = next((n for n in found if not _is_limit_all(n) and not is_idle(n)), None)
    if undetermined is not None:
        limit = isinstance(undetermined, exp.Limit | exp.Offset)
        word = undetermined.key.upper() if limit else undetermined.sql(dialect="spark")
        cause = f"which of equal rows it keeps {why}"
        remedy = (
            f"Leave {word} out, or use rank() in a subquery." if limit else f"Use {PAIRS}, or rank() in a subquery."
        )
        raise NotMaintainable(word, cause, remedy)
    for window in tree.find_all(exp.Window):
        if _is_positional(window):
            remedy = "Use rank() or dense_rank(), or rewrite the other construct."
            raise NotMaintainable(window.sql(dialect="spark"), f"which of tied rows comes first {why}", remedy)


def _is_limit_all(node: exp.Expr) -> bool:
    return isinstance(node, exp.Limit) and node.expression is not None and node.expression.name.upper() == "ALL"


def _refuse_open_words(text: str, why: str) -> None:
    """Raise if a text that cannot be parsed here has a word that may leave ties open."""
    found = _OPEN_WORDS.search(text)
    if found:
        raise NotMaintainable(found[1].upper(), f"which of equal rows it takes {why}", _REWRITE)


_OPEN_WORDS = re.compile(
    r"\b(limit|offset|row_number|lead|lag|ntile|nth_value|max_by|min_by|rows(?=\b.*\b(?:preceding|following|row)\b))\b",
    re.IGNORECASE | re.DOTALL,
)


def with_tie_breaks(lowered: Lowered, types_of: TypesOf) -> Lowered:
    """The tree in which positional window functions and LIMIT order ties by all columns of the row, on every path."""

    def rule(node: Node) -> Node:
        if isinstance(node, TopK):  # lowering has added the columns
            return replace(node, order=(*node.order, *_signs_of_zeros(node.input, types_of)))
        if not isinstance(node, Window) or not any(_is_positional(call) for _, call in node.items):
            return node
        ties = [exp.Ordered(this=column(c), desc=False) for c in node.input.columns]
        ties += _signs_of_zeros(node.input, types_of)
        return replace(node, items=tuple((n, _ordered(e, ties) if _is_positional(e) else e) for n, e in node.items))

    return Lowered(rewrite(lowered.node, rule), lowered.outputs)


def _signs_of_zeros(node: Node, types_of: TypesOf) -> list[exp.Ordered]:
    """Terms of an order that distinguish 0.0 from -0.0, which are equal but not the same row."""
    types = types_of(node)
    without = next((types[c] for c in node.columns if _NO_ORDER.search(types[c])), None)
    if without is not None:
        raise Unsupported(f"an order of rows with a {without}")
    return [
        exp.Ordered(this=exp.cast(column(c), "string"), desc=False)
        for c in node.columns
        if re.search(r"\b(double|float)\b", types[c])
    ]


_NO_ORDER = re.compile(r"\bmap<|\bvariant\b|\binterval\b(?! )|collate")  # or equal values that are not identical


def refuse_ordered_copies(lowered: Lowered, sources: Mapping[str, SourceFacts]) -> None:
    """Raise if a window orders rows that are equal but for what a window below made of them.

    Spark keeps equal rows in the order in which they lie, so the row that one window puts first is the first for the
    other too. No order by values is that order. Calls of one SELECT over the same partitions are in one Window, and see
    the same order; the numbers of equal rows ascend as they lie.
    """

    def distinguishing(node: Node, inputs: tuple[tuple[Window, ...], ...]) -> tuple[Window, ...]:
        """The windows below a node's rows that distinguish equal rows."""
        below = () if isinstance(node, Aggregate) else tuple(w for found in inputs for w in found)
        if not isinstance(node, Window) or not (own := [e for _, e in node.items if _is_positional(e)]):
            return below
        if below:
            cause = f"which of equal rows comes first is open, and {operator_of(lowered, below[0])} distinguishes them"
            raise NotMaintainable(operator_of(lowered, node), cause, _ONE_ORDER)
        if all(isinstance(e.this, _NUMBERING) for e in own):
            return ()
        return () if dependencies(node.input, sources).identified(node.input.columns) else (node,)

    folded(lowered.node, distinguishing)


_NUMBERING = (exp.RowNumber, exp.Ntile)
_ONE_ORDER = "Use the same PARTITION BY in one SELECT, or declare the keys of its tables."


def _is_positional(call: exp.Expr) -> bool:
    return any(isinstance(x, _POSITIONAL) for x in call.walk()) or _frame(call)[0] == "ROWS"


def _frame(call: exp.Expr) -> tuple[str, str, str]:
    """The kind, start and end of a window call's frame, as written."""
    spec = call.args.get("spec")
    if spec is None:
        return "", "", ""
    start, end = (" ".join(str(spec.args.get(k) or "") for k in keys).upper().strip() for keys in _BOUNDS)
    return str(spec.args.get("kind", "")).upper(), start, end


_BOUNDS = (("start", "start_side"), ("end", "end_side"))


def _ordered(call: exp.Expr, ties: list[exp.Ordered]) -> exp.Expr:
    """A call whose order leaves no ties; raise if its frame would then hold other rows."""
    kind, start, end = _frame(call)
    first = any(isinstance(x, exp.First | exp.FirstValue) for x in call.walk())
    known = call.find(exp.IgnoreNulls) is not None  # the first non-NULL value may be that of any row of the frame
    from_start = first and not known and start in ("", _FROM_START) and end in ("", "CURRENT ROW", _TO_END)
    steady = not any(isinstance(x, _FRAMED) for x in call.walk()) or kind == "ROWS"
    whole = start == _FROM_START and end == _TO_END
    if not steady and not whole and not from_start:
        cause = "its frame ends among rows that tie: which of them it takes is not determined"
        raise NotMaintainable(call.sql(dialect="spark"), cause, "Say ROWS BETWEEN …, or use max_by or min_by.")
    call = call.copy()
    order = call.args.get("order")
    terms = order.expressions if order is not None else []
    call.set("order", exp.Order(expressions=[*terms, *(t.copy() for t in ties)]))
    return call


_FROM_START, _TO_END = "UNBOUNDED PRECEDING", "UNBOUNDED FOLLOWING"
_FRAMED = (exp.First, exp.Last, exp.FirstValue, exp.LastValue, exp.NthValue)  # their value depends on the frame


def best_by_pairs(lowered: Lowered, types_of: TypesOf) -> Lowered:
    """The tree with max_by(x, y) and min_by(x, y) as the best pair (y, x): of equal y the best x wins, on every path.

    As in Spark, rows without y do not count, and x may be NULL.
    """

    def rule(node: Node) -> Node:
        if not isinstance(node, Aggregate | Window):
            return node
        found = {name: call for name, call in node.items if _best_by(call) is not None}
        if not found:
            return node
        _refuse_unordered(node, list(found.values()), types_of)
        items = tuple((f"{n}__pair", _paired(e)) if n in found else (n, e) for n, e in node.items)
        pairs: Node = replace(node, items=items)
        values = [(n, exp.Dot(this=column(f"{n}__pair"), expression=exp.to_identifier("x"))) for n in found]
        others = same(c for c in node.columns if c not in found)
        return Project(pairs, (*others, *values))

    return Lowered(rewrite(lowered.node, rule), lowered.outputs)


PAIRS = "max(named_struct('y', y, 'x', x)).x"  # how a user writes max_by without ties
_REWRITE = "Rewrite the query in plain SELECT syntax, or leave it out."


def _best_by(call: exp.Expr) -> exp.ArgMax | exp.ArgMin | None:
    """The max_by or min_by of a call with FILTER and OVER around it."""
    while isinstance(call, exp.Window | exp.Filter):
        call = call.this
    return call if isinstance(call, exp.ArgMax | exp.ArgMin) else None


def _paired(call: exp.Expr) -> exp.Expr:
    holder = exp.Paren(this=call.copy())
    best = _best_by(holder.this)
    assert best is not None
    x, y = best.this, best.expression
    fields = [exp.PropertyEQ(this=exp.to_identifier(n), expression=e.copy()) for n, e in (("y", y), ("x", x))]
    known = exp.Not(this=exp.Is(this=y.copy(), expression=exp.Null()))
    pair = case(known, exp.Struct(expressions=fields))
    best.replace(exp.Max(this=pair) if isinstance(best, exp.ArgMax) else exp.Min(this=pair))
    whole: exp.Expr = holder.this
    return whole


def _refuse_unordered(node: Aggregate | Window, calls: list[exp.Expr], types_of: TypesOf) -> None:
    """Raise if x has no order: ties are broken by x."""
    found = [best for best in map(_best_by, calls) if best is not None]
    types = types_of(Project(node.input, tuple((f"x{i}", b.this.copy()) for i, b in enumerate(found))))
    for i, best in enumerate(found):
        text = best.sql(dialect="spark")
        if best.args.get("count") is not None:
            raise NotMaintainable(text, "which of equal rows it takes is not determined", f"Use {PAIRS}, or rank().")
        if re.search(r"\b(map<|variant)", types[f"x{i}"]):
            cause = f"of rows with equal order, which one it takes is not determined: {types[f'x{i}']} has no order"
            raise NotMaintainable(text, cause, "Take a key by max_by, and join the rest to it.")
