"""The SQL reference: its examples are statements that are known, and no statement or property is left out."""

from __future__ import annotations

import pytest
from tests.docs.blocks import ROOT, steps

from freshview.definition.properties import MODES, PROPERTIES, SCENARIOS
from freshview.errors import FreshviewError
from freshview.sql.parser import _PARSERS, parse
from freshview.sql.script import statements
from freshview.sql.statements import Query

_PAGE = (ROOT / "docs" / "sql.md").read_text(encoding="utf-8")
_EXAMPLES = [text for step in steps(_PAGE, "sql") for text in statements(step.block.text)]


@pytest.mark.parametrize("text", _EXAMPLES)
def test_an_example_is_understood(text: str) -> None:
    """What needs Spark and tables runs in tests/spark/test_tutorial.py."""
    assert isinstance(parse(text), Query) == text.startswith("SELECT")


def test_every_statement_has_its_form() -> None:
    forms = " ".join(" ".join(step.block.text.split()) for step in steps(_PAGE, ""))
    plain = forms.replace("[OR REPLACE] ", "OR REPLACE ")
    for words, _ in _PARSERS:
        text = " ".join(words)
        if text in ("DESC", "BEGIN", "COMMIT", "ROLLBACK", "START TRANSACTION") or _is_refused(text):
            continue
        assert text in forms.replace("[OR REPLACE] ", "") or text in plain, text


def _is_refused(text: str) -> bool:
    try:
        parse(f"{text} t")
    except FreshviewError as error:
        return "is not supported" in str(error)
    return False


def test_every_property_and_mode_is_told() -> None:
    for name in ("maintenance", "refresh", "deadline", *PROPERTIES):
        assert f"`'{name}'`" in _PAGE, name
    for value in (*MODES, *SCENARIOS):
        assert f"`{value}`" in _PAGE, value
