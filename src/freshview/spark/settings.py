"""Which settings of a session bear on what a query means: a view keeps those under which it was created.

Spark decides so for its own views (`ViewHelper.sqlConfigsToProps`): it keeps every setting that was changed, but for
those that only affect how a query is run. So do we; known ones are kept at their default too, since a later Spark, or a
session that was built otherwise, may have another default. All other settings that bear on meaning have Spark's default
in the view's session, however the user's session was built.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from freshview.spark.background import context_of

_ZONE = "spark.sql.session.timeZone"
_PREFIX = "spark.sql."
_ARROW = " -> "  # as Scala prints a pair

# Kept in any case, at default too.
_GENERAL = """
    session.timeZone ansi.enabled caseSensitive mapKeyDedupPolicy decimalOperations.allowPrecisionLoss groupByOrdinal
    orderByOrdinal groupByAliases timestampType
"""
_SYNTAX = """
    parser.escapedStringLiterals parser.quotedRegexColumnNames ansi.doubleQuotedIdentifiers ansi.enforceReservedKeywords
    ansi.relationPrecedence variable.substitute lateralColumnAlias.enableImplicitResolution
    functionResolution.sessionOrder legacy.setopsPrecedence.enabled legacy.ctePrecedencePolicy
    legacy.consecutiveStringLiterals.enabled legacy.exponentLiteralAsDecimal.enabled legacy.literal.pickMinimumPrecision
    legacy.bangEqualsNot legacy.parser.havingWithoutGroupByAsWhere legacy.interval.enabled
    legacy.fromDayTimeString.enabled legacy.identifierClause legacy.allowParameterlessCount
    legacy.allowStarWithSingleTableIdentifierInCount
"""  # how a text is read
_RESULTS = """
    stableDerivedColumnAlias.enabled function.concatBinaryAsString function.eltOutputAsString
    legacy.createEmptyCollectionUsingStringType legacy.integerGroupingId legacy.lpadRpadAlwaysReturnString
    legacy.histogramNumericPropagateInputType legacy.allowNegativeScaleOfDecimal
    legacy.typeCoercion.datetimeToString.enabled legacy.charVarcharAsString charAsVarchar
"""  # names and types of the result
_VALUES = """
    readSideCharPadding legacy.noCharPaddingInPredicate jsonGenerator.ignoreNullFields
    jsonGenerator.writeNullIfWithDefaultValue json.enablePartialResults json.enableExactStringParsing
    legacy.json.allowEmptyString.enabled columnNameOfCorruptRecord chunkBase64String.enabled icu.caseMappings.enabled
    variant.allowDuplicateKeys legacy.timeParserPolicy legacy.sizeOfNull legacy.decimal.retainFractionDigitsOnTruncate
    legacy.castComplexTypesToString.enabled legacy.followThreeValuedLogicInArrayExists
    legacy.allowNullComparisonResultInArraySort legacy.negativeIndexInArrayInsert legacy.percentileDiscCalculation
    legacy.statisticalAggregate legacy.groupingIdWithAppendedUserGroupBy legacy.truncateForEmptyRegexSplit
    legacy.javaCharsets legacy.codingErrorAction legacy.allowHashOnMapType legacy.disableMapKeyNormalization
    legacy.duplicateBetweenInput legacy.scalarSubqueryCountBugBehavior legacy.collationAwareHashFunctions
    legacy.nullInEmptyListBehavior legacy.inSubqueryNullability legacy.useLegacyXMLParser
    legacy.allowZeroIndexInFormatString legacy.cteDuplicateAttributeNames legacy.persistentCatalogFirst
"""
_MEANING = tuple(_PREFIX + key for key in (_GENERAL + _SYNTAX + _RESULTS + _VALUES).split())

# How queries are run, stored and printed, and what cannot be set at run time. All others that are set are kept.
_RUNNING = r"""
    adaptive addPartitionInBatch artifact analyzer\.(?:canonicalization|maxIterations) autoBroadcastJoinThreshold avro
    broadcastExchange broadcastTimeout bucketing cache cartesianProductExec catalog catalogImplementation cbo classic
    cli codegen columnVector connect csv dataframeCache dataFrameQueryContext dataSource datetime\.java8API debug
    defaultCacheStorageLevel defaultSizeInBytes defaultUrlStreamHandlerFactory error event exchange execution
    expressionTreeChangeLog extendedExplainProviders extensions fileSource files filesourceTableRelationCacheSize
    globalTempDatabase hive inMemoryColumnarStorage inMemoryTableScanStatistics join leafNodeDefaultParallelism
    legacy\.(?:sessionInitWithConfigDefaults|execution|parquet|bucketedTableScan) lightweightPlanChangeValidation limit
    maven maxBroadcastTableSize maxConcurrentOutputFileWriters maxMetadataStringLength maxPlanStringLength
    maxSinglePartitionBytes metadataCacheTTLSeconds nameResolutionLog objectHashAggregate optimizer(?!\.decorrelate) orc
    parquet parser\.(?:manageParserCaches|parserDfaCacheFlushRatio|parserDfaCacheFlushThreshold) pipelines planChangeLog
    planChangeValidation planner pyspark python queryExecutionListeners redaction repl
    requireAllClusterKeysForCoPartition requireAllClusterKeysForDistribution resultQueryStage scriptTransformation
    scripting session\.localRelation\w* sessionWindow shuffle shuffleDependency shuffleExchange shuffledHashJoinFactor
    sort sortMergeJoinExec sources stackTracesInDataFrameContext statistics streaming subexpressionElimination subquery
    thriftServer thriftserver truncateTable ui unionOutputPartitioning view warehouse window windowExec
"""
_HARMLESS = re.compile(_PREFIX.replace(".", r"\.") + rf"(?:(?:{'|'.join(_RUNNING.split())})(?:\.|$))")

# Views of earlier versions lack this setting: they kept fewer, and took the rest from the user's session.
_SINCE = "spark.sql.parser.escapedStringLiterals"

Defaults = dict[str, str | None]  # Spark's own defaults, as far as they were asked for


def bears_on_meaning(key: str) -> bool:
    """May a setting change what a query means? Every setting may that is not known to be harmless."""
    return key in _MEANING or (key.startswith(_PREFIX) and _HARMLESS.match(key) is None)


def kept_by_views(session: SparkSession, defaults: Defaults) -> dict[str, str]:
    """The session's settings that bear on what a query means: the known ones, and others that were set."""
    given = _given(session)
    found = {key: value for key, value in given.items() if bears_on_meaning(key)}
    for key in _MEANING:
        value = found[key] if key in found else _default(session, key, defaults)
        if value is not None:
            found[key] = value
    return found


def adopt(session: SparkSession, settings: Mapping[str, str], defaults: Defaults) -> None:
    """Give a new session these settings, and Spark's defaults to others that bear on meaning."""
    given = _given(session)
    if _SINCE in settings:
        for key in [k for k in given if k not in settings and bears_on_meaning(k)]:
            session.conf.unset(key)
            del given[key]
    for key, value in settings.items():
        if (given[key] if key in given else _default(session, key, defaults)) != value:
            session.conf.set(key, value)


def _given(session: SparkSession) -> dict[str, str]:
    """The settings that were set in a session, or when it was built, in one call: many queries ask for them."""
    if context_of(session) is None:
        return dict(session.conf.getAll)
    own: Any = session  # PySpark's own call fetches the pairs one by one: 50 ms instead of one
    pairs = [p.partition(_ARROW) for p in own._jsparkSession.conf().getAll().mkString("\0").split("\0")]
    if not all(arrow for _, arrow, _ in pairs):  # another version of Scala prints pairs otherwise
        return dict(session.conf.getAll)
    return {key: value for key, _, value in pairs}


def _default(session: SparkSession, key: str, defaults: Defaults) -> str | None:
    """Spark's default of a setting that is not set; None if there is none. The default time zone is the machine's, and
    may change."""
    if key not in defaults or key == _ZONE:
        defaults[key] = None
        with suppress(PySparkException):  # a setting without a default, or of another version of Spark
            defaults[key] = session.conf.get(key)
    return defaults[key]
