"""How results show themselves: as text where there is only text, as HTML in a notebook.

A result tells what it has to say (`Told`); the rest is done here. What users wrote (names, values, messages) is
escaped in HTML, and characters that do not print, or that would steer a terminal, are spelled out in both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, SupportsIndex, overload

if TYPE_CHECKING:
    from freshview.catalog.frontiers import Job

MOST_JOBS = 50  # that a list of jobs shows: the newest
_TEXT_WIDTH = 60  # of a cell, in characters
_HTML_WIDTH = 300
_WAY = "  <- "  # in an explanation, between an operator and how it is maintained
_RIGHT = ' style="text-align: right"'
_LEFT = ' style="text-align: left"'


@dataclass(frozen=True)
class Table:
    """Rows under column names."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    title: str = ""

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, object]], title: str = "") -> Table:
        """Rows that carry the names of their columns; one that lacks a column has nothing there."""
        columns = tuple(dict.fromkeys(name for row in rows for name in row))
        return cls(columns, [[row.get(name, "") for name in columns] for row in rows], title)


@dataclass(frozen=True)
class Told:
    """What a result has to say: a headline, tables, and what is left to say."""

    headline: str
    tables: Sequence[Table] = ()
    remarks: Sequence[str] = ()

    def text(self) -> str:
        """For a terminal."""
        parts = [printable(self.headline)]
        parts += ["\n".join([*([f"{printable(t.title)}:"] if t.title else []), *_lines(t)]) for t in self.tables]
        return "\n".join(parts + [printable(r) for r in self.remarks])

    def html(self) -> str:
        """For a notebook."""
        parts = [f"<p><b>{_escaped(self.headline)}</b></p>"]
        for table in self.tables:
            parts += [f"<p>{_escaped(table.title)}</p>"] if table.title else []
            parts.append(_html(table))
        return f"<div>{''.join(parts)}{''.join(f'<p>{_escaped(r)}</p>' for r in self.remarks)}</div>"


class Shown(ABC):
    """A result that reads well wherever it is shown."""

    @abstractmethod
    def _told(self) -> Told: ...

    def __str__(self) -> str:
        return self._told().text()

    def __repr__(self) -> str:
        return self._told().text()

    def _repr_html_(self) -> str:
        return self._told().html()


def told(result: Shown) -> Told:
    """What a result has to say, for whoever draws it in a way of his own."""
    return result._told()


def counted(number: int, what: str) -> str:
    """So many of them: 1 row, 2 rows."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def table_of_jobs(jobs: Sequence[Job]) -> Table:
    """A row for each maintenance job."""
    columns = ("view", "from", "to", "strategy", "tasks", "delta rows", "view rows", "seconds", "error")
    rows = [
        (
            j.view, j.from_csn, j.to_csn, j.strategy, j.tasks, j.delta_rows, j.view_rows, round(j.seconds, 2),
            j.error or "",
        )
        for j in jobs
    ]  # fmt: skip
    return Table(columns, rows)


class Jobs(Shown, list["Job"]):
    """A list of jobs that shows itself as a table, the newest last.

    It is a list in all other ways: equal to one with the same jobs, and a part of it is a list of jobs again.
    """

    @overload
    def __getitem__(self, index: SupportsIndex, /) -> Job: ...

    @overload
    def __getitem__(self, index: slice, /) -> Jobs: ...

    def __getitem__(self, index: SupportsIndex | slice, /) -> Job | Jobs:
        if isinstance(index, slice):
            return Jobs(super().__getitem__(index))
        return super().__getitem__(index)

    def _told(self) -> Told:
        if not self:
            return Told("no maintenance jobs")
        newest = table_of_jobs(self[-MOST_JOBS:])
        older = len(self) - len(newest.rows)
        remarks = [f"{older} older ones are not shown"] if older else []
        return Told(counted(len(self), "maintenance job"), [newest], remarks)


class Explanation(str):
    """How a view is stored and maintained: a text, which a notebook shows with its lines and ways of maintenance."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        head, *rest = self.split("\n")
        lines = "\n".join([_emphasised(head), *map(_with_way, rest)])
        return f'<pre style="overflow-x: auto">{lines}</pre>'


def printable(text: str) -> str:
    """The text with characters that do not print spelled out (\\n, \\x1b), so that a row stays one line."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _cell(value: object, width: int) -> str:
    text = printable("NULL" if value is None else str(value))
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _lines(table: Table) -> list[str]:
    """The table as aligned lines: numbers to the right, all else to the left."""
    cells = [[_cell(v, _TEXT_WIDTH) for v in row] for row in table.rows]
    heads = [_cell(c, _TEXT_WIDTH) for c in table.columns]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    right = [bool(table.rows) and all(_is_number(row[i]) for row in table.rows) for i in range(len(heads))]
    return [
        "  " + "  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)).rstrip()
        for row in [heads, *cells]
    ]


def _html(table: Table) -> str:
    heads = "".join(f"<th{_LEFT}>{_escaped(_cell(c, _HTML_WIDTH))}</th>" for c in table.columns)
    rows = ["".join(map(_html_cell, row)) for row in table.rows]
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


def _html_cell(value: object) -> str:
    return f"<td{_RIGHT if _is_number(value) else _LEFT}>{_escaped(_cell(value, _HTML_WIDTH))}</td>"


def _escaped(text: str) -> str:
    return escape(printable(text))


def _emphasised(text: str) -> str:
    return f"<b>{_escaped(text)}</b>"


def _with_way(line: str) -> str:
    """A line of an explanation; where it tells of an operator, the way in which that is maintained stands out."""
    operator, arrow, told = line.partition(_WAY)
    way, colon, reason = told.partition(":")
    if not colon:
        return _escaped(line)
    return f"{_escaped(operator)}{escape(arrow)}{_emphasised(way)}:{_escaped(reason)}"
