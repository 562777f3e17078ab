"""Spelling: names as the user wrote them, where a name becomes data: fields of structs, keys of maps, lambda variables.

The resolver folds every identifier to lower case. Spark compares names without regard to case, too, but it keeps their
spelling: in the fields of a struct, in the output of to_json(), in `m.K`, which looks up the key 'K' of a map.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sqlglot import exp

from freshview.relation.schema import fold
from freshview.sql.fragments import COMPARISONS, Unsupported

_SPELLING = "spelling"
_REFERENCES = (exp.Column, exp.Table, exp.TableAlias, exp.Alias, exp.Aliases)  # these keep the folded name
_COMPARED = (*COMPARISONS, exp.In, exp.Ordered, exp.Window, exp.Distinct, exp.Count)
_GROUPS = (exp.Values, exp.Group, exp.Rollup, exp.Cube, exp.GroupingSets, exp.Tuple)


def remember_spelling(tree: exp.Expr) -> None:
    """Record how each identifier is written, before the resolver folds it. Changes the tree."""
    for identifier in tree.find_all(exp.Identifier):
        identifier.meta[_SPELLING] = identifier.this


def restore_spelling(tree: exp.Expr) -> None:
    """Restore the spelling of identifiers that are data. Changes the tree."""
    for identifier in tree.find_all(exp.Identifier):
        spelling = identifier.meta_get(_SPELLING)
        if spelling is not None and not isinstance(identifier.parent, _REFERENCES):
            identifier.set("this", spelling)
            if isinstance(identifier.parent, exp.PropertyEQ | exp.Dot | exp.ColumnDef):
                identifier.set("quoted", True)  # named_struct('any text', x)


def refuse_names_from_columns(tree: exp.Expr) -> None:
    """Raise Unsupported for fields named by columns in a way that cannot be written with AS.

    `struct(a)` is fine: it is read as `struct(a AS a)`, which is independent of the column's name in the tree.
    """
    for struct in tree.find_all(exp.Struct):
        for place, field in enumerate(struct.expressions):
            # Spark names arr[0].f, m['k'] and (a) by their last part; the parser calls them col1, col2 …
            if isinstance(field, exp.PropertyEQ) and field.name == f"col{place + 1}" and _is_named(field.expression):
                raise Unsupported(f"a field without AS in {_text(struct)}")
    for call in tree.find_all(exp.ArraysZip):
        if any(map(_is_named, call.expressions)):
            raise Unsupported(f"{_text(call)}, whose fields are named by columns,")
    for row in tree.find_all(exp.Tuple):
        above = row.parent
        while isinstance(above, exp.Paren):
            above = above.parent
        if not isinstance(above, (*_COMPARED, *_GROUPS)):
            raise Unsupported(f"the row {_text(row)}, whose fields are named by columns,")


def _is_named(argument: exp.Expr) -> bool:
    """Would Spark name a field by this expression? (Lambda variables are not concerned: they keep their names.)"""
    inner = argument.unnest()
    if isinstance(inner, exp.Bracket):
        return any(isinstance(key, exp.Literal) and key.is_string for key in inner.expressions)
    return isinstance(inner, exp.Column | exp.Dot)


def refuse_star_arguments(tree: exp.Expr) -> None:
    """Raise Unsupported for a star inside a call, except count(*): it would include columns added by lowering."""
    for star in tree.find_all(exp.Star):
        whole = star.parent if isinstance(star.parent, exp.Column | exp.Dot) else star
        above = whole.parent
        counted = isinstance(above, exp.Count) and whole is star
        if not counted and not isinstance(above, exp.Select):
            raise Unsupported(f"a star as an argument in {_text(above or star)}")


def refuse_other_variables(tree: exp.Expr) -> None:
    """Raise Unsupported for lambda variables in another case: X is x to Spark, but a column to the parser."""
    for function in tree.find_all(exp.Lambda):
        variables = {fold(v.name) for v in function.expressions}
        for used in function.this.find_all(exp.Column):
            if fold(used.parts[0].name) in variables:
                raise Unsupported(f"the variable {used.parts[0].name} in {_text(function)}")


def names_of(tree: exp.Expr) -> Iterator[str]:
    """All identifiers of a text, folded."""
    return (fold(identifier.name) for identifier in tree.find_all(exp.Identifier))


def is_free(name: str, taken: Iterable[str]) -> bool:
    """Is a generated name, whatever is appended to it, different from all of these?"""
    return not any(other.startswith(fold(name)) for other in taken)


def _text(tree: exp.Expr) -> str:
    return f"{tree.sql(dialect='spark'):.60}"
