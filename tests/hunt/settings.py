"""Definitions under settings drawn at random, which the user's session and the oracle's share."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from tests.hunt import grammar
from tests.hunt.batch import Batch, Definition
from tests.hunt.oracle import Oracle
from tests.hunt.tables import GRAMMAR, Change, State, changed, draw_changes, initial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS: dict[str, tuple[str, ...]] = {
    "spark.sql.ansi.enabled": ("false",),
    "spark.sql.session.timeZone": ("America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Europe/Berlin"),
    "spark.sql.caseSensitive": ("true",),
    "spark.sql.ansi.doubleQuotedIdentifiers": ("true",),
    "spark.sql.parser.escapedStringLiterals": ("true",),
    "spark.sql.jsonGenerator.ignoreNullFields": ("false",),
    "spark.sql.legacy.setopsPrecedence.enabled": ("true",),
    "spark.sql.groupByOrdinal": ("false",),
    "spark.sql.orderByOrdinal": ("false",),
    "spark.sql.groupByAliases": ("false",),
    "spark.sql.decimalOperations.allowPrecisionLoss": ("false",),
    "spark.sql.mapKeyDedupPolicy": ("LAST_WIN",),
    "spark.sql.legacy.sizeOfNull": ("false",),
    "spark.sql.timestampType": ("TIMESTAMP_NTZ",),
    "spark.sql.legacy.timeParserPolicy": ("LEGACY", "EXCEPTION"),
    "spark.sql.legacy.castComplexTypesToString.enabled": ("true",),
    "spark.sql.legacy.integerGroupingId": ("true",),
    "spark.sql.legacy.literal.pickMinimumPrecision": ("false",),
    "spark.sql.legacy.exponentLiteralAsDecimal.enabled": ("true",),
    "spark.sql.legacy.allowNegativeScaleOfDecimal": ("true",),
    "spark.sql.legacy.dataset.nameNonStructGroupingKeyAsValue": ("true",),
    "spark.sql.legacy.negativeIndexInArrayInsert": ("true",),
    "spark.sql.legacy.percentileDiscCalculation": ("true",),
    "spark.sql.legacy.allowHashOnMapType": ("true",),
    "spark.sql.legacy.createEmptyCollectionUsingStringType": ("true",),
    "spark.sql.legacy.charVarcharAsString": ("true",),
    "spark.sql.readSideCharPadding": ("false",),
    "spark.sql.legacy.noCharPaddingInPredicate": ("true",),
    "spark.sql.legacy.nullInEmptyListBehavior": ("true",),
    "spark.sql.legacy.inSubqueryNullability": ("true",),
    "spark.sql.legacy.csv.enableDateTimeParsingFallback": ("true",),
    "spark.sql.legacy.json.allowEmptyString.enabled": ("true",),
    "spark.sql.legacy.disableMapKeyNormalization": ("true",),
    "spark.sql.legacy.statisticalAggregate": ("true",),
    "spark.sql.legacy.lpadRpadAlwaysReturnString": ("true",),
    "spark.sql.legacy.typeCoercion.datetimeToString.enabled": ("true",),
    "spark.sql.legacy.doLooseUpcast": ("true",),
    "spark.sql.legacy.followThreeValuedLogicInArrayExists": ("false",),
    "spark.sql.legacy.parseNullPartitionSpecAsStringLiteral": ("true",),
    "spark.sql.legacy.viewSchemaCompensation": ("false",),
    "spark.sql.legacy.decimal.retainFractionDigitsOnTruncate": ("true",),
    "spark.sql.legacy.raiseErrorWithoutErrorClass": ("true",),
    "spark.sql.legacy.scalarSubqueryCountBugBehavior": ("true",),
    "spark.sql.legacy.consecutiveStringLiterals.enabled": ("true",),
    "spark.sql.storeAssignmentPolicy": ("LEGACY", "STRICT"),
    "spark.sql.ansi.enforceReservedKeywords": ("true",),
    "spark.sql.ansi.relationPrecedence": ("true",),
    "spark.sql.crossJoin.enabled": ("false",),
    "spark.sql.lateralColumnAlias.enableImplicitResolution": ("false",),
    "spark.sql.variable.substitute": ("false",),
    "spark.sql.pivotMaxValues": ("2",),
    "spark.sql.datetime.java8API.enabled": ("true",),
    "spark.sql.optimizer.enableCsvExpressionOptimization": ("false",),
    "spark.sql.cteRecursionLevelLimit": ("5",),
    "spark.sql.legacy.ctePrecedencePolicy": ("LEGACY", "EXCEPTION"),
}

# fmt: off
SENSITIVE = (
    'SELECT Id, "g" AS q FROM t', 'SELECT k, count(*) AS n FROM t WHERE g = "a" GROUP BY k',
    'SELECT No FROM u WHERE "Name" = \'a\'', "SELECT Id, to_json(struct(k, g AS G, NULL AS n)) AS j FROM t",
    "SELECT Id, to_json(named_struct('a', k, 'B', g)) AS j FROM t",
    "SELECT k FROM t UNION SELECT k FROM u INTERSECT SELECT k FROM w",
    "SELECT k FROM t UNION ALL SELECT k FROM u EXCEPT SELECT k FROM w",
    "SELECT k FROM t EXCEPT SELECT k FROM u UNION ALL SELECT k FROM w INTERSECT SELECT k FROM u",
    "SELECT k + 1 AS a, count(*) AS n FROM t GROUP BY 1, k + 1", "SELECT V % 2 AS k, count(*) AS n FROM t GROUP BY k",
    "SELECT k AS g, count(*) AS n FROM t GROUP BY g", "SELECT Id, size(arr) AS n, size(m) AS l FROM t",
    "SELECT Id, k FROM t ORDER BY 2, 1 LIMIT 3", r"SELECT No, regexp_replace(Name, '\\s', '_') AS r FROM u",
    r"SELECT No FROM u WHERE Name RLIKE '\\w+\\s'", r"SELECT Id, 'a\tb' AS r, g || '\n' AS s FROM t",
    "SELECT Id, amt * amt * amt / 3 AS r FROM t", "SELECT No, big * 1.5 / 7 AS r, big + 0.1 AS s FROM u",
    "SELECT k, avg(big) AS a, sum(big) AS s FROM u GROUP BY k",
    "SELECT k, avg(amt) AS a, sum(amt * 1.234567) AS s FROM t GROUP BY k",
    "SELECT date_trunc('DAY', ts) AS day, count(*) AS n FROM t GROUP BY 1",
    "SELECT hour(ts) AS h, count(*) AS n, max(ts) AS m FROM t GROUP BY hour(ts)",
    "SELECT CAST(ts AS DATE) AS day, count(*) AS n FROM t GROUP BY CAST(ts AS DATE)",
    "SELECT Id, ts = TIMESTAMP '2024-11-03 01:30:00' AS same FROM t", "SELECT No, CAST(ntz AS TIMESTAMP) AS r FROM u",
    "SELECT No, CAST(CAST(ntz AS TIMESTAMP) AS STRING) AS r FROM u", "SELECT Id, CAST(g AS INT) AS r FROM t",
    "SELECT No, k FROM w WHERE num = 1", "SELECT No FROM w WHERE k IN (SELECT num FROM w)",
    "SELECT No FROM w WHERE num IN (SELECT k FROM u)", "SELECT num FROM w EXCEPT SELECT k FROM u",
    "SELECT Id, V / k AS r, V % k AS q FROM t",
    "SELECT Id, arr[0] AS a, m['zz'] AS b, element_at(arr, 1) AS c FROM t",
    "SELECT Id, map_concat(m, map('a', 9)) AS r FROM t", "SELECT Id, map('x', 1, 'x', k) AS r FROM t",
    "SELECT Id, TIMESTAMP '2024-02-29 12:00:00' AS r FROM t",
    "SELECT Id, to_timestamp('2024-02-29') AS r, typeof(to_timestamp('2024-01-01')) AS s FROM t",
    "SELECT Id, to_date('2024-2-9', 'yyyy-MM-dd') AS r FROM t",
    "SELECT Id, date_format(ts, 'yyyy-MM-dd HH:mm zzz') AS r FROM t",
    "SELECT Id, CAST(s AS STRING) AS r, CAST(m AS STRING) AS q, CAST(arr AS STRING) AS p FROM t",
    "SELECT k, flag, count(*) AS n, grouping_id() AS gid FROM t GROUP BY CUBE (k, flag)",
    "SELECT No, c = 'a' AS e, length(c) AS l, c || '|' AS r FROM u",
    "SELECT u.No, w.No AS m FROM u JOIN w ON u.c = w.c", "SELECT c, count(*) AS n FROM u GROUP BY c HAVING c = 'a'",
    "SELECT No FROM u WHERE c IN (SELECT c FROM w)", "SELECT Id, exists(arr, x -> x > 1) AS r FROM t",
    "SELECT Id, 1e2 AS r, 1.5e1 * k AS s FROM t", "SELECT Id, ID AS other, K FROM t", "SELECT k AS a, V AS A FROM t",
    "SELECT Id, s.a AS r, s.A AS q FROM t", "SELECT Id, greatest(g, 'B') AS r, lpad(g, 4, 'x') AS q FROM t",
    "SELECT k, stddev(V) AS r FROM t WHERE V = 7 GROUP BY k", "SELECT Id, array() AS a, map() AS b FROM t",
    "SELECT Id, concat(k, g) AS r, k || V AS q FROM t", "SELECT k AS z, z + 1 AS y FROM t",
    "SELECT t.k, u.No, w.g FROM t, u JOIN w ON u.k = w.k WHERE t.k = u.k",
    "SELECT Id, (SELECT count(*) FROM u WHERE u.k = t.k) AS n FROM t",
    "SELECT Id, k NOT IN (SELECT k FROM u WHERE k > 1) AS r FROM t", "SELECT Id, 'a' 'b' AS r FROM t",
    "WITH t AS (SELECT 1 AS k) SELECT * FROM (WITH t AS (SELECT k + 1 AS k FROM u) SELECT * FROM t)",
    "SELECT Id, CAST(CAST(V AS STRING) AS DATE) AS r FROM t",
    "SELECT Id, date_add(d, 1) > '2024-01-31' AS r, d = '2024-02-29' AS q FROM t",
    "SELECT Id, CAST(x AS INT) AS r FROM t", "SELECT Id, V * 1000000000000000 AS r FROM t",
    "SELECT k, sum(w * 1000) AS r, sum(n) AS q FROM u GROUP BY k",
    "SELECT Id, from_json('{\"a\": \"\"}', 'a INT') AS r FROM t", "SELECT Id, make_date(2024, 13, 1) AS r FROM t",
)
_PREDICATES = {
    "t": ('g = "a"', "k = 1", "g = 'a '", "x = 0", "ts < TIMESTAMP '2024-03-10 03:00:00'", "V % 2 = 1",
          "d = '2024-02-29'"),
    "u": ('Name = "a"', "c = 'a'", 'c = "vc"', "k IN (SELECT k FROM t)", "w > n", "ntz < '2024-03-10'",
          r"Name RLIKE '\\s'"),
    "w": ("num = 1", "num = '1'", "c IN ('a', 'b')", "g = \"b  \"", "k IN (SELECT num FROM w)"),
}
# fmt: on


def draw_settings(spark: SparkSession, draw: random.Random) -> dict[str, str]:
    """One to three settings that this Spark knows; the important ones come first in the table, and more often."""
    names = [name for name, values in SETTINGS.items() if values]
    weights = [3 if place < 16 else 1 for place in range(len(names))]
    session = spark.newSession()
    drawn = {}
    for name in draw.choices(names, weights, k=draw.choice((1, 1, 2, 3))):
        value = draw.choice(SETTINGS[name])
        try:
            session.conf.set(name, value)
        except PySparkException:
            continue
        drawn[name] = value
    return drawn


def batch(spark: SparkSession, seed: str, size: int) -> Batch:
    """A batch under drawn settings: texts that are sensitive to some setting, and texts of the grammar."""
    draw = random.Random(seed)
    settings = draw_settings(spark, draw)
    texts = draw.sample(SENSITIVE, min(len(SENSITIVE), size * 2 // 3))
    definitions = [Definition(text, "sensitive") for text in texts]
    definitions += [grammar.definition(f"{seed}/{n}")[0] for n in range(size - len(texts))]
    start = initial(draw, GRAMMAR)
    oracle = Oracle(spark, GRAMMAR, settings)
    first = _deletion(oracle, draw, start)
    rounds = [first, draw_changes(draw, GRAMMAR, changed(start, first))]
    return Batch("settings", seed, GRAMMAR, definitions, start, rounds, settings)


def _deletion(oracle: Oracle, draw: random.Random, state: State) -> list[Change]:
    """Changes of which one deletes by a condition; Spark says which rows it is true for."""
    table = draw.choice(GRAMMAR)
    others = [c for c in draw_changes(draw, GRAMMAR, state) if c.table != table.name]
    condition = draw.choice(_PREDICATES[table.name])
    oracle.load(state)
    number = table.columns[0].name
    try:
        hit = oracle.session.sql(f"SELECT DISTINCT {number} FROM {table.name} WHERE {condition}").collect()
    except PySparkException:
        return others or draw_changes(draw, GRAMMAR, state)
    return [Change(table.name, tuple(sorted(r[0] for r in hit)), (), condition), *others]
