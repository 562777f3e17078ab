"""Change events in files of JSON lines that grow, or in a directory of such files in the order of their names.

Law: a position holds, per file, the number of bytes that were delivered, and the last place in the log among the events
(`log_places`). A line counts once it is whole. An event that is not behind that place is skipped if the delivered part
of the files holds it, else it is late (`delivered`). If each event is delivered, the reader orders them and none is
late. Within a poll events are put in the order of the log. Events that name no place in it count in the order of the
files; so those of a new file are refused if one of a later name was delivered, or one that begins with the same line.
"""

from __future__ import annotations

import copy
import json
import time
from collections import ChainMap, Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, Protocol

import pyarrow as pa

from freshview.cdc.captures import Capture
from freshview.cdc.delivered import Delivered, LogEvent
from freshview.cdc.file_positions import DeliveredPart, FilesPosition, checksum_before, known_by_order, require_order
from freshview.cdc.log_places import LogEnd, LogPlace, Order, is_same_log, rank, shown
from freshview.cdc.net import LoggedChange, as_table, net_effect, of_one_key, row_of_key
from freshview.cdc.source import Poll, Quarantined
from freshview.cdc.texts import BadEvent
from freshview.errors import CaptureFailed, first_line
from freshview.relation.schema import Schema

# What a format raises for a JSON document in which a part is missing, or is not what it is in an event.
_OTHER_FORM = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
_GROWS = 60.0  # seconds since its last change in which a file that ends within a line may still be written
_TOO_LATE = "It came too late: REFRESH FLOW … FULL reads the files anew; or load the table anew."
_OTHER_LOG = "Have the new server's events written to another folder, and start a flow over its files."
_REMEDY = "Correct or remove the line; or let the source's option 'on error' 'quarantine' set such events aside."


class EventFormat(Protocol):
    """How events are written; its methods raise BadEvent."""

    @property
    def capture(self) -> Capture: ...

    def table(self, document: Any) -> str | None:
        """The table that an event changes; None for a message that changes none."""
        ...

    def log_place(self, document: Any) -> LogPlace | None:
        """The place of an event in the source's log, if the event names one."""
        ...

    def at(self, document: Any) -> datetime | None:
        """When the change was made, if the event has it."""
        ...

    def changes(self, document: Any, schema: Schema, place: str) -> list[LoggedChange]: ...


class EventFiles:
    """A source: the events of one table (schema.table or database.table) in a file or a directory of files."""

    def __init__(
        self,
        path: Path,
        table: str,
        schema: Schema,
        format: EventFormat,
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
        self._takes_late = False
        self._refused: Mapping[str, str] = {}
        self._until = ""
        self._unfit: Callable[[pa.Table], Mapping[int, str]] | None = None

    @property
    def capture(self) -> Capture:
        return self._format.capture

    def confirm(self, position: str) -> None:
        """Nothing is kept for readers: the writer of the files removes them."""

    def poll(self, position: str | None) -> Poll:
        try:
            return self._poll(FilesPosition.of(position))
        except OSError as error:  # such as a file that was removed since the folder was listed
            what = f"events of {self.name} in {self._path}"
            raise CaptureFailed(what, first_line(error), "Check the files and the rights, and poll again.") from error

    def _poll(self, start: FilesPosition) -> Poll:
        found = _Found(log=start.end.order)
        files = self._files(start)
        for file in files:
            if not (found.is_stopped or (found.is_held and not self._may_read_on(found))):
                self._read(file, start, found, is_last=file is files[-1])
        unfit = self._unfit_events(found.events)
        if unfit:
            return self.refusing(unfit)._poll(start)
        events = self._fresh(found, start)
        changes = tuple(c for e in events for c in e.changes)
        aside = self._aside(found) if self._on_error == "quarantine" else None
        delta = net_effect(self.name, self.schema, () if self._each else changes, aside=aside)
        end = FilesPosition({**start.files, **found.files}, _end(events, start.end))
        more = found.bytes >= self._max_bytes or found.is_stopped
        each = changes if self._each else None
        places = {} if self._each else {c.key: c.place for c in of_one_key(changes, self.schema)}
        read = (self.capture, delta, end.text(), tuple(found.quarantined), dict(found.skipped))
        return Poll(*read, each, more=more, places=places)

    def _aside(self, found: _Found) -> Callable[[LoggedChange, str], None]:
        """What is done with a change that contradicts the one before it, if it is to be set aside."""

        def set_aside(change: LoggedChange, cause: str) -> None:
            found.quarantined.append(Quarantined(change.place, cause, repr(change.new or change.key)))

        return set_aside

    def _may_read_on(self, found: _Found) -> bool:
        """Whether files behind one that is not whole yet can be read: events are put in order by other things."""
        return self._each or (found.log is not None and all(e.log is not None for e in found.events))

    def replaying(self) -> EventFiles:
        """The source as one which reads all events in one poll, and takes late ones that nothing contradicts."""
        whole = copy.copy(self)
        whole._max_bytes, whole._takes_late = 2**62, True
        return whole

    def refusing(self, causes: Mapping[str, str]) -> EventFiles:
        """The source as one to which the events at these places are bad ones, for the causes given."""
        other = copy.copy(self)
        other._refused = {**self._refused, **causes}
        return other

    def refuses(self, place: str) -> bool:
        """Whether the event at a place is a bad one, by `refusing`."""
        return place in self._refused

    def fitting(self, unfit: Callable[[pa.Table], Mapping[int, str]]) -> EventFiles:
        """The source as one to which events are bad ones if `unfit` has a cause for the number of their row."""
        other = copy.copy(self)
        other._unfit = unfit
        return other

    def until(self, place: str) -> EventFiles:
        """The source as one which reads no further than to the event at a place in one poll."""
        other = copy.copy(self)
        other._until = place
        return other

    def _unfit_events(self, events: Sequence[LogEvent]) -> dict[str, str]:
        """The causes of events that the reader cannot hold, by place."""
        if self._unfit is None:
            return {}
        changes = [(e.place, c) for e in events for c in of_one_key(e.changes, self.schema)]
        rows = as_table([c.new or row_of_key(c, self.schema) for _, c in changes], self.schema)
        return {changes[number][0]: cause for number, cause in self._unfit(rows).items()}

    def rewound(self, places: Sequence[str], position: str) -> str:
        """The position before the first of these places, from which their events are read again.

        What was delivered since is delivered once more, in order. Files before the one of that place are where
        `position` has them. CaptureFailed if one of the files is gone.
        """
        known = FilesPosition.of(position).files
        sizes = {file.name: file.stat().st_size for file in self._files(FilesPosition())}
        starts: dict[str, int] = {}
        for place in places:
            name, _, at = place.rpartition(" at byte ")
            if not at.isdigit():
                remedy = "REFRESH FLOW … FULL reads the files anew; CLEAR QUARANTINE forgets such events."
                raise CaptureFailed(f"event of {self.name}, {place}", "it names no place in a file", remedy)
            if sizes.get(name, -1) < int(at):
                raise CaptureFailed(f"event of {self.name}, {place}", "the file is gone", "Restore the file.")
            starts[name] = min(int(at), starts.get(name, int(at)))
        first = min(starts)
        gone = sorted(name for name in known if name > first and name not in sizes)
        if gone:
            raise CaptureFailed(
                f"event of {self.name}, {first} at byte {starts[first]}",
                f"what follows it is to be read again, and the file {gone[0]}, which was delivered, is gone",
                "Restore the file; or CLEAR QUARANTINE forgets such events.",
            )
        folder = self._path if self._path.is_dir() else self._path.parent
        files = {n: delivered for n, delivered in known.items() if n < first}
        if starts[first]:
            was = known.get(first, DeliveredPart())
            files[first] = was._replace(size=starts[first], check=checksum_before(folder / first, starts[first]))
        last = FilesPosition.of(position).end.order
        before = self._before(FilesPosition(files))
        return FilesPosition(
            files, _end(e for e in before if e.log and (last is None or is_same_log(e.log.order, last)))
        ).text()

    def _files(self, start: FilesPosition) -> list[Path]:
        """The files in the order of their names; CaptureFailed if one of the position is gone or has changed."""
        if self._path.is_dir():
            files = sorted(f for f in self._path.iterdir() if f.is_file() and not f.name.startswith((".", "_")))
        elif self._path.exists():
            files = [self._path]
        else:
            raise CaptureFailed(f"events of {self.name}", f"{self._path} is not there", "Check the path.")
        present = {f.name: f for f in files}
        for name, (size, check, *_) in start.files.items():
            file = present.get(name)
            if file is None:
                continue  # files that were delivered may be removed
            if file.stat().st_size < size:
                cause = f"the file ends at byte {file.stat().st_size}, and {size} bytes were delivered"
            elif checksum_before(file, size) != check:
                cause = f"its bytes before {size} have changed since they were delivered"
            else:
                continue
            raise CaptureFailed(
                f"{file} at byte {size}", cause, "Restore the file, or write new events to a file of another name."
            )
        return files

    def _read(self, file: Path, start: FilesPosition, found: _Found, *, is_last: bool) -> None:
        known = start.files.get(file.name, DeliveredPart())
        offset = known.size
        with file.open("rb") as stream:
            stream.seek(offset)
            for line in stream:
                if found.bytes >= self._max_bytes:
                    break
                place = f"{file.name} at byte {offset}"
                if place == self._until:
                    found.is_stopped = True
                    break
                try:
                    event = self._event(line, place, found.skipped, found.log)
                    if event is not None and event.log is None and not self._each:
                        known = known_by_order(file, known, ChainMap(found.files, start.files))
                        require_order(file.name, known)
                except BadEvent as reason:
                    is_cut = not line.endswith(b"\n") and isinstance(reason.__cause__, ValueError | RecursionError)
                    if is_cut and (is_last or _is_growing(file)):
                        found.is_held = True  # the line is still being written
                        break
                    if self._on_error == "stop" and self._may_stop_before(found.events, [line, *stream]):
                        found.is_stopped = True
                        break
                    if self._on_error == "stop":
                        raise CaptureFailed(f"event of {self.name}, {place}", str(reason), _REMEDY) from reason
                    found.quarantined.append(
                        Quarantined(place, str(reason), line.decode(errors="replace").rstrip("\n"))
                    )
                else:
                    found.add(event)
                offset += len(line)
                found.bytes += len(line)
        if offset:
            found.files[file.name] = known._replace(size=offset, check=checksum_before(file, offset))

    def _may_stop_before(self, events: list[LogEvent], rest: Iterable[bytes]) -> bool:
        """Whether the events before a bad one can be delivered; the next poll then begins at the bad one and fails.

        That way a column that was added at the source does not hold back what happened before. Events that follow with
        lower sequences would be late then.
        """
        delivered = [rank(e.log.order) for e in events if e.log is not None]
        if not delivered or self._each:
            return bool(events)
        last = max(delivered)
        for line in rest:
            try:
                document = json.loads(line)
                log = self._format.log_place(document) if self._format.table(document) == self.name else None
            except (BadEvent, *_OTHER_FORM):
                continue
            if log is not None and rank(log.order) < last:
                return False
        return True

    def _event(self, line: bytes, place: str, skipped: Counter[str], known: Order | None = None) -> LogEvent | None:
        """The event of a line, None if it is of another table; `known` is a place in the log that it must fit."""
        if not line.strip():
            return None
        if place in self._refused:
            raise BadEvent(self._refused[place])
        try:
            document = json.loads(line, parse_float=Decimal)
        except ValueError as error:
            raise BadEvent(f"it is no JSON ({error})") from error
        except RecursionError as error:
            raise BadEvent("it is no event: its JSON is nested too deeply to be read") from error
        try:
            table = self._format.table(document)
            if table != self.name:
                skipped.update([table] if table else [])
                return None
            changes, at = self._format.changes(document, self.schema, place), self._format.at(document)
            event = LogEvent(self._format.log_place(document), changes, place, at)
        except _OTHER_FORM as error:  # no cause: a line that is whole is not still being written
            raise BadEvent(f"it has not the form of such an event ({type(error).__name__}: {error})") from None
        self._check(event.changes)
        if event.log is not None and known is not None and not is_same_log(event.log.order, known):
            known_place, own = shown(known), shown(event.log.order)
            raise BadEvent(f"its place in the log is {own}, of another kind of log than {known_place} before it")
        return replace(event, changes=[replace(change, at=at) for change in event.changes]) if self._each else event

    def _check(self, changes: Sequence[LoggedChange]) -> None:
        """Raise BadEvent if a row lacks a value that it must have."""
        for name, place in self._required:
            if any(change.new is not None and change.new[place] is None for change in changes):
                raise BadEvent(f"its column {name} is NULL, and the table requires a value")
        if any(part is None for change in changes for part in change.key):
            raise BadEvent(f"it names no row: its key ({', '.join(self.schema.key)}) has NULL")

    def _fresh(self, found: _Found, start: FilesPosition) -> list[LogEvent]:
        """The events that were not delivered yet, each once: in the order of the log, if all name their place in it.

        If each event counts, the reader orders them, and none is late.
        """
        old = [e for e in found.events if e.is_before(start.end.order, at=True)]
        before = Delivered()
        if old:
            present = {file.name for file in self._files(start)}
            gone = next((name for name in sorted(start.files) if name not in present), None)
            before = Delivered.of(self._before(start), old, self.schema, gone)
        seen: set[str] = set()
        fresh: list[LogEvent] = []
        end = start.end
        for event in found.events:
            identity = event.identity if event.log is not None else ""
            if identity and (identity in seen or identity in before.repeated):
                continue
            seen.add(identity)
            if not self._each and event.log is not None:
                if cause := end.denies(event.log, event.at):
                    self._set_late_aside(event, cause, _OTHER_LOG, found)
                    continue
                end, last = end.after(event.log, event.at), start.end.order
                if last is not None and event.is_before(last):
                    if cause := before.too_late(event.log.order, last, is_asked_for=self._takes_late):
                        self._set_late_aside(event, cause, _TOO_LATE, found)
                        continue
                    event = before.without_superseded(event, self.schema)
            fresh.append(event)
        if self._each or any(e.log is None for e in fresh):
            return fresh
        return sorted(fresh, key=lambda e: rank(e.log.order) if e.log else ())

    def _set_late_aside(self, event: LogEvent, cause: str, remedy: str, found: _Found) -> None:
        if self._on_error == "stop":
            raise CaptureFailed(f"event of {self.name}, {event.place}", cause, remedy)
        found.quarantined.append(Quarantined(event.place, cause, event.identity))

    def _before(self, start: FilesPosition) -> Iterator[LogEvent]:
        """The events before a position, as far as their files are there."""
        for file in self._files(start):
            size = start.files.get(file.name, DeliveredPart()).size
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
    """What a poll has read so far; `log` is a place in the log, whose kind all events share."""

    log: Order | None = None
    events: list[LogEvent] = field(default_factory=list)
    files: dict[str, DeliveredPart] = field(default_factory=dict)
    quarantined: list[Quarantined] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    bytes: int = 0
    is_stopped: bool = False
    is_held: bool = False  # by a line that is still being written

    def add(self, event: LogEvent | None) -> None:
        if event is not None:
            self.events.append(event)
            if self.log is None and event.log is not None:
                self.log = event.log.order


def _end(events: Iterable[LogEvent], start: LogEnd | None = None) -> LogEnd:
    """The end of the log after events, from the one before them; those of another log do not count."""
    end = start or LogEnd()
    for event in events:
        if event.log is not None and not end.denies(event.log, event.at):
            end = end.after(event.log, event.at)
    return end


def _is_growing(file: Path) -> bool:
    return abs(time.time() - file.stat().st_mtime) < _GROWS  # the clock of a file server may be another
