"""Commands that ask the catalog alone: what they tell, and that they load no Spark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.calls import COMMAND, call, process, told
from tests.forks import run_in_fork
from typer.testing import CliRunner

import freshview
from freshview.cli.main import app


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A warehouse with two tables and a few commits; nothing of it needs Spark."""
    with freshview.connect(tmp_path / "sales") as wh:
        wh.sql("CREATE TABLE orders (id INT PRIMARY KEY, customer INT, amount DECIMAL(10,2))")
        wh.sql("INSERT INTO orders VALUES (1, 1, 10.00), (2, 2, NULL)")
        wh.sql("CREATE TABLE log (line STRING)")
    return tmp_path / "sales"


def test_init_makes_a_warehouse_once(tmp_path: Path) -> None:
    place = tmp_path / "new" / "wh"
    first = told("init", "-w", place)
    assert first == {"warehouse": str(place), "catalog": f"sqlite:///{place}/catalog.db", "created": True}
    with freshview.connect(place) as wh:
        wh.sql("CREATE TABLE t (id INT)")
    assert told("init", "-w", place)["created"] is False
    assert [t["name"] for t in told("status", "-w", place)["tables"]] == ["t"]
    assert "There is a warehouse in" in call("init", "-w", place).stdout


def test_the_place_is_an_option_before_or_after_the_command_or_in_the_environment(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands nearest to the command counts."""
    assert told("status", "-w", folder)["csn"] == 3
    assert told("-w", folder, "status")["csn"] == 3
    assert told("--warehouse", tmp_path / "nowhere", "status", "--warehouse", folder)["csn"] == 3
    monkeypatch.setenv("FRESHVIEW_WAREHOUSE", str(folder))
    assert told("status")["csn"] == 3
    call("-w", tmp_path / "nowhere", "status", code=1)
    monkeypatch.setenv("FRESHVIEW_CATALOG", f"sqlite:///{tmp_path}/other.db")
    assert "it belongs to another catalog" in call("status", code=1).stderr
    assert told("status", "--catalog", f"sqlite:///{folder}/catalog.db")["csn"] == 3
    monkeypatch.delenv("FRESHVIEW_WAREHOUSE")
    monkeypatch.delenv("FRESHVIEW_CATALOG")
    monkeypatch.chdir(tmp_path)
    assert "warehouse warehouse: there is none" in call("status", code=1).stderr
    call("init")
    assert told("status")["csn"] == 0


def test_status_tells_tables_and_commits(folder: Path) -> None:
    found = told("status", "-w", folder)
    assert (found["csn"], found["views"], found["held_by"]) == (3, [], "")
    assert found["tables"] == [
        {"name": "log", "kind": "table", "rows_in_main": 0, "pending_segments": 0, "pending_rows": 0},
        {"name": "orders", "kind": "table", "rows_in_main": 0, "pending_segments": 1, "pending_rows": 2},
    ]
    text = call("status", "-w", folder).stdout
    assert "last commit CSN 3" in text
    assert [line.split() for line in text.splitlines() if "orders" in line] == [["orders", "table", "0", "1", "2"]]


def test_a_warehouse_without_views_says_so(folder: Path) -> None:
    assert told("views", "-w", folder) == []
    assert told("tasks", "-w", folder) == []
    assert told("history", "-w", folder) == []
    assert "no materialized views" in call("views", "-w", folder).stdout
    assert "Nothing is pending" in call("tasks", "-w", folder).stdout
    assert "No maintenance job" in call("history", "-w", folder).stdout


def test_history_wants_a_view(folder: Path) -> None:
    assert "is not a materialized view" in call("history", "orders", "-w", folder, code=1).stderr
    assert "nothing" in call("history", "nothing", "-w", folder, code=1).stderr


def test_vacuum_removes_what_was_superseded(folder: Path) -> None:
    with freshview.connect(folder) as wh:
        wh.sql("CHECKPOINT orders")
        wh.sql("UPDATE orders SET customer = 3 WHERE id = 1")
        wh.sql("CHECKPOINT orders")
    assert told("vacuum", "-w", folder)["files"] == 0
    found = told("vacuum", "--retain-hours", "0", "-w", folder)
    assert found["files"] > 0
    assert found["horizon"] == told("status", "-w", folder)["horizon"] == 4
    assert "0 files" in call("vacuum", "-w", folder).stdout
    call("vacuum", "--retain-hours", "-1", "-w", folder, code=2)


def test_show_describe_and_simple_changes_by_sql(folder: Path) -> None:
    assert told("sql", "SHOW TABLES", "-w", folder) == [
        {"name": "log", "kind": "table", "primary_key": ""},
        {"name": "orders", "kind": "table", "primary_key": "id"},
    ]
    assert call("sql", "DESCRIBE orders", "--format", "csv", "-w", folder).stdout.splitlines() == [
        "col_name,data_type,comment",
        'id,int,""',
        'customer,int,""',
        'amount,"decimal(10,2)",""',
    ]
    assert told("sql", "INSERT INTO orders VALUES (7, 1, 1)", "-w", folder) == {"rows": 1, "csn": 4}
    result = call("sql", "INSERT INTO log VALUES ('a;b'); DELETE FROM orders WHERE id = 7", "-w", folder)
    assert result.stdout.splitlines() == ["1 row, CSN 5.", "1 row, CSN 6."]


def test_a_script_is_a_file_or_a_pipe(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "s.sql").write_text("-- é;\nINSERT INTO log VALUES ('x');\nSHOW COLUMNS IN log;\n", encoding="utf-8")
    expected = [{"rows": 1, "csn": 4}, [{"col_name": "line"}]]
    assert told("sql", "-f", tmp_path / "s.sql", "-w", folder) == expected
    expected[0] = {"rows": 1, "csn": 5}
    assert told("sql", "-w", folder, stdin=(tmp_path / "s.sql").read_text(encoding="utf-8")) == expected
    assert "there is none" in call("sql", "-w", folder, stdin=" -- nothing\n", code=1).stderr
    assert "Give one of them" in call("sql", "SHOW TABLES", "-f", tmp_path / "s.sql", "-w", folder, code=1).stderr
    assert "No such file" in call("sql", "-f", tmp_path / "no.sql", "-w", folder, code=1).stderr
    (tmp_path / "s.sql").write_bytes(b"\xff\xfe")
    assert "not UTF-8" in call("sql", "-f", tmp_path / "s.sql", "-w", folder, code=1).stderr


def test_a_transaction_in_a_script_is_whole_or_nothing(folder: Path) -> None:
    call("sql", "BEGIN; INSERT INTO log VALUES ('a'); INSERT INTO log VALUES ('b'); COMMIT", "-w", folder)
    assert told("status", "-w", folder)["csn"] == 4
    call("sql", "START TRANSACTION; INSERT INTO log VALUES ('a'); ROLLBACK WORK", "-w", folder)
    open_end = call("sql", "BEGIN; INSERT INTO log VALUES ('a')", "-w", folder, code=1)
    assert "it was not ended, and is rolled back" in open_end.stderr
    failing = call(
        "sql", "BEGIN; INSERT INTO log VALUES ('a'); INSERT INTO nowhere VALUES (1); COMMIT", "-w", folder, code=1
    )
    assert "nowhere" in failing.stderr
    assert "no transaction is open" in call("sql", "COMMIT", "-w", folder, code=1).stderr
    assert "open already" in call("sql", "BEGIN; BEGIN", "-w", folder, code=1).stderr
    assert "its own snapshot" in call("sql", "BEGIN; COMMIT", "--as-of", "1", "-w", folder, code=1).stderr
    assert told("status", "-w", folder)["csn"] == 4


def test_json_stays_json_where_a_later_statement_fails(folder: Path) -> None:
    found = told("sql", "SHOW COLUMNS IN log; DROP TABLE nowhere; DROP TABLE log", "-w", folder, code=1)
    assert found == [[{"col_name": "line"}]]
    assert told("status", "-w", folder)["csn"] == 3


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--freshness", "soon"], "--freshness soon: is not known. Use fresh, any, or a duration"),
        (["--as-of", "yesterday"], "--as-of yesterday: is neither a CSN nor a time."),
    ],
)
def test_options_that_cannot_be_read_are_told(folder: Path, options: list[str], sentence: str) -> None:
    result = call("sql", "DROP TABLE log", *options, "-w", folder, code=1)
    assert sentence in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert told("status", "-w", folder)["csn"] == 3


def test_the_past_is_not_changed(folder: Path) -> None:
    assert "only queries read the past" in call("sql", "DROP TABLE log", "--as-of", "1", "-w", folder, code=1).stderr


def test_usage_is_code_two(folder: Path) -> None:
    for arguments in (["nothing"], ["status", "--nothing"], ["explain"], ["sql", "SELECT 1", "--format", "xml"], []):
        call("-w", str(folder), *arguments, code=2)


def test_an_error_is_one_sentence_and_verbose_shows_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = process("status", cwd=tmp_path)
    assert (quiet.returncode, quiet.stdout) == (1, "")
    assert quiet.stderr.splitlines() == [
        "warehouse warehouse: there is none in this folder. Check the path, or make one: freshview init -w warehouse"
    ]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FRESHVIEW_VERBOSE", "")  # which --verbose sets, for this process
    loud = CliRunner().invoke(app, ["status", "--verbose"])
    assert loud.exit_code == 1
    assert "Traceback" in loud.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_nobody_expected_is_a_sentence_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("something\nodd")

    monkeypatch.setattr("freshview.warehouse.status.status_of", broken)
    result = call("status", "-w", folder, code=1)
    assert result.stderr.splitlines() == ["RuntimeError: something odd. Run it again with --verbose to see where."]

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("freshview.warehouse.status.status_of", stopped)
    assert "Interrupted" in call("status", "-w", folder, code=130).stderr


def test_a_reader_that_leaves_early_is_no_reason_to_complain(folder: Path) -> None:
    script = "SHOW TABLES;" * 2000
    running = subprocess.Popen(
        [*COMMAND, "sql", "--format", "csv", "-w", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stdin is not None
    assert running.stdout is not None
    assert running.stderr is not None
    running.stdout.close()
    running.stdin.write(script)
    running.stdin.close()
    assert (running.wait(timeout=60), running.stderr.read()) == (1, "")
    running.stderr.close()


def _load_no_spark(folder: Path, commands: list[list[str]]) -> None:
    for words in commands:
        call(*words, "-w", folder)
        assert not {"pyspark", "py4j"} & set(sys.modules), words


def test_they_load_no_spark(folder: Path) -> None:
    """Law: what needs only the catalog neither starts Spark nor loads it."""
    commands = [
        ["init"],
        ["views"],
        ["tasks"],
        ["status"],
        ["history"],
        ["vacuum"],
        ["sql", "SHOW TABLES"],
        ["sql", "DESCRIBE HISTORY orders"],
        ["sql", "INSERT INTO orders VALUES (9, 9, 9)"],
    ]
    run_in_fork(_load_no_spark, folder, commands)


def test_help_loads_next_to_nothing() -> None:
    """Law: to tell what there is, neither Arrow nor the database is loaded, let alone Spark."""
    script = (
        "import sys\nfrom typer.testing import CliRunner\nfrom freshview.cli.main import COMMANDS, app\n"
        "for words in [[], *([c.name] for c in COMMANDS)]:\n"
        "    assert CliRunner().invoke(app, [*words, '--help']).exit_code == 0, words\n"
        "heavy = {'pyspark', 'pyarrow', 'sqlalchemy', 'sqlglot', 'deltalake', 'numpy', 'prompt_toolkit'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_flows_are_listed_polled_and_their_bad_events_replayed(tmp_path: Path) -> None:
    events, place = tmp_path / "events", tmp_path / "wh"
    events.mkdir()
    (events / "1").write_text('{"id": 1, "n": 1}\n{bad\n')
    with freshview.connect(place) as wh:
        wh.sql(f"CREATE SOURCE s USING EVENTS OPTIONS (path '{events}', 'on error' 'quarantine')")
        wh.sql("CREATE FLOW f AS AUTO CDC INTO t FROM s.t (id INT, n INT) KEYS (id) SEQUENCE BY n")
    assert "SCD 1" in call("cdc", "-w", place).stdout
    assert told("cdc", "refresh", "-w", place)["flows"] == [{"flow": "f", "rows": 1, "csn": 2}]
    assert told("cdc", "list", "f", "-w", place)[0]["set_aside"] == 1
    assert told("status", "-w", place)["flows"][0]["name"] == "f"
    (event,) = told("cdc", "quarantine", "-w", place)
    assert (event["flow"], event["text"]) == ("f", "{bad")
    (events / "1").write_text('{"id": 1, "n": 1}\n{"id": 2, "n": 1}\n')
    assert told("cdc", "replay", "f", "-w", place)["flows"][0]["rows"] == 1
    assert "No event was set aside" in call("cdc", "quarantine", "-w", place).stdout
    events.rename(tmp_path / "gone")
    failed = call("cdc", "refresh", "-w", place, code=1)
    assert "is not there" in failed.stderr
    assert "Use one of list" in call("cdc", "dance", "-w", place, code=1).stderr
    assert "does not belong to list" in call("cdc", "list", "--full", "-w", place, code=1).stderr
    assert "flow nix: not found" in call("cdc", "list", "nix", "-w", place, code=1).stderr
