"""Carrying out the blocks of a page: Python in one namespace, SQL in one shell, commands as the user types them."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from tests.cli.calls import call
from tests.docs.blocks import ROOT, Block, as_shown, steps

from freshview.cli.place import Place
from freshview.cli.running import Running
from freshview.cli.shell import Piped, Shell

LANGUAGES = ("python", "sql", "sh")


class _Typed:
    """What is typed into the shell, block by block."""

    def __init__(self) -> None:
        self.block = Piped(iter(()))

    def read(self, in_transaction: bool) -> str | None:
        return self.block.read(in_transaction)


class Page:
    """A page that is run from top to bottom. SQL goes to the shell of the warehouse in `folder`, without times."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._namespace: dict[str, Any] = {"__name__": "__page__"}
        self._typed = _Typed()
        self._shell: Shell | None = None
        self._open = ExitStack()

    def run(self, block: Block) -> str:
        """What a block prints."""
        with _captured() as printed:
            match block.language:
                case "python":
                    exec(compile(block.text, f"line {block.line}", "exec"), self._namespace)
                case "sql":
                    self._type(block.text)
                case "sh":
                    printed.write("".join(map(_command, block.text.splitlines())))
                case other:
                    raise AssertionError(f"nobody runs {other}")
        return printed.getvalue()

    def _type(self, text: str) -> None:
        if self._shell is None:
            self._shell = Shell(self._open.enter_context(Running(Place(self._folder))), self._typed)
            with _captured():
                self._type("\\timing\n")
        self._typed.block = Piped(iter(text.splitlines(keepends=True)))
        self._shell.run()

    def close(self) -> None:
        self._open.close()


@contextmanager
def _captured() -> Iterator[StringIO]:
    printed = StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        yield printed


def _command(line: str) -> str:
    """Our commands are run; those of make are looked at, since they are what runs this test."""
    words = shlex.split(line, comments=True)
    match words:
        case ["freshview", *arguments]:
            return call(*arguments).stdout
        case ["make", target]:
            subprocess.run(["make", "-n", target], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
            return ""
        case ["source", ".venv/bin/activate"]:
            return ""
    raise AssertionError(f"nobody runs {line!r}")


def differences(page: str, folder: Path) -> Iterator[str]:
    """Run a page; blocks that print something else than is shown, or print and show nothing."""
    running = Page(folder)
    try:
        for step in steps(page, *LANGUAGES):
            printed = running.run(step.block)
            if step.shown is not None and not as_shown(step.shown, printed):
                yield f"line {step.block.line} shows\n{step.shown}\nbut prints\n{printed}"
    finally:
        running.close()
