"""Plans as one query of the embedded engine: a WITH query per operator, its columns named by their places.

Names by place, because the embedded engine takes two names that differ in case for one. Types are Spark's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

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
    names_in,
)
from freshview.algebra.traversal import bottom_up
from freshview.local.expressions import over
from freshview.local.order import in_order
from freshview.local.typed import COMPARED, INT, STRING, ByName, Expressions, Typed, Unproven, cast, common, duck_type
from freshview.relation.types import DataType

Types = Mapping[str, DataType]
Made = Mapping[str, DataType | None]  # None: only NULLs, until a union gives them a type


Prepare = Callable[[Node], Types]  # Spark's types of a part's columns, if Spark has computed the part; or Unproven


@dataclass(frozen=True)
class LocalPlan:
    """A plan as text of the embedded engine; what it reads, by the names that it has for it; the result's columns."""

    text: str
    reads: tuple[tuple[str, Node], ...]  # scans, and parts that Spark has computed
    columns: tuple[tuple[str, DataType], ...]
    constants: tuple[str, ...] = ()  # what it computes of constants: Spark does so, and fails, also over no rows

    @property
    def prepared(self) -> list[Node]:
        """The parts of the plan that are Spark's: what they compute is not proven."""
        return [node for _, node in self.reads if not isinstance(node, Scan)]


@dataclass(frozen=True)
class _NodeQuery:
    """The query of a node by its name, and its columns: each by its place."""

    name: str
    types: Made  # in order
    places: tuple[int, ...] | None = None  # of the columns in the query, which may have others; None: as they come

    def columns(self, alias: str = "") -> dict[str, Typed]:
        """The columns as they are read from the query, under an alias."""
        prefix = f"{alias}." if alias else ""
        places = range(len(self.types)) if self.places is None else self.places
        return {c: Typed(f"{prefix}c{i}", t) for i, (c, t) in zip(places, self.types.items(), strict=True)}

    @property
    def all(self) -> str:
        """What to select for all columns, named by their places."""
        if self.places is None:
            return "*"
        return ", ".join(f"{c.sql} AS c{i}" for i, c in enumerate(self.columns().values()))

    def chosen(self, items: Sequence[tuple[str, exp.Expr]]) -> _NodeQuery | None:
        """Some of the columns under other names, for which there is no query; None if one of them is computed."""
        places, types = [], {}
        own = dict(zip(self.types, range(len(self.types)) if self.places is None else self.places, strict=True))
        for name, expression in items:
            if type(expression) is not exp.Column or expression.name not in own:
                return None
            places.append(own[expression.name])
            types[name] = self.types[expression.name]
        return _NodeQuery(self.name, types, tuple(places)) if places else None


def _nothing(_: Node) -> Types:
    raise Unproven("nothing is computed by Spark")


def translated(root: Node, types: Callable[[Scan], Types], prepare: Prepare = _nothing) -> LocalPlan:
    """The plan as a query of the embedded engine. `types` gives Spark's types of the columns that a scan stores.

    Filters and projections that stand on a scan may be computed by Spark before, if one of them is not proven:
    `prepare` is asked for that. Raise the first obstacle that is left.
    """
    root, kept = in_order(root)
    found: dict[Node, _NodeQuery] = {}
    obstacles: dict[Node, Unproven] = {}
    parts: list[str] = []
    reads: list[tuple[str, Node]] = []

    def usable(node: Node) -> _NodeQuery:
        """A node that another reads: translated, or computed by Spark."""
        if node not in found:
            try:
                made = _prepared(node, prepare)
            except Unproven:
                raise obstacles[node] from None
            found[node] = _NodeQuery(f"p{len(reads)}", made)
            reads.append((found[node].name, node))
        return found[node]

    for number, node in enumerate(bottom_up(root)):
        try:
            if isinstance(node, Scan):
                found[node] = _NodeQuery(f"n{number}", _scanned(node, types(node)))
                reads.append((found[node].name, node))
                continue
            if isinstance(node, Filter | Project) and node.input in obstacles:
                raise obstacles[node.input]  # Spark computes both, or none
            if isinstance(node, Project) and (plain := usable(node.input).chosen(node.items)) is not None:
                found[node] = plain
                continue
            inputs = [usable(i) for i in node.inputs]
            body, made = _body(node, inputs)
            places = inputs[0].places if isinstance(node, Filter | TopK) else None  # they hand on all that they read
            found[node] = _NodeQuery(f"n{number}", made, places)
            parts.append(f"n{number} AS {'MATERIALIZED ' if node in kept else ''}({body})")
        except Unproven as obstacle:
            obstacles[node] = obstacle
    result = usable(root)
    columns = ", ".join(c.sql for c in result.columns().values())
    text = f"{'WITH ' if parts else ''}{', '.join(parts)} SELECT {columns} FROM {result.name}"
    own = [node for node in found if not isinstance(node, Scan) and node not in {n for _, n in reads}]
    constants = dict.fromkeys(text for node in own for e in _expressions(node) for text in _constants(e))
    return LocalPlan(text, tuple(reads), tuple(_typed(result)), tuple(constants))


def _expressions(node: Node) -> list[exp.Expr]:
    """The expressions that a node computes."""
    match node:
        case Filter():
            return [node.predicate]
        case Project() | Aggregate() | Window():
            return [e for _, e in node.items]
        case Join():
            return [node.condition] if node.condition is not None else []
        case TopK():
            return list(node.order)
    return []


_PLAIN = (exp.Literal, exp.Boolean, exp.Null)
_NOT_ALONE = (exp.AggFunc, exp.Window, exp.Filter, exp.Ordered, exp.Distinct, exp.Star)  # which need rows


def _constants(expression: exp.Expr) -> Iterator[str]:
    """The largest parts of an expression that are computed of constants alone."""
    if isinstance(expression, _PLAIN):
        return
    if not isinstance(expression, _NOT_ALONE) and not any(map(expression.find, (exp.Column, *_NOT_ALONE))):
        try:
            yield over({}).typed(expression).sql
            return
        except (Unproven, KeyError):  # it is no expression of its own: an interval, a type, a branch
            pass
    for part in expression.iter_expressions():
        yield from _constants(part)


def _prepared(node: Node, prepare: Prepare) -> Types:
    """Spark's types of a part of the plan that Spark has computed over the rows of one scan."""
    below = node
    while isinstance(below, Filter | Project):
        below = below.input
    if below is node or not isinstance(below, Scan):
        raise Unproven(type(node).__name__, "not over a scan")
    made = prepare(node)
    for type_ in made.values():
        duck_type(type_)  # nested types are not taken
    return made


def _typed(relation: _NodeQuery) -> Iterator[tuple[str, DataType]]:
    for name, type_ in relation.types.items():
        if type_ is None:
            raise Unproven(name, "NULL without a type")
        yield name, type_


def _scanned(scan: Scan, types: Types) -> Made:
    """The types of what a scan reads; a VARCHAR is a STRING to Spark."""
    fields = {name: STRING if types[stored].kind == "varchar" else types[stored] for stored, name in scan.fields}
    for type_ in fields.values():
        duck_type(type_)  # nested types are not taken
    return {**fields, **({WEIGHT: INT} if scan.version == "delta" else {})}


def _body(node: Node, inputs: list[_NodeQuery]) -> tuple[str, Made]:
    """The query of a node and the types of its columns."""
    match node:
        case Values():
            return _values(node)
        case Filter():
            condition = over(inputs[0].columns()).condition(node.predicate)
            return f"SELECT * FROM {inputs[0].name} WHERE {condition}", inputs[0].types
        case Project():
            return _selected(node.items, inputs[0].columns(), f" FROM {inputs[0].name}")
        case Join():
            return _joined(node, *inputs)
        case Aggregate():
            return _grouped(node, inputs[0])
        case Union():
            return _united(node, inputs)
        case SetOperation():
            return _compared(node, inputs)
        case Window():
            return _windowed(node, inputs[0])
        case Generate():
            return _generated(node, inputs[0])
        case TopK():
            order = _order(node.order, over(inputs[0].columns()))
            limit = f" LIMIT {node.limit}" if node.limit is not None else ""
            offset = f" OFFSET {node.offset}" if node.offset else ""
            return f"SELECT * FROM {inputs[0].name} ORDER BY {order}{limit}{offset}", inputs[0].types
    raise Unproven(type(node).__name__)


def _selected(items: Sequence[tuple[str, exp.Expr]], columns: ByName, source: str) -> tuple[str, Made]:
    return _listed({n: over(columns).typed(e) for n, e in items}, source)


def _listed(values: Mapping[str, Typed], source: str) -> tuple[str, Made]:
    """SELECT of values, each named by its place. A relation without columns has rows all the same."""
    texts = ", ".join(f"{v.sql} AS c{i}" for i, v in enumerate(values.values()))
    return f"SELECT {texts or '1 AS nothing'}{source}", {name: value.type for name, value in values.items()}


def _values(node: Values) -> tuple[str, Made]:
    rows = [[over({}).typed(e) for e in row] for row in node.rows]
    if not rows or not node.names:
        raise Unproven("VALUES without rows or columns")
    types = [common([row[i] for row in rows], node.rows[0][i]) for i in range(len(node.names))]
    texts = ", ".join("(" + ", ".join(cast(v, t) for v, t in zip(row, types, strict=True)) + ")" for row in rows)
    names = ", ".join(f"c{i}" for i in range(len(types)))
    return f"SELECT * FROM (VALUES {texts}) AS v({names})", dict(zip(node.names, types, strict=True))


def _joined(node: Join, left: _NodeQuery, right: _NodeQuery) -> tuple[str, Made]:
    both = {**left.columns("l"), **right.columns("r")}
    condition = over(both).condition(node.condition) if node.condition is not None else "TRUE"
    kind = {"inner": "INNER", "left": "LEFT", "semi": "SEMI", "anti": "ANTI"}[node.kind]
    source = f" FROM {left.name} AS l {kind} JOIN {right.name} AS r ON {condition}"
    return _listed({c: both[c] for c in node.columns}, source)


def _grouped(node: Aggregate, given: _NodeQuery) -> tuple[str, Made]:
    columns = given.columns()
    _require_compared(given, node.keys)
    found = {**{k: columns[k] for k in node.keys}, **{n: over(columns).typed(e) for n, e in node.items}}
    grouping = f" GROUP BY {', '.join(columns[k].sql for k in node.keys)}" if node.keys else ""
    if not found:
        return f"SELECT COUNT(*) AS nothing FROM {given.name}", {}
    return _listed(found, f" FROM {given.name}{grouping}")


def _require_compared(relation: _NodeQuery, columns: Sequence[str]) -> None:
    """Columns that are compared with themselves: values that are equal have the same bits."""
    for column in columns:
        type_ = relation.types[column]
        if type_ is None or type_.kind not in COMPARED:
            raise Unproven(column, f"{type_ or 'NULL'} as a key")


def _united(node: Union, inputs: list[_NodeQuery]) -> tuple[str, Made]:
    placed = [list(i.columns().values()) for i in inputs]
    types = [common([p[i] for p in placed], exp.column(c)) for i, c in enumerate(node.names)]
    texts = []
    for relation, columns in zip(inputs, placed, strict=True):
        values = {n: Typed(cast(c, t), t) for n, c, t in zip(node.names, columns, types, strict=True)}
        texts.append(_listed(values, f" FROM {relation.name}")[0])
    return " UNION ALL ".join(texts), dict(zip(node.names, types, strict=True))


def _compared(node: SetOperation, inputs: list[_NodeQuery]) -> tuple[str, Made]:
    kinds = [list(i.types.values()) for i in inputs]
    if kinds[0] != kinds[1]:
        raise Unproven(node.kind, "sides of different types")
    _require_compared(inputs[0], list(inputs[0].types))
    left, right = (f"SELECT {i.all} FROM {i.name}" for i in inputs)
    return f"{left} {node.kind.upper()} ALL {right}", dict(zip(node.names, kinds[0], strict=True))


def _generated(node: Generate, given: _NodeQuery) -> tuple[str, Made]:
    """EXPLODE of constants: how delta plans make a deleted and an inserted row of one."""
    array = node.generator.this if isinstance(node.generator, exp.Explode) else None
    if node.outer or not isinstance(array, exp.Array) or len(node.outputs) != 1 or names_in(array):
        raise Unproven(node.generator)
    values = [over({}).typed(e) for e in array.expressions]
    type_ = common(values, node.generator)
    rows = ", ".join(f"({cast(v, type_)})" for v in values)
    columns = {**given.columns("l"), node.outputs[0]: Typed("g.c0", type_)}
    return _listed(columns, f" FROM {given.name} AS l CROSS JOIN (VALUES {rows}) AS g(c0)")


_RANKS: dict[type[exp.Expr], str] = {exp.RowNumber: "row_number()", exp.Rank: "rank()", exp.DenseRank: "dense_rank()"}
_TOTALS = (exp.Count, exp.Sum, exp.Min, exp.Max, exp.Filter)


def _windowed(node: Window, given: _NodeQuery) -> tuple[str, Made]:
    """Equal rows keep the order in which they lie, in Spark in all orders of one SELECT: here in one alone."""
    _require_compared(given, node.partition)
    numberings = [e for _, e in node.items if isinstance(e.this, exp.RowNumber)]
    if any(e.args.get("order") != numberings[0].args.get("order") for e in numberings):
        raise Unproven(numberings[-1])
    values = {**given.columns(), **{n: _window(e, over(given.columns())) for n, e in node.items}}
    return _listed(values, f" FROM {given.name}")


def _window(expression: exp.Expr, given: Expressions) -> Typed:
    """A rank or a total over a partition, up to the current row and its peers if there is an order."""
    if not isinstance(expression, exp.Window) or expression.args.get("spec") or expression.args.get("alias"):
        raise Unproven(expression)
    partition = ", ".join(v.sql for v in given.values(expression.args.get("partition_by") or []))
    order = expression.args.get("order")
    ordered = f" ORDER BY {_order(order.expressions, given)}" if order else ""
    spec = f" OVER ({f'PARTITION BY {partition}' if partition else ''}{ordered})"
    call = expression.this
    if type(call) in _RANKS and ordered:
        return Typed(f"CAST({_RANKS[type(call)]}{spec} AS INTEGER)", INT)
    if isinstance(call, _TOTALS) and not call.find(exp.Distinct):
        return replace(given, suffix=spec).typed(call)
    raise Unproven(expression)


def _order(terms: Sequence[exp.Expr], given: Expressions) -> str:
    """Terms of ORDER BY. A bare expression ascends with NULLs first; `Ordered` always says where NULLs are."""
    texts = []
    for term in terms:
        is_descending = isinstance(term, exp.Ordered) and bool(term.args.get("desc"))
        (value,) = given.values([term.this if isinstance(term, exp.Ordered) else term])
        is_first = bool(term.args.get("nulls_first")) if isinstance(term, exp.Ordered) else True
        texts.append(f"{value.sql} {'DESC' if is_descending else 'ASC'} NULLS {'FIRST' if is_first else 'LAST'}")
    return ", ".join(texts)
