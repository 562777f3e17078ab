"""Which settings of Spark bear on what a query means, by their names; loads no pyspark."""

from __future__ import annotations

import re

_PREFIX = "spark.sql."

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
MEANING = tuple(_PREFIX + key for key in (_GENERAL + _SYNTAX + _RESULTS + _VALUES).split())

# Spark's defaults of them, by which a view without any other setting is known; the time zone's is the machine's.
_TRUE = """
    ansi.enabled decimalOperations.allowPrecisionLoss groupByOrdinal orderByOrdinal groupByAliases variable.substitute
    lateralColumnAlias.enableImplicitResolution legacy.literal.pickMinimumPrecision
    legacy.histogramNumericPropagateInputType readSideCharPadding jsonGenerator.ignoreNullFields
    jsonGenerator.writeNullIfWithDefaultValue json.enablePartialResults json.enableExactStringParsing
    chunkBase64String.enabled icu.caseMappings.enabled legacy.sizeOfNull legacy.followThreeValuedLogicInArrayExists
"""
_WORDS = {
    "mapKeyDedupPolicy": "EXCEPTION",
    "timestampType": "TIMESTAMP_LTZ",
    "functionResolution.sessionOrder": "second",
    "legacy.ctePrecedencePolicy": "CORRECTED",
    "columnNameOfCorruptRecord": "_corrupt_record",
    "legacy.timeParserPolicy": "CORRECTED",
}
_NO_DEFAULT = ("session.timeZone", "legacy.nullInEmptyListBehavior")
DEFAULTS = {
    **{key: "false" for key in MEANING if key.removeprefix(_PREFIX) not in _NO_DEFAULT},
    **{_PREFIX + key: "true" for key in _TRUE.split()},
    **{_PREFIX + key: word for key, word in _WORDS.items()},
}

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


def bears_on_meaning(key: str) -> bool:
    """May a setting change what a query means? Every setting may that is not known to be harmless."""
    return key in MEANING or (key.startswith(_PREFIX) and _HARMLESS.match(key) is None)
