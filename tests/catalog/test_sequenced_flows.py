"""Flows with a sequence: taking changes as columns leaves what taking them row by row leaves."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tests.catalog.helpers import contents
from tests.internals import internals

import freshview
from freshview import Warehouse
from freshview.catalog.flows import FlowCatalog
from freshview.cdc import arrivals
from freshview.cdc.columns import NotColumns
from freshview.errors import FreshviewError

_COLUMNS = "id INT, part STRING, name STRING, n INT"
_CLAUSES = (
    "KEYS (id, part) SEQUENCE BY n",
    "KEYS (id, part) SEQUENCE BY n COLUMNS * EXCEPT (n)",
    "KEYS (id, part) SEQUENCE BY n IGNORE NULL UPDATES",
    "KEYS (id, part) IGNORE NULL UPDATES",
    "KEYS (id, part) SEQUENCE BY n STORED AS SCD TYPE 2",
)


def _refused(*_: object) -> arrivals.Arrivals:
    raise NotColumns


def _left(wh: Warehouse) -> dict[str, Any]:
    """What a flow has written and set aside, but for the times at which it did."""
    catalog = internals(wh).catalog
    aside = [(e.place, e.cause, e.text) for e in FlowCatalog(catalog).set_aside()]
    rows = contents(wh, "__flow_f") if catalog.find("__flow_f") is not None else []
    return {"t": contents(wh, "t"), "aside": sorted(aside), "memory": [{**row, "__AT": None} for row in rows]}


@pytest.mark.parametrize("seed", range(30))
def test_changes_as_columns_leave_what_changes_row_by_row_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Dumps with late and equal sequences, missing rows, and rows that the table cannot take; now and then a full
    refresh."""
    draw = random.Random(seed)
    clauses = _CLAUSES[seed % len(_CLAUSES)]
    required = "NOT NULL" if draw.random() < 0.5 and "EXCEPT" not in clauses and "TYPE 2" not in clauses else ""
    warehouses: list[Warehouse] = []
    for name in ("columns", "rows"):
        wh = freshview.connect(tmp_path / name)
        warehouses.append(wh)
        if required:
            wh.sql(f"CREATE TABLE t (id INT, part STRING, name STRING {required}, n INT, PRIMARY KEY (id, part))")
        wh.sql(f"CREATE SOURCE s USING CSV OPTIONS (path '{tmp_path}', 'on error' 'quarantine')")
        wh.sql(f"CREATE FLOW f AS AUTO CDC INTO t FROM s.dumps ({_COLUMNS}) {clauses}")
    (tmp_path / "dumps").mkdir()
    for turn in range(5):
        keys = [(i, p) for i in range(4) for p in "xy" if draw.random() < 0.7] or [(0, "x")]
        rows = [f"{i},{p},{draw.choice(['a', 'b', ''])},{draw.randrange(6)}" for i, p in keys]
        (tmp_path / "dumps" / f"{turn}.csv").write_text("\n".join(["id,part,name,n", *rows, ""]))
        full, outcomes = " FULL" if draw.random() < 0.2 else "", []
        for wh in warehouses:
            with monkeypatch.context() as patch:
                if wh is warehouses[1]:
                    patch.setattr(arrivals, "_as_columns", _refused)
                outcomes.append(_refreshed(wh, full))
        assert outcomes[0] == outcomes[1], clauses
        assert _left(warehouses[0]) == _left(warehouses[1]), clauses
    for wh in warehouses:
        wh.close()


def _refreshed(wh: Warehouse, full: str) -> str:
    try:
        return str(wh.sql(f"REFRESH FLOW f{full}").rows)
    except FreshviewError as error:
        return str(error)
