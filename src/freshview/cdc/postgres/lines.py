"""Lines of test_decoding as columns: one regular expression per operation, made for the columns of the table.

    table public.t: UPDATE: old-key: id[integer]:1 new-tuple: id[integer]:2 v[text]:'it''s'

An old image leaves out its NULLs. A line of another form (of a large value that was not sent, of a table that looked
otherwise) is left to the parser of single lines (`decoding`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from freshview.cdc.columns import DELETED, INSERTED, UPDATED, ChangeColumns, NotColumns, equal_rows, table_of_texts
from freshview.cdc.model import key_schema, keys_of
from freshview.relation.schema import Schema

_KINDS = {"INSERT": INSERTED, "UPDATE": UPDATED, "DELETE": DELETED}
_VALUE = r"(?:B?'(?:[^']|'')*'|[^\s']\S*)"
_TYPE = r"\[[^\[\]]*(?:\[\])?\]"
NOT_SENT = "unchanged-toast-datum"


@dataclass(frozen=True)
class Lines:
    """The lines of a table: `head` is what they begin with, `columns` are all of the table's, in their order.

    `is_full`: old images are whole; else they have the key alone, of an update only if it changed.
    """

    head: str
    schema: Schema
    columns: Sequence[str]
    is_full: bool

    @property
    def _old_names(self) -> tuple[str, ...]:
        return self.schema.names if self.is_full else self.schema.key

    def pattern(self, operation: str) -> str:
        """The expression that a line of an operation matches, with a group for each value of the relation."""
        new = "".join(self._column(c, "n", self.schema.names) for c in self.columns)
        names = self._old_names
        kept = self.columns if self.is_full else [c for c in self.columns if c in names]
        old = "".join(f"(?:{self._column(c, 'o', names)})?" for c in kept)
        body = {"INSERT": new, "UPDATE": f"(?: old-key:{old} new-tuple:)?{new}", "DELETE": old}[operation]
        return f"^{re.escape(self.head)} {operation}:{body}$"

    def _column(self, name: str, group: str, wanted: Sequence[str]) -> str:
        spelled = re.escape('"' + name.replace('"', '""') + '"')
        value = f"(?P<{group}{wanted.index(name)}>{_VALUE})" if name in wanted else _VALUE
        return f" (?:{re.escape(name)}|{spelled}){_TYPE}:{value}"

    def changes(self, lines: pa.Array, places: pa.ChunkedArray, name: str) -> ChangeColumns:
        """The changes that lines describe; NotColumns if a line has another form."""
        at, kinds = [], []
        images: dict[str, list[pa.Array]] = {group: [] for group in self._groups}
        for operation, kind in _KINDS.items():
            chosen = pc.starts_with(lines, f"{self.head} {operation}:")
            some = lines.filter(chosen)
            found = pc.extract_regex(some, self.pattern(operation))
            if found.null_count:
                raise NotColumns
            at.append(np.flatnonzero(chosen.to_numpy(zero_copy_only=False)))
            kinds.append(np.full(len(some), kind, dtype=np.int8))
            known = {field.name for field in found.type}
            for group, parts in images.items():
                parts.append(_values(found.field(group)) if group in known else pa.nulls(len(some), pa.string()))
        order = np.argsort(np.concatenate(at))
        if len(order) != len(lines):
            raise NotColumns
        texts = {group: pa.chunked_array(parts).take(pa.array(order)) for group, parts in images.items()}
        return self._of_one_key(np.concatenate(kinds)[order], texts, places, name)

    @property
    def _groups(self) -> list[str]:
        return [f"n{i}" for i in range(len(self.schema.names))] + [f"o{i}" for i in range(len(self._old_names))]

    def _of_one_key(
        self, kinds: np.ndarray, texts: dict[str, pa.ChunkedArray], places: pa.ChunkedArray, name: str
    ) -> ChangeColumns:
        """The changes; an update of a key is a deletion and an insertion."""
        schema, names = self.schema, self._old_names
        new = table_of_texts([texts[f"n{i}"] for i in range(len(schema.names))], schema, schema.names, name)
        old = table_of_texts([texts[f"o{i}"] for i in range(len(names))], schema, names, name)
        new_keys, key = keys_of(new, schema), key_schema(schema)
        old_keys = keys_of(old, schema) if self.is_full else old.rename_columns(list(key.names))
        has_none = pa.array(kinds == INSERTED)
        for column in () if self.is_full else old_keys.columns:
            has_none = pc.or_(has_none, pc.and_(pa.array(kinds == UPDATED), pc.is_null(column)))
        both = zip(new_keys.columns, old_keys.columns, strict=True)
        keys = pa.table([pc.if_else(has_none, n, o) for n, o in both], schema=key.arrow)
        moved = np.flatnonzero((kinds == UPDATED) & ~equal_rows(keys, new_keys, key))
        if len(moved):
            at = np.sort(np.concatenate([np.arange(len(kinds)), moved]))
            is_first = np.r_[at[1:] == at[:-1], False]
            is_second = np.r_[False, at[1:] == at[:-1]]
            kinds = np.where(is_first, DELETED, np.where(is_second, INSERTED, kinds[at])).astype(np.int8)
            second = pa.array(is_second)
            both = zip(new_keys.take(at).columns, keys.take(at).columns, strict=True)
            keys = pa.table([pc.if_else(second, n, o) for n, o in both], schema=key.arrow)
            new, old, places = new.take(at), old.take(at), places.take(pa.array(at))
        return ChangeColumns(schema, kinds, keys, new, old if self.is_full else None, places, "LSN")


def _values(printed: pa.Array) -> pa.Array:
    """Printed values as texts: NULL and what an old image leaves out are NULL."""
    if pc.any(pc.equal(printed, NOT_SENT)).as_py():
        raise NotColumns
    is_quoted = pc.ends_with(printed, "'")
    bare = pc.if_else(pc.is_in(printed, pa.array(["", "null"])), pa.scalar(None, pa.string()), printed)
    if not pc.any(is_quoted).as_py():
        return bare
    inside = pc.replace_substring_regex(printed, r"^B?'((?s:.*))'$", r"\1")
    return pc.if_else(is_quoted, pc.replace_substring(inside, "''", "'"), bare)
