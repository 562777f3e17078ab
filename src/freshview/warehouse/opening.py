"""Opening a warehouse: a folder belongs to one catalog and a catalog to one folder, checked before files can mix."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path

from freshview.catalog.engine import Database, sqlite_url
from freshview.catalog.migrations import has_folder, is_empty, migrate, set_folder
from freshview.errors import CorruptWarehouse, InvalidStatement, StorageUnavailable
from freshview.storage.files import fsync_path, storage_errors

_MARKER = "freshview.json"


def open_database(folder: Path, url: str | None) -> Database:
    """Open the catalog's database of the warehouse in a folder; create both where they do not exist.

    Without a URL the database is SQLite in the folder.
    """
    with storage_errors(f"warehouse {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StorageUnavailable(f"warehouse {folder}", "the folder is read-only", "Choose a writable folder.")
    database = Database(url if url is not None else sqlite_url(folder / "catalog.db"))
    try:
        _pair(folder, database)
    except BaseException:
        database.close()
        raise
    return database


def folder_of(path: str | Path) -> Path:
    """Return the folder that a path names; raise InvalidStatement if it cannot name one."""
    if not isinstance(path, str | Path) or not str(path).strip() or "\0" in str(path) or not _is_text(str(path)):
        raise InvalidStatement(f"warehouse {path!r}", "is not the path of a folder", "Name a folder.")
    return Path(path).absolute()


def _is_text(path: str) -> bool:
    """Return whether a path can be written as bytes: a lone surrogate cannot."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_warehouse(folder: Path) -> bool:
    """Return whether a warehouse has been created in this folder."""
    return _read(folder) is not None


def _pair(folder: Path, database: Database) -> None:
    """Open or create the catalog; raise CorruptWarehouse if it and the folder do not belong together."""
    known = has_folder(database)  # read first: a concurrent opener writes the marker before it sets this flag
    marked = _read(folder)
    if marked is None and known:
        raise CorruptWarehouse(
            f"warehouse {folder}", "the catalog belongs to another folder", "Open it with the folder it was made with."
        )
    if marked and is_empty(database):
        raise _foreign(folder)
    warehouse_id = migrate(database)
    if not marked:
        _write(folder, warehouse_id)
        set_folder(database)
    elif marked != warehouse_id:
        raise _foreign(folder)
    elif not known:
        set_folder(database)


def _foreign(folder: Path) -> CorruptWarehouse:
    return CorruptWarehouse(
        f"warehouse {folder}",
        "it belongs to another catalog",
        "Open it with the catalog it was made with, or choose another folder.",
    )


def _read(folder: Path) -> str | None:
    """Return the id in the folder's marker; None without a marker, '' if a power cut has left the marker empty."""
    marker = folder / _MARKER
    with storage_errors(f"warehouse {folder}"):
        if not marker.exists():
            return None
        text = marker.read_text()
    if not text:
        return ""
    try:
        return str(json.loads(text)["warehouse_id"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptWarehouse(f"warehouse {folder}", f"{_MARKER} is damaged", "Restore it from a backup.") from error


def _write(folder: Path, warehouse_id: str) -> None:
    """Write the marker atomically: a reader sees all of it or nothing."""
    draft = folder / f"{_MARKER}.{uuid.uuid4().hex}"
    with storage_errors(f"warehouse {folder}"):
        draft.write_text(json.dumps({"warehouse_id": warehouse_id}))
        fsync_path(draft)
        os.replace(draft, folder / _MARKER)
        fsync_path(folder)
