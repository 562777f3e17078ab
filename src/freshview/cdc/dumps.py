"""Snapshot differentials: changes inferred from two dumps of a table in a directory (CSV, JSON lines or Parquet).

Dumps are taken in the order of their names, one per poll. The position names the dump up to which changes were
delivered, with its checksum: the next dump is compared with it, so it must still be there, and unchanged. It also has
the names before that one: a dump that comes later and sorts before it is an error, since nobody would take it. Small
dumps are compared on the driver; large ones are read in parts and compared outside of its memory (`Comparing`). Law:
both ways read a file by the same parser and convert its values in the same way, so the size decides nothing but the
time.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

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

LARGE = 256 * 2**20  # bytes of two dumps that are not compared on the driver
_KINDS = (".csv", ".json", ".jsonl", ".parquet")
_PART = 16 * 2**20  # bytes of a large dump that are read at once
_PART_ROWS = 2**17
_NAMES = 100  # before that of the last dump, which a position has


class StateDifference(NamedTuple):
    """What two states of a table differ in, by bits: rows of the old one alone, and of the new one alone.

    `twice` is a key that the new state has twice, if there is one; then there are no rows.
    """

    gone: pa.Table
    come: pa.Table
    twice: Mapping[str, Any] | None = None


class Comparing(Protocol):
    """Compares two states that need not fit into memory, given in parts.

    `check` is called with the numbers of their rows before they are compared, and may raise.
    """

    def __call__(
        self,
        old: Iterable[pa.Table],
        new: Iterable[pa.Table],
        schema: Schema,
        check: Callable[[int, int], None],
    ) -> StateDifference: ...


class Dumps:
    """A source: dumps of one table in a directory.

    A dump with less than `least` of the rows of the one before is held back until `confirmed` names it: more often
    than not, such a dump was cut off. `reader` is the flow that takes the dumps, named in what an error advises.
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
        compare: Comparing | None = None,
        reader: str = "",
    ) -> None:
        """`compare` compares dumps that are too large for the driver; without it, the driver compares them all."""
        self.name = name
        self.schema = schema
        self._path = path
        self._least = least
        self._confirmed = confirmed
        self._suffixes = suffixes
        self._compare = compare
        self._reader = reader
        self._from_newest = False

    @property
    def capture(self) -> Capture:
        return SNAPSHOTS

    def confirm(self, position: str) -> None:
        """Nothing is kept for readers: the writer of the dumps removes them."""

    def confirming(self, names: Iterable[str]) -> Dumps:
        """The source with more dumps that are right although they are small; CaptureFailed if one is not there."""
        for name in names:
            if not (self._path / name).is_file():
                raise CaptureFailed(
                    f"dump {name} of {self.name}", f"it is not in {self._path}", "Confirm a dump by its file name."
                )
        other = copy.copy(self)
        other._confirmed = self._confirmed.union(names)
        return other

    def from_newest(self) -> Dumps:
        """The source as one whose first poll takes the newest dump: older ones are states that the reader is past."""
        other = copy.copy(self)
        other._from_newest = True
        return other

    def check_first(self, position: str, now: int, here: int) -> None:
        """Hold back a first dump of `now` rows, which is to replace rows that the reader has, if it has lost many."""
        self._check_size(json.loads(position)["dump"], here, now, "the table")

    def poll(self, position: str | None) -> Poll:
        try:
            return self._poll(position)
        except OSError as error:  # such as a folder in place of a dump, or a file that was removed meanwhile
            what = f"dumps of {self.name} in {self._path}"
            raise CaptureFailed(what, first_line(error), "Each dump is one file that can be read.") from error

    def _poll(self, position: str | None) -> Poll:
        given = {"dump": None} if position is None else json.loads(position)
        last = given["dump"]
        if not self._path.is_dir():
            raise CaptureFailed(f"dumps of {self.name}", f"{self._path} is no folder", "Check the path.")
        names = sorted(f.name for f in self._path.iterdir() if f.suffix in self._suffixes and f.name[0] not in "._")
        if last is None and self._from_newest:
            later = names[-1:]
        else:
            self._require_later(last, names, given.get("before"))
            later = [n for n in names if last is None or n > last]
        if not later:
            if last in names:
                self._require_same(last, given.get("sha256"), _file_checksum(self._path / last))
            return Poll(self.capture, partial_delta(self.name, self.schema), json.dumps(given))
        large = last is not None and self._compare is not None and self._size(last, later[0]) >= LARGE
        compared = self._compared_apart if large else self._compared
        read = [n for n in (last, later[0]) if n is not None]
        stamps = self._stamps(read)
        delta, checksum = compared(last, given.get("sha256"), later[0])
        if stamps != self._stamps(read):
            raise CaptureFailed(
                f"dump{'s' * (len(read) > 1)} {' and '.join(read)} of {self.name}",
                "one of them was written while they were read" if len(read) > 1 else "it was written while it was read",
                "Poll again; write a dump under another name, and rename it when it is whole.",
            )
        before = [n for n in names if n < later[0]][-_NAMES:]
        end = json.dumps({"dump": later[0], "sha256": checksum, "before": before})
        return Poll(self.capture, delta, end, more=len(later) > 1)

    def _require_later(self, last: str | None, names: Sequence[str], before: Sequence[str] | None) -> None:
        """Raise if a dump has come since the last poll whose name is before that of the last dump.

        Positions of earlier versions, and those of very many dumps, do not have all the names that were there.
        """
        if last is None or before is None:
            return
        first = before[0] if len(before) == _NAMES else ""
        for name in names:
            if first <= name < last and name not in before:
                raise CaptureFailed(
                    f"dump {name} of {self.name}",
                    f"its name is before {last}, up to which dumps were taken, so it would never be taken",
                    "Give dumps names that sort by time, such as dump-009.csv and dump-010.csv; or remove it.",
                )

    def _stamps(self, names: Iterable[str]) -> list[tuple[int, int, int] | None]:
        return [_stamp(self._path / n) if (self._path / n).exists() else None for n in names]

    def _compared(self, last: str | None, known: str | None, name: str) -> tuple[PartialDelta, str]:
        """The difference of two dumps on the driver, and the checksum of the new one."""
        old = self.schema.arrow.empty_table()
        if last is not None:
            before = self._content(last)
            self._require_same(last, known, _checksum(before))
            old = self._dump(last, before)
        content = (self._path / name).read_bytes()
        new = self._dump(name, content)
        self._check_size(name, old.num_rows, new.num_rows)
        return difference(self.name, self.schema, old, new), _checksum(content)

    def _compared_apart(self, last: str | None, known: str | None, name: str) -> tuple[PartialDelta, str]:
        """The difference of two dumps outside of the driver's memory, and the checksum of the new one."""
        assert last is not None
        assert self._compare is not None
        files = [self._path / last, self._path / name]
        if not files[0].exists():
            raise self._gone(last)
        self._require_same(last, known, _file_checksum(files[0]))
        checksum = _file_checksum(files[1])
        old, new = (self._parts(file) for file in files)
        found = self._compare(old, new, self.schema, lambda before, now: self._check_size(name, before, now))
        if found.twice is not None:
            key = ", ".join(f"{k}={v!r}" for k, v in found.twice.items())
            raise self._repeated(name, f"({key})")
        return difference(self.name, self.schema, found.gone, found.come), checksum

    def _size(self, *names: str) -> int:
        return sum((self._path / n).stat().st_size for n in names if (self._path / n).exists())

    def _check_size(self, name: str, before: int, now: int, what: str = "the dump before") -> None:
        """Hold back a dump that has lost more rows than is likely."""
        if now < self._least * before and name not in self._confirmed:
            text = name.replace("\\", "\\\\").replace("'", "\\'")
            flow = f"`{self._reader.replace('`', '``')}`" if not self._reader.isidentifier() else self._reader
            how = f"REFRESH FLOW {flow} CONFIRM '{text}'" if self._reader else f"Dumps(…, confirmed={{{name!r}}})"
            raise CaptureFailed(
                f"dump {name} of {self.name}",
                f"it has {now} rows, and {what} had {before}",
                f"Replace it if it was cut off; if it is right, confirm it: {how}.",
            )

    def _content(self, name: str) -> bytes:
        """The content of the dump of a position."""
        try:
            return (self._path / name).read_bytes()
        except FileNotFoundError:
            raise self._gone(name) from None

    def _gone(self, name: str) -> CaptureFailed:
        cause = "it is gone, and the next one is compared with it"
        return CaptureFailed(f"dump {name} of {self.name}", cause, "Restore the file.")

    def _require_same(self, name: str, known: str | None, checksum: str) -> None:
        """Raise if the dump of a position has changed; positions of earlier versions have no checksum."""
        if known not in (None, checksum):
            raise CaptureFailed(
                f"dump {name} of {self.name}",
                "it has changed since it was delivered, and the next one is compared with it",
                "Restore the file, and write what is new to a dump with a later name; or load the table anew.",
            )

    def _dump(self, name: str, content: bytes) -> pa.Table:
        try:
            rows = self._typed(_read(content, Path(name).suffix, self.schema))
        except (pa.ArrowException, FreshviewError) as error:
            raise self._unreadable(name, error) from error
        twice = first_duplicate(key_table(rows, self.schema))
        if twice is not None:
            raise self._repeated(name, describe_key(rows, self.schema, twice))
        return rows

    def _parts(self, file: Path) -> Iterator[pa.Table]:
        """The rows of a dump, a part at a time."""
        try:
            for part in _read_parts(file, self.schema):
                yield self._typed(part)
        except (pa.ArrowException, FreshviewError) as error:
            raise self._unreadable(file.name, error) from error

    def _typed(self, rows: pa.Table) -> pa.Table:
        typed = to_table(rows, self.schema, self.name)
        check_required(typed, self.schema, self.name)
        return typed

    def _unreadable(self, name: str, error: Exception) -> CaptureFailed:
        remedy = "Replace the file, or correct the table's columns."
        return CaptureFailed(f"dump {name} of {self.name}", first_line(error), remedy)

    def _repeated(self, name: str, key: str) -> CaptureFailed:
        remedy = "Choose key columns that are unique."
        return CaptureFailed(f"dump {name} of {self.name}", f"the key {key} occurs twice", remedy)


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


def _file_checksum(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _stamp(file: Path) -> tuple[int, int, int]:
    """What changes when a file is written or replaced."""
    found = file.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _csv_options(schema: Schema) -> dict[str, Any]:
    types = {f.name: f.type for f in schema.arrow}
    convert = pyarrow.csv.ConvertOptions(column_types=types, null_values=[""], strings_can_be_null=False)
    return {"convert_options": convert, "parse_options": pyarrow.csv.ParseOptions(newlines_in_values=True)}


def _json_options(schema: Schema) -> pyarrow.json.ParseOptions:
    return pyarrow.json.ParseOptions(explicit_schema=schema.arrow, unexpected_field_behavior="error")


def _read(content: bytes, suffix: str, schema: Schema) -> pa.Table:
    """The rows of a dump, whose further columns are refused later; a field that JSON leaves out is NULL."""
    if not content:
        return schema.arrow.empty_table()
    file = pa.BufferReader(content)
    if suffix == ".csv":
        rows = pyarrow.csv.read_csv(file, **_csv_options(schema))
    elif suffix == ".parquet":
        rows = pyarrow.parquet.read_table(file)
    else:
        rows = pyarrow.json.read_json(file, parse_options=_json_options(schema))
    return _complete(rows, suffix, schema)


def _read_parts(file: Path, schema: Schema) -> Iterator[pa.Table]:
    """The rows that `_read` returns, a part at a time."""
    if not file.stat().st_size:
        return
    suffix = file.suffix
    batches: Iterable[pa.RecordBatch]
    if suffix == ".csv":
        read = pyarrow.csv.ReadOptions(block_size=_PART)
        batches = pyarrow.csv.open_csv(file, read_options=read, **_csv_options(schema))
    elif suffix == ".parquet":
        batches = pyarrow.parquet.ParquetFile(file).iter_batches(_PART_ROWS)
    else:
        read = pyarrow.json.ReadOptions(block_size=_PART)
        batches = pyarrow.json.open_json(file, read_options=read, parse_options=_json_options(schema))
    for batch in batches:
        yield _complete(pa.Table.from_batches([batch]), suffix, schema)


def _complete(rows: pa.Table, suffix: str, schema: Schema) -> pa.Table:
    missing = [n for n in schema.names if n not in rows.column_names]
    if missing and suffix in (".csv", ".parquet"):
        raise NotFound(f"column {missing[0]}", "the dump does not have it")
    return rows
