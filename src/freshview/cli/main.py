"""The `freshview` command: registers the subcommands."""

from __future__ import annotations

import logging
import sys
import warnings
from typing import Annotated

import typer
from rich.markup import escape

from freshview import __version__
from freshview.cli import cdc, delegates, doctor, load, look, optimize, query, serve, setup, shell, upkeep
from freshview.cli.place import CatalogOption, Command, VerboseOption, WarehouseOption, place_from

_MODULES = (setup, doctor, query, shell, load, look, upkeep, cdc, optimize, serve, delegates)
COMMANDS: tuple[Command, ...] = tuple(command for module in _MODULES for command in module.COMMANDS)

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"freshview {__version__}")
        raise typer.Exit


VersionOption = Annotated[
    bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version, and exit.")
]


_ABOUT = """\
Lazily maintained, always fresh materialized views on Apache Spark.

A warehouse is a folder with tables and materialized views; its catalog is a small database that lists them. \
Each commit has a number, its CSN. A view's frontier is the CSN up to which the view is maintained; the commits beyond \
it are the view's tasks. A query first brings the views that it reads up to date, unless they are deferred; \
maintaining them earlier saves the query that time.

To see it work: freshview demo. To begin: freshview init, then freshview sql "CREATE TABLE …", freshview load, or \
freshview shell. The --help of each command has more, with examples.\
"""


@app.callback(help=_ABOUT)
def freshview(
    ctx: typer.Context,
    warehouse: WarehouseOption = None,
    catalog: CatalogOption = None,
    verbose: VerboseOption = False,
    version: VersionOption = False,  # noqa: ARG001
) -> None:
    """Take the options before a command's name."""
    ctx.obj = place_from(warehouse, catalog, verbose)


def _register(command: Command) -> None:
    examples = "\n\n".join(["Examples:", *(escape(example) for example in command.examples)])
    settings = {"allow_extra_args": True, "ignore_unknown_options": True} if command.takes_any else None
    app.command(
        command.name, help=command.help, epilog=examples, rich_help_panel=command.panel, context_settings=settings
    )(command.run)


for _command in COMMANDS:
    _register(_command)


def main() -> None:
    """Run a command. Python's warnings and the logs of libraries appear only with --verbose."""
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    logging.getLogger().addHandler(logging.NullHandler())
    app(prog_name="freshview")


if __name__ == "__main__":
    main()
