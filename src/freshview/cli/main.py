"""The `freshview` command: its subcommands, and how an error is told."""

from __future__ import annotations

import sys

import typer

from freshview.cli.output import complain
from freshview.cli.serve import serve
from freshview.errors import FreshviewError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.command()(serve)


@app.callback()
def freshview() -> None:
    """Lazily maintained, always fresh materialized views on Apache Spark."""


def main() -> None:
    """Run a command. What went wrong is one sentence, never a traceback."""
    try:
        app(prog_name="freshview")
    except FreshviewError as error:
        complain(str(error))
        sys.exit(1)


if __name__ == "__main__":
    main()
