"""The position of a flow: that of its source, with the sequence of the last truncation if the flow has such."""

from __future__ import annotations

import base64
import json
from typing import Any

import pyarrow as pa

from freshview.cdc.flow import Plan
from freshview.relation.delta import decode, encode
from freshview.relation.types import DataType
from freshview.sql.statements import CreateFlow


def wrapped(position: str, truncated: Any, plan: Plan) -> str:
    """Return a position with the sequence of the last truncation, if the flow has such."""
    if not plan.flow.truncate_when:
        return position
    assert plan.sequence_type is not None
    return json.dumps({"source": position, "truncated": _value_text(truncated, plan.sequence_type)})


def unwrapped(position: str | None, flow: CreateFlow) -> tuple[str | None, Any]:
    """Return the position of the source in a flow's position, and the sequence of the last truncation."""
    if position is None or not flow.truncate_when:
        return position, None
    data = json.loads(position)
    return data["source"], _value_of(data["truncated"])


def _value_text(value: Any, type_: DataType) -> str:
    """Return a value as a text from which it is read again, exactly."""
    return base64.b64encode(encode(pa.table({"v": pa.array([value], type_.arrow)}))).decode()


def _value_of(text: str) -> Any:
    """Return the value of a text that `_value_text` wrote."""
    return decode(base64.b64decode(text), "a flow's position").column("v")[0].as_py()
