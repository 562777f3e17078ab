"""The properties of a view: its mode, how it is refreshed, its deadline; for a deferred view also its scenario and its
policy (DEFER §3, §5.3).

Plain data in, plain data out. Times are in microseconds on the catalog's clock.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from freshview.catalog.records import Deferral, Relation
from freshview.errors import InvalidStatement

BASE_LOG, DIFFERENTIAL, COMBINED = "base-log", "differential", "combined"
SCENARIOS = (COMBINED, BASE_LOG, DIFFERENTIAL)
LAZY, EAGER, DEFERRED, AUTO = "lazy", "eager", "deferred", "auto"
MODES = (LAZY, EAGER, DEFERRED, AUTO)
REFRESH = ("auto", "incremental", "full")
AUXILIARY = "auxiliary"  # 'auto': the background creates auxiliary views for the view, and drops those that lose
PROPERTIES = ("scenario", "propagate", "refresh.policy")  # of deferred views only

_SECOND = 1_000_000
_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}
_EVERY = re.compile(r"every\s+(\d+)\s*(second|minute|hour|day)s?")


@dataclass(frozen=True)
class Trigger:
    """When a transaction of a deferred view runs: 'every' so long, in 'idle' time, at a 'query', or on 'demand'."""

    kind: str = "demand"
    every: int = 0

    def due(self, last: int, now: int) -> int | None:
        """The last moment at which the transaction should have run, if it has not run since; None if it is not due."""
        if self.kind != "every" or now < last + self.every:
            return None
        return last + (now - last) // self.every * self.every

    def following(self, last: int) -> int | None:
        """The next moment at which the transaction is due; None if it has no schedule."""
        return last + self.every if self.kind == "every" else None


@dataclass(frozen=True)
class DeferredPolicy:
    """The scenario of a deferred view, when its log is propagated, and when it is refreshed, wholly or partially."""

    scenario: str = COMBINED
    propagate: Trigger = Trigger()
    refresh: Trigger = Trigger()
    partial: bool = False

    def wants_job(self, deferral: Deferral, oldest_at: int, now: int) -> tuple[bool, int | None]:
        """Should the log be propagated in the background, and since when is that due? None: whenever there is time.

        `oldest_at` is the time of the oldest commit in the log: commits after a due moment wait for the next one.
        """
        moments = [self.propagate.due(deferral.propagated_at, now)]
        if not self.partial:
            moments.append(self.refresh.due(deferral.refreshed_at, now))
        due = [moment for moment in moments if moment is not None and oldest_at <= moment]
        return bool(due) or self.propagate.kind == "idle", min(due, default=None)


def mode_in(properties: Mapping[str, str]) -> str:
    """The mode that a view's properties ask for."""
    return properties.get("maintenance", LAZY).lower()


def scenario_in(properties: Mapping[str, str]) -> str:
    """The scenario that the properties of a deferred view ask for."""
    return properties.get("scenario", COMBINED).lower()


def commits_maintain(properties: Mapping[str, str]) -> bool:
    """Do commits maintain a view with these properties? (makesafe of INV_IM and INV_DT)"""
    mode = mode_in(properties)
    return mode == EAGER or (mode == DEFERRED and scenario_in(properties) == DIFFERENTIAL)


def is_deferred(view: Relation) -> bool:
    return mode_in(view.properties) == DEFERRED


def is_auto(view: Relation) -> bool:
    """Is the mode of a view left to the advice?"""
    return mode_in(view.properties) == AUTO


def leaves_auxiliaries(view: Relation) -> bool:
    """Does a view leave it to the background which auxiliary views it is maintained from?"""
    return view.properties.get(AUXILIARY, "off").lower() == AUTO


def mode_of(eager: bool) -> str:
    return EAGER if eager else LAZY


def keeps_lazy(sources: Iterable[Relation], is_eager: Callable[[Relation], bool]) -> Relation | None:
    """The first source that keeps a view over these sources from being eager; None if it can be. Law: the sources of an
    eager view change only by commits that can maintain it."""
    return next((s for s in sources if s.is_external or (s.kind == "view" and not is_eager(s))), None)


def policy_of(view: Relation) -> DeferredPolicy:
    """The policy of a deferred view."""
    return parse_policy(view.properties)


def parse_policy(properties: Mapping[str, str]) -> DeferredPolicy:
    """The policy that properties describe; raise InvalidStatement if one is wrong, or two contradict each other."""
    scenario = scenario_in(properties)
    if scenario not in SCENARIOS:
        raise _bad("scenario", scenario, f"is not among {', '.join(SCENARIOS)}", "Choose one of them.")
    has_differentials = scenario == COMBINED
    propagate = _trigger("propagate", properties.get("propagate", "idle" if has_differentials else "on demand"))
    if propagate.kind == "query":
        raise _bad("propagate", "on query", "is for refreshing", "Use 'refresh.policy'='on query'.")
    if propagate.kind != "demand" and not has_differentials:
        raise _bad("propagate", properties["propagate"], _WHY[scenario], "Use 'scenario'='combined'.")
    text = properties.get("refresh.policy", "on demand")
    partial = bool(re.match(r"\s*partial\b", text, re.IGNORECASE))
    refresh = _trigger("refresh.policy", re.sub(r"^\s*partial\b", "", text, flags=re.IGNORECASE))
    if refresh.kind == "idle":
        raise _bad("refresh.policy", text, "is for propagating", "Use 'propagate'='idle'.")
    if partial and scenario == BASE_LOG:
        raise _bad("refresh.policy", text, _WHY[scenario], "Use 'scenario'='combined'.")
    return DeferredPolicy(scenario, propagate, refresh, partial)


_WHY = {
    BASE_LOG: "scenario 'base-log' has no differential tables",
    DIFFERENTIAL: "in scenario 'differential' each commit propagates",
}


def _trigger(name: str, text: str) -> Trigger:
    words = " ".join(text.lower().split())
    if words in ("on demand", "idle", "on query"):
        return Trigger(words.removeprefix("on "))
    match = _EVERY.fullmatch(words)
    if match is None or int(match[1]) == 0:
        remedy = "Write 'every 10 minutes', 'idle' or 'on demand'."
        if name == "refresh.policy":
            remedy = "Write 'every 24 hours', 'partial every 24 hours', 'on query', 'partial on query' or 'on demand'."
        raise _bad(name, text, "is no policy", remedy)
    return Trigger("every", int(match[1]) * _UNITS[match[2]] * _SECOND)


def _bad(name: str, value: str, why: str, remedy: str) -> InvalidStatement:
    return InvalidStatement(f"property '{name}'='{value}'", why, remedy)


def next_runs(policy: DeferredPolicy, deferral: Deferral) -> str:
    """The next due moments of a view's transactions, in words."""
    found = []
    for name, trigger, last in (
        ("propagate", policy.propagate, deferral.propagated_at),
        ("partial refresh" if policy.partial else "refresh", policy.refresh, deferral.refreshed_at),
    ):
        if (due := trigger.following(last)) is not None:
            found.append(f"{name} at {datetime.fromtimestamp(due / _SECOND, UTC):%Y-%m-%d %H:%M:%S} UTC")
        elif trigger.kind != "demand":
            found.append(f"{name} {'when idle' if trigger.kind == 'idle' else 'on query'}")
    return ", ".join(found)


def parse_deadline(text: str) -> tuple[int, int]:
    """The hour and minute of a deadline, which is written '06:00' or 'before 06:00'."""
    match = re.fullmatch(r"\s*(?:before\s+)?([01]?\d|2[0-3]):([0-5]\d)\s*", text, re.IGNORECASE)
    if match is None:
        raise _bad("deadline", text, "is not a time of day", "Write it as '06:00'.")
    return int(match[1]), int(match[2])


def _check_rhythm(policy: DeferredPolicy, properties: Mapping[str, str]) -> None:
    """Raise unless the log is propagated more often than the view is refreshed (DEFER §5.3: every k, every m > k).

    Else propagating would do nothing that the refresh does not do. Views that were created before this was asked for
    keep their policy.
    """
    k, m = policy.propagate, policy.refresh
    if k.kind == m.kind == "every" and m.every <= k.every:
        cause = f"the view is propagated no more often than that ('propagate'='{properties['propagate']}')"
        raise _bad("refresh.policy", properties["refresh.policy"], cause, "Propagate more often, or only refresh.")


def checked_refresh(given: Mapping[str, str], merged: Mapping[str, str]) -> str:
    """The value of 'refresh'; raise if a given property is wrong. `merged` are the given ones and those of the view."""
    known = {"refresh": REFRESH, "maintenance": MODES, "selftest": ("on", "off"), "engine": ("auto", "spark")}
    known[AUXILIARY] = ("off", AUTO)
    for name, value in given.items():
        if name in known and value.lower() not in known[name]:
            raise _bad(name, value, f"is not among {', '.join(known[name])}", "Choose one of them.")
    if "deadline" in given:
        parse_deadline(given["deadline"])
    if mode_in(merged) == DEFERRED:
        _check_rhythm(parse_policy(merged), merged)
    elif alone := [name for name in PROPERTIES if name in given]:
        remedy = "Set 'maintenance'='deferred' as well."
        raise InvalidStatement(f"property '{alone[0]}'", "only deferred views have it", remedy)
    return given.get("refresh", "auto").lower()
