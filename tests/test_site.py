"""The site's pages name what the package has, and the order of its modules is what they say."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import ModuleType

import pytest

import neurogenesis as ng

ROOT = Path(__file__).parent.parent
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
    found: object = ng
    for part in name.split(".")[1:]:
        found = getattr(found, part)  # raises AttributeError if it does not


BELOW = {"passes/taps.py": {"layer"}}  # the taps write into layers; to be turned round


def modules_in_order() -> list[str]:
    """The modules of the architecture's table, as names within the package."""
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    return [
        name.removesuffix("/").removesuffix(".py") for name in re.findall(r"^\| `([\w./]+)` \|", page, re.MULTILINE)
    ]


def imported(path: Path) -> set[str]:
    """The modules of the package that a file imports when it is run, by their first name."""
    inside = path.relative_to(PACKAGE).parts
    names = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.ImportFrom):
            base = [*inside[: len(inside) - node.level]] if node.level else None
            full = [] if node.module is None else node.module.split(".")
            if base is not None:
                where = [*base, *full]
                names.update([where[0]] if where else [alias.name for alias in node.names])
            elif full[0] == "neurogenesis":
                names.update(full[1:2])
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text("utf-8")))
    return names


def test_the_architecture_lists_every_module() -> None:
    present = {p.stem for p in PACKAGE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert set(modules_in_order()) == present - {"__init__", "__main__"}


def test_each_module_imports_only_from_those_above_it() -> None:
    order = modules_in_order()
    for number, name in enumerate(order):
        files = [PACKAGE / f"{name}.py"] if (PACKAGE / f"{name}.py").exists() else list((PACKAGE / name).rglob("*.py"))
        for file in files:
            known = BELOW.get(str(file.relative_to(PACKAGE)), set())
            assert imported(file) <= {*order[: number + 1], *known}, f"{file.relative_to(PACKAGE)} imports from below"
