"""A PostgreSQL server on loopback and a free port, in a folder that goes with it; benchmarks and tests start one."""

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
    """Why there is none."""


def server_tools() -> Path | None:
    """The folder of initdb and postgres, the newest if there are several."""
    folders = [p for pattern in _FOLDERS for p in sorted(Path("/").glob(pattern), key=_number, reverse=True)]
    on_path = shutil.which("initdb")
    if on_path:
        folders.append(Path(on_path).parent)
    return next((f for f in folders if (f / "initdb").exists() and (f / "postgres").exists()), None)


def _number(folder: Path) -> int:
    digits = "".join(c for c in folder.parent.name if c.isdigit())
    return int(digits or 0)


class Server:
    """A server that trusts everybody on this machine, gone when stopped."""

    def __init__(self, tools: Path, settings: Mapping[str, str]) -> None:
        self._tools = tools
        self._user = _somebody_else() if os.geteuid() == 0 else None
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
        self._run("initdb", "-D", f"{self._folder}/data", "-U", "freshview", "-A", "trust", "-E", "UTF8", "--no-sync")
        options = f"-h 127.0.0.1 -p {self._port} -k {self._folder}"
        options += "".join(f" -c {name}={value}" for name, value in settings.items())
        self._run("pg_ctl", "-D", f"{self._folder}/data", "-o", options, "-l", f"{self._folder}/log", "-w", "start")

    def _run(self, tool: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._tools / tool), *arguments], user=self._user, cwd=self._folder, check=False, text=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        if done.returncode:
            raise NoServer(f"{tool} of PostgreSQL failed with exit code {done.returncode}")

    def url(self, database: str = "postgres", driver: str = "postgresql") -> str:
        return f"{driver}://freshview@127.0.0.1:{self._port}/{database}"

    def stop(self) -> None:
        with suppress(NoServer):
            self._run("pg_ctl", "-D", f"{self._folder}/data", "-m", "immediate", "-w", "stop")
        shutil.rmtree(self._folder, ignore_errors=True)


def _somebody_else() -> str:
    """The server refuses to run as root; its package brings a user."""
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError as error:
        raise NoServer("PostgreSQL does not run as root, and there is no user 'postgres'") from error
