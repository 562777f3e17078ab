"""Which settings of a session bear on what a query means: a view keeps those under which it was created.

Spark decides so for its own views (`ViewHelper.sqlConfigsToProps`): it keeps every setting that was changed, but for
those that only affect how a query is run. So do we; known ones are kept at their default too, since a later Spark, or a
session that was built otherwise, may have another default. All other settings that bear on meaning have Spark's default
in the view's session, however the user's session was built.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from freshview.spark.background import context_of
from freshview.spark.meaning import MEANING, bears_on_meaning

_ZONE = "spark.sql.session.timeZone"
_ARROW = " -> "  # as Scala prints a pair

# Views of earlier versions lack this setting: they kept fewer, and took the rest from the user's session.
_SINCE = "spark.sql.parser.escapedStringLiterals"

Defaults = dict[str, str | None]  # Spark's own defaults, as far as they were asked for


def kept_by_views(session: SparkSession, defaults: Defaults) -> dict[str, str]:
    """The session's settings that bear on what a query means: the known ones, and others that were set."""
    given = _given(session)
    found = {key: value for key, value in given.items() if bears_on_meaning(key)}
    for key in MEANING:
        value = found[key] if key in found else _default(session, key, defaults)
        if value is not None:
            found[key] = value
    return found


def adopt(session: SparkSession, settings: Mapping[str, str], defaults: Defaults) -> None:
    """Give a new session these settings, and Spark's defaults to others that bear on meaning."""
    given = _given(session)
    if _SINCE in settings:
        for key in [k for k in given if k not in settings and bears_on_meaning(k)]:
            session.conf.unset(key)
            del given[key]
    for key, value in settings.items():
        if (given[key] if key in given else _default(session, key, defaults)) != value:
            session.conf.set(key, value)


def _given(session: SparkSession) -> dict[str, str]:
    """The settings that were set in a session, or when it was built, in one call: many queries ask for them."""
    if context_of(session) is None:
        return dict(session.conf.getAll)
    own: Any = session  # PySpark's own call fetches the pairs one by one: 50 ms instead of one
    pairs = [p.partition(_ARROW) for p in own._jsparkSession.conf().getAll().mkString("\0").split("\0")]
    if not all(arrow for _, arrow, _ in pairs):  # another version of Scala prints pairs otherwise
        return dict(session.conf.getAll)
    return {key: value for key, _, value in pairs}


def _default(session: SparkSession, key: str, defaults: Defaults) -> str | None:
    """Spark's default of a setting that is not set; None if there is none. The default time zone is the machine's, and
    may change."""
    if key not in defaults or key == _ZONE:
        defaults[key] = None
        with suppress(PySparkException):  # a setting without a default, or of another version of Spark
            defaults[key] = session.conf.get(key)
    return defaults[key]
