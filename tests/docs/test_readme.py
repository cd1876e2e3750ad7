"""The README is one screen, and works on the package page: pictures have absolute addresses."""

import re

from tests.docs.pages import ROOT, page

RAW = "https://raw.githubusercontent.com/mistrnn/mistrnn/main/"


def test_readme_is_short() -> None:
    assert len(page("README.md").split()) <= 900


def test_links_of_the_readme_exist() -> None:
    targets = re.findall(r"[^!]\[[^\]]*\]\(([^)#:]+)\)", page("README.md"))
    assert len(targets) >= 12
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_pictures_of_the_readme_have_absolute_addresses_of_files_in_the_repository() -> None:
    addresses = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page("README.md"))
    assert addresses
    assert [one for one in addresses if not (one.startswith(RAW) and (ROOT / one.removeprefix(RAW)).exists())] == []
