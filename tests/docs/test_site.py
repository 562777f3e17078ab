"""The site: it builds without a warning, every page is in it, and links lead somewhere."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.blocks import PAGES, ROOT

_LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


@pytest.mark.skipif(importlib.util.find_spec("myst_parser") is None, reason="the extra 'docs' is not installed")
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """Links between pages and to their headings are checked by this too."""
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    built = subprocess.run(
        [*command, "-d", str(tmp_path / "trees"), str(ROOT / "docs"), str(tmp_path / "site")],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert built.returncode == 0, built.stderr
    assert {f"{page.stem}.html" for page in PAGES} <= {f.name for f in (tmp_path / "site").iterdir()}


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda p: p.name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    broken = [target for target in _targets(page.read_text(encoding="utf-8")) if not _leads(page, target)]
    assert broken == []


def _targets(text: str) -> list[str]:
    found = [match["target"] for match in _LINK.finditer(_CODE.sub("", text))]
    return [target for target in found if "://" not in target]


def _leads(page: Path, target: str) -> bool:
    path, _, anchor = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    if not file.exists():
        return False
    return not anchor or anchor in _anchors(file.read_text(encoding="utf-8"))


def _anchors(text: str) -> set[str]:
    """Headings as GitHub and the site name them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}


def test_the_readme_names_every_page_that_a_newcomer_needs() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    named = {target.partition("#")[0] for target in _targets(readme)}
    assert {f"docs/{page.name}" for page in PAGES if page.stem != "index"} <= named
