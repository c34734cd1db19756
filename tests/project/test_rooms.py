"""The package as a walk: each room imports only from those before it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import neurogenesis

ROOT = Path(neurogenesis.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
ROOMS = [
    *(name.removesuffix("/").removesuffix(".py") for name in re.findall(r"^\| `([\w./]+)` \|", PAGE.read_text(), re.M)),
    "__main__",
]  # the table of the architecture page


def modules() -> dict[str, Path]:
    """Every module of the package by its path inside it, such as structure.terms; packages by their own name."""
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = list(path.relative_to(ROOT).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imported(name: str) -> Iterator[str]:
    """The modules of the package that a module imports."""
    path = MODULES[name]
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1] + (node.module.split(".") if node.module else [])
            for each in node.names:
                inner = ".".join([*base, each.name])
                yield inner if inner in MODULES else ".".join(base)


def test_the_architecture_page_lists_every_room() -> None:
    assert {name.split(".")[0] for name in MODULES if name} == set(ROOMS)


@pytest.mark.parametrize("name", [name for name in MODULES if name])
def test_a_room_imports_only_from_those_before_it(name: str) -> None:
    room = name.split(".")[0]
    later = {each for each in imported(name) if each and ROOMS.index(each.split(".")[0]) > ROOMS.index(room)}
    assert not later


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = {name: {each for each in imported(name) if each != name} for name in MODULES if name}
    for package in (name for name in graph if MODULES[name].name == "__init__.py"):
        for name in graph:
            if name.startswith(f"{package}."):  # a package lists what is in it
                graph[name].discard(package)
    TopologicalSorter(graph).prepare()  # raises CycleError


@pytest.mark.parametrize("name", [name for name in MODULES if name != "structure.kept"])
def test_what_is_kept_of_models_is_in_one_place(name: str) -> None:
    assert "WeakKeyDictionary" not in MODULES[name].read_text(), "use structure/kept.py, which frees all of it"
