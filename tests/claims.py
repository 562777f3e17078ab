"""A pytest plugin of several runs side by side: each module of tests is run by the run that comes to it first.

Runs that name the same modules share a folder. Law: every test of these modules is run once, by one of the runs.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FOLDER = "FRESHVIEW_CLAIMS"  # the environment variable that names the folder


class Claims:
    """The modules that this run has claimed, and those that another run has."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[Path, bool] = {}

    def is_ours(self, module: Path) -> bool:
        """Claim a module, unless another run has."""
        if module not in self._known:
            try:
                (self._folder / str(module).replace(os.sep, "!")).touch(exist_ok=False)
            except FileExistsError:
                self._known[module] = False
            else:
                self._known[module] = True
        return self._known[module]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Run the tests that are ours, in their order.

        The next test of ours is known while one runs: pytest tears down what that one does not need. If tests of
        others were merely passed over, pytest would tear down for a test that never comes.
        """
        if session.testsfailed or session.config.option.collectonly:
            return None
        ours = (item for item in session.items if self.is_ours(item.path))
        item = next(ours, None)
        while item is not None:
            following = next(ours, None)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.shouldstop or session.shouldfail:
                raise session.Interrupted(session.shouldstop or session.shouldfail)
            item = following
        return True


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Claims(Path(os.environ[FOLDER])))
