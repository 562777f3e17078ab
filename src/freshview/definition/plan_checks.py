"""What Spark's plans show of a definition, and no reading of its text does: what it reads, and where a string becomes
a timestamp.

    leaves     The analysed plan has no leaf but the definition's sources, VALUES, ranges and the like. A table of
               Spark's own catalog would change unnoticed.
    calls      No call of the clock, of chance or of the session is in the analysed plan, however the text names it:
               Spark takes `current_date` in backticks for the call where there is no such column.
    nearest    No join takes the nearest rows: which of equally near ones it takes depends on their order.
    clocks     No string constant with a time and no date stands where a timestamp is expected: Spark takes '06:00'
               for six o'clock of the day on which the query runs. Beside text it is text. The optimised plan shows
               every conversion, but constants only if it was made under UNFOLDED. The values of PIVOT it shows as
               they are after it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise, zip_longest

from sqlglot.tokenizer_core import TokenType

from freshview.errors import NotMaintainable
from freshview.sql.literals import may_be_moment, may_be_time_of_day
from freshview.sql.plans import optimised
from freshview.sql.tokens import CLOSERS, OPENERS, Token, is_word, tokenize

# Settings of a session whose optimiser computes no constants and no rows, and whose plans are printed whole.
_RULES = ("ConstantFolding", "NullPropagation", "ConvertToLocalRelation", "PropagateEmptyRelation")
UNFOLDED = {
    "spark.sql.optimizer.excludedRules": ",".join(f"org.apache.spark.sql.catalyst.optimizer.{r}" for r in _RULES),
    "spark.sql.debug.maxToStringFields": "100000",
    "spark.sql.maxPlanStringLength": "100000000",
}

_ANALYSED = re.compile(r"== Analyzed Logical Plan ==\n(.*?)\n== Optimized Logical Plan ==", re.DOTALL)
_BRANCH = re.compile(r"^((?:[: ]  )*)[+:]- (.*)$")
_LEAVES = ("Range ", "LocalRelation", "OneRowRelation", "CTERelationRef ", "UnionLoopRef ", "EmptyRelation")
_BARE = "now user version current_user session_user current_timestamp current_catalog current_schema current_database"
_CALLS = re.compile(
    rf"(?<! AS )(?<![\w.])(?:(?:{_BARE.replace(' ', '|')}|current_path|current_timezone)\(\)(?!#)"
    r"|(?:current_date|current_time|localtimestamp|uuid)\((?=Some|\d)|randn?\((?=-?\d))"
)  # as Spark prints them, with what it adds; not their names
_NEAREST = re.compile(r"^(?:[: ]  )*(?:[+:]- )?NearestByJoin ", re.MULTILINE)
_VIEW = re.compile(r"View \(`(?!_pyspark_)")  # Spark makes views of these names for the frames that it is given
_TO_TIMESTAMP = re.compile(r" as (?:timestamp(?:_ltz)?\b|(?:array|map|struct)<[\w<>:,() ]*?\btimestamp(?:_ltz)?\b)")
_CAST = re.compile(r"\b(?:try_)?cast$")
_ID = re.compile(r"#(\d+)")
_NAMED = re.compile(r"(?: AS |\blambda )[^#]*#(\d+)")
_TIME_INSIDE = re.compile(r"(?<![\w:.+\-#'])(?<!\d )(?<!-dd )(?:\d{1,2}\s*:|T\d{1,2}(?![\w#(]))", re.ASCII)
_PIECE = re.compile(r"[(,]\s*(?::\d|T\s*[,)])")  # of a time that a call puts together
_FORMAT = re.compile(r"(?:(?<=\()|(?<=, ))(?:[HhKk]{1,2}|%[\d$]*[ds])\s*:")  # of a time without a date before it
_DAY = re.compile(r"[\dy]-[\dM]")  # of a date, or of a format that has one
_READERS = re.compile(r"\b(?:from_json|from_csv|from_xml|(?:try_)?variant_get)\(")
_BY_PLACE = ("Union", "Intersect", "Except", "Expand", "WithCTE", "CTERelation", "Generate", "LocalRelation")
_SUBQUERY = "scalar-subquery#"


def is_planned(explained: str) -> bool:
    """Has Spark planned a query? Under UNFOLDED it cannot where a number of rows is computed (LIMIT 2 OFFSET 1)."""
    return _ANALYSED.search(explained) is not None


def refuse_by_plans(text: str, explained: str, *, is_unfolded: bool = True) -> None:
    """Raise if a definition reads what its text does not show, or takes a time of day for a time of today.

    `explained` is the output of EXPLAIN EXTENDED for the text over opaque frames, in a session under UNFOLDED. If it is
    of another session, constants are computed in it: a definition is then refused for any time of day in its strings.
    """
    for leaf in _foreign_leaves(explained):
        cause = "it is no table or view of this warehouse, so that its changes would not be seen"
        raise NotMaintainable(f"{leaf:.80} in the plan of a view's definition", cause, "Name tables of the warehouse.")
    analysed = _analysed(explained)
    call = _CALLS.search(analysed)
    if call is not None:
        remedy = "Leave it out, or put the value into a table."
        what = f"{call[0].rstrip('()')}() in the plan of a view's definition"
        raise NotMaintainable(what, "its value is not determined by the tables", remedy)
    if _NEAREST.search(analysed):
        cause = "which of equally near rows it takes is not determined"
        raise NotMaintainable("JOIN … NEAREST in a view's definition", cause, "Use rank() over the distance.")
    times = [token.text for token in tokenize(text) if _is_time(token)]
    clocks = _clocks(optimised(explained) or "", bool(times))
    for constant in (*(() if is_unfolded else times), *_converted_by_pivot(text, analysed), *clocks):
        cause = "where a timestamp is expected, Spark takes it for that time on the day of the query"
        remedy = "Write the date before it, or compare texts: date_format(ts, 'HH:mm:ss') > '06:00:00'."
        raise NotMaintainable(f"the time of day {constant:.60} in a definition", cause, remedy)


def _analysed(explained: str) -> str:
    found = _ANALYSED.search(explained)
    return found[1] if found is not None else ""


def _foreign_leaves(explained: str) -> Iterator[str]:
    """The leaves of the analysed plan that may be tables of others, and the views of Spark's catalog."""
    branches = [m for m in map(_BRANCH.match, _analysed(explained).splitlines()) if m is not None]
    for this, after in zip_longest(branches, branches[1:]):
        is_leaf = after is None or len(after[1]) <= len(this[1])
        if _VIEW.match(this[2]) or (is_leaf and not this[2].startswith(_LEAVES)):
            yield this[2]


def _is_time(token: Token) -> bool:
    """Is a token a string with a time and no date, or the end of one?"""
    texts = (TokenType.STRING, TokenType.RAW_STRING)
    return token.token_type in texts and (may_be_time_of_day(token.text) or token.text.lstrip().startswith(":"))


def _converted_by_pivot(text: str, analysed: str) -> Iterator[str]:
    """The times of day among the values of a PIVOT that are not in the plan: they are texts no more."""
    times = Counter(token.text for token in _values_of_pivots(text) if _is_time(token))
    groups = [o for o in _operators(analysed) if o.startswith("Aggregate ")] if times else []
    for time, number in times.items():
        shown = re.compile(rf"(?<! AS ){re.escape(time)}(?![\w:#])")
        if not any(len(shown.findall(o)) >= number * max(o.count("pivotfirst("), 1) for o in groups):
            yield f"'{time}'"


def _values_of_pivots(text: str) -> Iterator[Token]:
    tokens = tokenize(text)
    depth = 0
    for before, token in pairwise(tokens):
        begins = is_word(before, "PIVOT") and token.token_type == TokenType.L_PAREN
        if begins or depth:
            depth += (token.token_type in OPENERS) - (token.token_type in CLOSERS)
            yield token


def _clocks(plan: str, has_times: bool) -> Iterator[str]:
    """The constants of a plan that may be a time of the day on which it runs. Is there one among the text's strings?"""
    operators = _operators(plan)
    tainted = _tainted(operators, has_times)
    for operator in operators:
        for inner in _parsed(operator):
            if _has_time(inner) or tainted & set(_ID.findall(inner)) or (_SUBQUERY in inner and tainted):
                yield f"'{inner.strip()}'"
        for inner in _converted(operator):
            if "#" in inner or "(" in inner:
                mixed = _has_time(inner) or _PIECE.search(inner) or (_SUBQUERY in inner and tainted)
                is_clock = bool(mixed or tainted & set(_ID.findall(inner)) or _makes_time(inner))
            else:
                is_clock = may_be_time_of_day(inner) or may_be_moment(inner)
            if is_clock:
                yield f"'{inner.strip()}'"


def _operators(plan: str) -> list[str]:
    """The operators of a plan, each with the lines that strings in it have broken off."""
    found: list[str] = []
    for line in plan.splitlines():
        branch = _BRANCH.match(line)
        if branch is not None or not found:
            found.append(branch[2] if branch is not None else line)
        else:
            found[-1] += f"\n{line}"
    return found


def _converted(operator: str) -> Iterator[str]:
    """What an operator converts to timestamps; more than that if brackets in strings confuse it."""
    for end in _TO_TIMESTAMP.finditer(operator):
        depth, at = 1, end.start()
        while at > 0 and depth > 0:
            at -= 1
            depth += (operator[at] == ")") - (operator[at] == "(")
            if depth == 0 and not _CAST.search(operator, 0, at):
                depth = 1  # a bracket in a string, or one of the type
        yield operator[at + 1 : end.start()]


def _parsed(operator: str) -> Iterator[str]:
    """The calls of an operator that read timestamps out of documents, with all that stands in their brackets."""
    for begin in _READERS.finditer(operator):
        depth, at = 1, begin.end()
        while at < len(operator) and depth > 0:
            depth += (operator[at] == "(") - (operator[at] == ")")
            at += 1
        if "TimestampType" in operator[begin.end() : at]:
            yield operator[begin.start() : at]


def _makes_time(text: str) -> bool:
    """Does a computed string begin with a time, by its format, or is it a constant with a colon and no date?"""
    return bool(_FORMAT.search(text) or ("#" not in text and ":" in text and not _DAY.search(text)))


def _has_time(text: str) -> bool:
    """Has a part of a plan a constant with a time and no date? One that continues what concat has before it is none."""
    return any(not _continues(text, found.start()) for found in _TIME_INSIDE.finditer(text))


def _continues(text: str, at: int) -> bool:
    """Is a constant ' 12:30' or 'T12:30' an argument of concat behind a column, as in concat(day, ' 12:30:00')?"""
    if not text.endswith(", " if text[at] == "T" else ",  ", 0, at):
        return False
    depth, begin = 1, at
    while begin > 0 and depth > 0:
        begin -= 1
        depth += (text[begin] == ")") - (text[begin] == "(")
    return text.endswith("concat", 0, begin) and "#" in text[begin:at]


def _tainted(operators: list[str], has_times: bool) -> set[str]:
    """The columns and lambda variables that may hold a constant with a time and no date, by their numbers. (Rows of
    VALUES do not show.)"""
    hidden = has_times and any(o.startswith("LocalRelation") for o in operators)
    if not hidden and not any(map(_has_time, operators)):
        return set()
    if any(o.startswith(_BY_PLACE) for o in operators):  # numbers do not show whose values a column has
        return {number for o in operators for number in _ID.findall(o)}
    found: set[str] = set()
    while True:
        among = [o for o in operators if _has_time(o) or found & set(_ID.findall(o))]
        more = {number for o in among for number in _NAMED.findall(o)}
        if more <= found:
            return found
        found |= more
