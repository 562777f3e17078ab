"""Make a failure smaller: fewer tables, rounds and rows, a shorter definition; and print it as a test."""

from __future__ import annotations

import datetime as dt
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import sqlglot
from sqlglot import exp
from tests.hunt.batch import Batch, Definition
from tests.hunt.run import Failure, run_batch
from tests.hunt.tables import Change, Row, Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def shrink(spark: SparkSession, failure: Failure, seconds: float = 40.0) -> Failure:
    """The smallest failure found within some seconds; the failure itself if it does not come again alone."""
    end = time.monotonic() + seconds

    def fails(batch: Batch) -> Failure | None:
        if time.monotonic() > end:
            return None
        found = run_batch(spark, batch)
        return next(iter(found.wrong), None)

    best = _first(fails, _without_history(failure)) or failure
    for step in (_without_tables, _shorter, _without_columns, _fewer_rows):
        best = _greedy(fails, best, step)
    return best


def _first(fails: Callable[[Batch], Failure | None], batches: Iterable[Batch]) -> Failure | None:
    return next((found for batch in batches if (found := fails(batch)) is not None), None)


def _greedy(
    fails: Callable[[Batch], Failure | None], best: Failure, candidates: Callable[[Batch], Iterator[Batch]]
) -> Failure:
    """Take the first candidate that still fails, again and again."""
    while (smaller := _first(fails, candidates(best.batch))) is not None:
        best = smaller
    return best


def _without_history(failure: Failure) -> Iterator[Batch]:
    """No rounds at all; the failing round alone; all of them."""
    batch = failure.batch
    states = batch.states()
    last = re.fullmatch(r"round (\d+)", failure.moment)
    place = int(last[1]) if last else 0
    yield replace(batch, start=states[place], rounds=())
    if place:
        yield replace(batch, start=states[place - 1], rounds=batch.rounds[place - 1 : place])
        yield replace(batch, rounds=batch.rounds[:place])
    yield batch


def _words(batch: Batch) -> set[str]:
    """All names in the texts of a batch."""
    definition = batch.definitions[0]
    conditions = [c.condition for changes in batch.rounds for c in changes]
    return set(re.findall(r"\w+", " ".join([definition.text, *(t for _, t in definition.below), *conditions]).lower()))


def _without_columns(batch: Batch) -> Iterator[Batch]:
    """Yield the batch without the columns that no text names."""
    words = _words(batch)
    places = {t.name: [i for i, c in enumerate(t.columns) if not i or c.name.lower() in words] for t in batch.tables}
    if all(len(places[t.name]) == len(t.columns) for t in batch.tables):
        return

    def cut(name: str, rows: Iterable[Row]) -> list[Row]:
        return [tuple(row[i] for i in places[name]) for row in rows]

    yield replace(
        batch,
        tables=[replace(t, columns=tuple(t.columns[i] for i in places[t.name])) for t in batch.tables],
        start={name: cut(name, rows) for name, rows in batch.start.items()},
        rounds=[[replace(c, inserted=tuple(cut(c.table, c.inserted))) for c in changes] for changes in batch.rounds],
    )


def _without_tables(batch: Batch) -> Iterator[Batch]:
    """Yield the batch without the tables that no text names."""
    words = _words(batch)
    kept = [t for t in batch.tables if t.name in words]
    if len(kept) < len(batch.tables):
        names = {t.name for t in kept}
        rounds = [[c for c in changes if c.table in names] for changes in batch.rounds]
        yield replace(batch, tables=kept, start={n: batch.start[n] for n in names}, rounds=rounds)


def _fewer_rows(batch: Batch) -> Iterator[Batch]:
    """Yield the batch without half of a table's first rows, or one of them, or a change, or one of its rows."""
    for name, rows in batch.start.items():
        half = len(rows) // 2
        halves = [rows[:half], rows[half:]] if half else []
        singles = [rows[:i] + rows[i + 1 :] for i in range(len(rows))] if len(rows) <= 8 else []
        for fewer in (*halves, *singles):
            yield replace(batch, start={**batch.start, name: fewer})
    for place, changes in enumerate(batch.rounds):
        for which, change in enumerate(changes):
            fewer_inserted = [
                replace(change, inserted=change.inserted[:i] + change.inserted[i + 1 :])
                for i in range(len(change.inserted))
            ]
            fewer_deleted = (
                []
                if change.condition
                else [
                    replace(change, deleted=change.deleted[:i] + change.deleted[i + 1 :])
                    for i in range(len(change.deleted))
                ]
            )
            for other in (None, *fewer_inserted, *fewer_deleted):
                kept = [*changes[:which], *([other] if other else []), *changes[which + 1 :]]
                if table_is_sound(batch, other):
                    yield replace(batch, rounds=[*batch.rounds[:place], kept, *batch.rounds[place + 1 :]])


def table_is_sound(batch: Batch, change: Change | None) -> bool:
    """Whether a change leaves keys unique: a row that is put back has to be deleted first."""
    if change is None or not next(t for t in batch.tables if t.name == change.table).keyed:
        return True
    present = {r[0] for r in batch.start[change.table]} - set(change.deleted)
    return not present & {r[0] for r in change.inserted}


def _shorter(batch: Batch) -> Iterator[Batch]:
    """Shorter definitions. sqlglot proposes them; whether they still fail is for Spark to say."""
    definition = batch.definitions[0]
    for text in shorter_texts(definition.text):
        yield replace(batch, definitions=[replace(definition, text=text)])


def shorter_texts(text: str) -> list[str]:
    """Texts with a part left out, shortest first."""
    try:
        tree = sqlglot.parse_one(text, read="spark")
    except sqlglot.errors.SqlglotError:
        return []
    found = set()
    count = len(list(tree.walk()))
    for place in range(count):
        for variant in range(4):
            copy = tree.copy()
            node = list(copy.walk())[place]
            changed = _reduced(copy, node, variant)
            if changed is not None:
                found.add(changed.sql(dialect="spark"))
    return sorted((t for t in found if len(t) < len(text)), key=len)[:40]


def _reduced(tree: exp.Expr, node: exp.Expr, variant: int) -> exp.Expr | None:
    """The tree with one part of a node left out; None if there is nothing of this variant."""
    if isinstance(node, exp.Select):
        if variant < 2 and len(node.expressions) > 1:
            node.set("expressions", node.expressions[1:] if variant else node.expressions[:-1])
            return tree
        parts = [
            k
            for k in ("where", "having", "joins", "distinct", "laterals", "order", "limit", "with_")
            if node.args.get(k)
        ]
        if variant >= 2 and parts:
            node.set(parts[(variant - 2) % len(parts)], None)
            return tree
        return None
    if isinstance(node, exp.SetOperation) and variant < 2:
        return _swapped(tree, node, node.left if variant else node.right)
    if (
        isinstance(node, exp.Subquery)
        and variant == 0
        and node is not tree
        and isinstance(node.this, exp.Select)
        and not node.alias
    ):
        return None
    if isinstance(node, exp.Binary) and variant < 2:
        return _swapped(tree, node, node.left if variant else node.right)
    if isinstance(node, exp.Func | exp.Unary | exp.Cast) and variant == 0 and isinstance(node.this, exp.Expression):
        return _swapped(tree, node, node.this)
    if (
        isinstance(node, exp.Func)
        and variant == 1
        and node.expressions
        and isinstance(node.expressions[0], exp.Expression)
    ):
        return _swapped(tree, node, node.expressions[0])
    return None


def _swapped(tree: exp.Expr, node: exp.Expr, other: exp.Expr) -> exp.Expr | None:
    if node is tree:
        return other.copy()
    node.replace(other.copy())
    return tree


# -- as a test ------------------------------------------------------------------------------------------


def as_test(failure: Failure) -> str:
    """A failure as the text of a test, which needs the fixture `spark` alone."""
    batch, definition = failure.batch, failure.definition
    name = f"test_hunt_{batch.kind}_{re.sub(r'[^0-9a-z]+', '_', batch.seed)}"
    lines = [
        f"def {name}(spark: SparkSession) -> None:",
        f'    """{failure.moment}: {_escaped(failure.difference)}"""',
        "    batch = Batch(",
        f"        {batch.kind!r}, {batch.seed!r},",
        "        tables=[",
        *(f"            {_table(t)}," for t in batch.tables),
        "        ],",
        f"        definitions=[{_definition(definition)}],",
        "        start={",
        *(f"            {n!r}: [{', '.join(map(value_text, rows))}]," for n, rows in batch.start.items()),
        "        },",
        "        rounds=[",
        *(f"            [{', '.join(map(_change, changes))}]," for changes in batch.rounds),
        "        ],",
        f"        settings={dict(batch.settings)!r}, selftest={batch.selftest}, maintained={batch.maintained},",
        f"        foreign={batch.foreign!r},",
        "    )",
        "    assert not run_batch(spark, batch).wrong",
    ]
    return "\n".join(lines)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"""', "'''")


def _definition(definition: Definition) -> str:
    below = f", below={definition.below!r}" if definition.below else ""
    return f"Definition({definition.text!r}{below})"


def _table(table: Table) -> str:
    columns = ", ".join(f"Column({c.name!r}, {c.type!r})" for c in table.columns)
    return f"Table({table.name!r}, ({columns},), keyed={table.keyed})"


def _change(change: Change) -> str:
    condition = f", {change.condition!r}" if change.condition else ""
    return f"Change({change.table!r}, {change.deleted!r}, {value_text(change.inserted)}{condition})"


def value_text(value: Row | Any) -> str:
    """A value as Python text that gives it again, where `dt`, `Decimal` and `NAN` are imported."""
    match value:
        case float() if value != value:
            return "NAN"
        case float() if value in (float("inf"), float("-inf")):
            return f"float({str(value)!r})"
        case dt.datetime() | dt.date():
            return repr(value).replace("datetime.", "dt.", 1).replace("tzinfo=datetime.timezone.utc", "tzinfo=dt.UTC")
        case tuple():
            return f"({', '.join(map(value_text, value))}{',' if len(value) == 1 else ''})"
        case list():
            return f"[{', '.join(map(value_text, value))}]"
        case dict():
            return "{" + ", ".join(f"{k!r}: {value_text(v)}" for k, v in value.items()) + "}"
    return repr(value)


IMPORTS: Sequence[str] = (
    "import datetime as dt",
    "from decimal import Decimal",
    "",
    "from pyspark.sql import SparkSession",
    "from tests.hunt.batch import Batch, Definition",
    "from tests.hunt.run import run_batch",
    "from tests.hunt.tables import NAN, Change, Column, Table",
)
