"""Versions and times in queries: exact instants, and a sentence for what is none."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

import freshview
from freshview.errors import InvalidStatement, NotFound
from freshview.transactions.reading import parse_csn, parse_time, to_micros

EARLY = datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5)))
LATE = datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-5)))
ZONES = st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Pacific/Apia"]).map(ZoneInfo)


@given(st.datetimes(datetime(1970, 1, 2), datetime(2200, 1, 1)), ZONES)
def test_micros_are_the_instant_in_every_zone(moment: datetime, zone: ZoneInfo) -> None:
    """Daylight saving included: the same instant has one number, whatever zone it is written in."""
    aware = moment.replace(tzinfo=UTC)
    expected = round((aware - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(microseconds=1))
    assert to_micros(aware) == expected
    assert to_micros(aware.astimezone(zone)) == expected


def test_a_time_without_zone_is_in_the_sessions_zone() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    summer = int(datetime(2024, 7, 1, 10, tzinfo=UTC).timestamp()) * 1_000_000
    assert parse_time("2024-07-01 12:00:00", "t", berlin) == summer
    assert parse_time("2024-07-01T12:00:00.000001+02:00", "t", UTC) == summer + 1


@pytest.mark.parametrize("text", ["yesterday", "", "2024-13-01", "12:00"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidStatement, match="TIMESTAMP AS OF"):
        parse_time(text, "t", UTC)


def test_the_edges_of_time_are_times_or_refused() -> None:
    assert parse_time("0001-01-01", "t", UTC) < 0
    with pytest.raises(InvalidStatement):
        parse_time("0001-01-01", "t", timezone(timedelta(hours=5)))


def test_versions_are_whole_numbers_within_reach() -> None:
    assert parse_csn("12", "t") == 12
    for text in ("1.5", "x", "-1", ""):
        with pytest.raises(InvalidStatement, match="VERSION AS OF"):
            parse_csn(text, "t")
    with pytest.raises(NotFound, match="9" * 30):
        parse_csn("9" * 30, "t")


@pytest.mark.parametrize("as_of", ["2024-01-01", 1.5, True, EARLY, LATE])
def test_a_moment_that_is_none_is_an_error_that_says_so(tmp_path: Path, as_of: Any) -> None:
    """Before any Spark is started."""
    with freshview.connect(tmp_path) as wh, pytest.raises(InvalidStatement, match=r"is neither a CSN|out of range"):
        wh.sql("SELECT 1", as_of=as_of)
