"""The public surface: it puts the rooms below together, and decides nothing."""

from freshview.warehouse.warehouse import Warehouse, connect

__all__ = ["Warehouse", "connect"]
