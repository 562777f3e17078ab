"""A PostgreSQL server on loopback and a free port, in a temporary folder, for benchmarks and tests."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

_FOLDERS = ("usr/lib/postgresql/*/bin", "usr/local/pgsql/bin", "opt/homebrew/opt/postgresql*/bin")


class NoServer(Exception):
    """No server can be started, for the stated reason."""


def server_tools() -> Path | None:
    """Return the folder of initdb and postgres, the newest if there are several; None if there is none."""
    folders = [p for pattern in _FOLDERS for p in sorted(Path("/").glob(pattern), key=_number, reverse=True)]
    on_path = shutil.which("initdb")
    if on_path:
        folders.append(Path(on_path).parent)
    return next((f for f in folders if (f / "initdb").exists() and (f / "postgres").exists()), None)


def _number(folder: Path) -> int:
    digits = "".join(c for c in folder.parent.name if c.isdigit())
    return int(digits or 0)


class LocalServer:
    """A server that trusts every user of this machine; stop() removes its data."""

    def __init__(self, tools: Path, settings: Mapping[str, str]) -> None:
        self._tools = tools
        self._user = _postgres_user() if os.geteuid() == 0 else None
        self._folder = Path(tempfile.mkdtemp(prefix="freshview-postgres-"))
        try:
            self._start(settings)
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    def _start(self, settings: Mapping[str, str]) -> None:
        if self._user:
            shutil.chown(self._folder, self._user)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self._options = f"-h 127.0.0.1 -p {self._port} -k {self._folder}"
        self._options += "".join(f" -c {name}={value}" for name, value in settings.items())
        self._initialise()
        self._control("start")

    def _initialise(self) -> None:
        self._run("initdb", "-D", f"{self._folder}/data", "-U", "freshview", "-A", "trust", "-E", "UTF8", "--no-sync")

    def _control(self, action: str, *arguments: str) -> None:
        """Start, stop or promote the server, and wait until that is done."""
        options = ("-o", self._options, "-l", f"{self._folder}/log") if action == "start" else ()
        self._run("pg_ctl", "-D", f"{self._folder}/data", *options, *arguments, "-w", action)

    def _run(self, tool: str, *arguments: str) -> None:
        command, null = [str(self._tools / tool), *arguments], subprocess.DEVNULL
        done = subprocess.run(command, user=self._user, cwd=self._folder, check=False, stdout=null, stderr=null)
        if done.returncode:
            raise NoServer(f"{tool} of PostgreSQL failed with exit code {done.returncode}")

    def url(self, database: str = "postgres", driver: str = "postgresql") -> str:
        return f"{driver}://freshview@127.0.0.1:{self._port}/{database}"

    @property
    def process(self) -> int:
        """The server's first process, whose children are all others."""
        return int((self._folder / "data" / "postmaster.pid").read_text().splitlines()[0])

    def stop(self) -> None:
        with suppress(NoServer):
            self._control("stop", "-m", "immediate")
        shutil.rmtree(self._folder, ignore_errors=True)


def _postgres_user() -> str:
    """Return the user of PostgreSQL's package: the server refuses to run as root."""
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError as error:
        raise NoServer("PostgreSQL does not run as root, and there is no user 'postgres'") from error
