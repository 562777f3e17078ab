"""Freshview: lazily maintained, always fresh materialized views on Apache Spark."""

from freshview.transactions.transaction import Outcome
from freshview.warehouse import CheckReport, Status, Warehouse, connect

__version__ = "0.1.0"
__all__ = ["CheckReport", "Outcome", "Status", "Warehouse", "connect"]
