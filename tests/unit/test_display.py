"""How results show themselves: text that reads well, HTML in which nothing that users wrote is markup."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import asdict, replace
from datetime import timedelta
from html.parser import HTMLParser

import pytest

from freshview import CheckReport, Explanation, Invariant, Job, Status, TableStatus, ViewStatus
from freshview.display import MOST_JOBS, Display, Grid, Jobs

EVIL = "<script>alert('x')</script>&amp;\n\x1b[31m\u202e"
TAGS = {"div", "p", "b", "table", "thead", "tbody", "tr", "th", "td", "pre"}


class _Page(HTMLParser):
    """The tags and the text of a page; tags must be ours, and closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS
        assert {name for name, _ in attrs} <= {"style"}
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return "".join(self.words)


def job(n: int = 1, view: str = "totals", error: str | None = None) -> Job:
    ended = Job(view_id=7, view=view, from_csn=n, to_csn=n + 1, strategy="incremental", seconds=0.128, error=error)
    return replace(ended, tasks=2, delta_rows=5, view_rows=3)


def status(name: str = "orders") -> Status:
    age = timedelta(seconds=5)
    view = ViewStatus(name, "lazy", False, 3, 2, 9, None, age, advice="lazy, since", reading="proven by plan")
    tables = (TableStatus(name, "table", 1000, 2, 30), TableStatus("v", "view", 5, 0, 0))
    return Status("/data/wh", "sqlite:///x", 4, 1, tables, (view,), held_by=f"view {name} has tasks")


SHOWN = [
    status(EVIL),
    CheckReport(EVIL, False, [{EVIL: EVIL}], [{EVIL: None}], 1, 1, (Invariant(EVIL, EVIL, False, EVIL),)),
    Jobs([job(view=EVIL, error=EVIL)]),
    Explanation(f"view {EVIL}\n  operators:\n    filter {EVIL} <b>  <- linear <b>: {EVIL}\nSELECT '{EVIL}'"),
]


@pytest.mark.parametrize("result", SHOWN, ids=lambda r: type(r).__name__)
def test_what_users_wrote_is_never_markup(result: Status | CheckReport | Jobs | Explanation) -> None:
    page = _Page(result._repr_html_())
    assert "<script>alert('x')</script>&amp;" in page.text
    assert not {"\x1b", "\u202e"} & set(page.text)


@pytest.mark.parametrize("result", SHOWN[:3], ids=lambda r: type(r).__name__)
def test_text_steers_no_terminal_and_keeps_rows_on_a_line(result: Status | CheckReport | Jobs) -> None:
    assert all(line.isprintable() for line in str(result).split("\n"))
    assert "\\n\\x1b[31m\\u202e" in str(result)
    assert repr(result) == str(result)


def test_a_status_reads_as_a_report() -> None:
    assert str(status()).splitlines() == [
        "warehouse /data/wh: last commit CSN 4, readable since CSN 1",
        "tables:",
        "  table   kind   rows in main  segments  their rows",
        "  orders  table          1000         2          30",
        "views:",
        "  view    mode  frontier  tasks  rows  status   reading         advice",
        "  orders  lazy         3      2     9  pending  proven by plan  lazy, since",
        "view orders has tasks",
    ]
    assert str(Status("w", "c", 0, 0, ())) == "warehouse w: last commit CSN 0, readable since CSN 0"


def test_a_status_in_a_notebook_has_a_table_of_tables_and_one_of_views() -> None:
    html = status()._repr_html_()
    assert html.count("<table>") == 2
    assert '<td style="text-align: right">1000</td>' in html
    assert '<td style="text-align: left">pending</td>' in html


def test_a_check_says_what_is_wrong_and_shows_the_first_rows() -> None:
    rows = [{"k": i, "v": None} for i in range(30)]
    bad = CheckReport("v", False, rows, [], 30, 0, (Invariant("INV_BL", "PAST(L, Q) ≡ MV", True),))
    lines = str(bad).splitlines()
    assert lines[:4] == ["v: NOT OK, 30 rows missing, 0 too many", "missing, the first 10:", "  k  v", "  0  NULL"]
    assert lines[-2:] == ["  9  NULL", "INV_BL holds (PAST(L, Q) ≡ MV)"]
    assert str(CheckReport("v", True, [], [])) == "v: ok, 0 rows missing, 0 too many"
    assert asdict(bad)["missing"] == rows


def test_rows_of_a_check_that_have_columns_of_different_names_are_all_shown() -> None:
    """Names of columns come from the rows, all of them: nothing that is wrong may be hidden."""
    report = CheckReport("t", False, [], [{"k": 1}, {"k": 2, "v": "x"}], 0, 2)
    assert "x" in str(report)


def test_jobs_are_a_list_in_all_but_looks() -> None:
    jobs = Jobs([job(1), job(2), job(3, error="it broke")])
    assert jobs == [job(1), job(2), job(3, error="it broke")]
    assert [job(1), job(2), job(3, error="it broke")] == jobs
    assert isinstance(jobs, list)
    assert jobs[-1].error == "it broke"
    assert isinstance(jobs[1:], Jobs)
    assert jobs[1:] == list(jobs)[1:]
    assert copy.copy(jobs) == pickle.loads(pickle.dumps(jobs)) == jobs
    assert str(jobs).splitlines() == [
        "3 maintenance jobs",
        "  view    from  to  strategy     tasks  delta rows  view rows  seconds  error",
        "  totals     1   2  incremental      2           5          3     0.13",
        "  totals     2   3  incremental      2           5          3     0.13",
        "  totals     3   4  incremental      2           5          3     0.13  it broke",
    ]
    assert str(Jobs()) == "no maintenance jobs"
    assert str(Jobs([job()])).startswith("1 maintenance job\n")


def test_of_many_jobs_the_newest_are_shown() -> None:
    told = str(Jobs(job(n) for n in range(MOST_JOBS + 3))).splitlines()
    assert told[0] == f"{MOST_JOBS + 3} maintenance jobs"
    assert told[2].split()[1] == "3"
    assert told[-2].split()[1] == str(MOST_JOBS + 2)
    assert told[-1] == "3 older ones are not shown"


def test_an_explanation_is_a_text_whose_ways_stand_out() -> None:
    operators = "    filter a > 1  <- linear: row by row\n      scan t  <- affected keys (t.a): why"
    text = f"view v\n  operators:\n{operators}\nSELECT a"
    found = Explanation(text)
    assert found == text
    assert json.dumps(found) == json.dumps(text)
    assert repr(found) == text
    assert pickle.loads(pickle.dumps(found)) == text
    html = found._repr_html_()
    assert _Page(html).text == text
    assert "<b>view v</b>" in html
    assert "filter a &gt; 1  &lt;- <b>linear</b>: row by row" in html
    assert "<b>affected keys (t.a)</b>: why" in html


def test_long_cells_are_cut_and_empty_tables_have_heads() -> None:
    told = Display("x", [Grid(("a",), [("y" * 1000,)]), Grid(("b", "c"), [])])
    assert all(len(line) <= 70 for line in told.text().splitlines())
    assert "…" in told.text()
    assert told.text().splitlines()[-1] == "  b  c"
    assert _Page(told.html()).text.count("y") == 299
