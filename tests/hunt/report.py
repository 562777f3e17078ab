"""What a hunt prints and writes: progress, failures as tests, and the table of a report."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.hunt.run import Failure, Tally
from tests.hunt.shrink import IMPORTS, as_test

_BEGIN, _END = "<!-- hunt -->", "<!-- /hunt -->"


def lines_of(kind: str, seed: str, tally: Tally) -> Iterator[str]:
    """A line for a batch, and one for each failure."""
    pace = tally.seconds / max(1, tally.definitions)
    yield (
        f"{kind} {seed}: {tally.definitions} definitions, {tally.lowered} lowered, {tally.recomputed} recomputed, "
        f"{tally.refused} refused, {len(tally.wrong)} wrong, {tally.undetermined} undetermined, {pace:.2f} s each"
    )
    for failure in tally.wrong:
        yield f"  WRONG {failure.moment}: {failure.definition.text}"
        yield f"        {failure.difference[:300]}"
    for failure in tally.manners:
        yield f"  manners {failure.moment}: {failure.definition.text[:300]}"
        yield f"        {failure.difference[:300]}"


def summary(tallies: Mapping[str, Tally], seconds: float) -> list[str]:
    """The table of a hunt, and the refusals by reason."""
    lines = [
        "| kind | definitions | lowered | recomputed | refused | wrong | errors of another kind | undetermined |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    total = Tally()
    for kind, tally in tallies.items():
        lines.append(_line(kind, tally))
        total.add(tally)
    lines += [
        _line("all", total),
        "",
        "Undetermined: plain Spark itself answers otherwise when the rows come in another order, or in other parts.",
        "",
        f"{total.definitions} definitions in {seconds:.0f} s; {total.dropped} more were refused by Spark itself.",
    ]
    met, known = len(total.functions), len(total.registry)
    if known:
        lines.append(
            f"Of {known} functions that Spark registers and that are determined, {met} were met ({met / known:.0%})."
        )
    if total.verdicts:
        told = ", ".join(f"{what}: {n}" for what, n in total.verdicts.most_common() if what)
        lines.append(f"How the reading of the views was proven: {told}.")
    lines += ["", "| refused because | definitions |", "| --- | --- |"]
    lines += [f"| {reason.replace('|', '/')} | {n} |" for reason, n in Counter(total.reasons).most_common(20)]
    return lines


def _line(kind: str, tally: Tally) -> str:
    counts = (
        tally.definitions,
        tally.lowered,
        tally.recomputed,
        tally.refused,
        len(tally.wrong),
        len(tally.manners),
        tally.undetermined,
    )
    return f"| {kind} | {' | '.join(map(str, counts))} |"


def write_failures(path: Path, tally: Tally) -> None:
    """Append failures to a file, each with its test."""
    if not tally.wrong and not tally.manners:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        for failure in tally.wrong:
            file.write(_told(failure))
        for failure in tally.manners:
            file.write(
                f"\n## Error of another kind: {failure.batch.kind}, seed {failure.batch.seed}, {failure.moment}\n\n"
                f"{failure.difference}\n\n```sql\n{failure.definition.text}\n```\n"
            )


def _told(failure: Failure) -> str:
    imports = "\n".join(IMPORTS)
    return (
        f"\n## Wrong: {failure.batch.kind}, seed {failure.batch.seed}\n\n"
        f"{failure.moment}, {failure.definition.label}\n\n"
        f"{failure.difference}\n\n```sql\n{failure.definition.text}\n```\n\n```python\n{imports}\n\n\n{as_test(failure)}\n```\n"
    )


def write_section(path: Path, table: Sequence[str], chosen: argparse.Namespace) -> None:
    """Put the report between the two marks of a document, or at its end."""
    options = " ".join(f"--{name} {getattr(chosen, name)}" for name in ("definitions", "kinds", "seed", "processes"))
    section = [
        _BEGIN,
        "",
        "## Hunt",
        "",
        f'Written by `make hunt ARGS="{options} --report"`.',
        "Random definitions become views. After each of one to three rounds of random changes every view is compared,",
        "as a bag, names and types included, with what plain Spark answers to its text in a session apart.",
        "",
        *table,
        "",
        _END,
    ]
    text = path.read_text() if path.exists() else ""
    before, _, rest = text.partition(_BEGIN)
    after = rest.partition(_END)[2]
    path.write_text(before.rstrip("\n") + "\n\n" + "\n".join(section) + (after or "\n"))
