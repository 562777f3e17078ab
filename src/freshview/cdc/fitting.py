"""Rows that a table cannot hold, and rows on which an expression fails: found by halving, so that few cost little."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from freshview.cdc.model import PartialDelta, partial_delta
from freshview.cdc.source import Quarantined
from freshview.errors import FieldMismatch, FreshviewError, NotNullViolation, QueryFailed, SparkFailed, TypeMismatch
from freshview.relation.ingest import check_required, to_table
from freshview.relation.schema import Schema

_OF_THE_DATA = (TypeMismatch, FieldMismatch, NotNullViolation, QueryFailed)


def failing(rows: pa.Table, attempt: Callable[[pa.Table], object], limit: int | None = None) -> dict[int, str]:
    """The numbers of the first rows for which an attempt over rows fails, and why.

    An error that is not of the rows (Spark could not run; the attempt fails without rows too) is raised.
    """
    found: dict[int, str] = {}

    def look(start: int, count: int) -> None:
        if limit is not None and len(found) >= limit:
            return
        try:
            attempt(rows.slice(start, count))
        except _OF_THE_DATA as error:
            if isinstance(error, SparkFailed):
                raise
            if count == rows.num_rows:
                attempt(rows.slice(0, 0))
            if count == 1:
                found[start] = _cause(error)
            else:
                look(start, count // 2)
                look(start + count // 2, count - count // 2)

    look(0, rows.num_rows)
    return found


def _cause(error: FreshviewError) -> str:
    return f"{error.what}: {error.cause}"


@dataclass(frozen=True)
class Fit:
    """The columns `target` of a table, which take those of the same names of a source's rows.

    `is_sized` says that the source's values have the lengths of its types, as those of a server have.
    """

    name: str
    source: Schema
    target: Schema
    is_sized: bool = False

    @property
    def is_certain(self) -> bool:
        """Whether each row of the source fits, by the types alone."""
        pairs = [(c.type, self.source.column(c.name).type) for c in self.target.columns]
        return all(a == b and (self.is_sized or a.kind not in ("char", "varchar")) for a, b in pairs)

    def stored(self, rows: pa.Table) -> pa.Table:
        """Rows of the source as the table stores them; TypeMismatch if it cannot hold one."""
        columns = [self.source.column(c.name).name for c in self.target.columns]
        return to_table(rows.select(columns), self.target, self.name)

    def unfit(self, rows: pa.Table) -> dict[int, str]:
        """The numbers of rows of the source with a value that the table cannot hold, and why."""
        return {} if self.is_certain else failing(rows, self.stored)

    def unfit_or_lacking(self, rows: pa.Table) -> dict[int, str]:
        """The numbers of rows that the table cannot hold, or that lack a value which it requires, and why."""

        def stored(part: pa.Table) -> None:
            check_required(self.stored(part), self.target, self.name)

        return {} if self.is_certain and not self.target.required else failing(rows, stored)


def fitting(
    delta: PartialDelta, fit: Fit, keys: Sequence[str]
) -> tuple[PartialDelta, list[Quarantined], frozenset[tuple[Any, ...]]]:
    """A delta without the rows that the table cannot take, these rows, and their keys.

    Deletions by keys that it cannot hold are left out: it has no such rows.
    """
    schema = delta.schema
    if fit.is_certain and not fit.target.required:
        return delta, [], frozenset()
    bad: list[Quarantined] = []
    bad_keys: set[tuple[Any, ...]] = set()

    def kept(rows: pa.Table) -> pa.Array:
        causes = fit.unfit_or_lacking(rows)
        for number, cause in causes.items():
            row = rows.slice(number, 1).to_pylist()[0]
            named = ", ".join(f"{k}={row[k]!r}" for k in keys)
            bad.append(Quarantined(f"row ({named})", cause, repr(row)))
            bad_keys.add(tuple(row[k] for k in keys))
        return _others(rows, causes)

    only_key = replace(fit, target=Schema(tuple(fit.target.column(k) for k in keys)))
    paired = kept(delta.un)
    found = partial_delta(
        delta.name,
        schema,
        ins=delta.ins.take(kept(delta.ins)),
        deleted=delta.deleted.take(_others(delta.deleted, only_key.unfit(delta.deleted))),
        pairs=(delta.un.take(paired), delta.uo.take(paired)),
        up=delta.up.take(kept(delta.up)),
        ups=delta.ups.take(kept(delta.ups)),
        delk=delta.delk.take(_others(delta.delk, only_key.unfit(delta.delk))),
    )
    return found, bad, frozenset(bad_keys)


def _others(rows: pa.Table, numbers: Collection[int]) -> pa.Array:
    return pa.array([i for i in range(rows.num_rows) if i not in numbers], pa.int64())
