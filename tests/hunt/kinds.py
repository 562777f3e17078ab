"""The four kinds of definitions, each as a maker of batches from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.hunt import every_type, functions, grammar, settings
from tests.hunt.batch import Batch, with_rows
from tests.hunt.tables import GRAMMAR

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Maker = Callable[["SparkSession", str, int], Batch]


def _grammar(_spark: SparkSession, seed: str, size: int) -> Batch:
    definitions = [grammar.definition(f"{seed}/{n}")[0] for n in range(size)]
    return with_rows("grammar", seed, random.Random(seed), GRAMMAR, definitions)


def _types(_spark: SparkSession, seed: str, size: int) -> Batch:
    return every_type.batch(seed, size)


KINDS: dict[str, Maker] = {
    "functions": functions.batch,
    "grammar": _grammar,
    "types": _types,
    "settings": settings.batch,
}
