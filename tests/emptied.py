"""A pytest plugin that empties one function of the product: a test that depends on the function has to fail.

`python -m pytest -p tests.emptied …` with FRESHVIEW_EMPTIED="schedule/manager.py Manager.turn".
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from hypothesis import Phase, settings

ROOT = Path(__file__).parents[1]
VARIABLE = "FRESHVIEW_EMPTIED"
IN_CHILDREN = "FRESHVIEW_EMPTIED_IN_CHILDREN"


def _emptied(*_: Any, **__: Any) -> None:
    """Do nothing."""


def empty(module: str, function: str) -> None:
    """Replace a function, method or property by one that does nothing, in all modules that are loaded or will be."""
    home = importlib.import_module("freshview." + module.removesuffix(".py").replace("/", "."))
    *owners, name = function.split(".")
    owner: Any = home
    for part in owners:
        owner = getattr(owner, part)
    before = vars(owner)[name]
    wrap = type(before) if isinstance(before, classmethod | staticmethod | property) else None
    setattr(owner, name, _emptied if wrap is None else wrap(_emptied))
    for other in list(sys.modules.values()):
        if getattr(other, "__name__", "").startswith("freshview") and vars(other).get(name) is before:
            setattr(other, name, _emptied)


if target := os.environ.get(VARIABLE):
    empty(*target.split())
    os.environ[IN_CHILDREN] = target  # for tests/emptying/sitecustomize.py


def pytest_collection() -> None:
    """Let Hypothesis stop at the first failing example: that is enough here."""
    phases = (Phase.explicit, Phase.generate)
    settings.register_profile("emptied", settings(), phases=phases)
    settings.load_profile("emptied")


def fails_without(module: str, function: str, test: str) -> bool:
    """Does a test fail, in a process of its own, when a function is emptied?"""
    options = ["-p", "tests.emptied", "-p", "no:cacheprovider", "-q", "-x", "--no-header", "--hypothesis-seed=0"]
    own = [str(ROOT / folder) for folder in ("src", ".", "tests/emptying")]
    paths = os.pathsep.join([*own, os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, test],
        cwd=ROOT,
        env={**os.environ, VARIABLE: f"{module} {function}", "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr  # else no test was run
    return done.returncode == 1
