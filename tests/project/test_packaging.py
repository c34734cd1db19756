"""What the package imports is what its metadata declares, and its papers tell one version."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib.metadata import packages_distributions, requires, version
from pathlib import Path

import pytest

import neurogenesis as ng

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "neurogenesis"
APPLICATION = ("experiments", "report", "cli", "__main__.py")  # everything else is the library
INTEGRATIONS = {  # the extras whose distributions a file may import
    "accelerate.py": "huggingface",
    "checkpoints.py": "huggingface",
    "configs.py": "huggingface",
    "huggingface.py": "huggingface",
    "lightning.py": "lightning",
    "lightning_module.py": "lightning",
    "peft.py": "peft",
    "pretrained.py": "huggingface",
}
INTEGRATION_FILES = {PACKAGE / "integrations" / name: extra for name, extra in INTEGRATIONS.items()}
LIBRARY_FILES = [
    p
    for p in PACKAGE.rglob("*.py")
    if p.relative_to(PACKAGE).parts[0] not in APPLICATION and p not in INTEGRATION_FILES
]
APPLICATION_FILES = [p for p in PACKAGE.rglob("*.py") if p.relative_to(PACKAGE).parts[0] in APPLICATION]
FURTHER_FILES = {  # the extras that a file of the application may import besides
    PACKAGE / "experiments" / "engines" / "ray.py": "ray",
    PACKAGE / "experiments" / "engines" / "ray_cluster.py": "ray",
    PACKAGE / "experiments" / "engines" / "ray_nodes.py": "ray",
    PACKAGE / "experiments" / "tuning" / "search.py": "tune",
}


def imported(source: str) -> set[str]:
    """The top-level names that a file imports from elsewhere, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            assert node.module is not None
            names.add(node.module.partition(".")[0])
    return names - sys.stdlib_module_names - {"neurogenesis"}


def declared(extra: str | None = None) -> set[str]:
    """The distributions that the metadata requires, always or for an extra."""
    found = set()
    for requirement in requires("torch-neurogenesis") or ():
        condition = re.search(r"extra == ['\"]([\w-]+)['\"]", requirement)
        if condition is None or condition[1] == extra:
            match = re.match(r"[A-Za-z0-9._-]+", requirement)
            assert match is not None
            found.add(normalized(match[0]))
    return found


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def undeclared(files: list[Path], allowed: set[str]) -> dict[str, set[str]]:
    """By file, the imports that no allowed distribution provides."""
    providers = packages_distributions()
    found = {}
    for file in files:
        missing = {
            name
            for name in imported(file.read_text("utf-8"))
            if allowed.isdisjoint(map(normalized, providers.get(name, [name])))
        }
        if missing:
            found[str(file.relative_to(PACKAGE))] = missing
    return found


def test_the_library_imports_torch_and_the_standard_library_alone() -> None:
    assert declared() == {"torch"}
    assert len(LIBRARY_FILES) > 30
    assert undeclared(LIBRARY_FILES, {"torch"}) == {}


@pytest.mark.parametrize(("file", "extra"), INTEGRATION_FILES.items(), ids=INTEGRATIONS)
def test_integrations_import_what_their_extras_declare(file: Path, extra: str) -> None:
    assert undeclared([file], {"torch", *declared(extra)}) == {}


def test_importing_checkpoints_needs_torch_alone() -> None:
    code = "import sys, neurogenesis.integrations.checkpoints; sys.exit('safetensors' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_experiments_import_what_their_extra_declares() -> None:
    assert len(APPLICATION_FILES) > 10
    rest = [file for file in APPLICATION_FILES if file not in FURTHER_FILES]
    assert undeclared(rest, declared("experiments")) == {}
    for file, extra in FURTHER_FILES.items():
        assert undeclared([file], declared("experiments") | declared(extra)) == {}


def test_an_undeclared_import_is_found_wherever_it_stands(tmp_path: Path) -> None:
    source = "import os\nfrom . import nn\nif True:\n    import torch.nn\ndef f():\n    from yaml import load\n"
    assert imported(source) == {"torch", "yaml"}
    assert "yaml" not in declared("experiments") and "filelock" in declared("experiments")


def test_all_papers_tell_the_version_of_the_metadata() -> None:
    told = version("torch-neurogenesis")
    assert ng.__version__ == told
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    assert re.search(r"^version: (.+)$", citation, re.MULTILINE)[1] == told  # type: ignore[index]
    newest = re.search(r"^## \[(\d[^\]]*)\]", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert newest is not None and newest[1] == told


@pytest.mark.parametrize("name", ["__version__", "__all__"])
def test_the_version_is_told_without_torch(name: str) -> None:
    code = f"import sys, neurogenesis; neurogenesis.{name}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
