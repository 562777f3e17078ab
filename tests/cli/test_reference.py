"""The reference and the help texts: neither can drift from the commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.calls import call

from freshview.cli import reference
from freshview.cli.main import COMMANDS

_DOCS = Path(__file__).parents[2] / "docs"


def test_the_reference_is_written_from_the_commands() -> None:
    """If this fails: python -m freshview.cli.reference > docs/cli.md"""
    assert (_DOCS / "cli.md").read_text(encoding="utf-8") == reference.text()


def test_every_command_has_help_with_examples() -> None:
    for command in COMMANDS:
        shown = " ".join(call(command.name, "--help").stdout.split())
        assert command.examples, command.name
        for example in command.examples:
            assert all(word in shown for word in example.split()), (command.name, example)
        assert f"freshview {command.name}" in reference.text()


def test_every_command_is_listed() -> None:
    shown = call("--help").stdout
    first = "init sql shell load views tasks status explain maintain"
    second = "check history serve checkpoint vacuum bench doctor demo"
    wanted = {*first.split(), *second.split()}
    assert wanted <= {c.name for c in COMMANDS}
    assert all(name in shown for name in wanted)


def test_help_breaks_lines_where_the_screen_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Help text is wrapped at the screen's width, not where the source breaks it, and shows one backslash as one."""
    monkeypatch.setenv("COLUMNS", "1000")
    lines = [line.strip() for name in ("sql", "shell") for line in call(name, "--help").stdout.splitlines()]
    for command in COMMANDS:
        if command.name in ("sql", "shell"):
            assert set(filter(None, command.help.split("\n"))) <= set(lines)
    assert any(line.endswith(" \\? lists more.") for line in lines)


def test_version() -> None:
    assert call("--version").stdout.startswith("freshview 0.")
