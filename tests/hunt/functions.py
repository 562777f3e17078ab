"""Definitions from the usage examples of every built-in function, with their constant arguments turned into columns."""

from __future__ import annotations

import datetime as dt
import itertools
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from tests.hunt.batch import Batch, Definition, with_rows
from tests.hunt.oracle import Oracle
from tests.hunt.tables import Column, Table, arrow_type, draw_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Functions whose result is not a function of their arguments, that have a side effect, or that read files.
_UNDETERMINED = """
    rand randn random uuid shuffle now current_timestamp current_date curdate current_time current_timezone
    current_user current_catalog current_database current_schema current_path user session_user version
    monotonically_increasing_id spark_partition_id input_file_name input_file_block_start input_file_block_length
    localtimestamp unix_timestamp reflect java_method try_reflect raise_error assert_true randstr uniform first
    first_value last last_value any_value collect_list array_agg sample
"""
UNDETERMINED = frozenset(_UNDETERMINED.split())

SCALAR = (
    "SELECT No, {e} AS r FROM {t}",
    "SELECT No, {e} AS r FROM {t}",
    "SELECT No FROM {t} WHERE ({e}) IS NOT NULL",
    "SELECT No, grp FROM {t} WHERE ({e}) = ({x})",
    "SELECT {e} AS r, count(*) AS n FROM {t} GROUP BY {e}",
    "SELECT {e} AS r, sum(grp) AS n FROM {t} GROUP BY 1",
    "SELECT grp, max({e}) AS r, count({e}) AS n FROM {t} GROUP BY grp",
    "SELECT grp, min({e}) AS r FROM {t} GROUP BY grp",
    "SELECT max({e}) AS r, count(DISTINCT {e}) AS n FROM {t}",
    "SELECT No, max({e}) OVER (PARTITION BY grp) AS r FROM {t}",
    "SELECT No, lag({e}) OVER (PARTITION BY grp ORDER BY No) AS r FROM {t}",
    "SELECT DISTINCT {e} AS r FROM {t}",
    "SELECT o.No FROM {t} AS o WHERE EXISTS (SELECT 1 FROM {t} WHERE {t}.No = o.No AND ({e}) IS NOT NULL)",
    "SELECT o.No, (SELECT max({e}) FROM {t} WHERE {t}.grp = o.grp) AS r FROM {t} AS o",
    "SELECT grp FROM {t} WHERE ({x}) IN (SELECT {e} FROM {t})",
    "SELECT No, CASE WHEN grp = 1 THEN {e} END AS r FROM {t}",
    "SELECT No, to_json(struct({e} AS R)) AS r FROM {t}",
    "SELECT {e} AS r FROM {t} UNION ALL SELECT {x} FROM {t}",
    "SELECT a.No, b.grp FROM (SELECT No, {e} AS r FROM {t}) AS a JOIN (SELECT grp, {e} AS r FROM {t}) AS "
    "b ON a.r = b.r",
    "SELECT count(*) AS n FROM (SELECT No, {e} AS r FROM {t}) AS s",
    "SELECT No, {e} FROM {t}",
    "SELECT grp, sort_array(collect_list({e})) AS r FROM {t} GROUP BY grp",
    "SELECT {e} AS r, No FROM {t} ORDER BY No LIMIT 3",
)
AGGREGATE = (
    "SELECT {e} AS r FROM {t}",
    "SELECT grp, {e} AS r FROM {t} GROUP BY grp",
    "SELECT grp, {e} AS r FROM {t} GROUP BY grp",
    "SELECT grp FROM {t} GROUP BY grp HAVING ({e}) IS NOT NULL",
    "SELECT No, {e} OVER (PARTITION BY grp) AS r FROM {t}",
    "SELECT grp, {e} FILTER (WHERE No > 1) AS r FROM {t} GROUP BY grp",
    "SELECT grp, {e} AS r FROM {t} GROUP BY ROLLUP (grp)",
    "SELECT o.No, (SELECT {e} FROM {t} WHERE {t}.grp = o.grp) AS r FROM {t} AS o",
    "SELECT {e} AS r FROM {t} WHERE No < 0",
    "SELECT o.No, (SELECT {e} FROM {t} WHERE {t}.grp > o.grp) AS r FROM {t} AS o",
    "SELECT max(r) AS m, count(r) AS n FROM (SELECT grp, {e} AS r FROM {t} GROUP BY grp) AS s",
    "SELECT r, count(*) AS n FROM (SELECT No, {e} AS r FROM {t} GROUP BY No) AS s GROUP BY r",
    "SELECT No, {e} OVER (PARTITION BY grp ORDER BY No) AS r FROM {t}",
    "SELECT grp, to_json(struct({e} AS R)) AS r FROM {t} GROUP BY grp",
)


_LITERAL = re.compile(
    r"(?:\b(?:DATE|TIMESTAMP|TIMESTAMP_NTZ|X)\s*)?'(?:[^'\\]|\\.|'')*'"
    r"|(?<![\w.])\d+(?:\.\d+)?(?:[LSYDF]|BD)?(?![\w.])|\b(?:true|false)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Example:
    """An example of a function, as an expression over a table made for it."""

    function: str
    expression: str  # over the table's columns
    constant: str  # the expression as the example has it
    table: Table
    forms: tuple[str, ...]


@cache
def function_names(spark: SparkSession) -> list[str]:
    return sorted(r[0] for r in spark.sql("SHOW SYSTEM FUNCTIONS").collect() if r[0] not in UNDETERMINED)


@cache
def example_texts(spark: SparkSession, function: str) -> tuple[str, ...]:
    """The usage examples of a function, without SELECT and semicolon."""
    lines = spark.sql(f"DESCRIBE FUNCTION EXTENDED `{function}`").collect()
    text = "\n".join(r[0] for r in lines)
    return tuple(" ".join(m.split()) for m in re.findall(r"> SELECT (.*?);\s*$", text, re.MULTILINE | re.DOTALL))


def batch(spark: SparkSession, seed: str, size: int) -> Batch:
    """A batch over examples of a few functions: batch after batch of a hunt takes the next ones."""
    draw = random.Random(seed)
    examples: list[Example] = []
    oracle = Oracle(spark, (), {})
    wanted = max(2, size // 3)
    turns = _in_turn(function_names(spark), seed, wanted)
    while len(examples) < wanted:
        function = next(turns)
        texts = example_texts(spark, function)
        made = example(oracle, function, draw.choice(texts), f"ex{len(examples)}", draw) if texts else None
        if made is not None:
            examples.append(made)
    definitions = []
    for each in examples:
        for form in draw.sample(each.forms, min(len(each.forms), size // len(examples) + 1)):
            text = form.format(e=each.expression, x=each.constant, t=each.table.name)
            definitions.append(Definition(text, f"{each.function}: {form}"))
    distinct = list({d.text: d for d in definitions}.values())
    return with_rows("functions", seed, draw, [e.table for e in examples], distinct)


def _in_turn(names: Sequence[str], seed: str, step: int) -> Iterator[str]:
    """The names in an order that follows from the hunt's seed, beginning at the place of the batch in it."""
    hunt, _, number = seed.rpartition("/")
    mixed = list(names)
    random.Random(hunt).shuffle(mixed)
    begin = int(number) * step if number.isdigit() else 0
    return (mixed[(begin + i) % len(mixed)] for i in itertools.count())


def example(oracle: Oracle, function: str, text: str, name: str, draw: random.Random) -> Example | None:
    """The example over a table of its own; None if its values cannot be columns, or Spark cannot compute it."""
    try:
        over = re.fullmatch(r"(.*?) FROM (VALUES .*?) (?:AS )?tab\(([^)]*)\)(.*)", text, re.IGNORECASE)
        if over is not None:
            return _over_values(oracle, function, over, name)
        if re.search(r"\bFROM\s+(?!\w+\s*\)|')|;", text, re.IGNORECASE) and "EXTRACT" not in text.upper():
            return None
        return _of_constants(oracle, function, text, name, draw)
    except (PySparkException, Py4JError, ValueError, OverflowError, KeyError):
        return None


def _over_values(oracle: Oracle, function: str, match: re.Match[str], name: str) -> Example | None:
    """An example that reads an inline table."""
    shown, values, names, tail = match.groups()
    frame = oracle.session.sql(f"SELECT * FROM {values} AS tab({names})")
    rows = frame.toArrow().to_pylist()
    columns = []
    for f in frame.schema.fields:
        pool = [value for row in rows if (value := row[f.name]) is not None]
        columns.append(_column(f.name, f.dataType.simpleString(), pool))
    if {c.name.lower() for c in columns} & {"no", "grp"}:
        return None
    table = _table(name, columns)
    tail = re.sub(r"ORDER BY.*$", "", tail, flags=re.IGNORECASE).strip()
    items = split_arguments(shown)
    if tail or len(items) > 1 or " OVER " in shown.upper():
        kept = [
            i if re.search(r"\bas \w+$|^[\w.]+$", i, re.IGNORECASE) else f"{i} AS r{n}" for n, i in enumerate(items)
        ]
        inner = f"SELECT {', '.join(kept)} FROM {name} {tail}".strip()
        forms = (
            inner,
            f"SELECT count(*) AS n FROM ({inner}) AS s",
            f"SELECT * FROM ({inner}) AS s",
            f"SELECT DISTINCT * FROM ({inner}) AS s",
        )
        return Example(function, "1", "1", table, tuple(f.replace("{", "{{").replace("}", "}}") for f in forms))
    return Example(function, shown, shown, table, AGGREGATE)


def _of_constants(oracle: Oracle, function: str, text: str, name: str, draw: random.Random) -> Example | None:
    """An example over constants: as many of them become columns as Spark lets."""
    spans = _spans(text)
    found: list[tuple[tuple[int, int], Column]] = []
    for place, (begin, end) in enumerate(spans):
        try:
            kind, value = (
                oracle.session.sql(f"SELECT typeof({text[begin:end]}) AS t, {text[begin:end]} AS v")
                .toArrow()
                .to_pylist()[0]
                .values()
            )
            found.append(((begin, end), _column(f"Arg{place}", kind, [] if value is None else [value])))
        except (PySparkException, ValueError, OverflowError, KeyError):
            continue
    if not found:
        return None
    choices: list[list[tuple[tuple[int, int], Column]]] = [
        found,
        [f for f in found if draw.random() < 0.7],
        *([f] for f in found),
    ]
    for chosen in choices:
        if not chosen:
            continue
        expression = _replaced(text, chosen)
        for pool_size in (None, 1):
            columns = [Column(c.name, c.type, c.pool[:pool_size] or (None,)) for _, c in chosen]
            table = _table(name, columns)
            if _computes(oracle, table, expression, draw):
                return Example(function, expression, text, table, SCALAR)
    return None


def _computes(oracle: Oracle, table: Table, expression: str, draw: random.Random) -> bool:
    """Whether Spark can compute the expression over the table, for all values of its columns."""
    oracle.tables = {table.name: table}
    longest = max(len(c.pool) for c in table.columns)
    rows = [(i, 1, *(c.pool[i % len(c.pool)] for c in table.columns[2:])) for i in range(longest)]
    try:
        oracle.load({table.name: rows + draw_rows(draw, table, range(longest, longest + 3))})
        oracle.answer(f"SELECT {expression} FROM {table.name}")
    except (PySparkException, Py4JError):  # a value that Arrow cannot hold, too
        return False
    return True


def _table(name: str, columns: Sequence[Column]) -> Table:
    return Table(name, (Column("No", "int"), Column("grp", "int", (1, 2), 0.1), *columns))


def _column(name: str, kind: str, values: list[Any]) -> Column:
    arrow_type(kind)  # refuses what no table can hold
    pool: list[Any] = []
    for value in (*values, *(n for v in values for n in neighbours(kind, v))):
        if repr(value) not in map(repr, pool):
            pool.append(value)
    return Column(name, kind, tuple(pool[:8]) or (None,))


def neighbours(kind: str, value: Any) -> Iterable[Any]:
    """Values near a value of a type."""
    match value:
        case bool():
            return (not value,)
        case int():
            return (v for v in (value + 1, value - 1, 0) if abs(v) < 100)
        case float():
            return (0.0, value / 2)
        case Decimal():
            return (Decimal(0).quantize(value), -value)
        case str():
            return ("", value + " ", value.upper(), value[::-1])
        case bytes():
            return (b"", value + b"a")
        case dt.datetime():
            return (value + dt.timedelta(hours=1), value - dt.timedelta(microseconds=1))
        case dt.date():
            return (value + dt.timedelta(days=1), value - dt.timedelta(days=31))
        case list():
            return ([], value[:1]) if kind.startswith("map") else ([], value[:1], value[::-1], value + value[:1])
    return ()


def _spans(text: str) -> list[tuple[int, int]]:
    """The arguments of the outermost call; where there is none, the literals."""
    call = re.match(r"\w+\(", text)
    if (
        call
        and _closing(text, call.end() - 1) == len(text) - 1
        and not re.search(r"\b(FROM|AS|IN|PLACING|FOR|USING)\b", text)
    ):
        spans, begin = [], call.end()
        for part in split_arguments(text[call.end() : -1], strip=False):
            inner_begin, inner_end = begin, begin + len(part)
            if (arrow := part.find("=>")) >= 0:
                inner_begin += arrow + 2
            begin = inner_end + 1
            if "->" not in part and text[inner_begin:inner_end].strip():
                spans.append((inner_begin, inner_end))
        return spans
    return [m.span() for m in _LITERAL.finditer(text)]


def _replaced(text: str, chosen: Iterable[tuple[tuple[int, int], Column]]) -> str:
    for (begin, end), column in sorted(chosen, key=lambda c: -c[0][0]):
        text = f"{text[:begin]} {column.name}{text[end:]}"
    return text.replace("( ", "(")


def split_arguments(text: str, strip: bool = True) -> list[str]:
    """The parts of a text between commas outside brackets and strings."""
    parts, depth, quoted = [""], 0, ""
    for place, character in enumerate(text):
        if quoted:
            quoted = "" if character == quoted and text[place - 1] != "\\" else quoted
        elif character in "'\"":
            quoted = character
        depth += 0 if quoted else (character in "([{") - (character in ")]}")
        if character == "," and not depth and not quoted:
            parts.append("")
        else:
            parts[-1] += character
    return [p.strip() for p in parts] if strip else parts


def _closing(text: str, opening: int) -> int:
    """The place of the bracket that closes the one at a place."""
    depth, quoted = 0, ""
    for place in range(opening, len(text)):
        character = text[place]
        if quoted:
            quoted = "" if character == quoted and text[place - 1] != "\\" else quoted
        elif character in "'\"":
            quoted = character
        else:
            depth += (character == "(") - (character == ")")
            if not depth:
                return place
    return -1
