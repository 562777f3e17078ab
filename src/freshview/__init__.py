"""Freshview: lazily maintained, always fresh materialized views on Apache Spark."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from freshview import errors

if TYPE_CHECKING:
    from freshview.standing import Status
    from freshview.transactions.transaction import Outcome
    from freshview.warehouse import CheckReport, Warehouse, connect

__version__ = "0.1.0"
__all__ = ["CheckReport", "Outcome", "Status", "Warehouse", "connect", "errors"]

_PLACES = {
    "CheckReport": "freshview.warehouse",
    "Outcome": "freshview.transactions.transaction",
    "Status": "freshview.standing",
    "Warehouse": "freshview.warehouse",
    "connect": "freshview.warehouse",
}


def __getattr__(name: str) -> Any:
    """Load what is asked for when it is: a command that tells its help need not wait for Arrow and the database."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_PLACES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
