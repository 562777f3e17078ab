"""Under a collation, equal texts are not the same text: which of 'a' and 'A' stands for a group depends on row order.

Law: a view is a function of its tables. Groups, sets, and best values of collated texts are not: Spark keeps the text
that it met first. Conditions, orders and counts of collated texts are determined. Columns of tables and views have no
collation: only a definition that names one has collated texts.
"""

from __future__ import annotations

import re

from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from freshview.algebra.nodes import Aggregate, Lowered, Node, Project, SetOperation, Window
from freshview.algebra.traversal import bottom_up
from freshview.delta.aggregates import TypesOf
from freshview.errors import NotMaintainable
from freshview.sql.tokens import tokenize, word_set

_CAUSE = "which of several equal texts stands for them is not determined under a collation"
_REMEDY = "Group, compare and choose by lower(x) or upper(x), or leave COLLATE out."
_DETERMINED = (exp.Count, exp.RowNumber, exp.Rank, exp.DenseRank, exp.PercentRank, exp.CumeDist, exp.Ntile)
_MERGING = word_set(
    "GROUP DISTINCT MIN MAX UNION EXCEPT INTERSECT MINUS MIN_BY MAX_BY COLLECT_SET COLLECT_LIST ARRAY_AGG MODE PIVOT"
    " PARTITION"
)


def require_no_collated_groups(text: str, lowered: Lowered, types_of: TypesOf) -> None:
    """Raise if the tree of a text makes one of texts that are equal under a collation only."""
    if "collat" not in text.lower():  # the types need not be asked for
        return
    for node in bottom_up(lowered.node):
        match node:
            case Aggregate():
                _require_plain(node.input, node.keys, types_of)
                _require_plain_calls(node, types_of)
            case Window():
                _require_plain(node.input, node.partition, types_of)
                _require_plain_calls(node, types_of)
            case SetOperation():
                for side in node.inputs:
                    _require_plain(side, side.columns, types_of)


def _require_plain(node: Node, columns: tuple[str, ...], types_of: TypesOf) -> None:
    types = types_of(node) if columns else {}
    collated = next((types[c] for c in columns if _is_collated(types[c])), None)
    if collated is not None:
        raise NotMaintainable(f"a group, set or partition by {collated}", _CAUSE, _REMEDY)


def _require_plain_calls(node: Aggregate | Window, types_of: TypesOf) -> None:
    """Raise if an aggregate of a node takes collated texts, other than to count them."""
    found = [(e, part) for _, e in node.items if not isinstance(_call(e), _DETERMINED) for part in _arguments(_call(e))]
    if not found:
        return
    types = types_of(Project(node.input, tuple((f"x{i}", part.copy()) for i, (_, part) in enumerate(found))))
    for i, (call, _) in enumerate(found):
        if _is_collated(types[f"x{i}"]):
            raise NotMaintainable(call.sql(dialect="spark"), _CAUSE, _REMEDY)


def _call(item: exp.Expr) -> exp.Expr:
    """The aggregate inside FILTER, OVER and the like."""
    while isinstance(item, exp.Window | exp.Filter | exp.IgnoreNulls | exp.RespectNulls | exp.WithinGroup):
        item = item.this
    return item


def _arguments(call: exp.Expr) -> list[exp.Expr]:
    """What a call takes, the columns that it reads, and its texts under COLLATE."""
    holders = (call, *call.find_all(exp.Distinct))
    taken = [a for holder in holders for a in holder.iter_expressions() if isinstance(a, exp.Condition)]
    return [*taken, *(n for n in call.walk() if isinstance(n, exp.Column | exp.Collate))]


def _is_collated(type_: str) -> bool:
    return "collate" in type_.lower()


def refuse_collated_words(text: str) -> None:
    """Raise if a text that runs as it is written has COLLATE beside what makes one of equal texts."""
    plain = [t for t in tokenize(text) if t.token_type not in _QUOTED]
    words = {word for t in plain for word in t.text.upper().split()}  # to sqlglot, GROUP BY is one token
    if "COLLATE" not in words and not any(_IN_SCHEMA.search(t.text) for t in tokenize(text)):
        return
    merging = sorted(words & _MERGING)
    if merging:
        raise NotMaintainable(f"COLLATE beside {merging[0]}", _CAUSE, _REMEDY)


# of from_json(j, 'a STRING COLLATE …'), or of the JSON that such a schema may be
_IN_SCHEMA = re.compile(r"\bSTRING\s+COLLATE\b|\b__COLLATIONS\b", re.IGNORECASE)
_QUOTED = (TokenType.STRING, TokenType.RAW_STRING, TokenType.IDENTIFIER)
