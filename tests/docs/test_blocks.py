"""The runner of pages sees what differs."""

from __future__ import annotations

import pytest
from tests.docs.blocks import as_shown, blocks, steps

_PAGE = """\
# A page

```python
print(1)
```

```text
1
```

```sql
SELECT 1
```

Something in between.

```text
not its output
```

```
SELECT …
```
"""


def test_blocks_are_found_with_what_they_show() -> None:
    assert [(b.language, b.line) for b in blocks(_PAGE)] == [
        ("python", 3),
        ("text", 7),
        ("sql", 11),
        ("text", 17),
        ("", 21),
    ]
    assert [(s.block.text, s.shown) for s in steps(_PAGE, "python", "sql")] == [
        ("print(1)\n", "1\n"),
        ("SELECT 1\n", None),
    ]


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a\nb\n", "a  \nb\n\n", True),
        ("a\nb\n", "a\nc\n", False),
        ("a\nb\n", "a\n", False),
        ("a\n", "a\nb\n", False),
        ("took … s\n", "took 1.25 s\n", True),
        ("took … s\n", "took 1.25 min\n", False),
        ("a\n…\nd\n", "a\nb\nc\nd\n", True),
        ("a\n…\nd\n", "a\nd\n", True),
        ("a\n…\nd\n", "a\nb\n", False),
        ("  n\n  1\n", "  n\n  2\n", False),
        ("(a|b)*\n", "(a|b)*\n", True),
    ],
)
def test_what_is_shown_is_compared(shown: str, printed: str, same: bool) -> None:
    assert as_shown(shown, printed) is same
