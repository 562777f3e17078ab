"""Algebra as one readable Spark SQL text: a WITH query per operator, named by what it does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from sqlglot import exp

from freshview.algebra.nodes import (
    WEIGHT,
    Aggregate,
    Filter,
    Generate,
    Join,
    Node,
    Project,
    Scan,
    SetOperation,
    TopK,
    Union,
    Values,
    Window,
)
from freshview.algebra.traversal import bottom_up
from freshview.relation.names import backticked
from freshview.sql.fragments import COMPARISONS

TextOf = Callable[[Scan], str]  # gives the text that a scan reads from: a placeholder or a name


def render(root: Node, source: TextOf, outputs: tuple[tuple[str, str], ...] | None = None, *, prefix: str = "") -> str:
    """The text of a tree; `outputs` (column, name) pairs choose and name the result's columns.

    The names of its WITH queries begin with `prefix`: a table of such a name could not be read.
    """
    names: dict[Node, str] = {}
    numbers: Counter[str] = Counter()
    parts: list[str] = []
    for node in bottom_up(root):
        kind, query = _query(node, [names[i] for i in node.inputs], source)
        numbers[kind] += 1
        names[node] = f"{prefix}{kind}{numbers[kind]}"
        parts.append(f"{names[node]} AS (\n  {query}\n)")
    chosen = outputs if outputs is not None else tuple((c, c) for c in root.columns)
    select = ", ".join(_as(backticked(c), n) for c, n in chosen)
    return f"WITH {', '.join(parts)}\nSELECT {select or '1'} FROM {names[root]}"


def text(expression: exp.Expr) -> str:
    """The text of an expression, with the brackets that sqlglot does not write: parsed again, it is the same tree."""
    tree = expression.copy()
    for node in [n for n in tree.walk() if _strength(n) is not None]:
        for place in ("this", "expression", "low", "high"):
            operand = node.args.get(place)
            if isinstance(operand, exp.Expr) and _needs_brackets(node, operand, place):
                node.set(place, exp.Paren(this=operand))
    return tree.sql(dialect="spark", copy=False)


def _needs_brackets(operator: exp.Expr, operand: exp.Expr, place: str) -> bool:
    outer, inner = _strength(operator), _strength(operand)
    if outer is None or inner is None or isinstance(operator, exp.Escape):
        return False
    chained = place == "this" and type(operand) is type(operator) and isinstance(operator, _CHAINED)
    return (outer == 0 or inner <= outer) and not chained


def _strength(node: exp.Expr) -> int | None:
    """How strongly an operator binds; 0 for one that is not in the table, whose operands get brackets; else None."""
    for strength, kinds in enumerate(_OPERATORS):
        if isinstance(node, kinds):
            return strength
    if isinstance(node, exp.Binary | exp.Unary) and not isinstance(node, exp.Func | exp.Dot | exp.Paren):
        return 0
    return None


_CHAINED = (exp.And, exp.Or, exp.Add, exp.Sub, exp.Mul)
_OPERATORS: tuple[tuple[type[exp.Expr], ...], ...] = (  # weakest first
    (),
    (exp.Or,),
    (exp.And,),
    (exp.Not,),
    (*COMPARISONS, exp.Is, exp.In, exp.Between, exp.Like, exp.ILike, exp.RegexpLike, exp.Escape),
    (exp.Add, exp.Sub),
    (exp.Mul, exp.Div, exp.Mod, exp.IntDiv),
    (exp.Neg,),
)


def _items(items: tuple[tuple[str, exp.Expr], ...]) -> list[str]:
    return [_as(text(e), n) for n, e in items]


def _as(what: str, name: str) -> str:
    return what if what == backticked(name) else f"{what} AS {backticked(name)}"


def _query(node: Node, inputs: list[str], source: TextOf) -> tuple[str, str]:
    """A word for what a node does, and its query. Where a node has no columns, the query has one that nothing reads."""
    match node:
        case Scan():
            fields = [_as(backticked(c), n) for c, n in node.fields]
            if node.version == "delta":
                fields.append(backticked(WEIGHT))
            return "scan", f"SELECT {', '.join(fields) or '1'} FROM {source(node)}"
        case Values():
            rows = ", ".join("(" + (", ".join(text(v) for v in row) or "1") + ")" for row in node.rows)
            return "rows", f"SELECT * FROM VALUES {rows} AS v({', '.join(map(backticked, node.names)) or 'one'})"
        case Filter():
            return "filtered", f"SELECT * FROM {inputs[0]} WHERE {text(node.predicate)}"
        case Project():
            return "projected", f"SELECT {', '.join(_items(node.items)) or '1'} FROM {inputs[0]}"
        case Join():
            return "joined", _join(node, inputs)
        case Aggregate():
            columns = [*map(backticked, node.keys), *_items(node.items)]
            grouping = f" GROUP BY {', '.join(map(backticked, node.keys))}" if node.keys else ""
            return "grouped", f"SELECT {', '.join(columns) or 'COUNT(*)'} FROM {inputs[0]}{grouping}"
        case Union():
            parts = [_under(node.names, p, n) for p, n in zip(node.parts, inputs, strict=True)]
            return "united", "\n  UNION ALL ".join(parts)
        case SetOperation():
            left, right = (_under(node.names, p, n) for p, n in zip(node.inputs, inputs, strict=True))
            return "compared", f"{left}\n  {node.kind.upper()} ALL {right}"
        case Window():
            return "windowed", f"SELECT *, {', '.join(_items(node.items))} FROM {inputs[0]}"
        case Generate():
            outer = "OUTER " if node.outer else ""
            aliases = ", ".join(map(backticked, node.outputs))
            view = f"LATERAL VIEW {outer}{text(node.generator)} g AS {aliases}"
            return "generated", f"SELECT * FROM {inputs[0]} {view}"
        case TopK():
            limit = f" LIMIT {node.limit}" if node.limit is not None else ""
            offset = f" OFFSET {node.offset}" if node.offset else ""
            return "top", f"SELECT * FROM {inputs[0]} ORDER BY {', '.join(map(text, node.order))}{limit}{offset}"
    raise TypeError(type(node).__name__)


def _under(names: tuple[str, ...], part: Node, source: str) -> str:
    """A query for one side of a set operation, its columns renamed by place."""
    columns = ", ".join(_as(backticked(c), n) for c, n in zip(part.columns, names, strict=True))
    return f"SELECT {columns or '1'} FROM {source}"


def _join(node: Join, inputs: list[str]) -> str:
    kind = {"inner": "INNER", "left": "LEFT OUTER", "semi": "LEFT SEMI", "anti": "LEFT ANTI"}[node.kind]
    condition = text(node.condition) if node.condition is not None else "TRUE"
    small = {"left": inputs[0], "right": inputs[1]}.get(node.small)
    hint = f"/*+ BROADCAST({small}) */ " if small else ""
    return f"SELECT {hint}* FROM {inputs[0]} {kind} JOIN {inputs[1]} ON {condition}"
