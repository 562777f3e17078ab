"""Files of a warehouse on a local file system: their places, and how they are made durable."""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq

from freshview.catalog.records import DataFile
from freshview.errors import CorruptWarehouse, InvalidStatement, StorageUnavailable


@contextmanager
def storage_errors(what: str) -> Iterator[None]:
    """Raise failures of the file system as CorruptWarehouse or StorageUnavailable."""
    try:
        yield
    except FileNotFoundError as error:
        raise CorruptWarehouse(
            what, f"{error.filename or error} is missing", "Restore the file from a backup."
        ) from error
    except OSError as error:
        raise StorageUnavailable(
            what, error.strerror or str(error), "Check that the folder exists, is writable and not full."
        ) from error


# Delta-rs fails on some of these characters in a path, Spark takes others as patterns.
_FORBIDDEN_IN_PATHS = re.compile(r"[\[\]{}^|*?\\\x00-\x1f\x7f]|%[0-9A-Fa-f]{2}")


def check_location(path: Path, what: str) -> None:
    """Raise InvalidStatement for a folder whose name Delta or Spark would misread."""
    found = _FORBIDDEN_IN_PATHS.search(str(path))
    if found:
        raise InvalidStatement(what, f"{found.group()!r} cannot stand in its path", "Choose another folder.")


class Layout:
    """The folders of a warehouse. A relation's folder is named by its id, so that relations may have any name."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tables = root / "tables"

    def relation(self, relation_id: int) -> Path:
        return self.tables / f"{relation_id:08d}"

    def new_folder(self, kind: str) -> str:
        """A fresh folder name, relative to a relation's folder."""
        return f"{kind}-{uuid.uuid4().hex}"

    def relation_ids(self) -> list[int]:
        """Ids of the relations that have a folder, ascending."""
        if not self.tables.is_dir():
            return []
        return sorted(int(p.name) for p in self.tables.iterdir() if p.name.isdigit())


def fsync_path(path: Path) -> None:
    """Flush a file or a folder to the disk, even if another process wrote it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def fsync_tree(folder: Path, stop_at: Path) -> None:
    """Flush every file and folder below a folder, and the folders from there up to `stop_at`."""
    for directory, _, names in os.walk(folder):
        for name in names:
            fsync_path(Path(directory) / name)
        fsync_path(Path(directory))
    parent = folder.parent
    while parent != stop_at.parent and parent != parent.parent:
        fsync_path(parent)
        parent = parent.parent


def parquet_files(folder: Path, relative_to: Path) -> tuple[DataFile, ...]:
    """List the non-empty Parquet files that a writer left in a folder, and remove all other files."""
    found = []
    for path in sorted(folder.iterdir()):
        if path.suffix != ".parquet" or path.name.startswith((".", "_")):
            path.unlink()
            continue
        rows = pq.read_metadata(path).num_rows
        if rows:
            found.append(DataFile(str(path.relative_to(relative_to)), path.stat().st_size, rows))
        else:
            path.unlink()
    return tuple(found)


def check_present(files: Iterable[DataFile], folder: Path, what: str) -> None:
    """Raise CorruptWarehouse unless every file is there in its full size, before Spark fails on it less clearly."""
    for file in files:
        path = folder / file.path
        try:
            size = path.stat().st_size
        except OSError as error:
            raise CorruptWarehouse(what, f"data file {path} is missing", "Restore the file from a backup.") from error
        if size != file.size:
            raise CorruptWarehouse(
                what, f"data file {path} has {size} bytes instead of {file.size}", "Restore the file from a backup."
            )


def remove_tree(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
