"""What the algebra means, in plain Python: bags are Counters of tuples, numbers are exact.

It shares no code with the delta rules, the rendering or Spark. A node is evaluated as its definition says;
a scalar expression by SQL's three-valued logic, where None is NULL and, in a condition, unknown.

A DOUBLE is kept by its bits (`Double`). Bags tell −0.0 from 0.0; SQL does not: they are equal, and grouping,
DISTINCT and set operations give 0.0 for both. NaN equals NaN and is greater than every number. So it is in Spark.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

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

Row = tuple[Any, ...]
Bag = Counter[Row]
Env = Mapping[str, Any]
Read = Callable[[Scan], Bag]  # the rows of a scan, columns in the scan's order, a delta's weight last


class TooManyRows(Exception):
    """raise_error was called."""


@dataclass(frozen=True)
class Double:
    """A floating-point number that equals itself by its bits: NaN is NaN, −0.0 is not 0.0."""

    text: str

    @classmethod
    def of(cls, value: float) -> Double:
        return cls(repr(value))

    @property
    def value(self) -> float:
        return float(self.text)

    def __neg__(self) -> Double:
        return Double.of(-self.value)


def normal(value: Any) -> Any:
    """What grouping makes of a value: −0.0 is 0.0."""
    return Double("0.0") if value == Double("-0.0") else value


def rank(value: Any) -> Any:
    """What SQL compares of a value: NaN is above all numbers, −0.0 is 0.0."""
    if isinstance(value, Double):
        return (1, 0.0) if value.text == "nan" else (0, value.value + 0.0)
    if isinstance(value, tuple):  # a struct: field by field, NULL first
        return tuple((v is not None, rank(v)) for _, v in value)
    return value


def _normal_rows(bag: Bag) -> Bag:
    result: Bag = Counter()
    for row, n in bag.items():
        result[tuple(map(normal, row))] += n
    return result


# -- nodes -----------------------------------------------------------------------------------------


def evaluate(root: Node, read: Read) -> Bag:
    """The bag that a tree stands for."""
    known: dict[int, Bag] = {}

    def of(node: Node) -> Bag:
        if id(node) not in known:
            known[id(node)] = _evaluate(node, [of(i) for i in node.inputs], read)
        return known[id(node)]

    return of(root)


def signed(root: Node, read: Read) -> Bag:
    """A delta as rows with their net weight; rows of weight 0 are left out."""
    assert root.columns[-1] == WEIGHT
    result: Bag = Counter()
    for row, copies in evaluate(root, read).items():
        result[row[:-1]] += copies * row[-1]
    return nonzero(result)


def nonzero(bag: Bag) -> Bag:
    return Counter({row: n for row, n in bag.items() if n})


def plus(bag: Bag, change: Bag) -> Bag:
    """Bag arithmetic that shows negative counts instead of hiding them."""
    result = Counter(bag)
    for row, n in change.items():
        result[row] += n
    return nonzero(result)


def _evaluate(node: Node, inputs: list[Bag], read: Read) -> Bag:
    match node:
        case Scan():
            return Counter(read(node))
        case Values():
            return Counter(tuple(scalar(v, {}) for v in row) for row in node.rows)
        case Filter():
            names = node.input.columns
            return Counter({r: n for r, n in inputs[0].items() if scalar(node.predicate, _env(names, r)) is True})
        case Project():
            return _projected(node, inputs[0])
        case Join():
            return _joined(node, *inputs)
        case Aggregate():
            return _grouped(node, inputs[0])
        case Union():
            return Counter(row for bag in inputs for row in bag.elements())
        case SetOperation(kind="except"):
            return _normal_rows(inputs[0]) - _normal_rows(inputs[1])
        case SetOperation(kind="intersect"):
            return _normal_rows(inputs[0]) & _normal_rows(inputs[1])
        case Window():
            return _windowed(node, inputs[0])
        case Generate():
            return _generated(node, inputs[0])
        case TopK():
            envs: list[Env] = [_env(node.columns, r) for r in inputs[0].elements()]
            end = None if node.limit is None else node.offset + node.limit
            kept = ordered(envs, node.order)[node.offset : end]
            return Counter(tuple(e[c] for c in node.columns) for e in kept)
    raise TypeError(type(node).__name__)


def _env(names: Iterable[str], row: Row) -> dict[str, Any]:
    return dict(zip(names, row, strict=True))


def _projected(node: Project, bag: Bag) -> Bag:
    result: Bag = Counter()
    for row, n in bag.items():
        env = _env(node.input.columns, row)
        result[tuple(scalar(e, env) for _, e in node.items)] += n
    return result


def _joined(node: Join, left: Bag, right: Bag) -> Bag:
    result: Bag = Counter()
    for a, n in left.items():
        env = _env(node.left.columns, a)
        matches = [(b, m) for b, m in right.items() if _matches(node, env, b)]
        if node.kind in ("inner", "left"):
            for b, m in matches:
                result[a + b] += n * m
        if node.kind == "left" and not matches:
            result[a + (None,) * len(node.right.columns)] += n
        if node.kind in ("semi", "anti") and bool(matches) == (node.kind == "semi"):
            result[a] += n
    return result


def _matches(node: Join, env: Env, right: Row) -> bool:
    return node.condition is None or scalar(node.condition, {**env, **_env(node.right.columns, right)}) is True


def _grouped(node: Aggregate, bag: Bag) -> Bag:
    groups: dict[Row, list[Env]] = {} if node.keys else {(): []}
    for row in bag.elements():
        env = _env(node.input.columns, row)
        groups.setdefault(tuple(normal(env[k]) for k in node.keys), []).append(env)
    return Counter(key + tuple(aggregate(e, envs) for _, e in node.items) for key, envs in groups.items())


def _windowed(node: Window, bag: Bag) -> Bag:
    partitions: dict[Row, list[Env]] = {}
    env: Env
    for row in bag.elements():
        env = _env(node.input.columns, row)
        partitions.setdefault(tuple(normal(env[k]) for k in node.partition), []).append(env)
    result: Bag = Counter()
    for envs in partitions.values():
        values: dict[int, list[Any]] = {id(e): [] for e in envs}
        for _, call in node.items:
            assert isinstance(call, exp.Window)
            for env, value in window(call, envs):
                values[id(env)].append(value)
        for env in envs:
            result[tuple(env[c] for c in node.input.columns) + tuple(values[id(env)])] += 1
    return result


def _generated(node: Generate, bag: Bag) -> Bag:
    result: Bag = Counter()
    for row, n in bag.items():
        values = scalar(node.generator.this, _env(node.input.columns, row))
        made: list[Row] = [(v,) for v in values or ()]
        if isinstance(node.generator, exp.Posexplode):
            made = [(i, v) for i, (v,) in enumerate(made)]
        if node.outer and not made:
            made = [(None,) * len(node.outputs)]
        for extra in made:
            result[row + extra] += n
    return result


# -- order and windows -----------------------------------------------------------------------------


def ordered(envs: list[Env], terms: Iterable[exp.Expr]) -> list[Env]:
    """Rows in order. Ties are broken by the whole row, so that equal inputs give equal outputs."""
    order = list(terms)

    def compare(a: Env, b: Env) -> int:
        return _compare(a, b, order) or _sign(repr(sorted(a.items())), repr(sorted(b.items())))

    return sorted(envs, key=functools.cmp_to_key(compare))


def _compare(a: Env, b: Env, order: list[exp.Expr]) -> int:
    for term in order:
        x, y = rank(scalar(term.this, a)), rank(scalar(term.this, b))
        if x == y:
            continue
        if x is None or y is None:
            return -1 if (x is None) == bool(term.args.get("nulls_first")) else 1
        return -_sign(x, y) if term.args.get("desc") else _sign(x, y)
    return 0


def _sign(x: Any, y: Any) -> int:
    return bool(x > y) - bool(x < y)


def window(call: exp.Window, partition: list[Env]) -> list[tuple[Env, Any]]:
    """A window function's value for each row of one partition."""
    order = list(call.args["order"].expressions) if call.args.get("order") else []
    rows = ordered(partition, order)
    function = call.this
    return [(env, _window_value(function, i, rows, order, call.args.get("spec"))) for i, env in enumerate(rows)]


def _window_value(function: exp.Expr, i: int, rows: list[Env], order: list[exp.Expr], spec: Any) -> Any:
    if isinstance(function, exp.RowNumber):
        return i + 1
    if isinstance(function, exp.Rank):
        return 1 + sum(_compare(r, rows[i], order) < 0 for r in rows)
    if isinstance(function, exp.DenseRank):
        before = [r for r in rows if _compare(r, rows[i], order) < 0]
        return 1 + sum(all(_compare(r, x, order) for x in before[:k]) for k, r in enumerate(before))
    if isinstance(function, exp.Lag | exp.Lead):
        offset = int(function.args["offset"].name) if function.args.get("offset") else 1
        at = i - offset if isinstance(function, exp.Lag) else i + offset
        if 0 <= at < len(rows):
            return scalar(function.this, rows[at])
        default = function.args.get("default")
        return scalar(default, rows[i]) if default is not None else None
    frame = _frame(i, rows, order, spec)
    if isinstance(function, exp.FirstValue):
        return scalar(function.this, frame[0]) if frame else None
    if isinstance(function, exp.LastValue):
        return scalar(function.this, frame[-1]) if frame else None
    return aggregate(function, frame)


def _frame(i: int, rows: list[Env], order: list[exp.Expr], spec: Any) -> list[Env]:
    if spec is None:
        return [r for r in rows if _compare(r, rows[i], order) <= 0]
    start, end = (_bound(spec, side) for side in ("start", "end"))
    if str(spec.args["kind"]).upper() == "ROWS":
        return rows[max(i + start, 0) : max(i + end + 1, 0)]
    return [
        r
        for r in rows
        if (start < 0 or _compare(r, rows[i], order) >= 0) and (end > 0 or _compare(r, rows[i], order) <= 0)
    ]


def _bound(spec: exp.Expr, side: str) -> int:
    value = spec.args.get(side)
    if value is None or str(value) == "CURRENT ROW":
        return 0
    far = 1_000_000 if str(value) == "UNBOUNDED" else int(value.name)
    return -far if spec.args.get(f"{side}_side") == "PRECEDING" else far


# -- aggregates ------------------------------------------------------------------------------------


def aggregate(call: exp.Expr, envs: list[Env]) -> Any:
    """An aggregate call over the rows of one group."""
    if isinstance(call, exp.Filter):
        return aggregate(call.this, [e for e in envs if scalar(call.expression.this, e) is True])
    argument = call.this
    if isinstance(call, exp.ArgMax | exp.ArgMin):
        pairs = [(scalar(call.expression, e), scalar(argument, e)) for e in envs]
        pairs = [p for p in pairs if p[0] is not None]
        best = max if isinstance(call, exp.ArgMax) else min
        return best(pairs, key=lambda p: rank(p[0]))[1] if pairs else None
    if isinstance(argument, exp.Star):
        return len(envs)
    distinct = isinstance(argument, exp.Distinct)
    several = argument.expressions if distinct else [argument, *call.expressions]
    rows = [tuple(scalar(a, e) for a in several) for e in envs]
    rows = [r for r in rows if None not in r]
    if distinct:
        rows = list({tuple(map(normal, r)) for r in rows})
    if isinstance(call, exp.Count):
        return len(rows)
    values = [v for (v,) in rows]
    if isinstance(call, exp.CountIf):
        return sum(v is True for v in values)
    if not values:
        return None
    match call:
        case exp.Sum():
            return sum(values)
        case exp.Avg():
            return Fraction(sum(values), len(values))
        case exp.Min():
            return min(values, key=_decided)
        case exp.Max():
            return max(values, key=_decided)
        case exp.LogicalAnd():
            return all(values)
        case exp.LogicalOr():
            return any(values)
    raise NotImplementedError(call.sql(dialect="spark"))


def _decided(value: Any) -> Any:
    """Order among values of one type. Of −0.0 and 0.0 Spark takes the one it meets first; here always the same."""
    return (rank(value), repr(value)) if isinstance(value, Double | tuple) else value


# -- scalar expressions ----------------------------------------------------------------------------


def scalar(tree: exp.Expr, env: Env) -> Any:
    """An expression over one row. None is NULL."""
    operator = _STRICT.get(type(tree))
    if operator is not None:
        arguments = [scalar(tree.args[k], env) for k in ("this", "expression") if tree.args.get(k) is not None]
        return None if None in arguments else operator(*arguments)
    match tree:
        case exp.Column():
            name: str = tree.this.this
            return env[name]
        case exp.Literal():
            return tree.name if tree.is_string else _number(tree.name)
        case exp.Null():
            return None
        case exp.Boolean():
            return bool(tree.this)
        case exp.Cast() if tree.to.this == exp.DataType.Type.DOUBLE:
            value = scalar(tree.this, env)
            return value if value is None or isinstance(value, Double) else Double.of(float(value))
        case exp.Cast() if tree.to.this == exp.DataType.Type.TEXT:  # of doubles, which have an order by their texts
            value = scalar(tree.this, env)
            return value.text if isinstance(value, Double) else value
        case exp.Paren() | exp.Cast():  # values carry no width here: a cast between numbers changes nothing
            return scalar(tree.this, env)
        case exp.And() | exp.Or():
            sides = [scalar(s, env) for s in (tree.this, tree.expression)]
            strong = isinstance(tree, exp.Or)
            return strong if strong in sides else None if None in sides else not strong
        case exp.Not():
            value = scalar(tree.this, env)
            return None if value is None else not value
        case exp.Is() | exp.NullSafeEQ():
            return rank(scalar(tree.this, env)) == rank(scalar(tree.expression, env))
        case exp.In():
            return _in(scalar(tree.this, env), [scalar(e, env) for e in tree.expressions])
        case exp.Between():
            value, low, high = (scalar(tree.args[k], env) for k in ("this", "low", "high"))
            return _and(_less(low, value), _less(value, high))
        case exp.Case():
            return _case(tree, env)
        case exp.If():
            chosen = tree.args["true"] if scalar(tree.this, env) is True else tree.args.get("false")
            return scalar(chosen, env) if chosen is not None else None
        case exp.Coalesce():
            values = (scalar(e, env) for e in (tree.this, *tree.expressions))
            return next((v for v in values if v is not None), None)
        case exp.Nullif():
            a, b = scalar(tree.this, env), scalar(tree.expression, env)
            return None if rank(a) == rank(b) else a
        case exp.Struct():
            return tuple((f.name, scalar(f.expression, env)) for f in tree.expressions)
        case exp.Dot():
            fields = scalar(tree.this, env)
            return None if fields is None else dict(fields)[tree.expression.name]
        case exp.Array():
            return [scalar(e, env) for e in tree.expressions]
        case exp.Anonymous() if tree.name.lower() == "raise_error":
            raise TooManyRows
    raise NotImplementedError(f"{type(tree).__name__}: {tree.sql(dialect='spark')}")


def _number(text: str) -> int | Fraction:
    return int(text) if re.fullmatch(r"-?\d+", text) else Fraction(text)


def _fraction(value: Any) -> Fraction:
    return Fraction(value.value if isinstance(value, Double) else value)


def _case(tree: exp.Case, env: Env) -> Any:
    subject = scalar(tree.this, env) if tree.this is not None else None
    for branch in tree.args["ifs"]:
        test = scalar(branch.this, env)
        hit = (subject is not None and rank(test) == rank(subject)) if tree.this is not None else test is True
        if hit:
            return scalar(branch.args["true"], env)
    return scalar(tree.args["default"], env) if tree.args.get("default") is not None else None


def _in(value: Any, members: list[Any]) -> bool | None:
    if value is None:
        return None
    return True if rank(value) in [rank(m) for m in members if m is not None] else None if None in members else False


def _less(a: Any, b: Any) -> bool | None:
    return None if a is None or b is None else rank(a) <= rank(b)


def _and(a: bool | None, b: bool | None) -> bool | None:
    return False if False in (a, b) else None if None in (a, b) else True


def _like(value: str, pattern: str) -> bool:
    parts = [".*" if c == "%" else "." if c == "_" else re.escape(c) for c in pattern]
    return re.fullmatch("".join(parts), value, re.DOTALL) is not None


_STRICT: dict[type[exp.Expr], Callable[..., Any]] = {  # NULL in, NULL out
    exp.Add: lambda a, b: a + b,
    exp.Sub: lambda a, b: a - b,
    exp.Mul: lambda a, b: a * b,
    exp.Div: lambda a, b: _fraction(a) / _fraction(b),
    exp.Neg: lambda a: -a,
    exp.Abs: abs,
    exp.EQ: lambda a, b: rank(a) == rank(b),
    exp.NEQ: lambda a, b: rank(a) != rank(b),
    exp.LT: lambda a, b: rank(a) < rank(b),
    exp.LTE: lambda a, b: rank(a) <= rank(b),
    exp.GT: lambda a, b: rank(a) > rank(b),
    exp.GTE: lambda a, b: rank(a) >= rank(b),
    exp.Like: _like,
    exp.Upper: str.upper,
    exp.Lower: str.lower,
}
