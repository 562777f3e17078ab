"""Queries that only choose rows and columns of one relation: Spark is given the parts, without a name for the relation.

Law: the result of `chosen` is that of the text, with the same names and qualifiers. So only texts are taken that have
no other reading: SELECT with * or names of columns, FROM one name, and a WHERE of conditions that `predicates` knows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import sqlglot
from sqlglot import exp

from freshview.algebra.nodes import conjuncts
from freshview.relation.schema import fold
from freshview.sql.dml import RowQuery
from freshview.sql.predicates import asked_of

_NAME = r"[A-Za-z][A-Za-z0-9_]*"
_ITEM = rf"(?:{_NAME}\s*\.\s*)?{_NAME}"
_TEXT = re.compile(
    rf"\s*SELECT\s+(?P<items>\*|{_ITEM}(?:\s*,\s*{_ITEM})*)\s+FROM\s+(?P<name>{_NAME})\s*(?:\s+WHERE\s+(?P<where>.*))?",
    re.IGNORECASE | re.DOTALL | re.ASCII,
)
_QUANTIFIERS = ("all", "distinct")
_OTHER = re.compile(r"--|/\*|[;`\"{}\\:$]")  # comments and hints, quoted names, parameters, several statements


def plain(text: str, columns: Callable[[], Sequence[str]]) -> RowQuery | None:
    """A query over one relation with these columns, as its parts; None if Spark has to read the text as a whole."""
    found = _TEXT.fullmatch(text)
    if found is None or _OTHER.search(text):
        return None
    name = found["name"]
    items = [tuple(part.strip() for part in item.split(".")) for item in found["items"].split(",")]
    if found["items"] != "*":
        own = [fold(c) for c in columns()]
        if fold(items[0][0]) in _QUANTIFIERS or any(len(item) == 2 and fold(item[0]) != fold(name) for item in items):
            return None
        if any(own.count(fold(item[-1])) != 1 for item in items):
            return None
    where = found["where"]
    if where is not None and not _is_known(text, name, columns()):
        return None
    return RowQuery(name, where.strip() if where is not None else "", tuple(".".join(item) for item in items))


def _is_known(text: str, name: str, columns: Sequence[str]) -> bool:
    """Are all conditions of the text known to mean what they say?"""
    conditions = asked_of(text, name, columns)
    if not conditions:
        return False
    tree = sqlglot.parse_one(text, read="spark")
    where = tree.args.get("where")
    clauses = {key for key, value in tree.args.items() if value}
    if not isinstance(where, exp.Where) or not clauses <= {"expressions", "from_", "where"}:
        return False
    return len(list(conjuncts(where.this))) == len(conditions)
