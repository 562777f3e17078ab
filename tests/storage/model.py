"""A table that goes through random statements, schema changes and checkpoints, and what it should hold at every CSN."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st
from tests.internals import apply_in, internals

from freshview import Warehouse
from freshview.storage import checkpoint as checkpoint_module
from freshview.storage import segments

Bag = Counter[tuple[Any, ...]]

keyed_rows = st.lists(
    st.tuples(st.integers(0, 12), st.sampled_from(["a", "b", None])), min_size=1, max_size=6, unique_by=lambda r: r[0]
)
bag_rows = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["a", None])), min_size=1, max_size=6)


def as_dicts(rows: list[tuple[Any, ...]], names: tuple[str, ...]) -> list[dict[str, Any]]:
    return [dict(zip(names, r, strict=False)) for r in rows]


class Model:
    """What the table should hold at every CSN."""

    def __init__(self, wh: Warehouse, keyed: bool) -> None:
        self.wh = wh
        self.keyed = keyed
        self.rows: list[tuple[Any, ...]] = []
        self.width = 2
        self.at: dict[int, list[tuple[Any, ...]]] = {}

    def note(self) -> None:
        self.at[internals(self.wh).newest_csn()] = [r + (None,) * (self.width - len(r)) for r in self.rows]

    def names(self) -> tuple[str, ...]:
        return internals(self.wh).relation("t").schema.names

    def expected(self, csn: int) -> Bag:
        return Counter(tuple(map(repr, row)) for row in self.at[csn])


def play(wh: Warehouse, keyed: bool, data: st.DataObject, patch: pytest.MonkeyPatch) -> Model:
    """Make a table t and let things happen to it."""
    kinds = ["insert", "delete", "checkpoint", "add", "rename"] + (["upsert"] if keyed else [])
    patch.setattr(checkpoint_module, "_MERGE_SHARE", data.draw(st.sampled_from([0.0, 5.0]), label="merge share"))
    wh.sql(f"CREATE TABLE t (k INT, v STRING{', PRIMARY KEY (k)' if keyed else ''})")
    model = Model(wh, keyed)
    model.note()
    for step in range(data.draw(st.integers(2, 9), label="steps")):
        kind = data.draw(st.sampled_from(kinds), label="kind")
        patch.setattr(segments, "INLINE_BYTES", data.draw(st.sampled_from([0, 1 << 20]), label="inline"))
        match kind:
            case "insert":
                rows = data.draw(keyed_rows if keyed else bag_rows)
                if keyed:
                    taken = {r[0] for r in model.rows}
                    rows = [r for r in rows if r[0] not in taken]
                with wh.transaction() as tx:
                    tx.insert("t", as_dicts(rows, model.names()))
                model.rows += rows
            case "upsert":
                rows = data.draw(keyed_rows)
                with wh.transaction() as tx:
                    tx.upsert("t", as_dicts(rows, model.names()))
                new = {r[0] for r in rows}
                model.rows = [r for r in model.rows if r[0] not in new] + rows
            case "delete" if keyed:
                keys = data.draw(st.lists(st.integers(0, 12), min_size=1, max_size=5))
                with wh.transaction() as tx:
                    tx.delete("t", keys)
                model.rows = [r for r in model.rows if r[0] not in keys]
            case "delete" if model.rows:
                gone = data.draw(st.lists(st.sampled_from(range(len(model.rows))), unique=True, max_size=4))
                schema = internals(wh).relation("t").schema
                wide = [model.rows[i] + (None,) * (model.width - len(model.rows[i])) for i in gone]
                images = pa.Table.from_pylist([dict(zip(schema.names, r, strict=True)) for r in wide], schema.arrow)
                with wh.transaction() as tx:
                    apply_in(tx, "t", images, None)
                model.rows = [r for i, r in enumerate(model.rows) if i not in gone]
            case "add":
                wh.sql(f"ALTER TABLE t ADD COLUMN c{step} DOUBLE")
                model.width += 1
            case "rename":
                wh.sql(f"ALTER TABLE t RENAME COLUMN {model.names()[1]} TO r{step}")
            case "checkpoint":
                internals(wh).checkpoint("t")
        model.note()
    return model
