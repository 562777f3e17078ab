"""Positions in event files: what was delivered of each file, and the end of the log among the events.

Events that name no place in a log have the order of their files alone. Law: the changes of a file that is new are not
taken if a file of a later name has delivered such changes, or one that begins with the same line.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from freshview.cdc.log_places import LogEnd, order_of
from freshview.cdc.texts import BadEvent

_CHECKED = 256  # bytes before a position that must still be the same


class DeliveredPart(NamedTuple):
    """What was delivered of a file: the number of bytes, and a checksum of the last of them.

    Of a file that has changes without a place in the log, `first` is a checksum of its first line, unless they are
    refused because of another file, `other`.
    """

    size: int = 0
    check: int = 0
    first: str = ""
    other: str = ""

    @property
    def stored(self) -> tuple[Any, ...]:
        return tuple(self) if self.first or self.other else self[:2]


@dataclass
class FilesPosition:
    """What was delivered by file name, and the end of the log among the events.

    Positions of earlier versions have the last place of the log alone, and two parts of each file.
    """

    files: dict[str, DeliveredPart] = field(default_factory=dict)
    end: LogEnd = field(default_factory=LogEnd)

    def text(self) -> str:
        at = self.end.at and self.end.at.isoformat()
        files = {name: file.stored for name, file in self.files.items()}
        end = {"sequence": self.end.order, "server": self.end.server, "at": at}
        return json.dumps({"files": files, **{k: v for k, v in end.items() if v or k == "sequence"}}, sort_keys=True)

    @staticmethod
    def of(text: str | None) -> FilesPosition:
        if text is None:
            return FilesPosition()
        data = json.loads(text)
        order, at = data["sequence"], data.get("at")
        files = {name: DeliveredPart(*file) for name, file in data["files"].items()}
        end = LogEnd(order and order_of(order), data.get("server", ""), at and datetime.fromisoformat(at))
        return FilesPosition(files, end)


def known_by_order(file: Path, known: DeliveredPart, delivered: Mapping[str, DeliveredPart]) -> DeliveredPart:
    """What is known of a file that has a change without a place in the log, beside the files that were delivered.

    A file of which a part was delivered is in its place. `other` counts as long as that file is delivered: when events
    are read again from an earlier place, it comes after this one.
    """
    if known.other and known.other not in delivered:
        known = known._replace(other="")
    if known.first or known.other:
        return known
    with file.open("rb") as stream:
        line = next(line.strip() for line in stream if line.strip() not in (b"", b"null"))
    first = hashlib.sha256(line).hexdigest()[:16]
    if known.size:
        return known._replace(first=first)
    behind = (name for name, other in delivered.items() if other.first and (name > file.name or other.first == first))
    other = max(behind, default="")
    return known._replace(other=other) if other else known._replace(first=first)


def require_order(name: str, file: DeliveredPart) -> None:
    """Raise BadEvent if the changes of a file, which name no place in the log, may have been delivered before."""
    if not file.other:
        return
    why = "sorts before" if file.other > name else "begins with the same line as"
    raise BadEvent(
        f"it names no place in the log, and its file {why} {file.other}, which was delivered: older states of rows "
        "would come back (SEQUENCE BY orders such events; a file that is written anew needs a later name)"
    )


def checksum_before(file: Path, size: int) -> int:
    """The checksum of the last bytes before a place in a file."""
    with file.open("rb") as stream:
        stream.seek(max(0, size - _CHECKED))
        return zlib.crc32(stream.read(min(size, _CHECKED)))
