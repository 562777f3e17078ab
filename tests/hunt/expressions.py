"""Random expressions over the columns of a scope, by kind of value, that depend on their row alone.

Kinds are coarse: `int` stands for all integers, `text` for STRING and VARCHAR. Numbers stay small, so that most
expressions can be computed under ANSI too.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

X = TypeVar("X")

# fmt: off
KINDS = {
    "int": "int", "smallint": "int", "tinyint": "int", "bigint": "int", "string": "text", "varchar(6)": "text",
    "double": "double", "float": "double", "date": "date", "timestamp": "ts", "timestamp_ntz": "ntz",
    "boolean": "bool", "decimal(10,2)": "dec", "decimal(20,0)": "dec", "decimal(12,4)": "dec", "array<int>": "arr",
    "map<string,int>": "map", "struct<A:int,b:string>": "struct", "char(3)": "char", "char(5)": "char",
    "binary": "bin", "array<struct<P:int,q:string>>": "items",
}
# fmt: on
SIMPLE = ("int", "text", "double", "dec", "date", "ts", "bool")
ORDERED = (*SIMPLE, "ntz", "char", "bin")  # kinds that can be compared, grouped and sorted


@dataclass
class Draw:
    """Random choices, and the clauses that they led to. `nested` makes a query inside another."""

    random: random.Random
    nested: Callable[[Draw, int], Any]
    clauses: set[str] = field(default_factory=set)
    serial: int = 0

    def pick(self, options: Sequence[X]) -> X:
        return self.random.choice(options)

    def some(self, options: Sequence[X], least: int, most: int) -> list[X]:
        return self.random.sample(options, min(len(options), self.random.randint(least, most)))

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def number(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def clause(self, name: str) -> None:
        self.clauses.add(name)

    def fresh(self, prefix: str) -> str:
        """A name not drawn before, its case mixed."""
        self.serial += 1
        name = f"{prefix}{self.serial}"
        return name.capitalize() if self.chance(0.3) else name


@dataclass(frozen=True)
class Col:
    """A column that an expression may name."""

    ref: str
    kind: str

    @property
    def name(self) -> str:
        return self.ref.rsplit(".", 1)[-1]


@dataclass(frozen=True)
class Scope:
    """Columns in reach. Rows that agree in all of `order` are equal rows; if it is empty, no order is total."""

    columns: tuple[Col, ...]
    order: tuple[str, ...] = ()

    def of(self, *kinds: str) -> list[Col]:
        return [c for c in self.columns if c.kind in kinds]

    def with_outer(self, outer: Scope) -> Scope:
        return Scope(self.columns + outer.columns, self.order)


def cased(g: Draw, ref: str) -> str:
    """A reference, now and then in another case."""
    if g.chance(0.12):
        g.clause("mixed case")
        return ref.upper() if g.chance(0.5) else ref.lower()
    return ref


def column(g: Draw, scope: Scope, *kinds: str) -> str | None:
    found = scope.of(*kinds)
    return cased(g, g.pick(found).ref) if found else None


LITERALS = {
    "int": ("0", "1", "2", "3", "-1", "7", "CAST(NULL AS INT)"),
    "text": ("'a'", "'A'", "''", "'a '", "'ab'", "'b'", '"a"', "'it''s'", r"'a\nb'", "CAST(NULL AS STRING)"),
    "double": ("0.5D", "-0.0D", "1.25D", "CAST('NaN' AS DOUBLE)", "2e0", "CAST(1 AS FLOAT)"),
    "dec": ("1.50", "0.00", "-2.25", "10BD", "CAST(3 AS DECIMAL(10,2))"),
    "date": ("DATE '2024-02-29'", "DATE'2023-12-31'", "DATE '2024-03-10' + 1"),
    "ts": ("TIMESTAMP '2024-03-10 07:00:00Z'", "TIMESTAMP '2024-11-03 01:30:00'", "TIMESTAMP '2024-02-29'"),
    "ntz": ("TIMESTAMP_NTZ '2024-03-10 02:30:00'",),
    "bool": ("true", "false", "CAST(NULL AS BOOLEAN)"),
    "arr": ("array(1, 2)", "array(3)", "CAST(array() AS ARRAY<INT>)", "array(1, NULL)"),
    "map": ("map('a', 1)", "map('K', 2, 'k', 3)"),
    "struct": ("named_struct('A', 1, 'b', 'x')",),
    "char": ("'a'", "'ab'", "'a  '"),
    "bin": ("X'61'", "CAST('ab' AS BINARY)"),
    "items": ("array(named_struct('P', 1, 'q', 'x'))",),
}


def literal(g: Draw, kind: str) -> str:
    return g.pick(LITERALS[kind])


def expression(g: Draw, scope: Scope, kind: str, depth: int = 2) -> str:
    """An expression of a kind."""
    if depth <= 0 or g.chance(0.3):
        found = column(g, scope, kind) if g.chance(0.85) else None
        return found or literal(g, kind)
    makers = _MAKERS[kind]
    return g.pick(makers)(g, scope, depth - 1)


def _e(kind: str) -> Callable[[Draw, Scope, int], str]:
    return lambda g, s, d: expression(g, s, kind, d)


Maker = Callable[[Draw, Scope, int], str]


def _form(pattern: str, *kinds: str, clause: str = "") -> Maker:
    """A maker of the text of a pattern, whose `{}` are expressions of these kinds."""

    def make(g: Draw, scope: Scope, depth: int) -> str:
        if clause:
            g.clause(clause)
        return pattern.format(*(expression(g, scope, kind, depth) for kind in kinds))

    return make


def _case(kind: str) -> Maker:
    def make(g: Draw, s: Scope, d: int) -> str:
        g.clause("CASE")
        a, b = expression(g, s, kind, d), expression(g, s, kind, d)
        match g.number(0, 5):
            case 0:
                return f"CASE WHEN {condition(g, s, d)} THEN {a} ELSE {b} END"
            case 1:
                return f"CASE {expression(g, s, 'int', d)} WHEN 1 THEN {a} WHEN {literal(g, 'int')} THEN {b} END"
            case 2:
                return f"if({condition(g, s, d)}, {a}, {b})"
            case 3:
                return f"{g.pick(('coalesce', 'nvl', 'ifnull'))}({a}, {b})"
            case 4:
                return f"decode({expression(g, s, 'int', d)}, 1, {a}, 2, {b})"
        return f"nullif({a}, {b})"

    return make


def _operators(symbols: Sequence[str], kind: str, least: int = 2, most: int = 4) -> Maker:
    """Operands with operators of several precedences between them, without brackets."""

    def make(g: Draw, s: Scope, _: int) -> str:
        g.clause("operators")
        operands = [_operand(g, s, kind) for _ in range(g.number(least, most))]
        text = operands[0]
        for operand in operands[1:]:
            text += f" {g.pick(symbols)} {operand}"
        return text

    return make


def _operand(g: Draw, s: Scope, kind: str) -> str:
    text = (column(g, s, kind) if g.chance(0.7) else None) or literal(g, kind)
    return f"{g.pick(('-', '+', '~'))}{text}" if kind == "int" and g.chance(0.1) and text[0].isalnum() else text


def _higher_order(pattern: str, *kinds: str) -> Maker:
    """A maker of a call with a lambda: `$` stands for its variable, whose name may be that of a column."""

    def make(g: Draw, s: Scope, d: int) -> str:
        g.clause("lambda")
        shadowed = [c.name for c in s.of("int", "text") if c.name.isidentifier()]
        variable = g.pick(("x", "e", "v_2", "K", *shadowed[:3]))
        filled = pattern.format(*(expression(g, s, kind, d) for kind in kinds))
        return filled.replace("$", variable)

    return make


def _member(options: Sequence[tuple[str, str]]) -> Maker:
    """A maker of an access to a part of a nested column: (kind, pattern)."""

    def make(g: Draw, s: Scope, _: int) -> str:
        g.clause("access")
        usable = [(k, p) for k, p in options if s.of(k)]
        if not usable:
            return literal(g, "int")
        kind, pattern = g.pick(usable)
        return pattern.format(cased(g, g.pick(s.of(kind)).ref))

    return make


def condition(g: Draw, scope: Scope, depth: int = 2) -> str:
    """A boolean expression."""
    if depth <= 0:
        return _comparison(g, scope, 0)
    return g.pick(_MAKERS["bool"])(g, scope, depth - 1)


def _comparison(g: Draw, s: Scope, d: int) -> str:
    kind = g.pick([k for k in ORDERED if s.of(k)] or ["int"])
    other = kind
    if g.chance(0.15):
        g.clause("conversion")
        other = g.pick(
            {"int": ("double", "dec"), "date": ("ts",), "ts": ("date",), "char": ("text", "char")}.get(kind, (kind,))
        )
    a, b = expression(g, s, kind, d), expression(g, s, other, d)
    match g.number(0, 9):
        case 0:
            return f"{a} IS {g.pick(('', 'NOT '))}NULL"
        case 1:
            return f"{a} {g.pick(('', 'NOT '))}BETWEEN {b} AND {expression(g, s, kind, d)}"
        case 2:
            return f"{a} {g.pick(('', 'NOT '))}IN ({b}, {literal(g, kind)}, {literal(g, kind)})"
        case 3:
            return f"{a} <=> {b}"
        case 4:
            return f"{a} IS {g.pick(('', 'NOT '))}DISTINCT FROM {b}"
    return f"{a} {g.pick(('=', '<>', '!=', '<', '<=', '>', '>=', '=='))} {b}"


def _logic(g: Draw, s: Scope, d: int) -> str:
    g.clause("operators")
    parts = [f"{g.pick(('', '', 'NOT ', '! '))}{condition(g, s, min(d, 1))}" for _ in range(g.number(2, 3))]
    text = parts[0]
    for part in parts[1:]:
        text += f" {g.pick(('AND', 'OR'))} {part}"
    return text


def _likes(g: Draw, s: Scope, d: int) -> str:
    a = expression(g, s, "text", d)
    pattern = g.pick(
        (
            "LIKE 'a%'",
            "LIKE '%_b%'",
            "ILIKE 'A%'",
            "RLIKE '^[ab]+$'",
            "LIKE ANY ('a%', '%b')",
            "NOT LIKE ALL ('a', 'b%')",
            r"LIKE 'a\\%'",
            "LIKE '!%' ESCAPE '!'",
        )
    )
    return f"{a} {pattern}"


# fmt: off
_MAKERS: dict[str, list[Maker]] = {
    "int": [
        _operators(("+", "-", "*", "%", "&", "|", "^", "DIV"), "int"),
        _operators(("+", "-", "*"), "int"),
        _form("length({})", "text"), _form("abs({})", "int"), _form("CAST({} AS BIGINT)", "int"),
        _form("try_cast({} AS SMALLINT)", "int"), _form("year({})", "date"), _form("hour({})", "ts"),
        _form("datediff({}, {})", "date", "date"), _form("size({})", "arr"), _form("extract(DAY FROM {})", "date"),
        _form("try_cast({} AS INT)", "text", clause="CAST"), _form("CAST({} AS INT)", "bool", clause="CAST"),
        _form("position('a' IN {})", "text"), _form("hash({})", "text"), _form("cardinality({})", "arr"),
        _form("floor({})", "dec"), _form("{}::bigint", "int", clause="CAST"), _form("CAST(sign({}) AS INT)", "int"),
        _form("least({}, {})", "int", "int"), _form("greatest({}, {}, 1)", "int", "int"),
        _form("try_element_at({}, 1)", "arr"), _form("get({}, 0)", "arr"), _form("try_element_at({}, 'a')", "map"),
        _form("date_part('month', {})", "ts"), _form("bit_count({})", "int"), _form("array_position({}, 1)", "arr"),
        _member((("struct", "{}.A"), ("struct", "{}.a"), ("map", "{}['a']"), ("map", "{}.K"), ("map", "{}.k"),
                 ("map", "{}['K']"), ("arr", "get({}, 1)"), ("items", "size({}.P)"), ("items", "get({}, 0).p"))),
        _higher_order("aggregate({}, 0, (acc, $) -> acc + coalesce($, 0))", "arr"),
        _higher_order("size(filter({}, $ -> $ > {}))", "arr", "int"),
        _case("int"), _case("int"),
    ],
    "text": [
        _operators(("||",), "text", 2, 3), _form("upper({})", "text"), _form("lower({})", "text"),
        _form("trim({})", "text"), _form("substring({}, 1, 1)", "text"), _form("substr({} FROM 2 FOR 1)", "text"),
        _form("concat({}, {})", "text", "text"), _form("concat_ws('-', {}, {})", "text", "int"),
        _form("replace({}, 'a', 'B')", "text"), _form("CAST({} AS STRING)", "int", clause="CAST"),
        _form("CAST({} AS STRING)", "dec", clause="CAST"), _form("date_format({}, 'yyyy-MM')", "date"),
        _form("CAST({} AS STRING)", "ts", clause="CAST"), _form("lpad({}, 3, '*')", "text"), _form("rtrim({})", "char"),
        _form("{} || '|' || {}", "char", "text"), _form("to_json(struct({}, {}))", "int", "text"),
        _form("to_json(named_struct('userId', {}, 'Name', {}))", "int", "text"), _form("typeof({})", "int"),
        _form("array_join(transform({}, z -> CAST(z AS STRING)), ',', '-')", "arr", clause="lambda"),
        _form("trim(LEADING 'a' FROM {})", "text"), _form("overlay({} PLACING 'x' FROM 1)", "text"),
        _form("regexp_replace({}, '[ab]', '$0$0')", "text"), _form("hex({})", "bin"),
        _form("CAST({} AS CHAR(3))", "text"),
        _form("split({}, '')[0]", "text"), _form("format_number({}, 2)", "dec"), _form("{}::string", "bool"),
        _member((("struct", "{}.b"), ("struct", "{}.B"), ("struct", "to_json({})"), ("items", "{}.q[0]"),
                 ("map", "to_json({})"), ("struct", "CAST({} AS STRING)"), ("items", "to_json({})"))),
        _case("text"), _case("text"),
    ],
    "double": [
        _operators(("+", "-", "*"), "double", 2, 3), _form("abs({})", "double"), _form("CAST({} AS DOUBLE)", "int"),
        _form("CAST({} AS FLOAT)", "double"), _form("nanvl({}, 0.5D)", "double"), _form("-{}", "double"),
        _form("{} / 2", "int"), _form("CAST({} AS DOUBLE)", "dec"), _form("try_divide({}, {})", "int", "int"),
        _form("round({}, 1)", "double"), _case("double"),
    ],
    "dec": [
        _operators(("+", "-", "*"), "dec", 2, 3), _form("round({}, 1)", "dec"),
        _form("CAST({} AS DECIMAL(12,3))", "int"),
        _form("abs({})", "dec"), _form("try_divide({}, {})", "dec", "dec"), _form("{} * {}", "int", "dec"),
        _form("try_cast({} AS DECIMAL(4,1))", "text", clause="CAST"), _case("dec"), _form("bround({}, 0)", "dec"),
    ],
    "date": [
        _form("date_add({}, CAST({} % 9 AS INT))", "date", "int"),
        _form("{} + INTERVAL 1 MONTH", "date", clause="interval"),
        _form("last_day({})", "date"), _form("CAST({} AS DATE)", "ts", clause="CAST"), _form("trunc({}, 'MM')", "date"),
        _form("add_months({}, 1)", "date"), _form("to_date({})", "ts"), _form("{} - 30", "date"), _case("date"),
        _form("try_to_date({}, 'yyyy')", "text"), _form("next_day({}, 'MO')", "date"),
    ],
    "ts": [
        _form("{} + INTERVAL '1' DAY", "ts", clause="interval"), _form("date_trunc('DAY', {})", "ts"),
        _form("CAST({} AS TIMESTAMP)", "date", clause="CAST"),
        _form("{} - INTERVAL 90 MINUTES", "ts", clause="interval"),
        _form("from_utc_timestamp({}, 'Asia/Kolkata')", "ts"), _form("CAST({} AS TIMESTAMP)", "ntz", clause="CAST"),
        _form("timestampadd(HOUR, {} % 5, {})", "int", "ts"), _case("ts"), _form("date_trunc('HOUR', {})", "ts"),
    ],
    "ntz": [
        _form("{} + INTERVAL '1' HOUR", "ntz", clause="interval"), _form("CAST({} AS TIMESTAMP_NTZ)", "ts"),
        _case("ntz"),
    ],
    "bool": [
        _comparison, _comparison, _comparison, _comparison, _logic, _logic, _likes,
        _form("({}) IS TRUE", "bool"), _form("({}) IS NOT FALSE", "bool"), _form("NOT {}", "bool"),
        _operators(("=", "<>", "<", ">=", "AND", "OR", "<=>"), "bool", 2, 3),
        _form("array_contains({}, {})", "arr", "int"), _form("isnan({})", "double"), _form("isnull({})", "text"),
        _form("contains({}, {})", "text", "text"), _form("startswith({}, 'a')", "text"),
        _form("{} + {} > {} * 2", "int", "int", "int"), _form("{} & 1 = 0", "int"),
        _form("map_contains_key({}, 'a')", "map"), _form("struct({}, {}) = struct({}, 'a')", "int", "text", "int"),
        _higher_order("exists({}, $ -> $ = {})", "arr", "int"),
        _higher_order("forall({}, $ -> $ IS NULL OR $ > 0)", "arr"),
        _form("{} IN ('a', 'ab')", "char"), _form("{} = 'a'", "char"), _form("{} = {}", "char", "char"), _case("bool"),
    ],
    "arr": [
        _form("array({}, {})", "int", "int"), _form("sort_array({})", "arr"), _form("array_distinct({})", "arr"),
        _form("slice({}, 1, 1)", "arr"), _form("array_union({}, {})", "arr", "arr"), _form("reverse({})", "arr"),
        _higher_order("transform({}, $ -> $ + {})", "arr", "int"),
        _higher_order("filter({}, $ -> $ IS NOT NULL)", "arr"),
        _higher_order("transform({}, ($, i) -> i)", "arr"),
        _higher_order("zip_with({}, {}, ($, y) -> $)", "arr", "arr"),
        _higher_order("array_sort({}, (l, r) -> CASE WHEN l < r THEN 1 WHEN l > r THEN -1 ELSE 0 END)", "arr"),
        _form("sequence(1, {} & 3)", "int"), _form("flatten(array({}, {}))", "arr", "arr"),
        _member((("items", "{}.P"), ("items", "{}.p"), ("map", "sort_array(map_values({}))"))), _case("arr"),
    ],
    "map": [
        _form("map('x', {})", "int"), _higher_order("map_filter({}, ($, y) -> $ > 'A')", "map"),
        _higher_order("transform_values({}, ($, y) -> y + 1)", "map"),
        _form("map_from_arrays(array('a'), array({}))", "int"),
        _form("str_to_map('a:1')"), _case("map"),
    ],
    "struct": [
        _form("named_struct('A', {}, 'b', {})", "int", "text"), _form("struct({} AS A, {} AS b)", "int", "text"),
        _form("CAST({} AS STRUCT<A: INT, b: STRING>)", "struct", clause="CAST"), _case("struct"),
    ],
    "char": [_form("CAST({} AS CHAR(4))", "char", clause="CAST"), _case("char"), _form("{}", "char")],
    "bin": [_form("CAST({} AS BINARY)", "text", clause="CAST"), _form("unhex(hex({}))", "text"), _case("bin")],
    "items": [
        _higher_order("transform({}, $ -> named_struct('P', $.P, 'q', upper($.q)))", "items"),
        _higher_order("filter({}, $ -> $.p > 0)", "items"), _case("items"),
        _form("array(named_struct('P', {}, 'q', {}))", "int", "text"),
    ],
}
# fmt: on


def odd_expression(g: Draw, s: Scope) -> tuple[str, str]:
    """An expression whose parts keep their names or order inside a value, with its kind."""
    a, b = expression(g, s, "int", 1), expression(g, s, "text", 1)
    arrays = [c.ref for c in s.of("arr", "items")]
    options: list[tuple[str, str]] = [
        (f"struct({a} AS First, {b} AS second)", "other"),
        (f"to_json(struct({a} AS userId))", "text"),
        (f"named_struct('X', {a}, 'y', named_struct('Z', {b}))", "other"),
        (f"map({a}, {b})", "other"),
        (f"array(struct({a}, {b}))", "other"),
        (f"CAST(named_struct('A', {a}) AS STRUCT<X: BIGINT>)", "other"),
        ("from_json('{\"A\":1}', 'A INT, b STRING')", "other"),
        (f"to_csv(struct({a}, {b}))", "text"),
        (f"split({b}, 'a')", "other"),
        (f"xxhash64({a}, {b})", "int"),
        (f"{a} & 3 || 1", "text"),
        (f"map_from_entries(array(struct({b}, {a})))", "other"),
    ]
    if arrays:
        options += [
            (f"arrays_zip({g.pick(arrays)}, {g.pick(arrays)})", "other"),
            (f"to_json(arrays_zip({g.pick(arrays)}))", "text"),
        ]
    bare = [c.ref for c in s.columns if "." not in c.ref and c.kind in SIMPLE]
    if bare:
        options += [
            (f"to_json(struct({g.pick(bare)}))", "text"),
            (f"struct({', '.join(sorted(set(g.some(bare, 1, 3))))})", "other"),
        ]
    g.clause("nested value")
    return g.pick(options)


def items(g: Draw, s: Scope, kinds: Iterable[str], depth: int = 2) -> list[tuple[str, str]]:
    """Expressions of these kinds, with them."""
    return [(expression(g, s, kind, depth), kind) for kind in kinds]
