"""Binding: exactly the tables that are ours become placeholders; everything else stays as it was written."""

from __future__ import annotations

import pytest

from freshview.errors import InvalidStatement, NotMaintainable
from freshview.sql.binding import TableRef, _split_explain, _without_versions, bind, refuse_foreign
from freshview.sql.table_names import NotFoundByTokens, names_by_tokens
from freshview.sql.tokens import tokenize

OURS = {"t", "u", "my.table", "ü", "back`tick", "select"}


def _bind(text: str) -> tuple[str, dict[str, TableRef]]:
    """The text as Spark gets it (after its formatter), and the tables."""
    bound = bind(text, lambda name: name.lower() in OURS)
    filled = bound.text.format(**{p: f"<{p}>" for p in bound.tables}) if bound.tables else bound.text
    return filled, bound.tables


T = TableRef("t")

CASES: list[tuple[str, str, dict[str, TableRef]]] = [
    ("SELECT * FROM t", "SELECT * FROM <fv0> AS `t`", {"fv0": T}),
    ("SELECT t.a FROM t WHERE t.a = 1", "SELECT t.a FROM <fv0> AS `t` WHERE t.a = 1", {"fv0": T}),
    ("SELECT * FROM t AS x", "SELECT * FROM <fv0> AS x", {"fv0": T}),
    ("SELECT * FROM t x", "SELECT * FROM <fv0> x", {"fv0": T}),
    ("SELECT * FROM T", "SELECT * FROM <fv0> AS `T`", {"fv0": TableRef("T")}),
    ("SELECT * FROM t a, t b", "SELECT * FROM <fv0> a, <fv0> b", {"fv0": T}),
    (
        "SELECT * FROM t JOIN u ON t.a = u.a",
        "SELECT * FROM <fv0> AS `t` JOIN <fv1> AS `u` ON t.a = u.a",
        {"fv0": T, "fv1": TableRef("u")},
    ),
    ("SELECT * FROM other", "SELECT * FROM other", {}),
    ("SELECT * FROM db.t", "SELECT * FROM db.t", {}),
    ("SELECT t FROM u", "SELECT t FROM <fv0> AS `u`", {"fv0": TableRef("u")}),
    ("SELECT 't', \"t\" FROM u", "SELECT 't', \"t\" FROM <fv0> AS `u`", {"fv0": TableRef("u")}),
    (
        "SELECT '{x}', '{' FROM t -- from u {",
        "SELECT '{x}', '{' FROM <fv0> AS `t`",
        {"fv0": T},
    ),
    ("SELECT '{t}'", "SELECT '{t}'", {}),
    ("SELECT /* FROM u */ 1 FROM /* {x} */ t", "SELECT /* FROM u */ 1 FROM /* {x} */ <fv0> AS `t`", {"fv0": T}),
    ("SELECT /*+ BROADCAST(t) */ * FROM t", "SELECT /*+ BROADCAST(t) */ * FROM <fv0> AS `t`", {"fv0": T}),
    ("SELECT * FROM `my.table`", "SELECT * FROM <fv0> AS `my.table`", {"fv0": TableRef("my.table")}),
    ("SELECT * FROM `back``tick`", "SELECT * FROM <fv0> AS `back``tick`", {"fv0": TableRef("back`tick")}),
    ("SELECT * FROM ü", "SELECT * FROM <fv0> AS `ü`", {"fv0": TableRef("ü")}),
    ("SELECT * FROM `select`", "SELECT * FROM <fv0> AS `select`", {"fv0": TableRef("select")}),
    ("SELECT * FROM range(10)", "SELECT * FROM range(10)", {}),
    ("SELECT * FROM t, LATERAL explode(t.a)", "SELECT * FROM <fv0> AS `t`, LATERAL explode(t.a)", {"fv0": T}),
    (
        "SELECT * FROM t LATERAL VIEW explode(a) x AS y",
        "SELECT * FROM <fv0> AS `t` LATERAL VIEW explode(a) x AS y",
        {"fv0": T},
    ),
    ("SELECT * FROM VALUES (1) AS t", "SELECT * FROM VALUES (1) AS t", {}),
    (
        "SELECT (SELECT max(a) FROM t) FROM u",
        "SELECT (SELECT max(a) FROM <fv1> AS `t`) FROM <fv0> AS `u`",
        {"fv0": TableRef("u"), "fv1": T},
    ),
    (
        "SELECT * FROM u WHERE a IN (SELECT a FROM t)",
        "SELECT * FROM <fv0> AS `u` WHERE a IN (SELECT a FROM <fv1> AS `t`)",
        {"fv0": TableRef("u"), "fv1": T},
    ),
    (
        "SELECT * FROM u WHERE EXISTS (SELECT 1 FROM t WHERE t.a = u.a)",
        "SELECT * FROM <fv0> AS `u` WHERE EXISTS (SELECT 1 FROM <fv1> AS `t` WHERE t.a = u.a)",
        {"fv0": TableRef("u"), "fv1": T},
    ),
    ("SELECT * FROM (SELECT * FROM t) t", "SELECT * FROM (SELECT * FROM <fv0> AS `t`) t", {"fv0": T}),
    (
        "SELECT 1 FROM t UNION ALL SELECT 2 FROM t",
        "SELECT 1 FROM <fv0> AS `t` UNION ALL SELECT 2 FROM <fv0> AS `t`",
        {"fv0": T},
    ),
    ("FROM t SELECT a", "FROM <fv0> AS `t` SELECT a", {"fv0": T}),
    ("TABLE t", "SELECT * FROM <fv0> AS `t`", {"fv0": T}),
    ("EXPLAIN EXTENDED SELECT * FROM t", "EXPLAIN EXTENDED SELECT * FROM <fv0> AS `t`", {"fv0": T}),
    ("SELECT * FROM t TABLESAMPLE (10 PERCENT)", "SELECT * FROM <fv0> TABLESAMPLE (10 PERCENT) AS `t`", {"fv0": T}),
    ("SELECT * FROM t TABLESAMPLE (5 ROWS) AS x", "SELECT * FROM <fv0> TABLESAMPLE (5 ROWS) AS x", {"fv0": T}),
    (
        "SELECT * FROM t PIVOT (sum(a) FOR b IN (1, 2))",
        "SELECT * FROM <fv0> AS `t` PIVOT (sum(a) FOR b IN (1, 2))",
        {"fv0": T},
    ),
]


@pytest.mark.parametrize(("text", "expected", "tables"), CASES)
def test_names_become_placeholders(text: str, expected: str, tables: dict[str, TableRef]) -> None:
    filled, found = _bind(text)
    assert found == tables
    assert filled.removesuffix(" -- from u {") == expected


WITHS: list[tuple[str, set[str]]] = [
    ("WITH t AS (SELECT 1) SELECT * FROM t", set()),
    ("WITH T AS (SELECT 1) SELECT * FROM t", set()),
    ("WITH t AS (SELECT * FROM t) SELECT * FROM t", {"t"}),
    ("WITH x AS (SELECT * FROM t), t AS (SELECT * FROM x) SELECT * FROM t", {"t"}),
    ("WITH t AS (SELECT 1), x AS (SELECT * FROM t) SELECT * FROM x", set()),
    ("SELECT * FROM (WITH t AS (SELECT 1) SELECT * FROM t) x JOIN t", {"t"}),
    ("WITH t AS (SELECT 1) SELECT * FROM u WHERE a IN (SELECT * FROM t)", {"u"}),
    ("WITH x AS (WITH t AS (SELECT 1) SELECT * FROM t) SELECT * FROM x, t", {"t"}),
    ("WITH RECURSIVE t AS (SELECT 1 UNION ALL SELECT * FROM t) SELECT * FROM t", set()),
    ("WITH t AS (SELECT 1) SELECT * FROM t UNION ALL SELECT * FROM u", {"u"}),
    ("WITH t (a, b) AS (SELECT 1, 2), x AS (SELECT a FROM t) SELECT * FROM x, t, u", {"u"}),
]


@pytest.mark.parametrize(("text", "names"), WITHS)
def test_with_queries_hide_tables_where_they_are_visible(text: str, names: set[str]) -> None:
    assert {r.name for r in _bind(text)[1].values()} == names


VERSIONS: list[tuple[str, TableRef]] = [
    ("t VERSION AS OF 5", TableRef("t", version="5")),
    ("t FOR VERSION AS OF 5", TableRef("t", version="5")),
    ("t VERSION AS OF '5'", TableRef("t", version="5")),
    ("t FOR SYSTEM_VERSION AS OF 5", TableRef("t", version="5")),
    ("t SYSTEM_TIME AS OF '2024-01-01'", TableRef("t", timestamp="2024-01-01")),
    ("t TIMESTAMP AS OF '2024-01-01'", TableRef("t", timestamp="2024-01-01")),
    ("t TIMESTAMP AS OF TIMESTAMP '2024-01-01 00:00:00'", TableRef("t", timestamp="2024-01-01 00:00:00")),
    ("t FOR TIMESTAMP AS OF '2024-01-01'", TableRef("t", timestamp="2024-01-01")),
]


@pytest.mark.parametrize(("clause", "ref"), VERSIONS)
def test_versions_go_with_their_table(clause: str, ref: TableRef) -> None:
    assert _bind(f"SELECT * FROM {clause} WHERE true") == ("SELECT * FROM <fv0> AS `t` WHERE true", {"fv0": ref})
    assert _bind(f"SELECT * FROM {clause} AS x") == ("SELECT * FROM <fv0> AS x", {"fv0": ref})


def test_two_versions_of_one_table_are_two_tables() -> None:
    filled, tables = _bind("SELECT * FROM t VERSION AS OF 1 a JOIN t VERSION AS OF 2 b JOIN t")
    assert filled == "SELECT * FROM <fv0> a JOIN <fv1> b JOIN <fv2> AS `t`"
    assert list(tables.values()) == [TableRef("t", "1"), TableRef("t", "2"), T]


@pytest.mark.parametrize(
    "text", ["SELECT * FROM t VERSION AS OF x", "SELECT * FROM t TIMESTAMP AS OF now()", "SELECT * FROM"]
)
def test_what_cannot_be_bound_is_refused(text: str) -> None:
    with pytest.raises(InvalidStatement):
        _bind(text)


def test_a_state_inside_a_commit_is_refused_and_an_alias_is_none() -> None:
    """LAZY §2.1 has versions of statements too; here no query reads one (docs/papers.md)."""
    for text in ("t VERSION AS OF 5 STATEMENT 2", "t FOR SYSTEM_VERSION AS OF '5' statement 2 AS x"):
        with pytest.raises(InvalidStatement, match="a version is a whole commit"):
            _bind(f"SELECT * FROM {text}")
    assert _bind("SELECT * FROM t VERSION AS OF 5 statement")[1] == {"fv0": TableRef("t", version="5")}


# -- texts that sqlglot cannot read ----------------------------------------------------------------


@pytest.mark.parametrize("text", [text for text, *_ in CASES] + [text for text, _ in WITHS])
def test_tokens_tell_the_same_tables_as_the_parser(text: str) -> None:
    """Or nothing: where a name may mean a table or a WITH query, only a parser can tell."""
    query = _split_explain(text)[1]
    tokens = tokenize(_without_versions(query, tokenize(query)))
    try:
        found = {tokens[i].text for i in names_by_tokens(tokens).tables}
    except NotFoundByTokens:
        return
    assert {name for name in found if name.lower() in OURS} == {ref.name for ref in _bind(text)[1].values()}


UNREAD: list[tuple[str, str]] = [
    (
        "SELECT window(d, '1 day').start, count(*) FROM t GROUP BY window(d, '1 day')",
        "SELECT window(d, '1 day').start, count(*) FROM <fv0> AS `t` GROUP BY window(d, '1 day')",
    ),
    (
        "WITH x AS (SELECT * FROM t) SELECT count(*) FROM x, u a GROUP BY window(d, '1 day'), trim(BOTH FROM t)",
        "WITH x AS (SELECT * FROM <fv0> AS `t`) SELECT count(*) FROM x, <fv1> a GROUP BY window(d, '1 day'), "
        "trim(BOTH FROM t)",
    ),
    (
        "SELECT 1 FROM t WHERE EXISTS (TABLE u) AND a IS DISTINCT FROM u",
        "SELECT 1 FROM <fv0> AS `t` WHERE EXISTS (TABLE <fv1>) AND a IS DISTINCT FROM u",
    ),
    (
        "SELECT count(*) FROM (t x JOIN LATERAL (SELECT * FROM u) y) GROUP BY window(d, '1 day')",
        "SELECT count(*) FROM (<fv0> x JOIN LATERAL (SELECT * FROM <fv1> AS `u`) y) GROUP BY window(d, '1 day')",
    ),
    (
        "WITH RECURSIVE t(n) MAX RECURSION LEVEL 10 AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT n FROM t, u",
        "WITH RECURSIVE t(n) MAX RECURSION LEVEL 10 AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT n FROM t, "
        "<fv0> AS `u`",
    ),
    (
        "WITH t (SELECT count(*) AS n FROM u GROUP BY window(d, '1 day')), x (a) (SELECT n FROM t) SELECT a FROM x, t",
        "WITH t (SELECT count(*) AS n FROM <fv0> AS `u` GROUP BY window(d, '1 day')), x (a) (SELECT n FROM t) "
        "SELECT a FROM x, t",
    ),
    (
        "WITH recursive AS (SELECT 1 FROM t GROUP BY window(d, '1 day')) SELECT * FROM recursive, t",
        "WITH recursive AS (SELECT 1 FROM <fv0> AS `t` GROUP BY window(d, '1 day')) "
        "SELECT * FROM recursive, <fv0> AS `t`",
    ),
    (
        "SELECT a, max((SELECT 1)) FROM t GROUP BY window(d, '1 day'), a WITH ROLLUP",
        "SELECT a, max((SELECT 1)) FROM <fv0> AS `t` GROUP BY window(d, '1 day'), a WITH ROLLUP",
    ),
    (f"SELECT {'(' * 3000}1{')' * 3000} FROM t", f"SELECT {'(' * 3000}1{')' * 3000} FROM <fv0> AS `t`"),
    (
        "SELECT * FROM " + "(SELECT * FROM " * 300 + "t" + ")" * 300,
        "SELECT * FROM " + "(SELECT * FROM " * 300 + "<fv0> AS `t`" + ")" * 300,
    ),
]


@pytest.mark.parametrize(("text", "expected"), UNREAD)
def test_tokens_tell_the_tables_where_the_parser_fails(text: str, expected: str) -> None:
    assert _bind(text)[0] == expected


@pytest.mark.parametrize(
    "text",
    [
        "SELECT count(*) FROM (t GROUP BY window(d, '1 day')",
        "SELECT count(*) FROM t JOIN GROUP BY window(d, '1 day')",
        "WITH t AS (SELECT * FROM t) SELECT count(*) FROM t GROUP BY window(d, '1 day')",
        "WITH t (SELECT * FROM t) SELECT count(*) FROM t GROUP BY window(d, '1 day')",
        "WITH x SELECT count(*) FROM t GROUP BY window(d, '1 day')",
        "SELECT * FROM (WITH t (SELECT count(*) FROM u GROUP BY window(d, '1 day')) SELECT * FROM t)",
        "SELECT " + "(" * 3000 + "1 FROM t",
    ],
)
def test_what_neither_tells_is_a_sentence(text: str) -> None:
    with pytest.raises(InvalidStatement):
        _bind(text)


# -- what is not ours ------------------------------------------------------------------------------

FOREIGN: list[tuple[str, tuple[str, ...]]] = [
    ("SELECT * FROM t", ()),
    ("SELECT * FROM t, range(10), explode(array(1)), LATERAL explode(a)", ()),
    ("WITH x AS (SELECT 1) SELECT * FROM x", ()),
    ("SELECT * FROM default.foo", ("default.foo",)),
    ("SELECT * FROM spark_catalog.default.foo AS x", ("spark_catalog.default.foo",)),
    ("SELECT * FROM global_temp.x", ("global_temp.x",)),
    ("SELECT * FROM parquet.`/data/x`", ("parquet.`/data/x`",)),
    ("SELECT * FROM a.b.c.d", ("a.b.c.d",)),
    ("WITH x AS (SELECT * FROM default.foo) SELECT * FROM x", ("default.foo",)),
    ("SELECT (SELECT max(a) FROM default.foo) FROM t", ("default.foo",)),
    ("SELECT * FROM t WHERE a IN (SELECT a FROM default.foo)", ("default.foo",)),
    ("SELECT * FROM read_files('/data')", ("READ_FILES('/data')",)),
    ("SELECT * FROM IDENTIFIER('default.foo')", ("IDENTIFIER('default.foo')",)),
    ("SELECT count(*) FROM default.foo GROUP BY window(d, '1 day')", ("default.foo",)),
    ("SELECT count(*) FROM read_files('x') GROUP BY window(d, '1 day')", ("read_files(…)",)),
]


@pytest.mark.parametrize(("text", "foreign"), FOREIGN)
def test_what_is_not_ours_is_listed(text: str, foreign: tuple[str, ...]) -> None:
    """Queries may read it; views may not."""
    bound = bind(text, lambda name: name == "t")
    assert bound.foreign == foreign
    if foreign:
        with pytest.raises(NotMaintainable, match="no table or view of this warehouse"):
            refuse_foreign(bound)
    else:
        refuse_foreign(bound)
