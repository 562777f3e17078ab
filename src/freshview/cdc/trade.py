"""What a capture costs at the source, and what it leaves to do here (PARTIAL §4), in words; and the sets of a view.

    less complete deltas    cheaper to capture, dearer to apply: the work moves from the source to the warehouse

`delivered` follows the delta rules over names of sets: which sets may a delta of a view have?
"""

from __future__ import annotations

from freshview.cdc.captures import Capture
from freshview.cdc.dimension import KeyJoin, Remote, RemoteNode, RowFilter
from freshview.cdc.model import SETS

_AT_SOURCE = {
    "one audit column": "its writers keep one column; a poll reads the rows with later times",
    "two audit columns": "its writers keep two columns; a poll reads the rows with later times",
    "three audit columns": "its writers keep three columns, and delete by a mark; a poll reads rows with later times",
    "log": "old and new images of every changed row are written to a log, and read by a poll",
    "log without old images": "the server's own log has the new images; a poll decodes it",
    "log with cheap net effect": "images of every changed row are written to a log; a poll reads the last one of a key",
    "change tracking": "a trigger notes the key of every changed row; a poll joins the notes to the table",
    "snapshot differential": "the whole table is dumped",
}
_STATEMENTS = (
    ("del", "DELETE of an image"),
    ("delk", "DELETE by key"),
    ("un/uo", "UPDATE by both images"),
    ("up", "UPDATE by key"),
    ("ins", "INSERT"),
    ("ups", "MERGE by key"),
)
BLIND = frozenset({"up", "ups", "delk"})  # sets whose rows are stored without old images


def at_source(capture: Capture) -> str:
    """What a capture costs at the source."""
    return _AT_SOURCE.get(capture.technique, capture.technique)


def here(sets: frozenset[str]) -> str:
    """What rows of these sets leave to do in the warehouse."""
    blind = [s for s in SETS if s in sets & BLIND]
    if not blind:
        return "nothing is looked up: all old images are there"
    return f"views above look up the old rows of {', '.join(blind)} when they are maintained"


def statements(sets: frozenset[str]) -> str:
    """The statements that apply rows of these sets, the cheapest for each."""
    return ", ".join(f"{text} ({name})" for name, text in _STATEMENTS if name in sets)


def delivered(view: RemoteNode) -> frozenset[str]:
    """The sets that the delta of a view may have (Figures 9 and 10, and §5.5)."""
    if isinstance(view, Remote):
        return view.capture.sets
    if isinstance(view, KeyJoin):
        return _joined(delivered(view.left), delivered(view.right))
    (given,) = map(delivered, view.inputs)
    return _selected(given) if isinstance(view, RowFilter) else given


def _selected(given: frozenset[str]) -> frozenset[str]:
    found = set(given & {"ins", "del", "ups", "delk"})
    if "un/uo" in given:
        found |= {"un/uo", "ins", "del"}
    if given & {"up", "ups"}:
        found |= {"ups", "delk"}
    return frozenset(found)


def _joined(s: frozenset[str], t: frozenset[str]) -> frozenset[str]:
    found = set(t)  # preserved rows of S, with the changes of T
    partial = t & BLIND
    if "ins" in s:
        found.add("ins")
    if "del" in s:
        found |= {"del", *(["delk"] if partial else [])}
    if "un/uo" in s:
        found |= {"un/uo", "ins", "del"}
        found |= {"up", "delk"} if t & {"up", "delk"} else set()
        found |= {"ups", "delk"} if "ups" in t else set()
    if s & {"up", "ups"}:
        found |= {"ups", "delk"}
    return frozenset(found | (s & {"delk"}))
