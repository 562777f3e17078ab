"""Snapshot differentials: changes inferred from two dumps of a table in a directory (CSV, JSON lines or Parquet).

Dumps are taken in the order of their names, one per poll. The position names the dump up to which changes were
delivered, with its checksum: the next dump is compared with it, so it must still be there, and unchanged. Dumps are
compared on the driver.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from freshview.cdc.captures import SNAPSHOTS, Capture
from freshview.cdc.flagged import by_key, positions_by_key
from freshview.cdc.model import PartialDelta, partial_delta
from freshview.cdc.source import Poll
from freshview.errors import CaptureFailed, FreshviewError, NotFound, first_line
from freshview.relation.delta import describe_key, first_duplicate, key_table, positions_in
from freshview.relation.ingest import check_required, to_table
from freshview.relation.schema import Schema

_KINDS = (".csv", ".json", ".jsonl", ".parquet")


class Dumps:
    """A source: dumps of one table in a directory.

    A dump with less than `least` of the rows of the one before is held back until `confirmed` names it: more often
    than not, such a dump was cut off.
    """

    def __init__(
        self,
        path: Path,
        name: str,
        schema: Schema,
        *,
        least: float = 0.5,
        confirmed: frozenset[str] = frozenset(),
        suffixes: tuple[str, ...] = _KINDS,
    ) -> None:
        self.name = name
        self.schema = schema
        self._path = path
        self._least = least
        self._confirmed = confirmed
        self._suffixes = suffixes

    @property
    def capture(self) -> Capture:
        return SNAPSHOTS

    def confirm(self, position: str) -> None:
        """Nothing is kept for readers: the writer of the dumps removes them."""

    def poll(self, position: str | None) -> Poll:
        given = {"dump": None} if position is None else json.loads(position)
        last = given["dump"]
        if not self._path.is_dir():
            raise CaptureFailed(f"dumps of {self.name}", f"{self._path} is no folder", "Check the path.")
        names = sorted(f.name for f in self._path.iterdir() if f.suffix in self._suffixes)
        later = [n for n in names if last is None or n > last]
        before = self._delivered(last, given.get("sha256")) if last is not None and (later or last in names) else b""
        if not later:
            return Poll(self.capture, partial_delta(self.name, self.schema), json.dumps(given))
        content = (self._path / later[0]).read_bytes()
        new = self._dump(later[0], content)
        old = self.schema.arrow.empty_table() if last is None else self._dump(last, before)
        if new.num_rows < self._least * old.num_rows and later[0] not in self._confirmed:
            raise CaptureFailed(
                f"dump {later[0]} of {self.name}",
                f"it has {new.num_rows} rows, and the dump before had {old.num_rows}",
                f"Replace it if it was cut off; if it is right, confirm it: confirmed={{{later[0]!r}}}.",
            )
        end = json.dumps({"dump": later[0], "sha256": _checksum(content)})
        return Poll(self.capture, difference(self.name, self.schema, old, new), end, more=len(later) > 1)

    def _delivered(self, name: str, checksum: str | None) -> bytes:
        """The content of the dump of a position; positions of earlier versions have no checksum."""
        try:
            content = (self._path / name).read_bytes()
        except FileNotFoundError:
            raise CaptureFailed(
                f"dump {name} of {self.name}", "it is gone, and the next one is compared with it", "Restore the file."
            ) from None
        if checksum not in (None, _checksum(content)):
            raise CaptureFailed(
                f"dump {name} of {self.name}",
                "it has changed since it was delivered, and the next one is compared with it",
                "Restore the file, and write what is new to a dump with a later name; or load the table anew.",
            )
        return content

    def _dump(self, name: str, content: bytes) -> pa.Table:
        try:
            rows = to_table(_read(content, Path(name).suffix, self.schema), self.schema, self.name)
            check_required(rows, self.schema, self.name)
        except (pa.ArrowException, FreshviewError) as error:
            raise CaptureFailed(
                f"dump {name} of {self.name}", first_line(error), "Replace the file, or correct the table's columns."
            ) from error
        twice = first_duplicate(key_table(rows, self.schema))
        if twice is not None:
            raise CaptureFailed(
                f"dump {name} of {self.name}",
                f"the key {describe_key(rows, self.schema, twice)} occurs twice",
                "Choose key columns that are unique.",
            )
        return rows


def difference(name: str, schema: Schema, old: pa.Table, new: pa.Table) -> PartialDelta:
    """The changes from one state of a table to another."""
    row = Schema(schema.columns)
    changed = new.take(positions_in(key_table(new, row), key_table(old, row), inside=False))
    at_new, at_old = positions_by_key(changed, old, schema)
    return partial_delta(
        name,
        schema,
        ins=by_key(changed, old, schema, inside=False),
        deleted=by_key(old, new, schema, inside=False),
        pairs=(changed.take(at_new), old.take(at_old)),
    )


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _read(content: bytes, suffix: str, schema: Schema) -> pa.Table:
    """The rows of a dump, whose further columns are refused later; a field that JSON leaves out is NULL."""
    if not content:
        return schema.arrow.empty_table()
    file = pa.BufferReader(content)
    if suffix == ".csv":
        types = {f.name: f.type for f in schema.arrow}
        options = pyarrow.csv.ConvertOptions(column_types=types, null_values=[""], strings_can_be_null=False)
        rows = pyarrow.csv.read_csv(file, convert_options=options)
    elif suffix == ".parquet":
        rows = pyarrow.parquet.read_table(file)
    else:
        options = pyarrow.json.ParseOptions(explicit_schema=schema.arrow, unexpected_field_behavior="error")
        rows = pyarrow.json.read_json(file, parse_options=options)
    missing = [n for n in schema.names if n not in rows.column_names]
    if missing and suffix in (".csv", ".parquet"):
        raise NotFound(f"column {missing[0]}", "the dump does not have it")
    return rows
