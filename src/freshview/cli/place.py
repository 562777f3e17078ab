"""The frame of every command: the options that all share, the warehouse they name, and the handling of errors."""

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
    typer.Option("--warehouse", "-w", help="The warehouse's folder. Default: FRESHVIEW_WAREHOUSE, or ./warehouse."),
]
CatalogOption = Annotated[
    str | None,
    typer.Option("--catalog", help="The catalog's database URL. Default: FRESHVIEW_CATALOG, or SQLite in the folder."),
]
VerboseOption = Annotated[bool, typer.Option("--verbose", help="Print Spark's log, warnings and tracebacks.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else.")]


@dataclass(frozen=True)
class Place:
    """A warehouse's folder and catalog, as the user gave them."""

    folder: Path = DEFAULT
    catalog: str | None = None
    verbose: bool = False

    def require(self) -> None:
        """Raise NotFound unless the warehouse exists: a misspelt path creates none."""
        from freshview.warehouse.opening import is_warehouse

        if not is_warehouse(self.folder):
            raise NotFound(
                f"warehouse {self.folder}",
                "there is none in this folder",
                f"Check the path, or make one: freshview init -w {self.folder}",
            )

    def connect(self, **options: Any) -> Warehouse:
        """Open the warehouse, which must exist. Spark starts when it is first needed."""
        import freshview

        self.require()
        return freshview.connect(self.folder, self.catalog, **options)

    @contextmanager
    def open_catalog(self, *, new: bool = False) -> Iterator[Catalog]:
        """Open the catalog alone, for commands that need neither Spark nor data; `new` creates a missing warehouse."""
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
    """A command as it is registered: its function, the panel that lists it, and examples that a test runs."""

    run: Callable[..., None]
    panel: str
    examples: tuple[str, ...]
    takes_any: bool = False  # unknown options are passed on to another program

    @property
    def name(self) -> str:
        return self.run.__name__.rstrip("_")

    @property
    def help(self) -> str:
        """The docstring with each paragraph on one line; the printer breaks lines."""
        paragraphs = (inspect.getdoc(self.run) or "").split("\n\n")
        return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Turn a function of a `place` and its own options into a command that takes -w, --catalog and --verbose too.

    These three may also stand before the command's name; after it they take precedence.
    """

    @functools.wraps(function)
    def run(*, ctx: typer.Context, warehouse: Path | None, catalog: str | None, verbose: bool, **options: Any) -> None:
        given = ctx.obj if isinstance(ctx.obj, Place) else place_from(None, None, False)
        place = Place(warehouse or given.folder, catalog or given.catalog, verbose or given.verbose)
        with reported_errors(place.verbose):
            function(place, **options)
            sys.stdout.flush()  # here, so that an error of it is reported

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
    """Return the place that the options before the command's name give, completed from the environment."""
    folder = warehouse or Path(os.environ.get("FRESHVIEW_WAREHOUSE") or DEFAULT)
    return Place(folder, catalog or os.environ.get("FRESHVIEW_CATALOG") or None, verbose)


@contextmanager
def reported_errors(verbose: bool) -> Iterator[None]:
    """Report an error as one sentence on stderr and exit with 1, or 130 for Ctrl-C; print a traceback if `verbose`."""
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
        if interruption.requested:  # the error is a consequence: a cancelled query, a closed connection
            raise _interrupted(verbose) from None
        raise _reported(error, verbose) from None


@contextmanager
def remembered_interrupts() -> Iterator[None]:
    """On Ctrl-C raise KeyboardInterrupt and ask this thread to stop, since the exception alone may get lost.

    py4j closes its connections when it is interrupted, and raises an OSError instead if one is closed already. In a
    finaliser Python drops a KeyboardInterrupt and prints a trace.
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
    _report("Interrupted: what was committed stays, the rest was rolled back.", verbose)
    return typer.Exit(INTERRUPTED)


def _reported(error: Exception, verbose: bool) -> Exception:
    """Report an error in a sentence; return the exception that ends the command."""
    match error:
        case typer.Exit() | typer.Abort() | typer.BadParameter():
            return error
        case BrokenPipeError():
            _leave_pipe()
        case FreshviewError():
            _report(str(error), verbose)
        case _:
            cause = " ".join(str(error).split())[:300] or "no message"
            _report(f"{type(error).__name__}: {cause}. Run it again with --verbose to see where.", verbose)
    return typer.Exit(1)


def _report(sentence: str, verbose: bool) -> None:
    if verbose:
        traceback.print_exc()
    complain(sentence)


def _leave_pipe() -> None:
    """Discard further output, and what Python flushes at exit: the reader of the pipe has closed it."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
