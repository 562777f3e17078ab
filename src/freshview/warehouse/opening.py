"""A folder belongs to one catalog, and a catalog to one folder: said before two of them mix their files."""

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
    """The catalog's database of the warehouse in this folder; both are made where there are none yet.

    Without a URL it is SQLite in the folder.
    """
    with storage_errors(f"warehouse {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StorageUnavailable(f"warehouse {folder}", "the folder is read-only", "Choose a writable folder.")
    database = Database(url if url is not None else sqlite_url(folder / "catalog.db"))
    pair(folder, database)
    return database


def folder_of(path: str | Path) -> Path:
    """The folder that a path names; InvalidStatement if it can name none."""
    if not isinstance(path, str | Path) or not str(path).strip() or "\0" in str(path):
        raise InvalidStatement(f"warehouse {path!r}", "is no path of a folder", "Name a folder.")
    return Path(path).absolute()


def pair(folder: Path, database: Database) -> None:
    """Open or make the catalog, and see that it and the folder belong together; closes the database if not."""
    try:
        _pair(folder, database)
    except BaseException:
        database.close()
        raise


def is_warehouse(folder: Path) -> bool:
    """Has a warehouse been made in this folder?"""
    return _read(folder) is not None


def _pair(folder: Path, database: Database) -> None:
    known = has_folder(database)  # asked first: a racing opener writes the marker before it sets this
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
    """The id in the folder's marker; None if there is none, '' if it is empty, as a power cut may leave it."""
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
    """In one piece: a reader sees all of it or nothing."""
    draft = folder / f"{_MARKER}.{uuid.uuid4().hex}"
    with storage_errors(f"warehouse {folder}"):
        draft.write_text(json.dumps({"warehouse_id": warehouse_id}))
        fsync_path(draft)
        os.replace(draft, folder / _MARKER)
        fsync_path(folder)
