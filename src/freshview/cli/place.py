"""Where a command works, and how it is called: the options that all commands share, and what becomes of an error."""

from __future__ import annotations

import functools
import inspect
import logging
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from freshview.cli.output import complain
from freshview.errors import FreshviewError, NotFound
from freshview.interruption import Interruption, ask_to_stop

if TYPE_CHECKING:
    from freshview.catalog.writer import Catalog
    from freshview.warehouse.warehouse import Warehouse

DEFAULT = Path("warehouse")
INTERRUPTED = 130

WarehouseOption = Annotated[
    Path | None,
    typer.Option("--warehouse", "-w", help="The warehouse's folder; else FRESHVIEW_WAREHOUSE, else ./warehouse."),
]
CatalogOption = Annotated[
    str | None,
    typer.Option("--catalog", help="The catalog's database URL; else FRESHVIEW_CATALOG, else SQLite in the folder."),
]
VerboseOption = Annotated[bool, typer.Option("--verbose", help="Show Spark's log, warnings and tracebacks.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else.")]


@dataclass(frozen=True)
class Place:
    """A warehouse's folder and catalog, as the user gave them."""

    folder: Path = DEFAULT
    catalog: str | None = None
    verbose: bool = False

    def require(self) -> None:
        """Is there a warehouse? A name that was misspelt makes none."""
        from freshview.warehouse.opening import is_warehouse

        if not is_warehouse(self.folder):
            raise NotFound(
                f"warehouse {self.folder}",
                "there is none in this folder",
                f"Check the path, or make one: freshview init -w {self.folder}",
            )

    def connect(self, **options: Any) -> Warehouse:
        """The warehouse, which must exist. Spark starts when it is first needed."""
        import freshview

        self.require()
        return freshview.connect(self.folder, self.catalog, **options)

    @contextmanager
    def open_catalog(self, *, new: bool = False) -> Iterator[Catalog]:
        """The catalog alone, for what needs neither Spark nor data; `new` makes a warehouse where there is none."""
        from freshview.catalog.writer import Catalog
        from freshview.warehouse.opening import open_database

        if not new:
            self.require()
        database = open_database(self.folder.absolute(), self.catalog)
        try:
            yield Catalog(database)
        finally:
            database.close()


@dataclass(frozen=True)
class Command:
    """A command as it is registered: what runs, what it is listed under, and examples that all run in a test."""

    run: Callable[..., None]
    panel: str
    examples: tuple[str, ...]
    takes_any: bool = False  # options that are not known here go to another program

    @property
    def name(self) -> str:
        return self.run.__name__.rstrip("_")

    @property
    def help(self) -> str:
        """What the command says of itself: a line per paragraph, for whoever prints it to break."""
        told = inspect.getdoc(self.run) or ""
        return "\n\n".join(" ".join(paragraph.split()) for paragraph in told.split("\n\n"))


def command(function: Callable[..., None]) -> Callable[..., None]:
    """A function of a `place` and its own options as a command that takes -w, --catalog and --verbose too.

    They may stand before the command's name as well; what stands after it counts.
    """

    @functools.wraps(function)
    def run(*, ctx: typer.Context, warehouse: Path | None, catalog: str | None, verbose: bool, **options: Any) -> None:
        given = ctx.obj if isinstance(ctx.obj, Place) else place_from(None, None, False)
        place = Place(warehouse or given.folder, catalog or given.catalog, verbose or given.verbose)
        with told_errors(place.verbose):
            function(place, **options)
            sys.stdout.flush()  # here an error is told as it should be

    hints = inspect.get_annotations(function, eval_str=True)
    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    shared = {"warehouse": (WarehouseOption, None), "catalog": (CatalogOption, None), "verbose": (VerboseOption, False)}
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context),
        *(p.replace(kind=keyword) for p in own),
        *(inspect.Parameter(n, keyword, default=d, annotation=a) for n, (a, d) in shared.items()),
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {
        "ctx": typer.Context,
        **{p.name: hints[p.name] for p in own},
        **{n: a for n, (a, _) in shared.items()},
    }
    return run


def place_from(warehouse: Path | None, catalog: str | None, verbose: bool) -> Place:
    """What stands before the command's name, completed from the environment."""
    folder = warehouse or Path(os.environ.get("FRESHVIEW_WAREHOUSE") or DEFAULT)
    return Place(folder, catalog or os.environ.get("FRESHVIEW_CATALOG") or None, verbose)


@contextmanager
def told_errors(verbose: bool) -> Iterator[None]:
    """One sentence on stderr and exit code 1 for what went wrong, 130 for Ctrl-C; a traceback only if asked for."""
    if verbose:
        os.environ["FRESHVIEW_VERBOSE"] = "1"  # for Spark, when it starts
        logging.basicConfig(force=True)
        if not sys.warnoptions:
            warnings.simplefilter("default")
    interruption = Interruption()
    try:
        with interruption.here(), remembered_interrupts():
            yield
    except KeyboardInterrupt:
        raise _interrupted(verbose) from None
    except Exception as error:
        if interruption.requested:  # whatever it is, it comes of that: a query that was cancelled, a closed connection
            raise _interrupted(verbose) from None
        raise _told(error, verbose) from None


@contextmanager
def remembered_interrupts() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, as ever, and asks this thread to stop, since an exception alone may get lost.

    py4j closes its connections when it is interrupted, and raises an OSError instead where one is closed already. And
    where KeyboardInterrupt hits a finaliser, Python drops it, with a trace on the screen.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def answer(*_: object) -> None:
        ask_to_stop()
        raise KeyboardInterrupt

    def dropped(what: Any) -> None:
        if not issubclass(what.exc_type, KeyboardInterrupt):
            others(what)

    before, others = signal.signal(signal.SIGINT, answer), sys.unraisablehook
    sys.unraisablehook = dropped
    try:
        yield
    finally:
        sys.unraisablehook = others
        signal.signal(signal.SIGINT, before)


def _interrupted(verbose: bool) -> typer.Exit:
    _tell("Interrupted: what was committed stays, the rest was rolled back.", verbose)
    return typer.Exit(INTERRUPTED)


def _told(error: Exception, verbose: bool) -> Exception:
    """An error in a sentence, and what ends the command then."""
    match error:
        case typer.Exit() | typer.Abort() | typer.BadParameter():
            return error
        case BrokenPipeError():
            _leave_pipe()
        case FreshviewError():
            _tell(str(error), verbose)
        case _:
            cause = " ".join(str(error).split())[:300] or "no message"
            _tell(f"{type(error).__name__}: {cause}. Run it again with --verbose to see where.", verbose)
    return typer.Exit(1)


def _tell(sentence: str, verbose: bool) -> None:
    if verbose:
        traceback.print_exc()
    complain(sentence)


def _leave_pipe() -> None:
    """Whoever read our output has left: say nothing more, not even when Python flushes it at the end."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
