"""The shell: shortcuts, lines until the semicolon, transactions, completion. What needs Spark is in tests/spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput
from tests.cli.calls import call, told

import freshview
from freshview.cli.place import Place
from freshview.cli.prompt import Keyboard, Words
from freshview.cli.running import Running
from freshview.cli.shell import Piped, Shell


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with freshview.connect(tmp_path / "wh") as wh:
        wh.sql("CREATE TABLE orders (id INT PRIMARY KEY, amount INT)")
    return tmp_path / "wh"


def _lines(folder: Path, text: str, code: int = 0) -> list[str]:
    return [line.strip() for line in call("shell", "-w", folder, stdin=text, code=code).stdout.splitlines()]


def test_shortcuts_answer_at_once(folder: Path) -> None:
    assert any(line.startswith("orders table") for line in map(_squeezed, _lines(folder, "\\dt\n")))
    assert "0 rows." in _lines(folder, "\\dv\n")
    assert "0 rows." in _lines(folder, "\\tasks\n")
    assert any("Primary key id" in line for line in map(_squeezed, _lines(folder, "\\d orders;\n")))
    assert _lines(folder, "\\d\n").count("0 rows.") == 1
    assert any("\\timing" in line for line in _lines(folder, "\\?\n"))
    assert _lines(folder, "\\timing\nSHOW TABLES;\n\\timing\n")[-1] == "Timing is on."
    assert not any("(0." in line for line in _lines(folder, "\\timing\nSHOW TABLES;\n"))


def _squeezed(line: str) -> str:
    return " ".join(line.split())


def test_statements_go_on_until_the_semicolon(folder: Path) -> None:
    lines = _lines(folder, "INSERT INTO orders\n VALUES (1, 2),\n (3, 4);\n\\q\nDROP TABLE orders;\n")
    assert lines[0] == "2 rows, CSN 2."
    assert lines[1].endswith("s)")
    assert told("status", "-w", folder)["csn"] == 2, "nothing is read after leaving"
    assert (
        _lines(folder, "INSERT INTO orders VALUES (5, 6); INSERT INTO orders VALUES (7, 8);SHOW TABLES")[2]
        == "1 row, CSN 4."
    )


def test_an_error_does_not_end_it(folder: Path) -> None:
    """The shell goes on after an error; with input from a pipe it ends with code 1."""
    result = call(
        "shell", "-w", folder, stdin="DROP TABLE nowhere;\n\\nothing\nINSERT INTO orders VALUES (1, 1);\n", code=1
    )
    assert len(result.stderr.splitlines()) == 2
    assert "1 row, CSN 2." in result.stdout


def test_transactions_end_by_commit_rollback_or_leaving(folder: Path) -> None:
    lines = _lines(folder, "BEGIN;\nINSERT INTO orders VALUES (1, 1);\nCOMMIT;\n")
    assert [line for line in lines if "(" not in line] == [
        "Transaction 1 begun.",
        "1 row, not committed yet.",
        "Committed, CSN 2.",
    ]
    lines = _lines(
        folder, "BEGIN;\nINSERT INTO orders VALUES (1, 1);\nINSERT INTO orders VALUES (2, 1);\nCOMMIT;\n", code=1
    )
    assert "Committed, CSN 3." in lines, "a statement that failed does nothing; the others stay"
    assert "Rolled back." in _lines(folder, "begin;\nINSERT INTO orders VALUES (9, 1);\nrollback;\n")
    left = call("shell", "-w", folder, stdin="BEGIN;\nINSERT INTO orders VALUES (9, 1);\n")
    assert "rolled back" in left.stderr
    assert told("status", "-w", folder)["csn"] == 3
    with freshview.connect(folder) as wh:
        assert wh.status().holders == () or all("snapshot" not in str(h) for h in wh.status().holders)


def test_ctrl_c_stops_the_statement_not_the_shell(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Running(Place(folder)) as running:
        answers = iter([KeyboardInterrupt(), None])
        run = running.run

        def interrupted(text: str, *, stream: bool = False) -> object:
            if text == "SHOW TASKS":
                raise KeyboardInterrupt
            return run(text, stream=stream)

        monkeypatch.setattr(running, "run", interrupted)
        shell = Shell(running, Piped(iter(["SHOW TASKS;\n", "SHOW TABLES;\n"])))
        shell.run()
        assert shell.failures == 1

        class Pressed:
            def read(self, in_transaction: bool) -> str | None:  # noqa: ARG002
                answer = next(answers)
                if isinstance(answer, BaseException):
                    raise answer
                return answer

        Shell(running, Pressed()).run()


@pytest.fixture
def keyboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PipeInput]:
    monkeypatch.setenv("FRESHVIEW_HISTORY", str(tmp_path / "state" / "history"))
    with create_pipe_input() as keys:
        yield keys


def test_enter_ends_a_statement_only_at_its_semicolon(folder: Path, keyboard: PipeInput, tmp_path: Path) -> None:
    """Enter before the semicolon goes on in the next line; the history keeps the whole statement."""
    with Running(Place(folder)) as running:
        typed = Keyboard(running.catalog, input=keyboard, output=DummyOutput())
        keyboard.send_text("SELECT ';\r' AS a\r, 1;\r\\d\r")
        assert typed.read(False) == "SELECT ';\n' AS a\n, 1;"
        assert typed.read(True) == "\\d"
        keyboard.send_text("\x04")
        assert typed.read(False) is None
        keyboard.send_text("\x03")
        with pytest.raises(KeyboardInterrupt):
            typed.read(False)
        again = Keyboard(running.catalog, input=keyboard, output=DummyOutput())
        keyboard.send_text("\x10\x10\r")
        assert again.read(False) == "SELECT ';\n' AS a\n, 1;"
    assert (tmp_path / "state" / "history").exists()


def test_the_prompt_knows_what_the_catalog_knows_now(folder: Path, keyboard: PipeInput) -> None:
    with Running(Place(folder)) as running:
        completer = Keyboard(running.catalog, input=keyboard, output=DummyOutput())._session.completer
        assert completer is not None

        def offered() -> list[str]:
            return [c.text for c in completer.get_completions(Document("SELECT * FROM ORD"), CompleteEvent())]

        assert offered() == ["orders", "ORDER"]
        running.run("CREATE TABLE order_lines (id INT)")
        assert offered() == ["order_lines", "orders", "ORDER"]


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("SELECT * FROM or", ["orders", "OR", "ORDER"]),
        ("select Am", ["amount"]),
        ("\\t", ["\\tasks", "\\timing"]),
        ("\\", ["\\d", "\\dt", "\\dv", "\\tasks", "\\timing", "\\?", "\\q"]),
        ("SELECT ", []),
        ("HAVIN", ["HAVING"]),
    ],
)
def test_what_is_offered(typed: str, expected: list[str]) -> None:
    words = Words(lambda: {"orders", "id", "amount"})
    assert [c.text for c in words.get_completions(Document(typed), CompleteEvent())] == expected
