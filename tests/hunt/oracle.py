"""Plain Spark: answers the text of a definition over the model's rows, in a session that knows nothing of Freshview."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType
from tests.hunt.tables import Row, State, Table, arrow_type
from tests.hunt.values import Answer, answer_of
from tests.spark.sessions import apart

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ORDERS = 24  # in which rows are given again: the last digit of a covariance stays the same in every second one
# In so many parts rows are read and shuffled, in turn: partial variances that are put together have other last digits
# than that of all rows one after the other.
_PARTS = (1, 2, 3, 5)
_IN_PARTS = ("spark.sql.shuffle.partitions", "spark.sql.leafNodeDefaultParallelism")


class Oracle:
    """A session of plain Spark with the tables as temporary views."""

    def __init__(self, spark: SparkSession, tables: Iterable[Table], settings: Mapping[str, str]) -> None:
        self.session = apart(spark)
        self.tables = {t.name: t for t in tables}
        for key, value in settings.items():
            self.session.conf.set(key, value)

    def load(self, state: Mapping[str, Sequence[Row]], only: Iterable[str] | None = None) -> None:
        """Put the rows of a state into the temporary views."""
        for name in self.tables if only is None else only:
            table = self.tables[name]
            rows = table.arrow([table.padded(r) for r in state[name]])
            self.session.createDataFrame(rows, spark_schema(table)).createOrReplaceTempView(name)

    def answer(self, text: str, below: Iterable[tuple[str, str]] = ()) -> Answer:
        """The answer to a query; `below` are views that it reads, lower ones first."""
        for name, query in below:
            self.session.sql(query).createOrReplaceTempView(name)
        return answer_of(self.session.sql(text))

    def is_determined(self, text: str, below: Sequence[tuple[str, str]], state: State, answer: Answer) -> bool:
        """Whether the answer stays the same when the rows come in other orders, and in other parts."""
        draw, given = random.Random(repr(text)), {name: self.session.conf.get(name) for name in _IN_PARTS}
        try:
            for attempt in range(_ORDERS):
                mixed = {n: list(reversed(rows)) for n, rows in state.items()}
                if attempt:
                    for rows in mixed.values():
                        draw.shuffle(rows)
                self.load(mixed)
                for name in _IN_PARTS:
                    self.session.conf.set(name, _PARTS[attempt % len(_PARTS)])
                if answer.difference(self.answer(text, below)):
                    return False
            return True
        finally:
            for name, parts in given.items():
                self.session.conf.set(name, parts or "1")
            self.load(state)


def spark_schema(table: Table) -> StructType:
    """Spark's schema of a table. CHAR and VARCHAR are strings with the mark that Spark gives them in its catalog."""
    fields = []
    for column in table.columns:
        is_marked = column.type.startswith(("char(", "varchar("))
        mark = {"__CHAR_VARCHAR_TYPE_STRING": column.type} if is_marked else None
        kind = from_arrow_type(arrow_type(column.type), prefer_timestamp_ntz=True)
        fields.append(StructField(column.name, kind, True, mark))
    return StructType(fields)
