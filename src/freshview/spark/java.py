"""The Java that Spark would use: which one it is, and whether it is new enough. Needs no Spark."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from freshview.errors import SparkUnavailable

MINIMUM_JAVA = 17


def java_version() -> int | None:
    """The major version of the Java that Spark would use; None if there is none."""
    command = java_command()
    if command is None:
        return None
    try:
        result = subprocess.run([command, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(\d+)(?:\.(\d+))?', result.stderr + result.stdout)
    if not match:
        return None
    major = int(match[1])
    return int(match[2] or 0) if major == 1 else major


def java_command() -> str | None:
    """The command that starts Java: of JAVA_HOME, else the first on the PATH; None if there is none."""
    home = os.environ.get("JAVA_HOME")
    if home:
        path = Path(home) / "bin" / "java"
        return str(path) if path.exists() else None
    return shutil.which("java")


def check_java() -> None:
    """Raise if there is no Java 17 or newer, before Spark fails on it with an obscure error."""
    version, remedy = java_version(), f"Install Java {MINIMUM_JAVA} or newer, or set JAVA_HOME."
    if version is None:
        where = f"JAVA_HOME is {os.environ['JAVA_HOME']}" if os.environ.get("JAVA_HOME") else "no java on the PATH"
        raise SparkUnavailable("Java", f"not found ({where})", remedy)
    if version < MINIMUM_JAVA:
        raise SparkUnavailable("Java", f"version {version} is too old for Spark", remedy)
