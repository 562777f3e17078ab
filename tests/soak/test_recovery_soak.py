"""The recovery test for as long as one likes: FRESHVIEW_SOAK_KILLS kills (default 300), seed printed."""

from __future__ import annotations

import importlib.util
import os
import random
import sys
from pathlib import Path
from types import ModuleType


def _short_version() -> ModuleType:
    path = Path(__file__).parent.parent / "storage" / "test_recovery.py"
    spec = importlib.util.spec_from_file_location("recovery_short", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_many_kills_lose_nothing(tmp_path: Path) -> None:
    """Law: kill after kill, everything acknowledged is there and nothing is half there."""
    short = _short_version()
    kills = int(os.environ.get("FRESHVIEW_SOAK_KILLS", "300"))
    seed = int(os.environ.get("FRESHVIEW_SOAK_SEED", random.randrange(10**6)))
    print(f"FRESHVIEW_SOAK_SEED={seed}")
    chance = random.Random(seed)
    rounds = max(1, kills // 18)
    for number in range(rounds):
        folder = tmp_path / str(number)
        folder.mkdir()
        short.work_and_die(short.Site(folder), chance.randrange(10**6), events=12, signals=6)
        print(f"{(number + 1) * 18} kills survived", flush=True)
