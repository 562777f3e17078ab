"""Rules for texts: compared and cut by bytes or by code points, in both engines."""

from __future__ import annotations

from sqlglot import exp

from freshview.local.typed import BOOLEAN, INT, STRING, Expressions, Typed, Unproven, guarded, quoted


def text(over: Expressions, node: exp.Expr) -> str:
    """The text of an operand of type STRING."""
    (value,) = over.values([node])
    if value.type != STRING:
        raise Unproven(node, "not a text")
    return value.sql


def constant(node: exp.Expr | None, what: exp.Expr) -> str:
    """A string literal with at least one character: engines differ on empty ones."""
    if not isinstance(node, exp.Literal) or not node.is_string or not node.name:
        raise Unproven(what, "a text that is not constant, or empty")
    return quoted(node.name)


def count_of(node: exp.Expr | None, what: exp.Expr) -> int:
    """A constant count or place, not negative."""
    if not isinstance(node, exp.Literal) or node.is_string or not node.name.isdigit():
        raise Unproven(what, "a place that is not constant, or negative")
    return int(node.name)


def like(over: Expressions, node: exp.Expr) -> Typed:
    pattern = node.expression
    if not isinstance(pattern, exp.Literal) or not pattern.is_string or "\\" in pattern.name:
        raise Unproven(node, "a pattern that is not constant and plain")
    word = "NOT LIKE" if node.args.get("negate") else "LIKE"
    return Typed(f"({text(over, node.this)} {word} {quoted(pattern.name)})", BOOLEAN)


_FOUND: dict[type[exp.Expr], str] = {
    exp.StartsWith: "starts_with",
    exp.EndsWith: "ends_with",
    exp.Contains: "contains",
}


def found(over: Expressions, node: exp.Expr) -> Typed:
    return Typed(f"{_FOUND[type(node)]}({text(over, node.this)}, {text(over, node.expression)})", BOOLEAN)


def position(over: Expressions, node: exp.Expr) -> Typed:
    part = constant(node.args["substr"], node)
    return Typed(f"CAST(instr({text(over, node.this)}, {part}) AS INTEGER)", INT)


def substring(over: Expressions, node: exp.Expr) -> Typed:
    """A part from a place on; Spark takes place 0 for the first."""
    length = node.args.get("length")
    places = [max(count_of(node.args.get("start"), node), 1)] + ([count_of(length, node)] if length else [])
    return Typed(f"substring({text(over, node.this)}, {', '.join(map(str, places))})", STRING)


def end_of(over: Expressions, node: exp.Expr) -> Typed:
    """LEFT and RIGHT."""
    word = "left" if isinstance(node, exp.Left) else "right"
    return Typed(f"{word}({text(over, node.this)}, {count_of(node.expression, node)})", STRING)


def trim(over: Expressions, node: exp.Expr) -> Typed:
    """Spark trims spaces and no other white space, unless it is given other characters."""
    given = node.args.get("expression")
    characters = constant(given, node) if given is not None else "' '"
    word = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(str(node.args.get("position")), "trim")
    return Typed(f"{word}({text(over, node.this)}, {characters})", STRING)


def replaced(over: Expressions, node: exp.Expr) -> Typed:
    part, other = constant(node.expression, node), node.args.get("replacement") or exp.Literal.string("")
    return Typed(f"replace({text(over, node.this)}, {part}, {text(over, other)})", STRING)


def cased(over: Expressions, node: exp.Expr) -> Typed:
    value = text(over, node.this)
    word = "upper" if isinstance(node, exp.Upper) else "lower"
    return guarded(f"strlen({value}) = length({value})", f"{word}({value})", STRING, node, value)


def length(over: Expressions, node: exp.Expr) -> Typed:
    return Typed(f"CAST(length({text(over, node.this)}) AS INTEGER)", INT)


def concat(over: Expressions, node: exp.Expr) -> Typed:
    parts = [node.this, node.expression] if isinstance(node, exp.DPipe) else node.expressions
    if not parts:
        raise Unproven(node)
    return Typed(f"({' || '.join(text(over, p) for p in parts)})", STRING)
