"""The command line where it needs Spark: answers, loading, maintenance, and every example of the help texts."""

from __future__ import annotations

import csv
import io
import json
import os
import shlex
import signal
import subprocess
import threading
import time
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession
from tests.cli.calls import COMMAND, call, process, told

import freshview
import freshview.bench.__main__
import freshview.demo
from freshview.cli import serve as serve_module
from freshview.cli.main import COMMANDS
from freshview.cli.output import say
from freshview.refresh import calibration

pytestmark = pytest.mark.usefixtures("sales")


@pytest.fixture
def sales(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A warehouse with a table and a view that has a task; commands find it by themselves."""
    folder = tmp_path / "sales"
    with freshview.connect(folder, spark=spark) as wh:
        wh.sql("CREATE TABLE orders (id INT PRIMARY KEY, customer INT, amount DECIMAL(10,2))")
        wh.sql("INSERT INTO orders VALUES (1, 1, 10.00), (2, 2, NULL), (3, 1, 2.50)")
        wh.sql("CREATE MATERIALIZED VIEW totals AS SELECT customer, sum(amount) AS total FROM orders GROUP BY customer")
        wh.sql("INSERT INTO orders VALUES (4, 2, 1.25)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FRESHVIEW_WAREHOUSE", str(folder))
    return folder


# -- examples --------------------------------------------------------------------------------------


def _run_example(example: str) -> None:
    """Run a command line as a shell would: words, quotes, and a pipe from echo."""
    words = shlex.split(example)
    stdin = None
    if "|" in words:
        at = words.index("|")
        assert words[0] == "echo"
        stdin, words = " ".join(words[1:at]) + "\n", words[at + 1 :]
    assert words[0] == "freshview"
    result = call(*words[1:], stdin=stdin)
    assert result.stdout or words[1] in ("shell", "serve")
    if "--json" in words or words[-1] == "json":
        for document in result.stdout.splitlines() if "serve" in words else [result.stdout]:
            json.loads(document)


def _stop_when_serving(patch: pytest.MonkeyPatch) -> None:
    """`serve` runs until it is told to stop; so it is told as soon as it runs."""

    def heard(text: str) -> None:
        say(text)
        if text.startswith("Serving"):
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()

    patch.setattr(serve_module, "say", heard)


def test_every_example_runs(sales: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: what the help texts and the reference show works as it stands there."""
    deferred = "TBLPROPERTIES ('maintenance'='deferred')"
    call("sql", f"CREATE MATERIALIZED VIEW daily {deferred} AS SELECT customer, count(*) AS n FROM orders GROUP BY ALL")
    (tmp_path / "dumps" / "customer").mkdir(parents=True)
    (tmp_path / "dumps" / "customer" / "1.csv").write_text("id,name\n1,Ada\n2,Bob\n")
    call("sql", f"CREATE SOURCE crm USING CSV OPTIONS (path '{tmp_path / 'dumps'}')")
    call("sql", "CREATE FLOW customers AS AUTO CDC INTO customer FROM crm.customer (id INT, name STRING) KEYS (id)")
    sales.rename(tmp_path / "warehouse")
    monkeypatch.delenv("FRESHVIEW_WAREHOUSE")
    monkeypatch.setattr(freshview.demo, "main", lambda: print("shown"))
    monkeypatch.setattr(freshview.bench.__main__, "main", lambda: print("measured"))
    monkeypatch.setattr(calibration, "LARGE", 5000)  # prices of few rows are wrong, and soon measured
    monkeypatch.setattr(calibration, "SMALL", 100)
    _stop_when_serving(monkeypatch)
    (tmp_path / "changes.sql").write_text("BEGIN; UPDATE orders SET amount = 1 WHERE id = 1; COMMIT;")
    (tmp_path / "daily.sql").write_text("SELECT customer, sum(amount) AS s FROM orders GROUP BY customer;")
    (tmp_path / "new_orders.csv").write_text("id,amount,customer\n20,1.50,1\n21,,2\n")
    (tmp_path / "corrections.jsonl").write_text('{"id": 20, "customer": 3, "amount": 9.99}\n')
    pq.write_table(pa.table({"id": [1, 2], "name": ["bolt", "nut"]}), tmp_path / "parts.parquet")
    _ready_to_serve(tmp_path)
    for command in COMMANDS:
        for example in command.examples:
            try:
                _run_example(example)
            except AssertionError as error:
                raise AssertionError(f"{example}\n{error}") from error


def _ready_to_serve(folder: Path) -> None:
    """`init -w sales` comes first among the examples, so the others find that one too."""
    assert COMMANDS[0].name == "init"
    assert any("-w sales" in example for example in COMMANDS[0].examples)
    assert not (folder / "sales").exists()


# -- sql -------------------------------------------------------------------------------------------


def test_rows_in_each_format() -> None:
    query = "SELECT id, amount, '' AS note, ARRAY(1, NULL) AS a FROM orders WHERE id < 3 ORDER BY id"
    shown = [line.split() for line in call("sql", query).stdout.splitlines()]
    assert ["1", "10.00", "[1,", "NULL]"] in shown
    assert ["2", "NULL", "[1,", "NULL]"] in shown
    assert ["2", "rows."] in shown
    rows = list(csv.reader(io.StringIO(call("sql", query, "--format", "csv").stdout)))
    assert rows == [["id", "amount", "note", "a"], ["1", "10.00", "", "[1, null]"], ["2", "", "", "[1, null]"]]
    found = json.loads(call("sql", query, "--json").stdout, parse_float=Decimal)
    assert found == [
        {"id": 1, "amount": Decimal("10.00"), "note": "", "a": [1, None]},
        {"id": 2, "amount": None, "note": "", "a": [1, None]},
    ]
    assert told("sql", "SELECT 1 AS a WHERE false") == []
    assert "JSON keeps one" in call("sql", "SELECT 1 AS a, 2 AS a", "--json", code=1).stderr
    assert call("sql", "SELECT 1 AS a, 2 AS a", "--format", "csv").stdout == "a,a\n1,2\n"


def test_freshness_and_the_past() -> None:
    query = "SELECT total FROM totals WHERE customer = 2"
    assert told("sql", query, "--freshness", "any") == [{"total": None}]
    assert told("sql", query, "--freshness", "1d") == [{"total": None}]
    assert told("tasks")[0]["view"] == "totals"
    assert told("views")[0]["pending_tasks"] == 1
    assert told("sql", query) == [{"total": 1.25}]
    assert told("tasks") == []
    assert told("history", "totals", "-n", "1")[0]["to_csn"] == 4
    past = "SELECT count(*) AS n FROM orders"
    assert told("sql", past, "--as-of", "2") == [{"n": 3}]
    assert told("sql", past, "--as-of", "9999-01-01T00:00:00+00:00") == [{"n": 4}]


def test_errors_of_spark_are_one_sentence() -> None:
    for statement in (
        "SELECT nothing FROM orders",
        "SELECT * FROM nowhere",
        "SELECT 1 / (id - 1) FROM orders",
        "SELEC 1",
    ):
        for form in ("table", "csv", "json"):
            result = call("sql", statement, "--format", form, code=1)
            assert len(result.stderr.splitlines()) == 1, result.stderr


# -- load ------------------------------------------------------------------------------------------


def _amounts() -> dict[int, tuple[int | None, str | None]]:
    rows = told("sql", "SELECT id, customer, CAST(amount AS STRING) AS amount FROM orders")
    return {r["id"]: (r["customer"], r["amount"]) for r in rows}


def test_csv_goes_by_names(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('Amount,ID\n"1.50",20\n,21\n')
    (tmp_path / "b.csv").write_text('Amount,ID\n"7",22\n')
    assert told("load", "orders", tmp_path / "a.csv", tmp_path / "b.csv")["rows"] == 3
    found = _amounts()
    assert [found[i] for i in (20, 21, 22)] == [(None, "1.50"), (None, None), (None, "7.00")]
    (tmp_path / "c.txt").write_text("30;5;n/a\n")
    call("load", "orders", tmp_path / "c.txt", "--format", "csv", "--delimiter", ";", "--no-header", "--null", "n/a")
    assert _amounts()[30] == (5, None)


def test_csv_with_quotes_and_lines_in_them(tmp_path: Path) -> None:
    call("sql", "CREATE TABLE notes (id INT PRIMARY KEY, text STRING)")
    (tmp_path / "n.csv").write_text('id,text\n1,"two\nlines, ""quoted"""\n2,""\n3,\n4,back\\slash\n')
    call("load", "notes", tmp_path / "n.csv")
    rows = told("sql", "SELECT * FROM notes ORDER BY id")
    assert [r["text"] for r in rows] == ['two\nlines, "quoted"', "", None, "back\\slash"]
    call("load", "again", tmp_path / "n.csv", "--create")
    assert told("sql", "SELECT * FROM again ORDER BY id") == rows


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.csv", "id,amount\n50,1.5\n51,abc\n", "column amount of orders: abc is not a value of type decimal(10,2)"),
        ("a.csv", "id,price\n50,1\n", "column price: table orders has none of that name. It has id, customer, amount."),
        ("a.csv", "id,amount\n50,1,2\n", "Malformed CSV record: 50,1,2"),
        ("a.csv", "id,amount\n1,5\n", "key (id=1)"),
        ("a.csv", "amount\n5\n", "id"),
        ("a.jsonl", '{"id": 50, "amount": "x"}\n', "column amount of orders: x is not a value"),
        ("a.jsonl", '{"id": 50, "price": 1}\n', "column price: table orders has none"),
        ("a.jsonl", '{"id": 50\n', "file"),
        ("a.parquet", "not parquet", "file"),
        ("a.xls", "", "its ending is unknown. Give --format: csv, json, parquet, delta."),
    ],
)
def test_a_file_that_does_not_fit_loads_nothing(tmp_path: Path, name: str, content: str, sentence: str) -> None:
    before = told("status")["csn"]
    (tmp_path / name).write_text(content)
    result = call("load", "orders", tmp_path / name, code=1)
    assert sentence in result.stderr
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert told("status")["csn"] == before


def test_files_have_to_agree(tmp_path: Path) -> None:
    """Law: columns of CSV go by the names of each file, or not at all."""
    (tmp_path / "a.csv").write_text("id,customer\n50,1\n")
    (tmp_path / "b.csv").write_text("customer,id\n2,51\n")
    call("load", "orders", tmp_path / "a.csv", tmp_path / "b.csv", code=1)
    (tmp_path / "c.jsonl").write_text('{"id": 52}')
    assert "several formats" in call("load", "orders", tmp_path / "a.csv", tmp_path / "c.jsonl", code=1).stderr
    assert set(_amounts()) == {1, 2, 3, 4}


def test_json_parquet_and_delta(tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text('[\n{"id": 40, "amount": 0.10},\n{"id": 41, "customer": 7}]')
    assert told("load", "orders", tmp_path / "list.json")["rows"] == 2
    pq.write_table(pa.table({"customer": [8], "id": [42]}), tmp_path / "p.parquet")
    assert told("load", "orders", tmp_path / "p.parquet")["rows"] == 1
    write_deltalake(tmp_path / "d", pa.table({"id": [43, 44], "customer": [1, 2]}), partition_by=["customer"])
    assert told("load", "orders", tmp_path / "d")["rows"] == 2
    found = _amounts()
    assert [found[i] for i in range(40, 45)] == [(None, "0.10"), (7, None), (8, None), (1, None), (2, None)]
    (tmp_path / "up.jsonl").write_text('{"id": 43, "customer": 9}\n{"id": 99}\n')
    assert told("load", "orders", tmp_path / "up.jsonl", "--upsert")["rows"] == 2
    found = _amounts()
    assert (found[43], found[99]) == ((9, None), (None, None))


def test_a_table_is_made_with_its_rows_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("id,name,price\n1,bolt,0.5\n2,nut,1\n1,bolt,0.5\n")
    assert "key (id=1)" in call("load", "parts", tmp_path / "p.csv", "--create", "--key", "ID", code=1).stderr
    assert "nothing" in call("load", "parts", tmp_path / "p.csv", "--create", "--key", "nothing", code=1).stderr
    assert "parts" not in [t["name"] for t in told("status")["tables"]]
    made = told("load", "parts", tmp_path / "p.csv", "--create")
    assert (made["rows"], made["created"]) == (3, True)
    assert "Leave out --create" in call("load", "parts", tmp_path / "p.csv", "--create", code=1).stderr
    assert "give --create" in call("load", "nowhere", tmp_path / "p.csv", code=1).stderr
    assert "add --create" in call("load", "parts", tmp_path / "p.csv", "--key", "id", code=1).stderr
    assert "is not there" in call("load", "parts", tmp_path / "no.csv", code=1).stderr
    assert [c["data_type"] for c in told("sql", "DESCRIBE parts")] == ["int", "string", "double"]


# -- upkeep ----------------------------------------------------------------------------------------


def test_maintain_goes_on_past_a_view_that_fails() -> None:
    call("sql", "CREATE MATERIALIZED VIEW bad AS SELECT id, 1 / (customer - 7) AS q FROM orders")
    call("sql", "INSERT INTO orders VALUES (5, 7, 1)")
    result = call("maintain", "--json", code=1)
    found = json.loads(result.stdout)
    assert [j["view"] for j in found["jobs"]] == ["totals"]
    assert found["failed"] == ["bad"]
    assert len(result.stderr.splitlines()) == 1
    assert "Nothing was pending." in call("maintain", "totals").stdout
    assert "nowhere" in call("maintain", "totals", "nowhere", code=1).stderr
    assert "is not a materialized view" in call("refresh", "orders", code=1).stderr


def test_check_tells_by_its_exit_code(tmp_path: Path) -> None:
    assert [(r["name"], r["ok"]) for r in told("check")] == [("orders", True), ("totals", True)]
    write_deltalake(tmp_path / "d", pa.table({"k": [1, 1, 2]}))
    call("sql", f"CREATE TABLE given (PRIMARY KEY (k)) USING DELTA LOCATION '{tmp_path}/d'")
    found = {r["name"]: r for r in told("check", code=1)}
    assert (found["given"]["ok"], found["totals"]["ok"]) == (False, True)
    shown = call("check", "given", code=1).stdout
    assert "NOT OK" in shown
    assert "Too many in given" in shown
    assert "ok" in call("check", "orders").stdout


def test_explain_refresh_and_checkpoint() -> None:
    assert any("maintained: incrementally" in line for line in told("explain", "totals")["lines"])
    assert call("explain", "totals").stdout.startswith("view totals\n")
    assert told("refresh", "totals")["views"] == [{"view": "totals", "rows": 2, "csn": 4}]
    assert told("refresh", "totals", "--full")["failed"] == []
    done = told("checkpoint")["checkpoints"]
    assert [d["name"] for d in done] == ["orders", "totals"]
    assert "nothing to fold" in call("checkpoint").stdout


def test_a_deferred_view_is_refreshed_in_parts() -> None:
    """Law: what was propagated is shown by the partial refresh, and not before."""
    deferred = "TBLPROPERTIES ('maintenance'='deferred')"
    call("sql", f"CREATE MATERIALIZED VIEW daily {deferred} AS SELECT count(*) AS n FROM orders")
    call("sql", "INSERT INTO orders VALUES (70, 1, 1)")
    query = "SELECT n FROM daily"
    assert told("sql", query) == [{"n": 4}]
    told("refresh", "daily", "--propagate")
    assert told("sql", query) == [{"n": 4}]
    assert told("sql", query, "--freshness", "fresh") == [{"n": 5}]
    told("refresh", "daily", "--partial")
    assert told("sql", query) == [{"n": 5}]
    promised = told("check", "daily", "--invariant")[0]["invariants"]
    assert promised
    assert all(p["ok"] for p in promised)
    assert "holds" in call("check", "--invariant").stdout
    assert "only views have invariants" in call("check", "orders", "--invariant", code=1).stderr
    assert "Give one of them" in call("refresh", "daily", "--full", "--partial", code=1).stderr
    assert "totals" in call("refresh", "totals", "--propagate", code=1).stderr


@pytest.mark.parametrize("unnamed", [["maintain"], ["serve", "--once"]])
def test_a_deferred_view_that_nobody_named_shows_what_it_showed(unnamed: list[str]) -> None:
    """Law: whoever wants all views up to date gets a deferred one's changes computed, not shown."""
    deferred = "TBLPROPERTIES ('maintenance'='deferred')"
    call("sql", f"CREATE MATERIALIZED VIEW daily {deferred} AS SELECT count(*) AS n FROM orders")
    call("sql", "INSERT INTO orders VALUES (70, 1, 1)")
    query = "SELECT n FROM daily"
    call(*unnamed, "--json")
    assert [(v["name"], v["pending_tasks"]) for v in told("views")] == [("daily", 0), ("totals", 0)]
    assert told("sql", query) == [{"n": 4}]
    call("maintain", "daily")
    assert told("sql", query) == [{"n": 5}]


def test_the_shell_sees_its_own_transaction() -> None:
    typed = (
        "BEGIN;\nINSERT INTO orders\nVALUES (9, 9, 9);\nSELECT total + 1000 AS t FROM totals\nWHERE customer = 9;\n"
        "ROLLBACK;\nSELECT count(*) + 500 AS n FROM orders;\n"
    )
    lines = [line.strip() for line in call("shell", stdin=typed).stdout.splitlines()]
    assert "1009.00" in lines
    assert "504" in lines
    assert told("status")["csn"] == 4


# -- as processes ------------------------------------------------------------------------------------


def test_verbose_shows_warnings_and_tracebacks_on_stderr_only(tmp_path: Path) -> None:
    """What is quiet without it: see the next test, and test_spark_start."""
    script = "SELECT total FROM totals ORDER BY 1 DESC; SELECT 1 / (id - 1) FROM orders"
    done = process("--verbose", "sql", script, "--format", "csv", cwd=tmp_path, SPARK_DRIVER_MEMORY="1g")
    assert (done.returncode, done.stdout.splitlines()[:3]) == (1, ["total", "12.50", "1.25"])
    assert "WARN" in done.stderr
    assert "Traceback" in done.stderr
    assert "DIVIDE_BY_ZERO" in done.stderr.splitlines()[-1]


def test_ctrl_c_loses_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    """Law: after Ctrl-C what was committed is there, the open transaction is not, and no pin or lease is left.

    And Spark's start, a query and the interrupt make no noise.
    """
    script = (
        "INSERT INTO orders VALUES (60, 1, 1); BEGIN; INSERT INTO orders VALUES (61, 1, 1); SELECT 1 AS ready;"
        "SELECT count(*) FROM range(100000000000) WHERE sha2(CAST(id AS STRING), 256) = 'x'"
    )
    running = subprocess.Popen(
        [*COMMAND, "sql", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "SPARK_DRIVER_MEMORY": "1g"},
    )
    try:
        assert running.stdout is not None
        for line in running.stdout:
            if "ready" in line:
                break
        time.sleep(1)
        running.send_signal(signal.SIGINT)
        _, complaints = running.communicate(timeout=60)
    finally:
        running.kill()
    assert running.returncode == 130, complaints
    assert complaints.splitlines() == ["Interrupted: what was committed stays, the rest was rolled back."]
    assert {60} <= set(_amounts())
    assert 61 not in _amounts()
    assert all("snapshot" not in str(h) for h in told("status")["holders"])
