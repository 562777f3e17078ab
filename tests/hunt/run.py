"""Run batches: create their views, change their tables, and compare each view after each round with plain Spark."""

from __future__ import annotations

import re
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from deltalake import DeltaTable, write_deltalake
from pyspark.errors import PySparkException
from tests.hunt.batch import Batch, Definition
from tests.hunt.functions import function_names
from tests.hunt.oracle import Oracle
from tests.hunt.tables import Change, State, Table
from tests.hunt.values import Answer, answer_of

import freshview
from freshview import Warehouse
from freshview.errors import FreshviewError, NotMaintainable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from freshview.transactions.user_transaction import UserTransaction


_CALL = re.compile(r"\b(\w+) *\(")


@dataclass(frozen=True)
class Failure:
    """A view whose rows, names or types differ from what plain Spark answers; or an error of the wrong kind."""

    batch: Batch  # with this definition alone
    moment: str  # "created", "round 1", …
    difference: str

    @property
    def definition(self) -> Definition:
        return self.batch.definitions[0]


@dataclass
class Tally:
    """What became of the definitions of one kind."""

    definitions: int = 0  # that Spark accepts
    lowered: int = 0
    recomputed: int = 0
    refused: int = 0
    undetermined: int = 0  # accepted, but Spark's own answer depends on the order or the parts of the rows
    raised: int = 0  # rounds in which Spark itself raised an error
    dropped: int = 0  # that Spark itself refuses
    seconds: float = 0.0
    wrong: list[Failure] = field(default_factory=list)
    manners: list[Failure] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)  # of refusals
    verdicts: Counter[str] = field(default_factory=Counter)
    functions: frozenset[str] = frozenset()  # of Spark's registry, in definitions that it accepts
    registry: frozenset[str] = frozenset()  # those that could be met

    def add(self, other: Tally) -> None:
        for name, value in vars(other).items():
            known = getattr(self, name)
            setattr(self, name, known | value if isinstance(value, frozenset) else known + value)


def run_batch(spark: SparkSession, batch: Batch) -> Tally:
    """Check all definitions of a batch in one warehouse."""
    begun = time.perf_counter()
    tally = Tally()
    states = batch.states()
    oracle = Oracle(spark, batch.tables, batch.settings)
    oracle.load(states[0])
    definitions = list(dict.fromkeys(batch.definitions))  # one that was drawn twice counts once
    wanted = _answers(oracle, definitions)
    tally.dropped = len(definitions) - len(wanted)
    tally.definitions = len(wanted)
    tally.registry = frozenset(n for n in function_names(spark) if n.isidentifier())
    tally.functions = tally.registry.intersection(_CALL.findall(" ".join(d.text.lower() for d in wanted)))
    with warehouse(spark, batch) as wh:
        load(wh, batch)
        views = {f"v{i}": d for i, d in enumerate(definitions) if d in wanted}
        created = [name for name, d in views.items() if _created(wh, name, d, batch, tally)]
        open_: dict[str, Definition] = {name: views[name] for name in created}
        tally.verdicts.update(_verdict(view) for view in wh.status().views if view.name in open_)
        past: list[tuple[int, dict[Definition, Answer]]] = []
        for place, state in enumerate(states):
            moment = f"round {place}" if place else "created"
            csn = apply(wh, batch.rounds[place - 1], batch.tables, batch.foreign) if place else wh.status().csn
            if batch.maintained:
                with suppress(FreshviewError):  # of some view; reading that one raises it again
                    wh.maintain()
            if place:
                oracle.load(state, {c.table for c in batch.rounds[place - 1]})
                if found := _wrong_tables(wh, oracle, batch, place):
                    tally.wrong.append(found)
                    break
                wanted = _answers(oracle, open_.values())
            past.append((csn, wanted))
            for name, definition in list(open_.items()):
                if definition not in wanted:
                    tally.raised += 1
                    continue
                if not _compared(wh, name, definition, wanted[definition], oracle, state, batch, moment, tally):
                    del open_[name]
        _compare_past(wh, open_, past, batch, tally)
    tally.seconds = time.perf_counter() - begun
    return tally


@contextmanager
def warehouse(spark: SparkSession, batch: Batch) -> Iterator[Warehouse]:
    """A fresh warehouse with a session of its own, set as the batch says."""
    session = spark.newSession()
    for key, value in batch.settings.items():
        session.conf.set(key, value)
    with (
        tempfile.TemporaryDirectory(prefix="hunt-") as folder,
        freshview.connect(Path(folder) / "warehouse", spark=session) as wh,
    ):
        yield wh


def load(wh: Warehouse, batch: Batch) -> None:
    """Create the tables with their first rows."""
    for table in batch.tables:
        if table.name in batch.foreign:
            place = _foreign_place(wh, table)
            write_deltalake(place, table.arrow(batch.start[table.name]))
            wh.sql(f"CREATE TABLE `{table.name}` USING DELTA LOCATION '{place}'")
        else:
            wh.sql(table.ddl)
    with wh.transaction() as tx:
        for table in batch.tables:
            if batch.start[table.name] and table.name not in batch.foreign:
                tx.insert(table.name, table.arrow(batch.start[table.name]))


def _foreign_place(wh: Warehouse, table: Table) -> str:
    return str(wh.path.parent / "of others" / table.name)


def _change_foreign(place: str, table: Table, change: Change) -> None:
    """Change a table as others do."""
    if change.deleted:
        number = table.columns[0].name
        DeltaTable(place).delete(f'"{number}" IN ({", ".join(map(str, change.deleted))})')
    if change.inserted:
        write_deltalake(place, table.arrow(change.inserted), mode="append")


def apply(wh: Warehouse, changes: Iterable[Change], tables: Sequence[Table], foreign: Collection[str] = ()) -> int:
    """Run a round's changes: those of others' tables, which are noticed then, and all others as one transaction; the
    last CSN."""
    known = {t.name: t for t in tables}
    changes = list(changes)
    for change in changes:
        if change.table in foreign:
            _change_foreign(_foreign_place(wh, known[change.table]), known[change.table], change)
            wh.sql(f"SELECT count(*) FROM `{change.table}`").collect()
    with wh.transaction() as tx:
        for change in changes:
            if change.table in foreign:
                continue
            table = known[change.table]
            number = table.columns[0].name
            new = list(change.inserted)
            if change.condition and _deleted(tx, table, change.condition):
                pass
            elif table.keyed:
                replaced = [r for r in change.inserted if r[0] in change.deleted]
                gone = sorted(set(change.deleted) - {r[0] for r in replaced})
                new = [r for r in change.inserted if r[0] not in change.deleted]
                if gone:
                    tx.delete(table.name, [{number: n} for n in gone])
                if replaced:
                    tx.upsert(table.name, table.arrow(replaced))
            elif change.deleted:
                tx.sql(f"DELETE FROM {table.name} WHERE {number} IN ({', '.join(map(str, change.deleted))})")
            if new:
                tx.insert(table.name, table.arrow(new))
    return wh.status().csn


def _deleted(tx: UserTransaction, table: Table, condition: str) -> bool:
    """Delete by a condition; False if it is refused."""
    try:
        tx.sql(f"DELETE FROM {table.name} WHERE {condition}")
    except FreshviewError:
        return False
    return True


def _answers(oracle: Oracle, definitions: Iterable[Definition]) -> dict[Definition, Answer]:
    """What plain Spark answers to each definition that it accepts and can compute."""
    found = {}
    for definition in definitions:
        try:
            found[definition] = oracle.answer(definition.text, definition.below)
        except Exception:  # of Spark, or of PySpark for types that it cannot convert
            continue
    return found


def _wrong_tables(wh: Warehouse, oracle: Oracle, batch: Batch, place: int) -> Failure | None:
    """A table whose rows are wrong after a round that deleted by a condition."""
    for change in batch.rounds[place - 1]:
        if change.condition and change.table not in batch.foreign:
            query = f"SELECT * FROM {change.table}"
            if difference := oracle.answer(query).difference(answer_of(wh.sql(query))):
                told = Definition(
                    f"SELECT 1 AS one FROM {change.table}", f"DELETE FROM {change.table} WHERE {change.condition}"
                )
                return _failure(batch, told, f"round {place}", difference)
    return None


def _created(wh: Warehouse, name: str, definition: Definition, batch: Batch, tally: Tally) -> bool:
    """Create a view, to be maintained by delta rules wherever there are any; False if it is refused."""
    try:
        properties = "" if batch.selftest else " TBLPROPERTIES ('selftest' = 'off')"
        for view, text in (*definition.below, (name, definition.text)):
            wh.sql(f"CREATE MATERIALIZED VIEW {view}{properties} AS {text}")
    except FreshviewError as error:
        tally.refused += 1
        tally.reasons[_reason(error)] += 1
        return False
    except Exception as error:
        tally.refused += 1
        tally.manners.append(_failure(batch, definition, "created", _told(error)))
        return False
    try:
        for each in (*(lower for lower, _ in definition.below), name):
            wh.sql(f"ALTER MATERIALIZED VIEW {each} SET TBLPROPERTIES ('refresh' = 'incremental')")
        tally.lowered += 1
    except NotMaintainable:
        tally.recomputed += 1
    return True


def _compared(
    wh: Warehouse,
    name: str,
    definition: Definition,
    wanted: Answer,
    oracle: Oracle,
    state: State,
    batch: Batch,
    moment: str,
    tally: Tally,
) -> bool:
    """Read a view and compare it with Spark's answer; False if they differ, or if it cannot be read."""
    try:
        difference = wanted.difference(answer_of(wh.sql(f"SELECT * FROM {name}")))
    except (FreshviewError, PySparkException) as error:
        tally.manners.append(_failure(batch, definition, moment, f"an error that Spark does not raise: {_told(error)}"))
        return False
    except Exception as error:
        tally.manners.append(_failure(batch, definition, moment, _told(error)))
        return False
    if not difference:
        return True
    if oracle.is_determined(definition.text, definition.below, state, wanted):
        tally.wrong.append(_failure(batch, definition, moment, difference))
    else:
        tally.undetermined += 1
    return False


def _compare_past(
    wh: Warehouse,
    views: Mapping[str, Definition],
    past: Sequence[tuple[int, Mapping[Definition, Answer]]],
    batch: Batch,
    tally: Tally,
) -> None:
    """Read one view in eight as of an earlier commit."""
    for place, (name, definition) in enumerate(views.items()):
        csn, wanted = past[len(past) - 2]
        if place % 8 or definition not in wanted:
            continue
        try:
            difference = wanted[definition].difference(answer_of(wh.sql(f"SELECT * FROM {name}", as_of=csn)))
        except (FreshviewError, PySparkException) as error:
            difference = ""
            tally.manners.append(_failure(batch, definition, f"as of CSN {csn}", _told(error)))
        if difference:
            tally.wrong.append(_failure(batch, definition, "as of an earlier commit", difference))


def _failure(batch: Batch, definition: Definition, moment: str, difference: str) -> Failure:
    return Failure(replace(batch, definitions=[definition]), moment, difference)


def _verdict(view: object) -> str:
    """How the reading of a view was proven, without numbers and details, but with whether it had answers."""
    told = str(getattr(view, "reading", "")).split(":")[0].split("(")[0]
    told = re.sub(r"only NULL in .*", "only NULL in a column", told)
    return re.sub(r"(\d+) (\w+?)s?\b", r"n \2s", told).strip()


def _reason(error: FreshviewError) -> str:
    """The kind of a refusal: its class, and its text without names and numbers."""
    text = str(error).splitlines()[0]
    cause = text.split(": ", 1)[-1]
    return f"{type(error).__name__}: {re.sub(r'[0-9]+', 'n', cause)[:70]}"


def _told(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__module__}.{type(error).__name__}: {lines[0][:200]}"
