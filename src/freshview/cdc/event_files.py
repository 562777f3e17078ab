"""Change events in files of JSON lines that grow, or in a directory of such files in the order of their names.

Law: a position holds, per file, the number of bytes that were delivered, and the greatest sequence among the events. A
line counts once it is whole. An event whose sequence is not greater than that of the position was delivered, and is
skipped, if the delivered part of the files holds it; else it is late, which is an error, unless each event is
delivered and the reader orders them. Within a poll events are put in the order of their sequences. Formats whose events
have no sequence are read in the order of the files.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, Protocol

from freshview.cdc.captures import Capture
from freshview.cdc.net import Change, net_effect
from freshview.cdc.source import Poll, Quarantined
from freshview.cdc.texts import BadEvent
from freshview.errors import CaptureFailed, first_line
from freshview.relation.schema import Schema

_CHECKED = 256  # bytes before a position that must still be the same
# What a format raises for a JSON document in which a part is missing, or is not what it is in an event.
_OTHER_FORM = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
_REMEDY = 'Correct or remove the line; or let on_error="quarantine" set such events aside.'


class Format(Protocol):
    """How events are written; its methods raise BadEvent."""

    @property
    def capture(self) -> Capture: ...

    def table(self, document: Any) -> str | None:
        """The table that an event changes; None for a message that changes none."""
        ...

    def sequence(self, document: Any) -> tuple[Any, ...] | None:
        """The place of an event in the source's log, if the event names one."""
        ...

    def at(self, document: Any) -> datetime | None:
        """When the change was made, if the event has it."""
        ...

    def changes(self, document: Any, schema: Schema, place: str) -> list[Change]: ...


@dataclass(frozen=True)
class _Event:
    sequence: tuple[Any, ...] | None
    changes: list[Change]
    place: str

    @property
    def identity(self) -> str:
        """What makes a repeated event the same one; its place and the moment of sending do not count."""
        return repr((self.sequence, [(c.key, c.existed, c.new, c.old) for c in self.changes]))


@dataclass
class _Position:
    """Delivered bytes and a checksum of the last of them by file name, and the greatest sequence."""

    files: dict[str, tuple[int, int]] = field(default_factory=dict)
    sequence: tuple[Any, ...] | None = None

    def text(self) -> str:
        return json.dumps({"files": self.files, "sequence": self.sequence}, sort_keys=True)

    @staticmethod
    def of(text: str | None) -> _Position:
        if text is None:
            return _Position()
        data = json.loads(text)
        sequence = data["sequence"]
        files = {name: (size, check) for name, (size, check) in data["files"].items()}
        return _Position(files, None if sequence is None else tuple(sequence))


class EventFiles:
    """A source: the events of one table (schema.table or database.table) in a file or a directory of files."""

    def __init__(
        self,
        path: Path,
        table: str,
        schema: Schema,
        format: Format,
        *,
        on_error: Literal["stop", "quarantine"] = "stop",
        max_bytes: int = 64 * 2**20,
        each: bool = False,
    ) -> None:
        """`each`: deliver each event in the order of the files, not the net effect; the reader orders them."""
        self.name = table
        self.schema = schema
        self._path = path
        self._format = format
        self._on_error = on_error
        self._max_bytes = max_bytes
        self._each = each
        self._required = [(name, schema.position(name)) for name in schema.required]

    @property
    def capture(self) -> Capture:
        return self._format.capture

    def confirm(self, position: str) -> None:
        """Nothing is kept for readers: the writer of the files removes them."""

    def poll(self, position: str | None) -> Poll:
        try:
            return self._poll(_Position.of(position))
        except OSError as error:  # such as a file that was removed since the folder was listed
            what = f"events of {self.name} in {self._path}"
            raise CaptureFailed(what, first_line(error), "Check the files and the rights, and poll again.") from error

    def _poll(self, start: _Position) -> Poll:
        found = _Found()
        files = self._files(start)
        for file in files:
            if not found.is_stopped:
                self._read(file, start, found, may_grow=file is files[-1])
        events = self._fresh(found, start)
        sequences = [e.sequence for e in events if e.sequence is not None]
        last = max([*sequences, *([start.sequence] if start.sequence is not None else [])], key=_order, default=None)
        changes = tuple(c for e in events for c in e.changes)
        aside = self._aside(found) if self._on_error == "quarantine" else None
        delta = net_effect(self.name, self.schema, () if self._each else changes, aside=aside)
        end = _Position({**start.files, **found.files}, last)
        more = found.bytes >= self._max_bytes or found.is_stopped
        each = changes if self._each else None
        return Poll(self.capture, delta, end.text(), tuple(found.quarantined), dict(found.skipped), each, more=more)

    def _aside(self, found: _Found) -> Callable[[Change, str], None]:
        """What is done with a change that contradicts the one before it, if it is to be set aside."""

        def set_aside(change: Change, cause: str) -> None:
            found.quarantined.append(Quarantined(change.place, cause, repr(change.new or change.key)))

        return set_aside

    def unlimited(self) -> EventFiles:
        """This source, which reads all that there is in one poll."""
        whole = {"on_error": self._on_error, "max_bytes": 2**62, "each": self._each}
        return EventFiles(self._path, self.name, self.schema, self._format, **whole)  # type: ignore[arg-type]

    def rewound(self, places: Sequence[str], position: str) -> str:
        """The position before the first of these places, from which their events are read again.

        What was delivered since is delivered once more, in order. Files before the one of that place are where
        `position` has them. CaptureFailed if one of the files is gone.
        """
        known = _Position.of(position).files
        sizes = {file.name: file.stat().st_size for file in self._files(_Position())}
        starts: dict[str, int] = {}
        for place in places:
            name, _, at = place.rpartition(" at byte ")
            if sizes.get(name, -1) < int(at):
                raise CaptureFailed(f"event of {self.name}, {place}", "the file is gone", "Restore the file.")
            starts[name] = min(int(at), starts.get(name, int(at)))
        first = min(starts)
        folder = self._path if self._path.is_dir() else self._path.parent
        files = {n: delivered for n, delivered in known.items() if n < first}
        if starts[first]:
            files[first] = (starts[first], _checksum(folder / first, starts[first]))
        sequences = [e.sequence for e in self._before(_Position(files)) if e.sequence is not None]
        return _Position(files, max(sequences, key=_order, default=None)).text()

    def _files(self, start: _Position) -> list[Path]:
        """The files in the order of their names; CaptureFailed if one of the position is gone or has changed."""
        if self._path.is_dir():
            files = sorted(f for f in self._path.iterdir() if f.is_file() and not f.name.startswith((".", "_")))
        elif self._path.exists():
            files = [self._path]
        else:
            raise CaptureFailed(f"events of {self.name}", f"{self._path} is not there", "Check the path.")
        present = {f.name: f for f in files}
        for name, (size, check) in start.files.items():
            file = present.get(name)
            if file is None:
                continue  # files that were delivered may be removed
            if file.stat().st_size < size:
                cause = f"the file ends at byte {file.stat().st_size}, and {size} bytes were delivered"
            elif _checksum(file, size) != check:
                cause = f"its bytes before {size} have changed since they were delivered"
            else:
                continue
            raise CaptureFailed(
                f"{file} at byte {size}", cause, "Restore the file, or write new events to a file of another name."
            )
        return files

    def _read(self, file: Path, start: _Position, found: _Found, *, may_grow: bool) -> None:
        offset, _ = start.files.get(file.name, (0, 0))
        with file.open("rb") as stream:
            stream.seek(offset)
            for line in stream:
                if found.bytes >= self._max_bytes:
                    break
                place = f"{file.name} at byte {offset}"
                try:
                    event = self._event(line, place, found.skipped)
                except BadEvent as reason:
                    if may_grow and not line.endswith(b"\n") and isinstance(reason.__cause__, ValueError):
                        break  # the line is still being written
                    if self._on_error == "stop" and self._may_stop_before(found.events, [line, *stream]):
                        found.is_stopped = True
                        break
                    if self._on_error == "stop":
                        raise CaptureFailed(f"event of {self.name}, {place}", str(reason), _REMEDY) from reason
                    found.quarantined.append(
                        Quarantined(place, str(reason), line.decode(errors="replace").rstrip("\n"))
                    )
                else:
                    found.events.extend([event] if event else [])
                offset += len(line)
                found.bytes += len(line)
        if offset:
            found.files[file.name] = (offset, _checksum(file, offset))

    def _may_stop_before(self, events: list[_Event], rest: Iterable[bytes]) -> bool:
        """Whether the events before a bad one can be delivered; the next poll then begins at the bad one and fails.

        That way a column that was added at the source does not hold back what happened before. Events that follow with
        lower sequences would be late then.
        """
        delivered = [e.sequence for e in events if e.sequence is not None]
        if not delivered or self._each:
            return bool(events)
        last = max(map(_order, delivered))
        for line in rest:
            try:
                document = json.loads(line)
                sequence = self._format.sequence(document) if self._format.table(document) == self.name else None
            except (BadEvent, *_OTHER_FORM):
                continue
            if sequence is not None and _order(sequence) < last:
                return False
        return True

    def _event(self, line: bytes, place: str, skipped: Counter[str]) -> _Event | None:
        if not line.strip():
            return None
        try:
            document = json.loads(line, parse_float=Decimal)
        except ValueError as error:
            raise BadEvent(f"it is no JSON ({error})") from error
        try:
            table = self._format.table(document)
            if table != self.name:
                skipped.update([table] if table else [])
                return None
            event = _Event(self._format.sequence(document), self._format.changes(document, self.schema, place), place)
            at = self._format.at(document) if self._each else None
        except _OTHER_FORM as error:  # no cause: a line that is whole is not still being written
            raise BadEvent(f"it has not the form of such an event ({type(error).__name__}: {error})") from None
        self._check(event.changes)
        return replace(event, changes=[replace(change, at=at) for change in event.changes]) if self._each else event

    def _check(self, changes: Sequence[Change]) -> None:
        """Raise BadEvent if a row lacks a value that it must have."""
        for name, place in self._required:
            if any(change.new is not None and change.new[place] is None for change in changes):
                raise BadEvent(f"its column {name} is NULL, and the table requires a value")
        if any(part is None for change in changes for part in change.key):
            raise BadEvent(f"it names no row: its key ({', '.join(self.schema.key)}) has NULL")

    def _fresh(self, found: _Found, start: _Position) -> list[_Event]:
        """The events that were not delivered yet, each once: in the order of their sequences, if all have one.

        If each event counts, the reader orders them, and none is late.
        """
        events = found.events
        old = [e for e in events if _is_before(e, start.sequence, at=True)]
        delivered = set(self._delivered(start, {_sequence(e) for e in old})) if old else set()
        seen: set[str] = set()
        fresh: list[_Event] = []
        for event in events:
            if event.sequence is not None and (event.identity in seen or event.identity in delivered):
                continue
            if not self._each and _is_before(event, start.sequence):
                assert start.sequence is not None
                cause = (
                    f"its sequence {_shown(_sequence(event))} is before {_shown(start.sequence)}, up to which changes "
                    "were delivered, and it was not among them"
                )
                if self._on_error == "stop":
                    remedy = "It came too late: load the table anew from the source."
                    raise CaptureFailed(f"event of {self.name}, {event.place}", cause, remedy)
                found.quarantined.append(Quarantined(event.place, cause, event.identity))
                continue
            seen.add(event.identity)
            fresh.append(event)
        if self._each or any(e.sequence is None for e in fresh):
            return fresh
        return sorted(fresh, key=lambda e: _order(_sequence(e)))

    def _delivered(self, start: _Position, sequences: set[tuple[Any, ...]]) -> Iterator[str]:
        """The identities of events with these sequences in the parts of the files that were delivered."""
        return (event.identity for event in self._before(start) if event.sequence in sequences)

    def _before(self, start: _Position) -> Iterator[_Event]:
        """The events before a position, as far as their files are there."""
        for file in self._files(start):
            size, _ = start.files.get(file.name, (0, 0))
            offset = 0
            with file.open("rb") as stream:
                while offset < size:
                    line = stream.readline()
                    try:
                        event = self._event(line, f"{file.name} at byte {offset}", Counter())
                    except BadEvent:
                        event = None  # it was quarantined
                    if event is not None:
                        yield event
                    offset += len(line)


@dataclass
class _Found:
    """What a poll has read so far."""

    events: list[_Event] = field(default_factory=list)
    files: dict[str, tuple[int, int]] = field(default_factory=dict)
    quarantined: list[Quarantined] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    bytes: int = 0
    is_stopped: bool = False


def _is_before(event: _Event, sequence: tuple[Any, ...] | None, *, at: bool = False) -> bool:
    """Whether an event is before a sequence (or `at` it); not if one of them is not known."""
    if event.sequence is None or sequence is None:
        return False
    return _order(event.sequence) < _order(sequence) or (at and event.sequence == sequence)


def _sequence(event: _Event) -> tuple[Any, ...]:
    assert event.sequence is not None
    return event.sequence


def _order(sequence: tuple[Any, ...]) -> tuple[Any, ...]:
    """What sequences are compared by. Texts are names of binlog files: binlog.1000000 follows binlog.999999."""
    return tuple((len(part), part) if isinstance(part, str) else part for part in sequence)


def _shown(sequence: tuple[Any, ...]) -> str:
    return "/".join(map(str, sequence))


def _checksum(file: Path, size: int) -> int:
    """The checksum of the last bytes before a place in a file."""
    with file.open("rb") as stream:
        stream.seek(max(0, size - _CHECKED))
        return zlib.crc32(stream.read(min(size, _CHECKED)))
