"""The walks on the architecture page: each call that is drawn exists, is made by its caller, and goes down or back."""

from __future__ import annotations

import ast
import re
from functools import cache
from typing import NamedTuple

import pytest

from tests.project.test_rooms import PAGE, ROOMS, ROOT


class Call(NamedTuple):
    """A line of a walk: its depth, and the file and the function that are called."""

    depth: int
    file: str
    function: str


def walks() -> dict[str, list[Call]]:
    """The calls of each walk, by its heading."""
    found = {}
    for section in re.split(r"^### ", PAGE.read_text(), flags=re.M)[1:]:
        lines = re.findall(r"^((?:  )*)([\w/]+\.py):([\w.]+)", section, re.M)
        if lines:
            found[section.splitlines()[0]] = [Call(len(indent) // 2, *names) for indent, *names in lines]
    return found


WALKS = walks()


@cache
def tree(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text())


def definition(call: Call) -> ast.AST:
    """The function, method or class that a line names."""
    scope: ast.AST = tree(call.file)
    for name in call.function.split("."):
        inside = [node for node in ast.iter_child_nodes(scope) if getattr(node, "name", None) == name]
        assert inside, f"{call.file} has no {call.function}"
        scope = inside[-1]  # of a property and its setter, the latter
    return scope


def names_in(node: ast.AST) -> set[str]:
    """Every name and attribute that a function mentions."""
    found = {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
    return found | {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def steps(walk: list[Call]) -> list[tuple[Call, Call]]:
    """Pairs of caller and callee."""
    path: list[Call] = []
    pairs = []
    for call in walk:
        assert call.depth <= len(path), f"{call.function} is drawn too deep"
        path = [*path[: call.depth], call]
        if call.depth:
            pairs.append((path[-2], call))
    return pairs


def test_there_are_three_walks() -> None:
    assert [name.partition(" to ")[0] for name in WALKS] == ["From a batch", "From a file", "From a sweep"]


@pytest.mark.parametrize("name", WALKS)
def test_what_is_drawn_exists(name: str) -> None:
    for call in WALKS[name]:
        definition(call)


@pytest.mark.parametrize("name", WALKS)
def test_each_call_is_made_by_its_caller(name: str) -> None:
    for caller, callee in steps(WALKS[name]):
        parts = callee.function.split(".")
        known = {parts[-1], *parts[:1]} if parts[-1] in ("__call__", "__init__") else {parts[-1]}
        if parts[-1] == "__call__":
            continue  # an object that is called has any name
        assert known & names_in(definition(caller)), f"{caller.function} does not mention {callee.function}"


@pytest.mark.parametrize("name", WALKS)
def test_calls_go_down_or_back(name: str) -> None:
    """From a room into itself or into one before it, never up."""

    def room(call: Call) -> int:
        return ROOMS.index(call.file.partition("/")[0].removesuffix(".py"))

    for caller, callee in steps(WALKS[name]):
        assert room(callee) <= room(caller), f"{caller.file} calls {callee.file}"
