"""The command `neurogenesis`."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import torch
from torch import nn

from .widths import widths


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the arguments are those of the command line by default."""
    parser = argparse.ArgumentParser(prog="neurogenesis", description="Grow neural networks while they train.")
    parser.add_argument("--version", action="version", version=f"neurogenesis {version('torch-neurogenesis')}")
    commands = parser.add_subparsers(dest="command", required=True)
    table = commands.add_parser(
        "widths",
        help="print every width of a model: what can grow, together with what, and why not",
        description="Print every width of a model: what can grow, together with what, and why not.",
        epilog="example: neurogenesis widths torch.nn:TransformerEncoderLayer 64 4 --input 1,10,64",
    )
    table.add_argument("model", metavar="package.module:callable", help="what makes the model")
    table.add_argument("values", nargs="*", help="arguments of the callable, as Python values")
    table.add_argument("--input", required=True, type=_shape, metavar="1,3,224,224", help="shape of an input")
    table.add_argument("--tie", action="append", default=[], metavar="PATTERN", help="widths that grow together")
    chosen = parser.parse_args(arguments)
    try:
        print(widths(_model(chosen.model, chosen.values), torch.randn(chosen.input), tie=chosen.tie))
    except (ValueError, TypeError, ImportError, AttributeError) as error:
        print(f"neurogenesis: {error}", file=sys.stderr)
        return 1
    return 0


def _shape(text: str) -> tuple[int, ...]:
    sizes = tuple(int(part) for part in text.split(","))
    if min(sizes) < 1:
        raise ValueError
    return sizes


def _model(place: str, values: Sequence[str]) -> nn.Module:
    module, _, name = place.partition(":")
    if not name:
        raise ValueError(f"{place!r} does not name a model: write package.module:callable")
    sys.path.insert(0, str(Path.cwd()))  # as python -m does
    made = getattr(importlib.import_module(module), name)
    model = made(*map(_value, values)) if callable(made) and not isinstance(made, nn.Module) else made
    if not isinstance(model, nn.Module):
        raise ValueError(f"{place} gives a {type(model).__name__}, not a torch.nn.Module")
    return model


def _value(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


if __name__ == "__main__":
    sys.exit(main())
