"""The prompt of the shell: history, completion, and statements over several lines up to the semicolon."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from freshview.cli.shell import SHORTCUTS
from freshview.sql.script import is_complete

if TYPE_CHECKING:
    from freshview.catalog.writer import Catalog

KEYWORDS = """
    ALTER AND AS ASC AVG BEGIN BETWEEN BY CASE CAST CHECKPOINT COMMIT COUNT CREATE CROSS DELETE DESC DESCRIBE
    DISTINCT DROP ELSE END EXCEPT EXISTS EXPLAIN FROM FULL GROUP HAVING HISTORY IN INNER INSERT INTERSECT INTO IS
    JOIN KEY LEFT LIKE LIMIT MATERIALIZED MAX MERGE MIN NOT NULL ON OR ORDER OVER PARTITION PRIMARY REFRESH RENAME
    RIGHT ROLLBACK SELECT SET SHOW SUM TABLE TABLES TASKS TBLPROPERTIES THEN TIMESTAMP UNION UPDATE USING VACUUM
    VALUES VERSION VIEW VIEWS WHEN WHERE WITH
""".split()
_WORD = re.compile(r"(?:\\\w*|\w+)$")


class Words(Completer):
    """Completes keywords, shortcuts, and the names of tables, views and columns that are in the catalog now."""

    def __init__(self, names: Callable[[], Iterable[str]]) -> None:
        self._names = names

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:  # noqa: ARG002
        found = _WORD.search(document.text_before_cursor)
        if found is None:
            return
        typed, start = found[0], found[0].lower()
        for word in (*sorted(self._names(), key=str.lower), *KEYWORDS, *SHORTCUTS):
            if word.lower().startswith(start) and word != typed:
                yield Completion(word, start_position=-len(typed))


class Keyboard:
    """Texts from the keyboard."""

    def __init__(self, catalog: Callable[[], Catalog], **session: Any) -> None:
        """`session` has options of prompt_toolkit, by which tests type."""
        self._catalog = catalog
        session |= {"complete_while_typing": False, "multiline": True, "prompt_continuation": "       ... "}
        self._session: PromptSession[str] = PromptSession(
            history=_history(), completer=Words(self._names), key_bindings=_keys(), **session
        )

    def read(self, in_transaction: bool) -> str | None:
        try:
            return self._session.prompt("freshview*> " if in_transaction else "freshview> ")
        except EOFError:
            return None

    def _names(self) -> set[str]:
        """Return the names to complete; none if the catalog does not answer, so that typing goes on."""
        try:
            relations = self._catalog().relations()
        except Exception:
            return set()
        return {r.name for r in relations} | {c.name for r in relations for c in r.schema.columns}


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        """Run a complete text; else begin a new line."""
        text = event.current_buffer.text
        if text.lstrip().startswith("\\") or is_complete(text):
            event.current_buffer.validate_and_handle()
        else:
            event.current_buffer.insert_text("\n")

    return keys


def _history() -> History:
    """Return the history: a file in the user's state folder or FRESHVIEW_HISTORY; in memory if it cannot be written."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    file = Path(os.environ.get("FRESHVIEW_HISTORY") or state / "freshview" / "history")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(file))
