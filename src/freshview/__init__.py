"""Freshview: lazily maintained, always fresh materialized views on Apache Spark.

Writers never pay for views: a transaction stores its changes and returns. Views are maintained in idle time, or when a
query needs them. A query never sees a stale view unless it asks for one.

>>> import freshview
>>> with freshview.connect(folder) as wh:
...     table = wh.sql("CREATE TABLE orders (id INT PRIMARY KEY, region STRING, amount INT)")
...     view = wh.sql("CREATE MATERIALIZED VIEW totals AS SELECT region, sum(amount) t FROM orders GROUP BY region")
...     with wh.transaction() as tx:
...         rows = tx.insert("orders", [{"id": 1, "region": "north", "amount": 10}])
...     wh.sql("SELECT * FROM totals").collect()
[Row(region='north', t=10)]

`connect` opens a `Warehouse`; the other names are what its methods take and return, and errors (`freshview.errors`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from freshview import errors

if TYPE_CHECKING:  # type checkers see these names and no others
    from freshview.catalog.frontiers import Job
    from freshview.catalog.reports import Holder
    from freshview.cdc.source import Source
    from freshview.display import Explanation
    from freshview.events import Event, Events
    from freshview.optimizer.prices import Prices
    from freshview.transactions.transaction import Outcome
    from freshview.transactions.user_transaction import UserTransaction
    from freshview.views.invariants import Invariant
    from freshview.views.reading import Freshness
    from freshview.warehouse.checks import CheckReport
    from freshview.warehouse.optimizing import Optimization
    from freshview.warehouse.overview import ViewStatus
    from freshview.warehouse.status import Status, TableStatus
    from freshview.warehouse.warehouse import Warehouse, connect
else:
    from importlib import import_module

    _PLACES = {
        "CheckReport": "freshview.warehouse.checks",
        "Event": "freshview.events",
        "Events": "freshview.events",
        "Explanation": "freshview.display",
        "Freshness": "freshview.views.reading",
        "Holder": "freshview.catalog.reports",
        "Invariant": "freshview.views.invariants",
        "Job": "freshview.catalog.frontiers",
        "Optimization": "freshview.warehouse.optimizing",
        "Outcome": "freshview.transactions.transaction",
        "Prices": "freshview.optimizer.prices",
        "Source": "freshview.cdc.source",
        "Status": "freshview.warehouse.status",
        "TableStatus": "freshview.warehouse.status",
        "UserTransaction": "freshview.transactions.user_transaction",
        "ViewStatus": "freshview.warehouse.overview",
        "Warehouse": "freshview.warehouse.warehouse",
        "connect": "freshview.warehouse.warehouse",
    }

    def __getattr__(name):
        """Load a name at its first use: a command that prints its help need not wait for Arrow and the database."""
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_PLACES[name]), name)
        globals()[name] = value
        return value

    def __dir__():
        return sorted({*globals(), *__all__})


__version__ = "0.1.0"
__all__ = [
    "CheckReport",
    "Event",
    "Events",
    "Explanation",
    "Freshness",
    "Holder",
    "Invariant",
    "Job",
    "Optimization",
    "Outcome",
    "Prices",
    "Source",
    "Status",
    "TableStatus",
    "UserTransaction",
    "ViewStatus",
    "Warehouse",
    "__version__",
    "connect",
    "errors",
]
