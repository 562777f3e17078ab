"""The sets that audit columns tell: of many rows at once what they are of each."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from freshview.cdc.postgres.audit import _EVER, _NEVER, AuditColumns

_time = st.integers(0, 4)
_COLUMNS = [AuditColumns("c"), AuditColumns("c", "i"), AuditColumns("c", "i", "d")]


@given(
    st.sampled_from(_COLUMNS),
    st.lists(st.tuples(_time, _time, st.none() | _time), max_size=8),
    st.sampled_from([_EVER, 2, 3]),
)
def test_the_sets_of_columns_are_those_of_rows(
    columns: AuditColumns, rows: list[tuple[int, int, int | None]], since: int
) -> None:
    times = [(c, i if columns.inserted else c, d if columns.deleted else None) for c, i, d in rows]
    changed, inserted, deleted = (
        np.array([_NEVER if row[n] is None else row[n] for row in times], np.int64) for n in range(3)
    )
    assert columns.sets(changed, inserted, deleted, since).tolist() == [
        columns.set_of((*row, None), None, since) for row in times
    ]
