"""TPC-DS data small enough for a test, in which nearly every query finds rows.

The generator's smallest data has one store and thousands of demographics: a third of the queries would be empty,
and an empty view proves nothing. `shrink` keeps some rows of every dimension for each query, with the values that
the query's conditions ask for; every sale belongs to one query, and its keys refer to that query's rows.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import sqlglot
from sqlglot import exp

_DIMENSIONS = """
    call_center catalog_page customer customer_address customer_demographics household_demographics income_band item
    promotion reason ship_mode store time_dim warehouse web_page web_site
""".split()
_FACTS = {  # the value that assigns a row to a query (equal for a return and its sale); one row in how many is kept
    "store_sales": ("ss_ticket_number", 3),
    "store_returns": ("sr_ticket_number", 1),
    "catalog_sales": ("cs_order_number", 2),
    "catalog_returns": ("cr_order_number", 1),
    "web_sales": ("ws_order_number", 1),
    "web_returns": ("wr_order_number", 1),
    "inventory": ("inv_item_sk + inv_date_sk // 7", 4),
}
_RETURNS = {  # a return belongs to a sale: (columns of the return, table and columns of the sale)
    "store_returns": (("sr_ticket_number", "sr_item_sk"), "store_sales", ("ss_ticket_number", "ss_item_sk")),
    "catalog_returns": (("cr_order_number", "cr_item_sk"), "catalog_sales", ("cs_order_number", "cs_item_sk")),
    "web_returns": (("wr_order_number", "wr_item_sk"), "web_sales", ("ws_order_number", "ws_item_sk")),
}
_ROLES = {  # endings of foreign keys that differ from the key they refer to
    "addr_sk": "customer_address",
    "cdemo_sk": "customer_demographics",
    "hdemo_sk": "household_demographics",
    "promo_sk": "promotion",
    "time_sk": "time_dim",
    "date_sk": "date_dim",
}
_PER_ORDER = ("store", "call_center", "web_site")
_PER_ROW = ("warehouse", "promotion", "ship_mode", "web_page", "reason")
_YEARS = (1998, 2002)
_OWN = 3  # rows of a dimension for each query that reads it
_NONE = -1  # in place of a query's number: the row belongs to no query

Wish = dict[str, Any]  # column → value
Connection = Any  # of DuckDB


def shrink(db: Connection, queries: Sequence[str]) -> None:
    """Make the generator's tables small and dense, in place."""
    _Shrinking(db, queries, random.Random(0)).run()


class _Shrinking:
    def __init__(self, db: Connection, queries: Sequence[str], draw: random.Random) -> None:
        self._db = db
        self._draw = draw
        self._queries = [sqlglot.parse_one(q, read="duckdb") for q in queries]
        self._conditions = [_conditions(tree) for tree in self._queries]
        self._names = [{t.name.lower() for t in tree.find_all(exp.Table)} for tree in self._queries]
        tables = db.execute("SELECT table_name FROM information_schema.tables").fetchall()
        self._columns = {t: {r[0]: r[1] for r in db.execute(f"DESCRIBE {t}").fetchall()} for (t,) in tables}

    def run(self) -> None:
        for table, (mark, share) in _FACTS.items():
            self._sample(table, mark, share)
        self._db.execute(f"DELETE FROM date_dim WHERE d_year NOT BETWEEN {_YEARS[0]} AND {_YEARS[1]}")
        self._db.execute("CREATE TEMP TABLE owners (tab VARCHAR, query INTEGER, key BIGINT)")
        for table in _DIMENSIONS:
            self._dimension(table)
        self._days()
        self._customers()
        self._facts()
        for table in (*_FACTS, "customer"):
            self._db.execute(f"ALTER TABLE {table} DROP COLUMN query")
        self._db.execute("DROP TABLE owners")

    def _key(self, table: str) -> str:
        return str(next(iter(self._columns[table])))

    # -- facts: which rows, and for which query ----------------------------------------------------

    def _sample(self, table: str, mark: str, share: int) -> None:
        """Keep some of a fact's rows and assign each to a query that reads the fact; one in six to no query."""
        readers = [i for i, names in enumerate(self._names) if table in names or _sold(table) in names]
        places = ", ".join(map(str, readers))
        if table in _RETURNS:
            own, sales, theirs = _RETURNS[table]
            matched = " AND ".join(f"r.{a} = s.{b}" for a, b in zip(own, theirs, strict=True))
            self._db.execute(f"DELETE FROM {table} r WHERE NOT EXISTS (SELECT 1 FROM {sales} s WHERE {matched})")
        else:
            thinned = f"hash({mark}) % {2 * share} = 0 AND rowid % 4 <> 0"  # some orders are short
            self._db.execute(f"DELETE FROM {table} WHERE hash({mark}) % {share} <> 0 OR ({thinned})")
        self._db.execute(f"ALTER TABLE {table} ADD COLUMN query INTEGER")
        owner = f"CASE WHEN ({mark}) % 6 = 0 THEN {_NONE} ELSE [{places}][1 + ({mark}) % {len(readers)}] END"
        self._db.execute(f"UPDATE {table} SET query = {owner}")

    def _facts(self) -> None:
        for table in _FACTS:
            for name in self._columns[table]:
                self._refer(table, name)
            columns = {c: t for c, t in self._columns[table].items() if not c.endswith(("_sk", "_number"))}
            for query in range(len(self._queries)):
                for variant in range(3):
                    wish = self._wish(query, columns)
                    self._set(table, wish, columns, f"query = {query} AND rowid % 4 = {variant}")

    # -- dimensions --------------------------------------------------------------------------------

    def _dimension(self, table: str) -> None:
        """Keep rows for every query that reads the dimension, with the values that it asks for."""
        key, columns = self._key(table), self._columns[table]
        wanted = {c: t for c, t in columns.items() if not c.endswith("_sk") and c != key.replace("_sk", "_id")}
        readers = [q for q, names in enumerate(self._names) if table in names]
        wishes = [(q, self._wish(q, wanted)) for q in readers for _ in range(_OWN)] + [(_NONE, {})] * _OWN
        self._cut(table, len(wishes))
        keys = [r[0] for r in self._db.execute(f"SELECT {key} FROM {table} ORDER BY 1").fetchall()]
        for row, (query, wish) in zip(keys, wishes, strict=True):
            self._set(table, wish, columns, f"{key} = {row}")
            self._db.execute("INSERT INTO owners VALUES (?, ?, ?)", [table, query, row])

    def _cut(self, table: str, rows: int) -> None:
        """Keep a number of rows, spread evenly; add copies under new keys if there are too few."""
        key = self._key(table)
        (count,) = self._db.execute(f"SELECT COUNT(*) FROM {table}").fetchone()
        if count > rows:
            places = f"SELECT {key}, row_number() OVER (ORDER BY {key}) - 1 AS n FROM {table}"
            kept = f"SELECT {key} FROM ({places}) WHERE n % {count // rows} = 0 ORDER BY n LIMIT {rows}"
            self._db.execute(f"DELETE FROM {table} WHERE {key} NOT IN ({kept})")
            return
        (last,) = self._db.execute(f"SELECT MAX({key}) FROM {table}").fetchone()
        for copy in range(1, rows - count + 1):
            id_ = key.replace("_sk", "_id")
            others = f"{last + copy} AS {key}" + (f", '{copy:016}' AS {id_}" if id_ in self._columns[table] else "")
            chosen = f"ORDER BY {key} LIMIT 1 OFFSET {copy % count}"
            self._db.execute(f"INSERT INTO {table} SELECT * REPLACE ({others}) FROM {table} {chosen}")

    def _customers(self) -> None:
        """Have the customers of a query refer to addresses and demographics of that query."""
        key = self._key("customer")
        self._db.execute("ALTER TABLE customer ADD COLUMN query INTEGER")
        self._db.execute(f"UPDATE customer SET query = o.query FROM owners o WHERE tab = 'customer' AND key = {key}")
        for name in self._columns["customer"]:
            if name != key:
                self._refer("customer", name)

    def _days(self) -> None:
        """Choose for each query some of the days that it asks for."""
        columns = self._columns["date_dim"]
        for query in range(len(self._queries)):
            for _ in range(2 * _OWN):
                wish = self._wish(query, columns)
                where = " AND ".join(f"{c} = TRY_CAST(? AS {columns[c]})" for c in wish) or "FALSE"
                found = self._db.execute(f"SELECT d_date_sk FROM date_dim WHERE {where} ORDER BY 1", [*wish.values()])
                days = [r[0] for r in found.fetchall()]
                if days:
                    self._db.execute("INSERT INTO owners VALUES ('date_dim', ?, ?)", [query, self._draw.choice(days)])

    def _refer(self, table: str, name: str) -> None:
        """Have a foreign key refer to rows of the same query, if it has any. Equal keys stay equal."""
        ends = {self._key(t).split("_", 1)[1]: t for t in _DIMENSIONS} | _ROLES
        target = next((t for end, t in ends.items() if name.endswith(f"_{end}")), None)
        if target is None:
            return
        readers = ", ".join(f"({q})" for q in range(_NONE, len(self._queries)))
        keys = f"SELECT key FROM owners WHERE tab = '{target}'"
        own = f"SELECT query, key FROM owners WHERE tab = '{target}'"
        any_ = f"SELECT q.query, k.key FROM (VALUES {readers}) q(query), ({keys}) k"
        others = f"{any_} WHERE q.query NOT IN (SELECT query FROM ({own}))"
        numbered = (
            "SELECT query, key, row_number() OVER (PARTITION BY query ORDER BY key) - 1 AS n,"
            f" COUNT(*) OVER (PARTITION BY query) AS m FROM ({own} UNION {others})"
        )
        self._db.execute(
            f"UPDATE {table} SET {name} = k.key FROM ({numbered}) k"
            f" WHERE {table}.query = k.query AND ({self._spread(table, name, target)}) % m = n"
        )

    def _spread(self, table: str, name: str, target: str) -> str:
        """Return what chooses among the rows that a key may refer to; the generator uses one row of some dimensions."""
        if target in _PER_ORDER:
            return f"hash({_FACTS[table][0]}) // 7"
        return f"hash({table}.rowid) // 7" if target in _PER_ROW else name

    # -- wishes ------------------------------------------------------------------------------------

    def _wish(self, query: int, columns: dict[str, str]) -> Wish:
        """Return values of these columns that meet a query's conditions, chosen among those that it allows."""
        wish: Wish = {}
        for condition in self._draw.sample(self._conditions[query], len(self._conditions[query])):
            wish |= _wish(condition, self._draw)
        return {c: v for c, v in wish.items() if c in columns}

    def _set(self, table: str, wish: Wish, columns: dict[str, str], where: str) -> None:
        if wish:
            items = ", ".join(f"{c} = TRY_CAST(? AS {columns[c]})" for c in wish)
            self._db.execute(f"UPDATE {table} SET {items} WHERE {where}", [*wish.values()])


def _sold(table: str) -> str:
    return _RETURNS[table][1] if table in _RETURNS else table


def _conditions(tree: exp.Expr) -> list[exp.Expr]:
    """Return the WHERE and ON conditions of each SELECT of a query."""
    found = []
    for select in tree.find_all(exp.Select):
        parts = [select.args.get("where"), *(j.args.get("on") for j in select.args.get("joins") or ())]
        found += [p.this if isinstance(p, exp.Where) else p for p in parts if p is not None]
    return found


def _wish(condition: exp.Expr, draw: random.Random) -> Wish:
    """Return values that make a condition true, as far as it compares columns with constants."""
    condition = condition.unnest()
    match condition:
        case exp.And():
            parts = list(condition.flatten())
            return {k: v for part in draw.sample(parts, len(parts)) for k, v in _wish(part, draw).items()}
        case exp.Or():
            return _wish(draw.choice(list(condition.flatten())), draw)
        case exp.EQ():
            return _value(condition.this, [condition.expression], draw)
        case exp.In() if condition.expressions:
            return _value(condition.this, condition.expressions, draw)
        case exp.Between():
            return _value(condition.this, [condition.args["low"], condition.args["high"]], draw)
    return {}


def _value(side: exp.Expr, values: list[exp.Expr], draw: random.Random) -> Wish:
    columns = list(side.find_all(exp.Column))
    constants = [c for c in map(_constant, values) if c is not None]
    return {columns[0].name.lower(): draw.choice(constants)} if len(columns) == 1 and constants else {}


def _constant(value: exp.Expr) -> Any:
    value = value.unnest()
    while isinstance(value, exp.Cast):
        value = value.this
    if isinstance(value, exp.Literal):
        return value.this if value.is_string else float(value.this)
    if isinstance(value, exp.Add) and all(isinstance(v, exp.Literal) for v in (value.this, value.expression)):
        return float(value.this.this) + float(value.expression.this)
    return None
