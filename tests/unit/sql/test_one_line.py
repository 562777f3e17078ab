"""A statement on one line: its layout goes, its tokens stay."""

from __future__ import annotations

import pytest

from freshview.sql.one_line import one_line
from freshview.sql.tokens import tokenize

TEXTS = {
    "SELECT a,\n\t b  FROM t -- all\n;": "SELECT a, b FROM t",
    "  select 1/*x*/+ 2 from  t": "select 1 + 2 from t",
    "SELECT 'p  q\n', \"x  y\", r'\\d  ' FROM `a  b`": "SELECT 'p  q\n', \"x  y\", r'\\d  ' FROM `a  b`",
    "SELECT  /*+ BROADCAST(a) */ a.x FROM a": "SELECT /*+ BROADCAST(a) */ a.x FROM a",
    "SELECT 1L,  1.5e3D, 10Y, X'1F', 'it''s', 'a'  'b'": "SELECT 1L, 1.5e3D, 10Y, X'1F', 'it''s', 'a' 'b'",
    "SELECT m['a'],x . y,(a)::int<=>2 , 'é  ü'": "SELECT m['a'],x . y,(a)::int<=>2 , 'é  ü'",
}


@pytest.mark.parametrize("text", TEXTS)
def test_layout_and_comments_go_and_literals_stay(text: str) -> None:
    assert one_line(text) == TEXTS[text]


@pytest.mark.parametrize("text", TEXTS)
def test_the_tokens_stay_and_doing_it_twice_changes_nothing(text: str) -> None:
    done = one_line(text)
    assert [(t.token_type, t.text) for t in tokenize(done)] == [(t.token_type, t.text) for t in tokenize(text)]
    assert one_line(done) == done
