"""Results as text in a terminal and as HTML in a notebook.

A result supplies its contents (`Display`), which this module renders. Texts of users (names, values, messages) are
escaped in HTML; characters that do not print, or that would control a terminal, are spelled out in both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, SupportsIndex, overload

if TYPE_CHECKING:
    from freshview.catalog.frontiers import Job

MOST_JOBS = 50  # jobs that a list of jobs displays: the newest
_TEXT_WIDTH = 60  # of a cell, in characters
_HTML_WIDTH = 300
_WAY = "  <- "  # in an explanation, between an operator and the way in which it is maintained
_RIGHT = ' style="text-align: right"'
_LEFT = ' style="text-align: left"'


@dataclass(frozen=True)
class Grid:
    """Rows under column names."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    title: str = ""

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, object]], title: str = "") -> Grid:
        """A table of rows given as mappings from column names; a row that lacks a column has an empty cell there."""
        columns = tuple(dict.fromkeys(name for row in rows for name in row))
        return cls(columns, [[row.get(name, "") for name in columns] for row in rows], title)


@dataclass(frozen=True)
class Display:
    """The contents of a result: a headline, tables, and remarks below them."""

    headline: str
    tables: Sequence[Grid] = ()
    remarks: Sequence[str] = ()

    def text(self) -> str:
        """The contents as text, for a terminal."""
        parts = [printable(self.headline)]
        parts += ["\n".join([*([f"{printable(t.title)}:"] if t.title else []), *_lines(t)]) for t in self.tables]
        return "\n".join(parts + [printable(r) for r in self.remarks])

    def html(self) -> str:
        """The contents as HTML, for a notebook."""
        parts = [f"<p><b>{_escaped(self.headline)}</b></p>"]
        for table in self.tables:
            parts += [f"<p>{_escaped(table.title)}</p>"] if table.title else []
            parts.append(_html(table))
        return f"<div>{''.join(parts)}{''.join(f'<p>{_escaped(r)}</p>' for r in self.remarks)}</div>"


class Displayed(ABC):
    """A result whose text and HTML forms are rendered from its `Display`."""

    @abstractmethod
    def _display(self) -> Display: ...

    def __str__(self) -> str:
        return self._display().text()

    def __repr__(self) -> str:
        return self._display().text()

    def _repr_html_(self) -> str:
        return self._display().html()


def display_of(result: Displayed) -> Display:
    """The contents of a result, for a caller that renders them in its own way."""
    return result._display()


def counted(number: int, what: str) -> str:
    """A number with a noun in singular or plural: 1 row, 2 rows."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def table_of_jobs(jobs: Sequence[Job]) -> Grid:
    """A table with a row for each maintenance job."""
    columns = ("view", "from", "to", "strategy", "tasks", "delta rows", "view rows", "seconds", "error")
    return Grid(columns, [(*_cells(j), round(j.seconds, 2), j.error or "") for j in jobs])


def _cells(job: Job) -> tuple[object, ...]:
    return job.view, job.from_csn, job.to_csn, job.strategy, job.tasks, job.delta_rows, job.view_rows


class Jobs(Displayed, list["Job"]):
    """A list of jobs that displays itself as a table, the newest last.

    It is a list in all other ways: equal to one with the same jobs, and a slice of it is a list of jobs again.
    """

    @overload
    def __getitem__(self, index: SupportsIndex, /) -> Job: ...

    @overload
    def __getitem__(self, index: slice, /) -> Jobs: ...

    def __getitem__(self, index: SupportsIndex | slice, /) -> Job | Jobs:
        if isinstance(index, slice):
            return Jobs(super().__getitem__(index))
        return super().__getitem__(index)

    def _display(self) -> Display:
        if not self:
            return Display("no maintenance jobs")
        newest = table_of_jobs(self[-MOST_JOBS:])
        older = len(self) - len(newest.rows)
        remarks = [f"{older} older ones are not shown"] if older else []
        return Display(counted(len(self), "maintenance job"), [newest], remarks)


class Explanation(str):
    """A text on how a view is stored and maintained; a notebook keeps its lines and highlights ways of maintenance."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        head, *rest = self.split("\n")
        lines = "\n".join([_emphasised(head), *map(_with_way, rest)])
        return f'<pre style="overflow-x: auto">{lines}</pre>'


def printable(text: str) -> str:
    """The text with unprintable characters spelled out (\\n, \\x1b), so that a row stays one line."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _cell(value: object, width: int) -> str:
    text = printable("NULL" if value is None else str(value))
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _lines(table: Grid) -> list[str]:
    """The table as aligned lines: columns of numbers to the right, others to the left."""
    cells = [[_cell(v, _TEXT_WIDTH) for v in row] for row in table.rows]
    heads = [_cell(c, _TEXT_WIDTH) for c in table.columns]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    right = [bool(table.rows) and all(_is_number(row[i]) for row in table.rows) for i in range(len(heads))]
    return [
        "  " + "  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)).rstrip()
        for row in [heads, *cells]
    ]


def _html(table: Grid) -> str:
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
    """A line of an explanation as HTML; the way in which its operator, if any, is maintained is highlighted."""
    operator, arrow, rest = line.partition(_WAY)
    way, colon, reason = rest.partition(":")
    if not colon:
        return _escaped(line)
    return f"{_escaped(operator)}{escape(arrow)}{_emphasised(way)}:{_escaped(reason)}"
