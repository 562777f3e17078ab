"""A PostgreSQL server that tests restart, crash, replace by a copy of itself, and initialise anew, at one address."""

from __future__ import annotations

import shutil

from tests.conftest import PostgresServer


class Cluster(PostgresServer):
    """A server at one address whose data changes under its clients."""

    def restart(self, how: str = "fast") -> None:
        """Stop the server and start it again; `immediate` is a crash."""
        self._control("stop", "-m", how)
        self._control("start")

    def back_up(self) -> None:
        """Copy the data as it is now; replication slots are not part of a copy."""
        shutil.rmtree(self._folder / "copy", ignore_errors=True)
        place = ("-h", "127.0.0.1", "-p", str(self._port), "-U", "freshview")
        self._run("pg_basebackup", "-D", f"{self._folder}/copy", *place, "-c", "fast", "--no-sync")

    def become_standby(self) -> None:
        """Crash for good, and answer from the copy, as a standby that had no later change."""
        self._control("stop", "-m", "immediate")
        shutil.rmtree(self._folder / "data")
        (self._folder / "copy").rename(self._folder / "data")
        (self._folder / "data" / "standby.signal").touch()
        self._control("start")

    def promote(self) -> None:
        """Make the standby a primary, which begins a timeline."""
        self._control("promote")

    def begin_anew(self) -> None:
        """Lose all data, and initialise another server."""
        self._control("stop", "-m", "immediate")
        shutil.rmtree(self._folder / "data")
        self._initialise()
        self._control("start")
