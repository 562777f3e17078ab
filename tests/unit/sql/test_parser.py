"""The SQL surface: each statement's record, each refusal with its reason, texts kept verbatim."""

from __future__ import annotations

import pytest

from freshview.errors import FreshviewError, InvalidStatement, NotFound, TypeMismatch
from freshview.relation.schema import Column, Schema
from freshview.relation.types import parse_type
from freshview.sql.parser import parse
from freshview.sql.statements import (
    AddColumns,
    AlterSource,
    Assignment,
    Checkpoint,
    ColumnChoice,
    CreateFlow,
    CreateSource,
    CreateTable,
    Delete,
    Describe,
    DropFlow,
    DropSource,
    DropTable,
    ExplainFlow,
    Insert,
    Merge,
    MergeClause,
    Quarantine,
    Query,
    RefreshFlow,
    RenameColumn,
    RenameTable,
    Show,
    Statement,
    Update,
    Vacuum,
)

INT, TEXT = parse_type("INT"), parse_type("STRING")


def test_create_table() -> None:
    text = """-- a comment
    CREATE TABLE IF NOT EXISTS `my.table` (
        `K.1` BIGINT COMMENT 'the key', v DECIMAL(10, 2) NOT NULL, n STRUCT<a: INT, b: ARRAY<STRING>>,
        PRIMARY KEY (`k.1`)
    ) USING delta TBLPROPERTIES ('a.b' = 'c') COMMENT 'about' ;"""
    assert parse(text) == CreateTable(
        "my.table",
        Schema(
            (
                Column("K.1", parse_type("BIGINT"), True, "the key"),
                Column("v", parse_type("DECIMAL(10,2)"), False),
                Column("n", parse_type("STRUCT<a: INT, b: ARRAY<STRING>>")),
            ),
            ("K.1",),
        ),
        ("K.1",),
        True,
        properties=(("a.b", "c"), ("comment", "about")),
    )


def _key(text: str) -> tuple[str, ...]:
    statement = parse(text)
    assert isinstance(statement, CreateTable)
    return statement.key


def test_a_key_is_declared_in_one_of_three_ways() -> None:
    assert _key("CREATE TABLE t (a INT PRIMARY KEY, b INT)") == ("a",)
    assert _key("CREATE TABLE t (a INT, b INT, PRIMARY KEY (B, a))") == ("b", "a")
    assert _key("CREATE TABLE t (a INT, CONSTRAINT pk PRIMARY KEY (a))") == ("a",)
    assert _key("CREATE TABLE t (a INT)") == ()


def test_create_external_table_and_from_query() -> None:
    assert parse("CREATE TABLE t USING DELTA LOCATION '/x/ä b'") == CreateTable("t", None, location="/x/ä b")
    assert parse("CREATE TABLE t (PRIMARY KEY (k)) USING DELTA LOCATION '/x'") == CreateTable(
        "t", None, ("k",), location="/x"
    )
    query = "SELECT 1 AS k, '{x}' AS s -- end"
    assert parse(f"CREATE TABLE t PRIMARY KEY (k) AS {query}") == CreateTable(
        "t", None, ("k",), query=query.removesuffix(" -- end")
    )
    assert parse("CREATE TABLE t COMMENT 'AS' AS SELECT 1 AS a") == CreateTable(
        "t", None, query="SELECT 1 AS a", properties=(("comment", "AS"),)
    )


STATEMENTS: list[tuple[str, Statement]] = [
    ("DROP TABLE t", DropTable("t")),
    ("drop table if exists `a``b` purge", DropTable("a`b", True)),
    ("ALTER TABLE t RENAME TO `u/v`", RenameTable("t", "u/v")),
    ("ALTER TABLE t RENAME COLUMN a TO `b.c`", RenameColumn("t", "a", "b.c")),
    ("ALTER TABLE t ADD COLUMN a INT COMMENT 'x'", AddColumns("t", (Column("a", INT, True, "x"),))),
    ("ALTER TABLE t ADD COLUMNS (a INT, b STRING)", AddColumns("t", (Column("a", INT), Column("b", TEXT)))),
    ("INSERT INTO t VALUES (1, ')')", Insert("t", (), "VALUES (1, ')')")),
    ("INSERT INTO TABLE t (b, `a x`) SELECT 1, 2", Insert("t", ("b", "a x"), "SELECT 1, 2")),
    ("INSERT INTO t BY NAME SELECT 1 AS a", Insert("t", (), "SELECT 1 AS a", True)),
    ("INSERT INTO t (SELECT 1)", Insert("t", (), "(SELECT 1)")),
    ("INSERT INTO t WITH q AS (SELECT 1) SELECT * FROM q", Insert("t", (), "WITH q AS (SELECT 1) SELECT * FROM q")),
    ("INSERT INTO t TABLE s", Insert("t", (), "TABLE s")),
    ("INSERT INTO t FROM s SELECT *", Insert("t", (), "FROM s SELECT *")),
    (
        "UPDATE t AS x SET x.a = CASE WHEN b THEN 1 ELSE 2 END, b = f(c, d) WHERE k IN (SELECT 1 WHERE true)",
        Update(
            "t",
            "x",
            (Assignment("a", "CASE WHEN b THEN 1 ELSE 2 END"), Assignment("b", "f(c, d)")),
            "k IN (SELECT 1 WHERE true)",
        ),
    ),
    ("UPDATE t SET t.a = 1", Update("t", "", (Assignment("a", "1"),), "")),
    (
        "UPDATE t SET a = coalesce(end, 1), b = 2 WHERE end = 3",
        Update("t", "", (Assignment("a", "coalesce(end, 1)"), Assignment("b", "2")), "end = 3"),
    ),
    (
        "UPDATE t SET a = b IS DISTINCT FROM c, d = extract(year FROM e)",
        Update("t", "", (Assignment("a", "b IS DISTINCT FROM c"), Assignment("d", "extract(year FROM e)")), ""),
    ),
    ("UPDATE t SET a = 'x, b = 2 WHERE'", Update("t", "", (Assignment("a", "'x, b = 2 WHERE'"),), "")),
    ("DELETE FROM t", Delete("t", "", "")),
    ("DELETE FROM t x WHERE x.a = 1 /* c */", Delete("t", "x", "x.a = 1")),
    ("TRUNCATE TABLE t", Delete("t", "", "")),
    ("SHOW TABLES", Show("tables")),
    ("SHOW TABLES LIKE 'a*|b'", Show("tables", "a*|b")),
    ("SHOW TABLES 'a'", Show("tables", "a")),
    ("SHOW MATERIALIZED VIEWS", Show("views")),
    ("SHOW TASKS", Show("tasks")),
    ("SHOW SOURCES LIKE 'c*'", Show("sources", "c*")),
    (
        "CREATE SOURCE IF NOT EXISTS crm USING postgres OPTIONS (URL 'host=h', 'on error' = 'stop')",
        CreateSource("crm", "POSTGRES", (("url", "host=h"), ("on error", "stop")), True),
    ),
    ("CREATE SOURCE crm USING CANAL", CreateSource("crm", "CANAL")),
    ("DROP SOURCE IF EXISTS crm CASCADE", DropSource("crm", True, True)),
    (
        "CREATE FLOW f AS AUTO CDC INTO t FROM s.public.t KEYS (id)",
        CreateFlow("f", "t", "s", "public.t", (), ("id",)),
    ),
    (
        "CREATE FLOW IF NOT EXISTS f AS AUTO CDC INTO t FROM STREAM(s.t) (id INT, sequence DECIMAL(4,1)) KEYS (id, k) "
        "STORED AS SCD TYPE 2 TRACK HISTORY ON * EXCEPT (c) IGNORE NULL UPDATES SEQUENCE BY sequence + CASE WHEN a "
        "THEN 1 END APPLY AS DELETE WHEN op = 'COLUMNS' COLUMNS * EXCEPT (op)",
        CreateFlow(
            "f",
            "t",
            "s",
            "t",
            (Column("id", INT), Column("sequence", parse_type("DECIMAL(4,1)"))),
            ("id", "k"),
            "sequence + CASE WHEN a THEN 1 END",
            "op = 'COLUMNS'",
            "",
            ColumnChoice(("op",)),
            True,
            2,
            ColumnChoice(("c",)),
            True,
        ),
    ),
    (
        "CREATE FLOW f AS AUTO CDC INTO t FROM s.t KEYS (id) APPLY AS TRUNCATE WHEN x SEQUENCE BY struct(a, b) "
        "COLUMNS (id, a) STORED AS SCD TYPE 1",
        CreateFlow("f", "t", "s", "t", (), ("id",), "struct(a, b)", "", "x", ColumnChoice(("id", "a"), False)),
    ),
    ("DROP FLOW IF EXISTS f FORCE", DropFlow("f", True, True)),
    ("REFRESH FLOW f", RefreshFlow("f")),
    ("REFRESH FLOW f FULL", RefreshFlow("f", True)),
    ("REFRESH FLOW f CONFIRM '2.csv'", RefreshFlow("f", False, ("2.csv",))),
    ("REFRESH FLOW f FULL CONFIRM '2.csv', '3.csv'", RefreshFlow("f", True, ("2.csv", "3.csv"))),
    ("ALTER SOURCE s SET OPTIONS (POLL 'manual')", AlterSource("s", (("poll", "manual"),))),
    ("EXPLAIN FLOW f", ExplainFlow("f")),
    ("SHOW FLOWS", Show("flows")),
    ("SHOW QUARANTINE LIKE 'f'", Show("quarantine", "f")),
    ("REPLAY QUARANTINE f", Quarantine("f", "replay")),
    ("CLEAR QUARANTINE f", Quarantine("f", "clear")),
    ("SHOW COLUMNS IN t", Show("columns", "", "t")),
    ("-- first\n/* then */ show columns FROM `t`", Show("columns", "", "t")),
    ("DESCRIBE t", Describe("t")),
    ("DESC TABLE EXTENDED t", Describe("t", True)),
    ("DESCRIBE HISTORY t", Describe("t", False, True)),
    ("CHECKPOINT t", Checkpoint("t")),
    ("-- now\nCHECKPOINT TABLE `x y`", Checkpoint("x y")),
    ("VACUUM", Vacuum()),
    ("VACUUM RETAIN 0 HOURS", Vacuum(0.0)),
    ("VACUUM RETAIN 1.5 HOURS;", Vacuum(1.5)),
    ("SELECT '{a}' FROM t", Query("SELECT '{a}' FROM t")),
    ("  with q as (select 1) select * from q ;", Query("with q as (select 1) select * from q")),
    ("FROM t SELECT a", Query("FROM t SELECT a")),
    ("TABLE t", Query("TABLE t")),
    ("VALUES (1)", Query("VALUES (1)")),
    ("(SELECT 1) UNION (SELECT 2)", Query("(SELECT 1) UNION (SELECT 2)")),
    ("EXPLAIN FORMATTED SELECT 1", Query("EXPLAIN FORMATTED SELECT 1")),
    ("DESCRIBE QUERY SELECT 1", Query("DESCRIBE QUERY SELECT 1")),
]


@pytest.mark.parametrize(("text", "statement"), STATEMENTS)
def test_each_statement_has_its_record(text: str, statement: Statement) -> None:
    assert parse(text) == statement


def test_merge() -> None:
    text = """MERGE INTO t AS x USING (SELECT 1 AS k, 'WHEN' AS w) AS s ON x.k = s.k AND CASE WHEN a THEN b END
    WHEN MATCHED AND s.w = 'THEN' THEN DELETE
    WHEN MATCHED THEN UPDATE SET x.v = s.w, u = CASE WHEN 1 = 1 THEN 2 END
    WHEN NOT MATCHED BY TARGET AND s.k > 0 THEN INSERT (k, v) VALUES (s.k, f(1, 2))
    WHEN NOT MATCHED THEN INSERT *
    WHEN NOT MATCHED BY SOURCE THEN UPDATE SET v = 0"""
    assert parse(text) == Merge(
        "t",
        "x",
        "(SELECT 1 AS k, 'WHEN' AS w)",
        "s",
        "x.k = s.k AND CASE WHEN a THEN b END",
        (
            MergeClause(True, False, "s.w = 'THEN'", "delete"),
            MergeClause(
                True, False, "", "update", (Assignment("v", "s.w"), Assignment("u", "CASE WHEN 1 = 1 THEN 2 END"))
            ),
            MergeClause(False, False, "s.k > 0", "insert", (Assignment("k", "s.k"), Assignment("v", "f(1, 2)"))),
            MergeClause(False, False, "", "insert"),
            MergeClause(False, True, "", "update", (Assignment("v", "0"),)),
        ),
    )


@pytest.mark.parametrize(
    ("using", "source", "alias"), [("s", "s", "s"), ("s x", "s", "x"), ("`a b` AS `c d`", "`a b`", "c d")]
)
def test_merge_sources_go_by_a_name(using: str, source: str, alias: str) -> None:
    statement = parse(f"MERGE INTO t USING {using} ON true WHEN MATCHED THEN DELETE")
    assert isinstance(statement, Merge)
    assert (statement.source, statement.source_alias) == (source, alias)


REFUSED: list[tuple[str, type[FreshviewError], str]] = [
    ("", InvalidStatement, "empty"),
    (" ; ", InvalidStatement, "empty"),
    ("-- nothing", InvalidStatement, "empty"),
    ("SELECT 1; SELECT 2", InvalidStatement, "more than one"),
    ("SELECT 'abc", InvalidStatement, "quotes"),
    ("GRANT ALL ON t", InvalidStatement, "'GRANT'"),
    ("SET x = 1", InvalidStatement, "'SET'"),
    ("USE db", InvalidStatement, "'USE'"),
    ("CREATE VIEW v AS SELECT 1", InvalidStatement, "'CREATE'"),
    ("CREATE TEMPORARY TABLE t (a INT)", InvalidStatement, "'CREATE'"),
    ("CREATE OR REPLACE TABLE t (a INT)", InvalidStatement, "OR REPLACE"),
    ("CREATE TABLE t", InvalidStatement, "no columns"),
    ("CREATE TABLE t ()", InvalidStatement, "no columns"),
    ("CREATE TABLE t LIKE s", InvalidStatement, "LIKE"),
    ("CREATE TABLE a.b (x INT)", InvalidStatement, "several parts"),
    ("CREATE TABLE t (a INT) garbage", InvalidStatement, "cannot be understood"),
    ("CREATE TABLE t (a INT))", InvalidStatement, "token"),
    ("CREATE TABLE t (a)", InvalidStatement, "not supported"),
    ("CREATE TABLE t (a INT, A INT)", InvalidStatement, "named twice"),
    ("CREATE TABLE t (a VARIANT)", TypeMismatch, "VARIANT"),
    ("CREATE TABLE t (a STRING COLLATE UTF8_LCASE)", TypeMismatch, "collated"),
    ("CREATE TABLE t (a INTERVAL DAY TO SECOND)", TypeMismatch, "INTERVAL DAY TO SECOND"),
    ("CREATE TABLE t (a INT DEFAULT 5)", InvalidStatement, "DEFAULT"),
    ("CREATE TABLE t (a INT, b INT GENERATED ALWAYS AS (a + 1))", InvalidStatement, "not supported"),
    ("CREATE TABLE t (a INT, CHECK (a > 1))", InvalidStatement, "CHECK"),
    ("CREATE TABLE t (a INT, FOREIGN KEY (a) REFERENCES s (b))", InvalidStatement, "FOREIGN KEY"),
    ("CREATE TABLE t (a INT PRIMARY KEY, b INT PRIMARY KEY)", InvalidStatement, "one primary key"),
    ("CREATE TABLE t (a INT PRIMARY KEY, PRIMARY KEY (a))", InvalidStatement, "one primary key"),
    ("CREATE TABLE t (a INT, PRIMARY KEY (b))", NotFound, "column b"),
    ("CREATE TABLE t (a DOUBLE PRIMARY KEY)", InvalidStatement, "exact equality"),
    ("CREATE TABLE t (a INT) PARTITIONED BY (a)", InvalidStatement, "PARTITIONED BY"),
    ("CREATE TABLE t (a INT) CLUSTER BY (a)", InvalidStatement, "CLUSTER BY"),
    ("CREATE TABLE t (a INT) USING parquet", InvalidStatement, "PARQUET"),
    ("CREATE TABLE t LOCATION '/x'", InvalidStatement, "USING DELTA"),
    ("CREATE TABLE t (a INT) USING DELTA LOCATION '/x'", InvalidStatement, "existing Delta table"),
    ("CREATE TABLE t (a INT) AS SELECT 1 AS a", InvalidStatement, "from the query"),
    ("DROP TABLE", InvalidStatement, "table name"),
    ("DROP TABLE 123", InvalidStatement, "table name"),
    ("DROP TABLE 't'", InvalidStatement, "table name"),
    ("DROP TABLE t u", InvalidStatement, "not expected"),
    ("ALTER TABLE t DROP COLUMN a", InvalidStatement, "ADD COLUMN"),
    ("ALTER TABLE t ADD COLUMN a INT NOT NULL", InvalidStatement, "NOT NULL"),
    ("ALTER TABLE t ADD COLUMN a INT FIRST", InvalidStatement, "FIRST"),
    ("ALTER TABLE t ADD COLUMN a INT AFTER b", InvalidStatement, "AFTER"),
    ("ALTER TABLE t ADD COLUMN a INT DEFAULT 3", InvalidStatement, "DEFAULT"),
    ("ALTER TABLE t ADD COLUMN a INT PRIMARY KEY", InvalidStatement, "key"),
    ("ALTER TABLE t ADD COLUMN a TIME", TypeMismatch, "TIME"),
    ("ALTER TABLE t ADD COLUMN (a INT", InvalidStatement, "Expecting"),
    ("ALTER TABLE t RENAME TO", InvalidStatement, "new name"),
    ("INSERT INTO t", InvalidStatement, "query or VALUES"),
    ("INSERT INTO t (a)", InvalidStatement, "query or VALUES"),
    ("INSERT INTO t PARTITION (a = 1) VALUES (1)", InvalidStatement, "query or VALUES"),
    ("INSERT INTO t REPLACE WHERE a = 1 SELECT 1", InvalidStatement, "query or VALUES"),
    ("INSERT OVERWRITE t VALUES (1)", InvalidStatement, "OVERWRITE"),
    ("INSERT t VALUES (1)", InvalidStatement, "'INSERT'"),
    ("WITH q AS (SELECT 1) INSERT INTO t SELECT * FROM q", InvalidStatement, "after INSERT INTO"),
    ("WITH q AS (SELECT 1) DELETE FROM t", InvalidStatement, "WITH"),
    ("UPDATE t SET a = 1 WHERE", InvalidStatement, "condition"),
    ("UPDATE t SET", InvalidStatement, "column name"),
    ("UPDATE t SET a", InvalidStatement, "'='"),
    ("UPDATE t SET a = , b = 1", InvalidStatement, "expression"),
    ("UPDATE t SET a = 1, A = 2", InvalidStatement, "set twice"),
    ("UPDATE t SET s.a = 1", InvalidStatement, "target table"),
    ("UPDATE t SET a = 1 FROM s WHERE s.k = t.k", InvalidStatement, "MERGE"),
    ("DELETE FROM t WHERE", InvalidStatement, "condition"),
    ("DELETE t WHERE a = 1", InvalidStatement, "'DELETE'"),
    ("TRUNCATE TABLE t PARTITION (a = 1)", InvalidStatement, "not expected"),
    ("REFRESH FLOW f CONFIRM", InvalidStatement, "name of a dump in quotes"),
    ("ALTER SOURCE s SET (poll 'manual')", InvalidStatement, "SET OPTIONS was expected"),
    ("MERGE INTO t USING s ON true", InvalidStatement, "WHEN"),
    ("MERGE INTO t USING (SELECT 1) ON true WHEN MATCHED THEN DELETE", InvalidStatement, "alias"),
    ("MERGE INTO t USING s ON true WHEN MATCHED THEN INSERT *", InvalidStatement, "NOT MATCHED"),
    ("MERGE INTO t USING s ON true WHEN NOT MATCHED THEN DELETE", InvalidStatement, "NOT MATCHED"),
    ("MERGE INTO t USING s ON true WHEN MATCHED BY SOURCE THEN DELETE", InvalidStatement, "THEN"),
    ("MERGE INTO t USING s ON true WHEN NOT MATCHED BY SOURCE THEN UPDATE SET *", InvalidStatement, "source row"),
    ("MERGE INTO t USING s ON true WHEN NOT MATCHED THEN INSERT (a, b) VALUES (1)", InvalidStatement, "2 columns"),
    ("MERGE INTO t USING s ON true WHEN NOT MATCHED THEN INSERT (a, A) VALUES (1, 2)", InvalidStatement, "named twice"),
    ("MERGE INTO t USING s ON true WHEN NOT MATCHED THEN INSERT (a VALUES (1)", InvalidStatement, "expected"),
    ("MERGE INTO t USING s ON true WHEN MATCHED THEN IGNORE", InvalidStatement, "after THEN"),
    ("SHOW DATABASES", InvalidStatement, "'SHOW'"),
    ("SHOW TABLES IN db", InvalidStatement, "in quotes"),
    ("DESCRIBE", InvalidStatement, "table name"),
    ("DESCRIBE t a", InvalidStatement, "not expected"),
    ("CHECKPOINT", InvalidStatement, "table name"),
    ("VACUUM t", InvalidStatement, "not expected"),
    ("VACUUM RETAIN -1 HOURS", InvalidStatement, "number of hours"),
    ("VACUUM RETAIN x HOURS", InvalidStatement, "number of hours"),
    ("EXPLAIN", InvalidStatement, "query was expected"),
    ("EXPLAIN UPDATE t SET a = 1", InvalidStatement, "query was expected"),
    ("EXPLAIN EXTENDED DROP TABLE t", InvalidStatement, "query was expected"),
    ("BEGIN", InvalidStatement, r"wh\.transaction"),
    ("START TRANSACTION", InvalidStatement, r"wh\.transaction"),
    ("COMMIT", InvalidStatement, r"wh\.transaction"),
    ("ROLLBACK", InvalidStatement, r"wh\.transaction"),
]


@pytest.mark.parametrize(("text", "error", "reason"), REFUSED)
def test_each_refusal_says_why(text: str, error: type[FreshviewError], reason: str) -> None:
    with pytest.raises(error, match=reason) as caught:
        parse(text)
    assert type(caught.value) is error
    assert caught.value.remedy
