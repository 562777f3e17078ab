"""Calling the command line from tests: in this process, or as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from freshview.cli.main import app

COMMAND = [sys.executable, "-W", "error", "-m", "freshview.cli.main"]


def call(*arguments: str | Path, stdin: str | None = None, code: int = 0) -> Result:
    """A command in this process, which has to end with that code, and with a sentence if it is an error."""
    result = CliRunner().invoke(app, [str(a) for a in arguments], input=stdin)
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    if code == 1:
        assert "Traceback" not in result.stderr
    return result


def told(*arguments: str | Path, stdin: str | None = None, code: int = 0) -> Any:
    """What a command prints with --json."""
    result = call(*arguments, "--json", stdin=stdin, code=code)
    return json.loads(result.stdout)


def process(*arguments: str | Path, cwd: Path, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """A command as a process of its own, in a folder; warnings are errors."""
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        env={**os.environ, "NO_COLOR": "1", **environment},
    )
