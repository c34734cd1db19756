"""The site's pages name what the package has, and the order of its modules is what they say."""

from __future__ import annotations

import re
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType

import pytest

import neurogenesis as ng

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "neurogenesis"
API = ROOT / "docs" / "api"
SHOWN = set(
    re.findall(r"^::: ([\w.]+)$", "\n".join(page.read_text("utf-8") for page in API.glob("*.md")), re.MULTILINE)
)


@pytest.mark.parametrize("name", ng.__all__)
def test_every_public_name_is_on_the_api_reference(name: str) -> None:
    assert f"neurogenesis.{name}" in SHOWN


@pytest.mark.parametrize("name", [name for name in ng.__all__ if isinstance(getattr(ng, name), ModuleType)])
def test_every_public_name_of_a_module_is_on_its_page(name: str) -> None:
    module, page = getattr(ng, name), (API / f"{name}.md").read_text("utf-8")
    chosen = re.search(r"members: \[(.*)\]", page)
    if chosen is None:
        return  # the page shows all of its members
    listed = {*re.split(r", *", chosen[1]), *re.findall(rf"^::: neurogenesis\.{name}\.(\w+)$", page, re.MULTILINE)}
    if name == "ages":  # the rest of it is for the surgery alone
        assert listed == {"resume", "forget"}
    else:
        elsewhere = {"Neurons"}  # shown with the names of the package
        assert set(module.__all__) - listed <= elsewhere


@pytest.mark.parametrize("name", sorted(SHOWN))
def test_what_the_api_reference_shows_exists(name: str) -> None:
    resolve_name(name)  # raises AttributeError or ImportError if it does not
