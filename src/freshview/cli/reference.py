"""The reference of the command line, written from the commands themselves: `python -m freshview.cli.reference`."""

from __future__ import annotations

from typing import Any

import typer

from freshview.cli.main import COMMANDS, app
from freshview.cli.place import Command

_HEAD = """\
# Command line reference

Written by `python -m freshview.cli.reference` from the commands themselves; a test compares the two, and runs
every example.

`freshview [-w FOLDER] [--catalog URL] [--verbose] COMMAND …`; these three may also stand after the command's name.

| what | option | environment | else |
| --- | --- | --- | --- |
| folder of the warehouse | `--warehouse`, `-w` | `FRESHVIEW_WAREHOUSE` | `warehouse` |
| catalog | `--catalog` | `FRESHVIEW_CATALOG` | SQLite in the folder |
| Spark's log, warnings, tracebacks | `--verbose` | | not shown |

Exit codes: 0 all went well; 1 an error, told in one sentence on stderr, or a check that is not ok; 2 the command was
not understood; 130 interrupted by Ctrl-C (what was committed stays, the rest was rolled back).

`--json` prints JSON on stdout and nothing else. `freshview --install-completion` teaches your shell to complete
commands and options.

Long work draws a bar on stderr, if that is a screen: how much is done, for how long, and the time left at the pace so
far. Views and tables are counted in rows: those that are pending, stored or in the files to be loaded (of CSV and JSON
bytes are counted). A `~` marks what follows from the share of Spark's tasks that are done; of queries the tasks
themselves are shown.
"""
_SHARED = {"warehouse", "catalog", "verbose", "help"}


def text() -> str:
    """The whole reference, in Markdown."""
    group: Any = typer.main.get_command(app)
    panels = dict.fromkeys(c.panel for c in COMMANDS)
    parts = [_HEAD, "| | |\n| --- | --- |"]
    for panel in panels:
        links = ", ".join(f"[{c.name}](#freshview-{c.name})" for c in COMMANDS if c.panel == panel)
        parts[-1] += f"\n| {panel} | {links} |"
    parts += [_section(c, group.commands[c.name]) for c in sorted(COMMANDS, key=lambda c: c.name)]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def _section(command: Command, parsed: Any) -> str:
    arguments = [p for p in parsed.params if p.param_type_name == "argument"]
    options = [p for p in parsed.params if p.param_type_name == "option" and p.name not in _SHARED]
    usage = " ".join([f"freshview {command.name}", *(["[OPTIONS]"] * bool(options)), *map(_argument, arguments)])
    lines = [f"## freshview {command.name}", "", " ".join(usage.split()).join(("`", "`")), "", command.help]
    rows = [f"| `{_argument(p)}` | {p.help} |" for p in arguments]
    rows += [f"| {_option(p)} | {_cell(p)} |" for p in options]
    if rows:
        lines += ["", "| | |", "| --- | --- |", *rows]
    return "\n".join([*lines, "", "```sh", *command.examples, "```"])


def _argument(parameter: Any) -> str:
    name = parameter.name.upper()
    shown = f"{name}..." if parameter.nargs == -1 else name
    return shown if parameter.required else f"[{shown}]"


def _option(parameter: Any) -> str:
    return ", ".join(f"`{n}`" for n in (*parameter.opts, *parameter.secondary_opts))


def _cell(parameter: Any) -> str:
    default = parameter.default
    told = getattr(default, "value", default)
    if parameter.is_flag or told in (None, ""):
        return str(parameter.help)
    return f"{parameter.help} Default: `{told}`."


if __name__ == "__main__":
    print(text(), end="")
