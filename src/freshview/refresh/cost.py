"""The estimated cost of a plan: rows that Spark reads from files, and a fixed price per operator.

The estimate only serves to choose between delta rules and recomputing. Its prices are the optimiser's: what `calibrate`
has measured on the machine, or the defaults (`Rates`). Their ratio matters more than their size. The times of a view's
past jobs correct them (`Calibration`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from freshview.algebra.nodes import Node, Scan, Shared
from freshview.algebra.stages import staged
from freshview.algebra.traversal import per_use
from freshview.definition.analysis import Definition
from freshview.optimizer.prices import Prices

_OPERATORS_PER_STAGE = 10  # a stage is a query of its own
_SECONDS_PREPARED = 0.05  # of a part that Spark computes without a job
# Values of a change that the driver takes: it reads and condenses 0.4 to 6 million a second, by types and keys, and the
# memory stays below 100 MB. Spark begins in half a second, but then reads whole relations: after 1 % of the tables of
# TPC-H at scale 1 were inserted, views over lineitem took 0.2 to 1.2 s here and 1.3 to 5.4 s by Spark.
DRIVER_CELLS = 4_000_000
DRIVER_BYTES = 64 << 20  # and of its segments, as they are stored
_SECONDS_AT_HAND = 4e-6  # of a row on the driver that is read, looked up and joined: 1.5 to 9 were measured
# Rows that Spark reads in the time in which it cancels one. Measured on 3 million rows of lineitem, four columns, two
# cores with other programs beside, in turn: reading and aggregating them 2.2 million rows a second; cancelling as many
# new and old rows (`spark/signed.cancelled`, written nowhere) 0.33 million if all are equal, and 0.27 if all
# differ: 6.8 and 8.2 rows read for each one cancelled. A view's past jobs correct it.
CANCELLED = 7
_LEAST = 0.05  # seconds: a smaller estimate is taken for this one
# Seconds: a job with a smaller estimate that takes longer says that beginning takes time (files are read that stay in
# memory, code is loaded), and nothing of larger jobs, but for the seconds beyond these.
_STEADY = 0.5
_MOST = 20.0  # the largest factor by which a job may differ from its estimate
_LEARN = 0.5  # the share of the newest job in the factor of its way
_FORGET = 0.1  # the share by which the factors of other ways move towards it


def takes_on_driver(rows: int, columns: int, bytes_: int = 0) -> bool:
    """Is a change of so many rows, columns and stored bytes read and condensed on the driver?"""
    return rows * columns <= DRIVER_CELLS and bytes_ <= DRIVER_BYTES


@dataclass(frozen=True)
class Rates:
    """The seconds of what an estimate counts, from the prices of single steps."""

    row: float  # that Spark reads from files; it goes into an operator, and out of it
    operator: float  # on Spark: analysis, planning, code generation
    in_process: float  # an operator in the embedded engine
    held: float  # a small result that Spark writes to files, in a query of its own
    joined: float  # a row that goes into or out of a join, or into a grouping, on Spark
    written: float  # a row that Spark writes to files
    run: float  # a query in the embedded engine
    job: float  # a job in the embedded engine, whatever it computes: tasks, plan, query, a segment
    row_in_process: float  # a row that goes into or out of a join or a grouping in the embedded engine

    @classmethod
    def of(cls, prices: Prices) -> Rates:
        spark = prices.spark
        row = spark.scan + 2 * spark.row
        held = spark.query + spark.keep
        own = prices.embedded
        job = own.query + prices.result
        return cls(row, spark.operator, own.operator, held, spark.row, spark.write, own.query, job, own.row)


DEFAULT = Rates.of(Prices())


@dataclass(frozen=True)
class Estimate:
    """The size of a query. Spark computes a part again for each use of it, so rows and operators count once per use."""

    rows: int
    operators: int
    rates: Rates = DEFAULT
    is_embedded: bool = False  # the embedded engine runs it
    prepared: int = 0  # parts that Spark computes for the embedded engine
    at_hand: int = 0  # rows on the driver that the embedded engine reads

    @property
    def seconds(self) -> float:
        operator = self.rates.in_process if self.is_embedded else self.rates.operator
        on_driver = self.prepared * _SECONDS_PREPARED + self.at_hand * _SECONDS_AT_HAND
        begun = self.rates.job if self.is_embedded else 0.0
        return begun + self.rows * self.rates.row + self.operators * operator + on_driver


def comparison(rows: int, rates: Rates) -> float:
    """The seconds in which Spark compares so many rows, new and old together, and keeps those that differ."""
    return CANCELLED * rows * rates.row


def in_process(cost: Estimate, at_hand: int = 0, prepared: int = 0) -> Estimate:
    """The cost of a query that the embedded engine runs over so many rows instead of Spark, but for so many parts."""
    return replace(cost, is_embedded=True, at_hand=at_hand, prepared=prepared)


def on_spark(cost: Estimate) -> Estimate:
    """The cost of a query that Spark runs after all: what its job took is compared with this."""
    return replace(cost, is_embedded=False, at_hand=0, prepared=0)


# Delta rules on the embedded engine, the same with a share of the time for what several views read, delta rules on
# Spark, recomputing: one engine's times say nothing of the other's.
_WAYS = ("embedded", "together", "spark", "full")


@dataclass(frozen=True)
class Calibration:
    """The factor by which the jobs of one view take longer than estimated, by way; learnt from each job.

    A way that is not chosen is not measured. Its factor drifts towards that of the chosen one, so that one slow
    moment of the machine does not rule a way out for good. The catalog keeps it with the view's frontier.
    """

    learnt: Mapping[str, float] = field(default_factory=dict)

    def factor(self, way: str) -> float:
        """A way that was never measured has the smallest factor of the others."""
        return self.learnt.get(way, min(self.learnt.values(), default=1.0))

    def factors(self) -> dict[str, float]:
        return {way: self.factor(way) for way in _WAYS}

    def after(self, way: str, estimated: float, actual: float) -> Calibration:
        """The factors after one more job."""
        seen = min(max(actual / max(estimated, _LEAST), 1 / _MOST), _MOST)
        if estimated < _STEADY:
            seen = min(seen, max(actual / _STEADY, 1.0))
        known = self.learnt.get(way)
        newest = seen if known is None else known + _LEARN * (seen - known)
        drifted = {w: f + _FORGET * (newest - f) for w, f in self.learnt.items()}
        return Calibration({**drifted, way: newest})


def estimate(plan: Node, rows: Callable[[Scan], int], rates: Rates = DEFAULT) -> Estimate:
    """The cost of a plan, run in stages; `rows` returns how many rows a scan reads from files."""

    def read(node: Node) -> int:
        return rows(node) if isinstance(node, Scan) and not isinstance(node.source, Shared) else 0

    stages, rest = staged(plan)
    parts = [*(s.part for s in stages), rest]
    operators = sum(per_use(p, lambda _: 1) for p in parts) + len(stages) * _OPERATORS_PER_STAGE
    return Estimate(sum(per_use(p, read) for p in parts), operators, rates)


def estimate_full(definition: Definition, rows: Callable[[str], int], rates: Rates = DEFAULT) -> Estimate:
    """The cost of recomputing a view over sources of which Spark reads so many rows from files; 0 for a view without a
    tree."""
    if definition.form is None:
        return Estimate(0, 0, rates)
    read = {source: rows(source) for source in definition.sources}
    return estimate(definition.form.tree, lambda scan: read[scan.relation], rates)
