"""Random aggregates, groupings and window functions, whose results do not depend on an order of rows."""

from __future__ import annotations

from tests.hunt.expressions import ORDERED, SIMPLE, Draw, Scope, condition, expression, literal

# fmt: off
AGGREGATES: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("count(*)", (), "int"), ("count({})", ("any",), "int"), ("sum({})", ("int",), "int"),
    ("sum({})", ("dec",), "dec"), ("min({})", ("any",), "same"), ("max({})", ("any",), "same"),
    ("avg({})", ("int",), "double"), ("avg({})", ("dec",), "dec"), ("sum({})", ("double",), "double"),
    ("count(DISTINCT {})", ("any",), "int"), ("sum(DISTINCT {})", ("int",), "int"),
    ("count(DISTINCT {}, {})", ("any", "any"), "int"), ("sort_array(collect_list({}))", ("any",), "other"),
    ("sort_array(collect_set({}))", ("any",), "other"), ("bool_and({})", ("bool",), "bool"),
    ("bool_or({})", ("bool",), "bool"), ("every({})", ("bool",), "bool"), ("count_if({})", ("bool",), "int"),
    ("bit_xor({})", ("int",), "int"), ("bit_or({})", ("int",), "int"),
    ("max(struct({}, {}))", ("any", "any"), "other"), ("max_by({0}, struct({1}, {0}))", ("any", "any"), "same"),
    ("mode({}, true)", ("any",), "same"), ("percentile({}, 0.5)", ("int",), "double"),
    ("median({})", ("int",), "double"), ("regr_count({}, {})", ("int", "int"), "int"),
    ("listagg({0}, ',') WITHIN GROUP (ORDER BY {0})", ("text",), "text"),
    ("approx_count_distinct({})", ("any",), "int"), ("array_size(collect_list({}))", ("any",), "int"),
    ("try_sum({})", ("int",), "int"), ("avg(DISTINCT {})", ("int",), "double"), ("some({})", ("bool",), "bool"),
    ("min({}) + max({})", ("int", "int"), "int"), ("coalesce(sum({}), 0)", ("int",), "int"),
    ("max(CASE WHEN {} THEN {} END)", ("bool", "int"), "int"),
    ("percentile_cont(0.25) WITHIN GROUP (ORDER BY {})", ("int",), "double"),
    ("to_json(max(struct({} AS Upper, {} AS lower)))", ("int", "text"), "text"), ("var_pop({})", ("int",), "double"),
    ("string_agg({0}) WITHIN GROUP (ORDER BY {0} DESC)", ("text",), "text"), ("count(ALL {})", ("any",), "int"),
    ("size(collect_set({}))", ("any",), "int"), ("max({}) FILTER (WHERE {})", ("any", "bool"), "same"),
)
# fmt: on


def aggregate(g: Draw, s: Scope, depth: int = 1) -> tuple[str, str]:
    """An aggregate call and the kind of its result."""
    pattern, wanted, result = g.pick(AGGREGATES)
    kinds = [g.pick([k for k in ORDERED if s.of(k)] or ["int"]) if k == "any" else k for k in wanted]
    text = pattern.format(*(expression(g, s, k, depth) for k in kinds))
    if "DISTINCT" in text:
        g.clause("DISTINCT aggregate")
    if g.chance(0.15) and "FILTER" not in text and text.endswith(")") and text.count("(") == 1:
        g.clause("FILTER")
        text += f" FILTER (WHERE {condition(g, s, 1)})"
    elif "FILTER" in text:
        g.clause("FILTER")
    return text, kinds[0] if result == "same" else result


def grouping(g: Draw, keys: list[str]) -> tuple[str, bool]:
    """A GROUP BY clause over these keys (at least two for sets), and whether it has grouping sets."""
    if len(keys) < 2 or g.chance(0.3):
        return ", ".join(keys), False
    g.clause("grouping sets")
    a, b, rest = keys[0], keys[1], keys[2:]
    every = ", ".join(keys)
    tail = "".join(f", {k}" for k in rest)
    options = [
        f"ROLLUP ({every})",
        f"CUBE ({every})",
        f"{every} WITH ROLLUP",
        f"{every} WITH CUBE",
        f"GROUPING SETS (({every}), {a}, ())",
        f"{every} GROUPING SETS (({every}), {b}, ())",
        f"{every} GROUPING SETS (({a}), ({b}{tail}))",
        f"ROLLUP ({a}), {b}{tail}",
        f"{a}, CUBE ({b}{tail})",
        f"{b}{tail}, ROLLUP ({a})",
        f"CUBE ({a}), ROLLUP ({b}{tail})",
        f"ROLLUP (({a}, {b}){tail})",
        f"GROUPING SETS (ROLLUP ({a}, {b}), ({every}))",
        f"{a}, GROUPING SETS (({b}{tail}), ())",
        f"GROUPING SETS (({a}), ({a}), ({b}{tail}))",
    ]
    return g.pick(options), True


def grouping_marks(g: Draw, keys: list[str]) -> list[str]:
    """Calls that tell the grouping set of a row."""
    g.clause("grouping()")
    options = [f"grouping({keys[0]})", "grouping_id()", f"grouping_id({', '.join(keys)})", f"grouping({keys[-1]}) + 1"]
    return g.some(options, 1, 2)


FRAMES = (
    "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW",
    "ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING",
    "ROWS 2 PRECEDING",
    "ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
    "ROWS BETWEEN 2 PRECEDING AND 1 PRECEDING",
    "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING",
    "",
)
RANGES = (
    "RANGE BETWEEN 1 PRECEDING AND CURRENT ROW",
    "RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW",
    "",
    "RANGE BETWEEN CURRENT ROW AND 2 FOLLOWING",
    "RANGE BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING",
)
_RUNNING = (
    "count(*)",
    "sum({int})",
    "min({any})",
    "max({any})",
    "avg({int})",
    "count({any})",
    "sum({dec})",
    "bool_or({bool})",
    "count_if({bool})",
    "max(struct({any}, {any}))",
)
# fmt: off
_PLACED = (
    "lag({any})", "lead({any}, 2)", "lag({int}, 1, -1)", "first_value({any})", "last_value({any})",
    "nth_value({any}, 2)", "row_number()", "ntile(2)", "first_value({any}) IGNORE NULLS", "lag({any}) IGNORE NULLS",
    "last_value({any}) IGNORE NULLS", "nth_value({any}, 2) IGNORE NULLS", "lead({any}) RESPECT NULLS",
    "collect_list({int})", "any_value({any})",
)
# fmt: on
_RANKS = ("rank()", "dense_rank()", "percent_rank()", "cume_dist()", "row_number()")


def window(g: Draw, s: Scope) -> tuple[str, str]:
    """A window call and its specification, without OVER."""
    parts = []
    if g.chance(0.85):
        parts.append(f"PARTITION BY {', '.join(_keys(g, s, 1, 2))}")
    else:
        g.clause("window of all rows")
    way = g.number(0, 3)
    direction = g.pick(("", " DESC", " ASC NULLS LAST", " DESC NULLS FIRST"))
    if way == 0 and s.order:
        g.clause("window ROWS")
        parts.append(f"ORDER BY {', '.join(r + direction for r in s.order)}")
        call = _call(g, s, _PLACED + _RUNNING)
        positional = call.startswith(("lag", "lead", "row_number", "ntile"))
        parts.append("" if positional else g.pick(FRAMES))
    elif way == 1:
        g.clause("window RANGE")
        key = g.pick([c.ref for c in s.of("int")] or ["1"])
        parts.append(f"ORDER BY {key}{direction} {g.pick(RANGES)}")
        call = _call(g, s, _RUNNING)
    elif way == 2:
        g.clause("window ranks")
        keys = _keys(g, s, 1, 2)
        parts.append(f"ORDER BY {', '.join(k + direction for k in keys)}")
        call = f"first_value({keys[0]}) IGNORE NULLS" if g.chance(0.2) else g.pick(_RANKS)
        if call == "row_number()":
            call = "rank()"
    else:
        g.clause("window whole partition")
        call = _call(g, s, _RUNNING)
        if g.chance(0.2):
            call = f"count(*) FILTER (WHERE {condition(g, s, 1)})"
    return call, " ".join(p for p in parts if p)


def _call(g: Draw, s: Scope, patterns: tuple[str, ...]) -> str:
    kinds = {k: expression(g, s, k, 1) for k in ("int", "dec", "bool")}
    simple = [k for k in SIMPLE if s.of(k)] or ["int"]
    return g.pick(patterns).format(any=expression(g, s, g.pick(simple), 1), **kinds)


def _keys(g: Draw, s: Scope, least: int, most: int) -> list[str]:
    usable = [c.ref for c in s.columns if c.kind in ORDERED]
    return g.some(usable, least, most) or [literal(g, "int")]
