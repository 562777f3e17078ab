"""`freshview demo` and `freshview bench`: separate programs, loaded when they are called."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Annotated

import typer

from freshview.cli.place import Command, Place, command
from freshview.errors import FreshviewError

Arguments = Annotated[list[str] | None, typer.Argument(help="Passed on unchanged.", metavar="ARGUMENTS")]


@command
def demo(place: Place, arguments: Arguments = None) -> None:  # noqa: ARG001
    """Demonstrate lazy maintenance on generated data, in a few minutes. Your warehouse is not touched.

    `freshview demo -- --help` lists its options.
    """
    _delegate("demo", "freshview.demo", arguments or [])


@command
def bench(place: Place, arguments: Arguments = None) -> None:  # noqa: ARG001
    """Run benchmark suites and write their figures.

    `freshview bench -- --help` lists suites and options.
    """
    _delegate("bench", "freshview.bench.__main__", arguments or [])


def _delegate(name: str, module: str, arguments: list[str]) -> None:
    """Run the main() of another module, which reads its arguments from sys.argv."""
    try:
        main = import_module(module).main
    except ModuleNotFoundError as error:
        raise FreshviewError(
            f"freshview {name}", f"the package {error.name} is not installed", f"pip install 'freshview[{name}]'"
        ) from error
    before, sys.argv = sys.argv, [f"freshview {name}", *arguments]
    try:
        code = main()
    finally:
        sys.argv = before
    if code:
        raise typer.Exit(int(code))


COMMANDS = (
    Command(demo, "Begin", ("freshview demo", "freshview demo --scale 0.1 --keep shop"), takes_any=True),
    Command(
        bench, "Measure", ("freshview bench lazy --scale 0.1 --repeat 3", "freshview bench -- --help"), takes_any=True
    ),
)
