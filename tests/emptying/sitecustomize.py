"""Empties a function in the processes that a test starts, as `tests/emptied.py` does in the test's own."""

import os

if os.environ.get("FRESHVIEW_EMPTIED_IN_CHILDREN"):
    import tests.emptied  # noqa: F401
