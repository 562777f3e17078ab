"""`freshview demo` and `freshview bench` hand over to programs of their own."""

from __future__ import annotations

import sys

import pytest
from tests.cli.calls import call

import freshview.bench.__main__
import freshview.demo


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (freshview.demo, ["demo"]),
        (freshview.bench.__main__, ["bench", "lazy", "--scale", "0.1", "--repeat", "3"]),
        (freshview.bench.__main__, ["bench", "--", "--help"]),
    ],
)
def test_arguments_and_exit_codes_are_handed_on(
    module: object, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []
    codes = iter([0, 1, None])

    def main() -> int | None:
        seen.append(sys.argv[1:])
        return next(codes)

    monkeypatch.setattr(module, "main", main)
    call(*words)
    call(*words, code=1)
    call(*words)
    assert seen == [[w for w in words[1:] if w != "--"]] * 3


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "freshview.demo")
    monkeypatch.setitem(sys.modules, "freshview.demo", None)
    assert "pip install 'freshview[demo]'" in call("demo", code=1).stderr
