"""Running statements one after the other, with a transaction between BEGIN and COMMIT, for `sql` and `shell`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any

from freshview.cli.place import Place
from freshview.display import counted
from freshview.errors import InvalidStatement
from freshview.events import Event, Listener

if TYPE_CHECKING:
    from freshview.catalog.writer import Catalog
    from freshview.transactions.user_transaction import UserTransaction
    from freshview.warehouse.warehouse import Warehouse

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_CONTROL = re.compile(r"(BEGIN|START\s+TRANSACTION|COMMIT|ROLLBACK)(\s+(TRANSACTION|WORK))?", re.IGNORECASE)


@dataclass(frozen=True)
class ResultRows:
    """The answer to a query."""

    columns: tuple[str, ...]
    rows: Iterable[tuple[Any, ...]]


@dataclass(frozen=True)
class Done:
    """The outcome of a statement that is not a query."""

    text: str
    rows: int = 0
    csn: int | None = None


@dataclass(frozen=True)
class ReadOptions:
    """How queries read: with a freshness (None: that of each view's mode), or as of a CSN or time."""

    freshness: str | timedelta | None = None
    as_of: int | datetime | None = None


AS_USUAL = ReadOptions()


class Running:
    """Runs statements in a warehouse; opens it when the first of them needs more than the catalog."""

    def __init__(self, place: Place, options: ReadOptions = AS_USUAL) -> None:
        place.require()
        self._place = place
        self._options = options
        self._opened = ExitStack()
        self._warehouse: Warehouse | None = None
        self._catalog: Catalog | None = None
        self.transaction: UserTransaction | None = None
        self.listener: Listener | None = None  # hears of the events of the present statement

    def __enter__(self) -> Running:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self.transaction is not None:
                self.transaction.rollback()
        finally:
            self._opened.close()

    def warehouse(self) -> Warehouse:
        if self._warehouse is None:
            self._warehouse = self._opened.enter_context(self._place.connect())
            self._warehouse.events.listen(self._heard)
        return self._warehouse

    def _heard(self, event: Event) -> None:
        if self.listener is not None:
            self.listener(event)

    def catalog(self) -> Catalog:
        if self._catalog is None:
            self._catalog = self._opened.enter_context(self._place.open_catalog())
        return self._catalog

    def run(self, text: str, *, stream: bool = False) -> ResultRows | Done:
        """Run one statement; with `stream`, the rows of a query stay in Spark until they are consumed."""
        control = _CONTROL.fullmatch(_bare(text))
        if control is not None:
            return self._control(" ".join(control[1].upper().split()))
        from freshview.sql.parser import parse
        from freshview.sql.statements import Describe, Show
        from freshview.warehouse.show import listed

        statement = parse(text)
        if isinstance(statement, Show | Describe):
            answer = listed(self.catalog(), statement)
            return ResultRows(answer.columns, answer.rows)
        if self.transaction is not None:
            self._refuse_options()
            answer = self.transaction.sql(text)
        else:
            freshness: Any = self._options.freshness
            answer = self.warehouse().sql(text, as_of=self._options.as_of, freshness=freshness)
        if hasattr(answer, "columns"):
            return _rows_of(answer, text, stream)
        return Done(_outcome_text(answer.rows, answer.csn), answer.rows, answer.csn)

    def _refuse_options(self) -> None:
        if self._options != AS_USUAL:
            raise InvalidStatement(
                "--freshness and --as-of", "a transaction reads its own snapshot", "Leave them out, or BEGIN."
            )

    def _control(self, word: str) -> Done:
        if word in ("BEGIN", "START TRANSACTION"):
            if self.transaction is not None:
                raise InvalidStatement(word, "a transaction is open already", "COMMIT or ROLLBACK it first.")
            self._refuse_options()
            self.transaction = self.warehouse().transaction()
            return Done(f"Transaction {self.transaction.txsn} begun")
        if self.transaction is None:
            raise InvalidStatement(word, "no transaction is open", "BEGIN one first.")
        ended, self.transaction = self.transaction, None
        if word == "COMMIT":
            csn = ended.commit()
            return Done(f"Committed, CSN {csn}", csn=csn)
        ended.rollback()
        return Done("Rolled back")


def _bare(text: str) -> str:
    """Return the first tokens of a text, without comments: enough to recognise BEGIN, COMMIT and ROLLBACK."""
    from freshview.sql.tokens import tokenize

    return " ".join(t.text for t in tokenize(text)[:4])


def _rows_of(frame: Any, text: str, stream: bool) -> ResultRows:
    from freshview.spark.errors import spark_errors

    what = f"query {' '.join(text.split()):.80}"
    if not stream:
        with spark_errors(what):
            return ResultRows(tuple(frame.columns), [tuple(row) for row in frame.collect()])

    def rows() -> Iterator[tuple[Any, ...]]:
        with spark_errors(what):
            yield from map(tuple, frame.toLocalIterator(prefetchPartitions=True))

    return ResultRows(tuple(frame.columns), rows())


def _outcome_text(rows: int, csn: int | None) -> str:
    if csn is None:
        return f"{counted(rows, 'row')}, not committed yet"
    return f"{counted(rows, 'row')}, CSN {csn}" if rows else f"Done, CSN {csn}"


def freshness_from(text: str) -> str | timedelta:
    """Parse 'fresh', 'any', or a duration such as 30s, 10m, 2h or 1d."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd])", text.strip().lower())
    if found is not None:
        return timedelta(**{_UNITS[found[2]]: float(found[1])})
    if text in ("fresh", "any"):
        return text
    raise InvalidStatement(f"--freshness {text}", "is not known", "Use fresh, any, or a duration such as 30s, 10m, 2h.")


def moment_from(text: str) -> int | datetime:
    """Parse a CSN, or a time in ISO 8601; a time without a zone is local."""
    if text.isdecimal():
        return int(text)
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise InvalidStatement(
            f"--as-of {text}", "is neither a CSN nor a time", "Use a number, or YYYY-MM-DD hh:mm:ss."
        ) from None
