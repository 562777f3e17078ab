"""Random views and random data: SELECTs that use every operator, over three small tables with NULLs, duplicates,
and doubles that are NaN, infinite or −0.0.

Texts are Spark SQL that DuckDB understands after translation, so that meaning can be checked against it too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from hypothesis import strategies as st
from tests.unit.algebra.oracle import Bag, Double, Row, nonzero, plus

from freshview.algebra.nodes import Lowered, Scan, Stored
from freshview.sql.lowering import lower

SCHEMAS: dict[str, tuple[str, ...]] = {"t": ("a", "b", "c", "x"), "u": ("a", "d"), "v": ("b", "d", "y")}
KINDS = {"c": "text", "x": "double", "y": "double"}  # the other columns are integers
Columns = list[tuple[str, str]]  # (reference, "int" | "text" | "double")
State = Mapping[str, Bag]

_ints = st.sampled_from([None, 0, 1, 2])
_texts = st.sampled_from([None, "x", "y"])
_doubles = st.sampled_from([None, *map(Double, ("0.0", "-0.0", "1.5", "nan", "inf", "-inf"))])
VALUES = {"int": _ints, "text": _texts, "double": _doubles}


@lru_cache(256)
def lowered_view(text: str) -> Lowered:
    """The algebra of a view over these tables. It does not change, so all examples of one text share it."""
    return lower(text, SCHEMAS)


def kind_of(column: str) -> str:
    return KINDS.get(column, "int")


def _rows(table: str, most: int) -> st.SearchStrategy[list[Row]]:
    return st.lists(st.tuples(*(VALUES[kind_of(c)] for c in SCHEMAS[table])), max_size=most)


@st.composite
def states(draw: st.DrawFn, count: int) -> list[dict[str, Bag]]:
    """A run of states of all tables, each from the one before by statements on some of them."""
    found = [{t: Counter(draw(_rows(t, 5))) for t in SCHEMAS}]
    for _ in range(count - 1):
        state = dict(found[-1])
        for table in draw(st.sets(st.sampled_from(sorted(SCHEMAS)), min_size=1)):
            for _ in range(draw(st.integers(1, 2))):
                state[table] = changed(draw, table, state[table])
        found.append(state)
    return found


def changed(draw: st.DrawFn, table: str, bag: Bag) -> Bag:
    """A table after one INSERT, DELETE or UPDATE of some rows, or after both of the first."""
    rows = sorted(bag.elements(), key=repr)
    chosen = draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    hit, rest = ([r for r, c in zip(rows, chosen, strict=True) if c is side] for side in (True, False))
    match draw(st.sampled_from(["replace", "insert", "delete", "update"])):
        case "insert":
            return bag + Counter(draw(_rows(table, 3)))
        case "delete":
            return Counter(rest)
        case "update":
            place = draw(st.integers(0, len(SCHEMAS[table]) - 1))
            value = draw(VALUES[kind_of(SCHEMAS[table][place])])
            return Counter(rest + [(*r[:place], value, *r[place + 1 :]) for r in hit])
    return Counter(rest + draw(_rows(table, 2)))


@dataclass(frozen=True)
class Change:
    """Two states and what lies between them; `noise` adds rows that come and go within the change.

    `stored` are a view's own columns and rows in the old state.
    """

    old: State
    new: State
    noise: Mapping[str, Iterable[Row]] = field(default_factory=dict)
    schemas: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: SCHEMAS)
    stored: tuple[tuple[str, ...], Bag] = ((), Counter())

    @property
    def changed(self) -> set[str]:
        return {t for t in self.schemas if self.old[t] != self.new[t] or self.noise.get(t)}

    def read(self, scan: Scan) -> Bag:
        """The rows of a scan, whatever its version."""
        if isinstance(scan.source, Stored):
            return _picked(scan, *self.stored)
        columns = self.schemas[scan.relation]
        if scan.version == "delta":
            return _picked(scan, columns, self.rows_of(scan.relation))
        return _picked(scan, columns, (self.new if scan.version == "new" else self.old)[scan.relation])

    def rows_of(self, table: str) -> Bag:
        """The changed rows of a table, each with its weight at the end."""
        net = plus(self.new[table], Counter({r: -n for r, n in self.old[table].items()}))
        rows = Counter({(*r, 1 if n > 0 else -1): abs(n) for r, n in net.items()})
        for row in self.noise.get(table, ()):
            rows.update([(*row, 1), (*row, -1)])
        return rows


def _picked(scan: Scan, columns: tuple[str, ...], bag: Bag) -> Bag:
    places = [columns.index(c) for c, _ in scan.fields] + ([len(columns)] if scan.version == "delta" else [])
    result: Bag = Counter()
    for row, n in bag.items():
        result[tuple(row[p] for p in places)] += n
    return nonzero(result)


def reading(state: State) -> Any:
    """How a definition reads one state."""
    return Change(state, state).read


@st.composite
def noises(draw: st.DrawFn) -> dict[str, list[Row]]:
    return {t: draw(_rows(t, 1)) for t in draw(st.sets(st.sampled_from(sorted(SCHEMAS)), max_size=1))}


@st.composite
def views(draw: st.DrawFn, *, portable: bool = False) -> str:
    """A random SELECT. `portable` leaves out what Spark and DuckDB do differently."""
    return _Writer(draw, portable).query(2)[0]


_CONSTANTS = {"int": ("0", "1"), "text": ("'x'",), "double": ("1.5D", "CAST('NaN' AS DOUBLE)")}


class _Writer:
    """Writes one SELECT, from choices that Hypothesis draws."""

    def __init__(self, draw: st.DrawFn, portable: bool) -> None:
        self._draw = draw
        self._portable = portable
        self._aliases = 0
        self._ctes: list[tuple[str, Columns]] = []

    def pick(self, *options: Any) -> Any:
        return self._draw(st.sampled_from(options))

    def rarely(self, one_in: int = 4) -> bool:
        return bool(self._draw(st.integers(0, one_in - 1)) == one_in - 1)

    def some(self, columns: Columns, most: int = 3) -> Columns:
        chosen = self._draw(st.lists(st.sampled_from(columns), min_size=1, max_size=most, unique=True))
        return list(chosen)

    def alias(self) -> str:
        self._aliases += 1
        return f"q{self._aliases}"

    # -- queries -----------------------------------------------------------------------------------

    def query(self, depth: int) -> tuple[str, Columns]:
        kind = self.pick("select", "select", "select", "select", "set", "cte") if depth else "select"
        if kind == "set":
            return self.set_operation(depth)
        if kind == "cte" and depth == 2:
            text, columns = self.query(depth - 1)
            name = self.alias()
            self._ctes.append((name, columns))
            body, outputs = self.query(depth - 1)
            return f"WITH {name} AS ({text}) {body}", outputs
        return self.select(depth)

    def set_operation(self, depth: int) -> tuple[str, Columns]:
        operator = self.pick("UNION ALL", "UNION", "EXCEPT", "EXCEPT ALL", "INTERSECT", "INTERSECT ALL")
        sides = []
        for _ in range(2):
            text, columns = self.source(depth - 1)
            items = ", ".join(f"{self.integer(columns, 0)} AS o{i + 1}" for i in range(2))
            sides.append(f"SELECT {items} FROM {text}{self.where(columns, 0)}")
        return f"({sides[0]}) {operator} ({sides[1]})", [("o1", "int"), ("o2", "int")]

    def select(self, depth: int) -> tuple[str, Columns]:
        text, columns = self.source(depth)
        text += self.where(columns, depth)
        shape = self.pick("plain", "plain", "grouped", "grouped", "distinct", "sets", "window", "qualify", "top")
        if shape == "grouped":
            return self.grouped(text, columns)
        if shape == "sets":
            return self.grouping_sets(text, columns)
        items: Columns = [(self.value(columns, depth), "int") for _ in range(self.pick(1, 2))]
        items += self.some(columns, 2)
        if self.rarely() and any(k == "double" for _, k in columns):
            items.append((self.double(columns), "double"))
        extra = ""
        if shape in ("window", "qualify"):
            items.append((self.window(columns), "int"))
        if shape == "qualify":
            # Of equal rows, two windows may each take another one for the first: one must not tell them apart.
            told_apart = any(word in items[-1][0] for word in ("ROW_NUMBER", "ROWS", "LAG"))
            window = self.window(columns, positional=not told_apart)
            extra = f" QUALIFY {window} {self.pick('=', '<=')} {self.pick('1', '2')}"
        outputs = [(f"o{i + 1}", kind) for i, (_, kind) in enumerate(items)]
        selected = ", ".join(f"{e} AS o{i + 1}" for i, (e, _) in enumerate(items))
        if shape == "top":
            extra = f" ORDER BY {', '.join(n for n, _ in outputs)} LIMIT {self.pick(1, 2, 3)}"
            extra += self.pick("", " OFFSET 1")
        return f"SELECT {'DISTINCT ' if shape == 'distinct' else ''}{selected} FROM {text}{extra}", outputs

    def grouped(self, text: str, columns: Columns) -> tuple[str, Columns]:
        keys = self.pick([], self.some(columns, 2), self.some(columns, 2))
        if keys and self.rarely():
            keys = [(f"{self.column(columns, 'int')} + 1", "int"), *keys]
        calls = [(self.over_aggregates(columns), "int") for _ in range(self.pick(1, 2))]
        items = [*keys, *calls]
        selected = ", ".join(f"{e} AS o{i + 1}" for i, (e, _) in enumerate(items))
        group = f" GROUP BY {', '.join(e for e, _ in keys)}" if keys else ""
        having = f" HAVING {self.aggregate(columns)} {self.pick('>', '<=', '=')} 1" if self.rarely(3) else ""
        return f"SELECT {selected} FROM {text}{group}{having}", [(f"o{i + 1}", k) for i, (_, k) in enumerate(items)]

    def grouping_sets(self, text: str, columns: Columns) -> tuple[str, Columns]:
        keys = self.some(columns, 2)
        names = [e for e, _ in keys]
        listed = ", ".join(names)
        ways = [f"GROUPING SETS (({listed}), ({names[0]}))"]
        if not self._portable:  # the set () of no rows: one row in DuckDB, none in Spark
            ways += [f"ROLLUP ({listed})", f"CUBE ({listed})", f"{listed} WITH ROLLUP"]
            ways += [f"GROUPING SETS (({listed}), ({listed}), ())", f"{names[0]}, ROLLUP ({names[-1]})"]
        items = [*keys, (self.pick(f"GROUPING({names[0]})", f"GROUPING_ID({listed})", self.aggregate(columns)), "int")]
        items.append((self.aggregate(columns), "int"))
        selected = ", ".join(f"{e} AS o{i + 1}" for i, (e, _) in enumerate(items))
        return f"SELECT {selected} FROM {text} GROUP BY {self.pick(*ways)}", [
            (f"o{i + 1}", k) for i, (_, k) in enumerate(items)
        ]

    # -- FROM --------------------------------------------------------------------------------------

    def item(self, depth: int) -> tuple[str, Columns]:
        """A table, a CTE, a derived table or VALUES, under an alias."""
        alias = self.alias()
        kind = self.pick("table", "table", "table", "derived", "values", "cte")
        if kind == "derived" and depth:
            text, columns = self.query(depth - 1)
            return f"({text}) AS {alias}", [(f"{alias}.{n}", k) for n, k in columns]
        if kind == "values" and self.rarely(2):
            return f"(VALUES (1, 2), (0, NULL), (1, 2)) AS {alias}(p, q)", [
                (f"{alias}.p", "int"),
                (f"{alias}.q", "int"),
            ]
        if kind == "cte" and self._ctes:
            name, columns = self.pick(*self._ctes)
            return f"{name} AS {alias}", [(f"{alias}.{n}", k) for n, k in columns]
        table = self.pick(*SCHEMAS)
        return f"{table} AS {alias}", [(f"{alias}.{c}", kind_of(c)) for c in SCHEMAS[table]]

    def source(self, depth: int) -> tuple[str, Columns]:
        text, columns = self.item(depth)
        for _ in range(self.pick(0, 0, 1, 1, 2)):
            other, more = self.item(max(depth - 1, 0))
            kinds = ("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN", "CROSS JOIN")
            kind = self.pick(*kinds)
            if kind == "CROSS JOIN":
                text = f"{text} CROSS JOIN {other}"
            else:
                text = f"{text} {kind} {other} ON {self.condition(columns, more, equi=kind == 'FULL JOIN')}"
            columns = columns if "SEMI" in kind or "ANTI" in kind else columns + more
        if self.rarely(8):
            alias, outer = self.alias(), self.pick("", "OUTER ") if not self._portable else ""
            members = f"{self.column(columns, 'int')}, {self.column(columns, 'int')}"
            text += f" LATERAL VIEW {outer}explode(array({members})) {alias} AS e"
            columns = [*columns, (f"{alias}.e", "int")]
        return text, columns

    def condition(self, left: Columns, right: Columns, equi: bool = False) -> str:
        a, b = self.column(left, "int"), self.column(right, "int")
        equal = f"{a} = {b}"
        if all(any(k == "double" for _, k in side) for side in (left, right)) and self.rarely(3):
            equal = f"{self.column(left, 'double')} {self.pick('=', '<=>')} {self.column(right, 'double')}"
        if equi:
            return equal
        residual = f"{self.column(left, 'int')} {self.pick('<', '<=', '<>')} {self.column(right, 'int')}"
        return str(self.pick(equal, equal, f"{equal} AND {residual}", residual, f"{a} <=> {b}", f"{equal} OR {a} = 0"))

    # -- expressions -------------------------------------------------------------------------------

    def column(self, columns: Columns, kind: str) -> str:
        fitting = [r for r, k in columns if k == kind]
        return str(self.pick(*fitting)) if fitting else str(self.pick(*_CONSTANTS[kind]))

    def integer(self, columns: Columns, depth: int) -> str:
        """A scalar expression."""
        x = self.column(columns, "int")
        y = self.pick(self.column(columns, "int"), "1", "2")
        choices = [x, x, f"{x} + {y}", f"{x} - ({y} - 1)", f"-{x} * {y}", f"COALESCE({x}, {y})"]
        choices.append(f"CASE WHEN {self.simple(columns)} THEN {x} ELSE {y} END")
        choices.append(f"CASE {x} WHEN {y} THEN 1 WHEN 0 THEN NULL END")
        return str(self.pick(*choices)) if depth >= 0 else x

    def double(self, columns: Columns) -> str:
        """An expression that keeps doubles exact."""
        x, y = self.column(columns, "double"), self.column(columns, "double")
        return str(self.pick(x, f"-{x}", f"COALESCE({x}, {y})", f"CASE WHEN {x} = {y} THEN {x} ELSE {y} END"))

    def value(self, columns: Columns, depth: int) -> str:
        """An expression of a select list: also scalar subqueries."""
        if depth and self.rarely(5):
            return self.scalar_subquery(columns)
        return self.integer(columns, depth)

    def over_aggregates(self, columns: Columns) -> str:
        call = self.aggregate(columns)
        return str(self.pick(call, call, f"{call} + 1", f"COALESCE({call}, {self.aggregate(columns)})"))

    def aggregate(self, columns: Columns) -> str:
        x = self.integer(columns, 0)
        choices = [
            "COUNT(*)",
            f"COUNT({x})",
            f"SUM({x})",
            f"SUM({x})",
            f"MIN({x})",
            f"MAX({x})",
            f"COUNT(DISTINCT {x})",
            f"AVG({self.column(columns, 'int')})",
            f"SUM({x}) FILTER (WHERE {self.simple(columns)})",
            f"COUNT({self.simple(columns)})",
        ]
        if any(k == "double" for _, k in columns):
            choices += [f"COUNT(DISTINCT {self.column(columns, 'double')})"]
        return str(self.pick(*choices))

    def window(self, columns: Columns, *, positional: bool = True) -> str:
        partition = f"PARTITION BY {self.integer(columns, 0)}" if not self.rarely(6) else ""
        total = f"ORDER BY {', '.join(r for r, _ in columns)}"
        x = self.column(columns, "int")
        choices = [
            f"RANK() OVER ({partition} ORDER BY {x} DESC)",
            f"DENSE_RANK() OVER ({partition} ORDER BY {x})",
            f"SUM({x}) OVER ({partition})",
            f"SUM({x}) OVER ({partition} ORDER BY {self.column(columns, 'int')})",
            f"COUNT(*) FILTER (WHERE {self.simple(columns)}) OVER ({partition})",
        ]
        if positional:
            choices += [
                f"ROW_NUMBER() OVER ({partition} {total})",
                f"LAG({x}) OVER ({partition} {total})",
                f"MAX({x}) OVER ({partition} {total} ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)",
            ]
        return str(self.pick(*choices))

    # -- predicates --------------------------------------------------------------------------------

    def where(self, columns: Columns, depth: int) -> str:
        if self.rarely(2):
            return ""
        conjuncts = [self.predicate(columns, depth) for _ in range(self.pick(1, 1, 2))]
        return f" WHERE {' AND '.join(conjuncts)}"

    def predicate(self, columns: Columns, depth: int) -> str:
        if not depth or self.rarely(2):
            return self.simple(columns)
        mark = self.mark(columns, depth)
        kind = self.pick("mark", "mark", "not", "or", "two", "scalar")
        if kind == "not":
            return f"NOT {mark}"
        if kind == "or":
            return f"({mark} OR {self.simple(columns)})"
        if kind == "two":
            return f"({mark} OR ({self.mark(columns, depth)} AND {self.simple(columns)}))"
        if kind == "scalar":
            return f"{self.column(columns, 'int')} {self.pick('=', '<', '>=')} {self.scalar_subquery(columns)}"
        return mark

    def simple(self, columns: Columns) -> str:
        """A predicate without subqueries."""
        x, y = self.column(columns, "int"), self.column(columns, "int")
        choices = [
            f"{x} = {y}",
            f"{x} {self.pick('>', '<=', '<>')} 1",
            f"{x} IS NULL",
            f"{x} IS NOT NULL",
            f"{x} <=> {y}",
            f"{x} BETWEEN {y} AND 2",
            f"{x} IN (0, {y})",
            f"{x} NOT IN (1, {y})",
            f"NOT ({x} = 1 AND {y} = 0)",
            f"({x} = 1 OR {y} IS NULL)",
        ]
        if any(k == "text" for _, k in columns):
            c = self.column(columns, "text")
            choices += [f"{c} = 'x'", f"{c} LIKE 'x%'", f"COALESCE({c}, 'y') = 'y'"]
        if any(k == "double" for _, k in columns):
            p, r = self.column(columns, "double"), self.column(columns, "double")
            choices += [f"{p} = {r}", f"{p} <= {r}", f"{p} > 0.0D", f"{p} <=> {r}", f"{p} IN (0.0D, {r})"]
        return f"({self.pick(*choices)})"

    def mark(self, outer: Columns, depth: int) -> str:
        """EXISTS or IN, correlated or not."""
        text, columns = self.source(depth - 1) if self.rarely(3) else self.item(0)
        links = [self.condition(columns, outer)] if not self.rarely(3) else []
        links += [self.predicate(columns, depth - 1)] if self.rarely(3) else []
        where = f" WHERE {' AND '.join(links)}" if links else ""
        if self.rarely(2):
            return f"EXISTS (SELECT 1 FROM {text}{where})"
        member = self.integer(columns, 0)
        return f"{self.column(outer, 'int')} IN (SELECT {member} FROM {text}{where})"

    def scalar_subquery(self, outer: Columns) -> str:
        text, columns = self.item(0)
        links = [f"{self.column(columns, 'int')} = {self.column(outer, 'int')}"] if not self.rarely(3) else []
        links += [self.simple(columns)] if self.rarely(3) else []
        where = f" WHERE {' AND '.join(links)}" if links else ""
        return f"(SELECT {self.over_aggregates(columns)} FROM {text}{where})"
