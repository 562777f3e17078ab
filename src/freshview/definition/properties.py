"""What the properties of a view say: its mode, how it is refreshed, its deadline; of a deferred one also the scenario,
and what runs when (DEFER §3, §5.3).

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
PROPERTIES = ("scenario", "propagate", "refresh.policy")  # that only deferred views have

_SECOND = 1_000_000
_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}
_EVERY = re.compile(r"every\s+(\d+)\s*(second|minute|hour|day)s?")


@dataclass(frozen=True)
class Trigger:
    """What sets it off: 'every' so long, 'idle' time, a 'query' of the view, or somebody's 'demand' alone."""

    kind: str = "demand"
    every: int = 0

    def due(self, last: int, now: int) -> int | None:
        """The last moment at which it should have run, if it has not run since; None if it is not due."""
        if self.kind != "every" or now < last + self.every:
            return None
        return last + (now - last) // self.every * self.every

    def following(self, last: int) -> int | None:
        """When it is due next."""
        return last + self.every if self.kind == "every" else None


@dataclass(frozen=True)
class Policy:
    """When the log of a deferred view is propagated, and when what it shows is refreshed, wholly or partially."""

    scenario: str = COMBINED
    propagate: Trigger = Trigger()
    refresh: Trigger = Trigger()
    partial: bool = False

    def wants_job(self, stand: Deferral, oldest_at: int, now: int) -> tuple[bool, int | None]:
        """Should its log be propagated in the background? With the moment it was due at; None: whenever there is time.

        `oldest_at` is when the oldest commit of the log was made: what came after the moment is left to the next one.
        """
        moments = [self.propagate.due(stand.propagated_at, now)]
        if not self.partial:
            moments.append(self.refresh.due(stand.refreshed_at, now))
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
    """Has its mode been left to the advice?"""
    return mode_in(view.properties) == AUTO


def mode_of(eager: bool) -> str:
    return EAGER if eager else LAZY


def keeps_lazy(sources: Iterable[Relation], is_eager: Callable[[Relation], bool]) -> Relation | None:
    """The first of a view's sources for which it cannot be eager: what an eager view reads changes only by commits
    that can maintain it."""
    return next((s for s in sources if s.is_external or (s.kind == "view" and not is_eager(s))), None)


def policy_of(view: Relation) -> Policy:
    """The policy of a deferred view."""
    return parse_policy(view.properties)


def parse_policy(properties: Mapping[str, str]) -> Policy:
    """The policy that properties describe; InvalidStatement if they make no sense, each alone or together."""
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
    return Policy(scenario, propagate, refresh, partial)


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


def next_runs(policy: Policy, stand: Deferral) -> str:
    """When a view's transactions are due next, in words."""
    found = []
    for name, trigger, last in (
        ("propagate", policy.propagate, stand.propagated_at),
        ("partial refresh" if policy.partial else "refresh", policy.refresh, stand.refreshed_at),
    ):
        if (due := trigger.following(last)) is not None:
            found.append(f"{name} at {datetime.fromtimestamp(due / _SECOND, UTC):%Y-%m-%d %H:%M:%S} UTC")
        elif trigger.kind != "demand":
            found.append(f"{name} {'when idle' if trigger.kind == 'idle' else 'on query'}")
    return ", ".join(found)


def parse_deadline(text: str) -> tuple[int, int]:
    """'06:00', or 'before 06:00', as hour and minute."""
    match = re.fullmatch(r"\s*(?:before\s+)?([01]?\d|2[0-3]):([0-5]\d)\s*", text, re.IGNORECASE)
    if match is None:
        raise InvalidStatement(f"property 'deadline'='{text}'", "is not a time of day", "Write it as '06:00'.")
    return int(match[1]), int(match[2])


def checked_refresh(given: Mapping[str, str], merged: Mapping[str, str]) -> str:
    """The value of 'refresh', if all properties make sense; `merged` are the given ones with those that a view has."""
    known = {"refresh": REFRESH, "maintenance": MODES, "selftest": ("on", "off")}
    for name, value in given.items():
        if name in known and value.lower() not in known[name]:
            raise InvalidStatement(
                f"property '{name}'='{value}'", f"is not among {', '.join(known[name])}", "Choose one of them."
            )
    if "deadline" in given:
        parse_deadline(given["deadline"])
    if mode_in(merged) == DEFERRED:
        parse_policy(merged)
    elif alone := [name for name in PROPERTIES if name in given]:
        raise InvalidStatement(
            f"property '{alone[0]}'", "only deferred views have it", "Set 'maintenance'='deferred' as well."
        )
    return given.get("refresh", "auto").lower()
