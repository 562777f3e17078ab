"""Collated texts in definitions that run as they are written: the words beside COLLATE decide."""

from __future__ import annotations

import pytest

from freshview.definition.collations import refuse_collated_words
from freshview.errors import NotMaintainable


@pytest.mark.parametrize(
    "text",
    [
        "SELECT count(*) AS n FROM t GROUP BY collate(s, 'UTF8_LCASE')",
        "SELECT count(*) AS n FROM t group\n by collate(s, 'UTF8_LCASE')",
        "SELECT count(*) OVER (PARTITION BY collate(s, 'UTF8_LCASE')) AS n FROM t",
        "SELECT DISTINCT from_json(j, 'a STRING COLLATE UTF8_LCASE').a AS a FROM t",
        """SELECT DISTINCT from_json(j, '{…,"metadata":{"__COLLATIONS":{"a":"icu.UNICODE_CI"}}}').a FROM t""",
        "FROM t |> AGGREGATE sort_array(collect_list(s COLLATE UTF8_LCASE)) AS a",
        "FROM t |> AGGREGATE sort_array(array_agg(collate(s, 'UTF8_LCASE'))) AS a",
    ],
)
def test_words_that_make_one_of_equal_texts_are_refused(text: str) -> None:
    """GROUP BY is two words, and one token of the parser."""
    with pytest.raises(NotMaintainable, match="COLLATE beside"):
        refuse_collated_words(text)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT k FROM t WHERE s COLLATE UTF8_LCASE = 'GROUP BY'",
        "SELECT k, 'COLLATE' AS `COLLATE` FROM t GROUP BY k",
    ],
)
def test_conditions_and_quoted_words_are_not(text: str) -> None:
    refuse_collated_words(text)
