"""`neurogenesis widths`: the widths of a model, and whether they can grow. It needs torch alone."""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..experiments.errors import UsageError
from ..experiments.messages import echo

if TYPE_CHECKING:
    from torch import Tensor, nn

SUMMARY = "Print every width of a model: whether it can grow, together with what, and why not."
_EXAMPLES = """\
examples:
  neurogenesis widths torchvision.models:resnet18 --input 1,3,224,224
  neurogenesis widths torch.nn:TransformerEncoderLayer 64 4 dim_feedforward=96 --input 1,10,64
  neurogenesis widths my_package.models:Classifier --input tokens=2,16:int --input mask=2,16:bool
"""
_KEYWORD = re.compile(r"[A-Za-z_]\w*=")
_INPUT = re.compile(r"(?:(?P<name>[A-Za-z_]\w*)=)?(?P<sizes>[1-9]\d*(?:,[1-9]\d*)*)(?::(?P<kind>\w+))?")
_KINDS = {"float": "float32", "int": "int64", "complex": "complex64"}  # others have the names that they have in torch


@dataclass(frozen=True)
class Input:
    """An input of the model: its sizes, the kind of its numbers, and its name if it is given by name."""

    sizes: tuple[int, ...]
    kind: str = "float"
    name: str | None = None

    @staticmethod
    def parse(text: str) -> Input:
        """Read an input as it is written on the command line.

        Example:
            >>> Input.parse("tokens=2,16:int")
            Input(sizes=(2, 16), kind='int', name='tokens')
        """
        found = _INPUT.fullmatch(text)
        if found is None:
            raise argparse.ArgumentTypeError(
                f"expected sizes such as 1,3,224,224, or such as 2,16:int or tokens=2,16:int, not {text!r}"
            )
        return Input(tuple(map(int, found["sizes"].split(","))), found["kind"] or "float", found["name"])

    def tensor(self) -> Tensor:
        """Random numbers; ones for integers, which are valid as tokens, classes, lengths and masks."""
        import torch

        dtype = getattr(torch, _KINDS.get(self.kind, self.kind), None)
        if not isinstance(dtype, torch.dtype):
            raise UsageError(f"--input: unknown kind {self.kind!r}: write float, int, bool, or a type of torch")
        if dtype.is_floating_point or dtype.is_complex:
            return torch.randn(self.sizes, dtype=dtype)
        return torch.ones(self.sizes, dtype=dtype)


def widths_command(words: Sequence[str]) -> int:
    """Run the command with the words after its name; the exit code."""
    parser = argparse.ArgumentParser(
        "neurogenesis widths", None, SUMMARY, _EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a function or class that makes the model, as package.module:name")
    parser.add_argument("values", nargs="*", help="its arguments as Python values; name=value for keyword arguments")
    parser.add_argument(
        "--input",
        type=Input.parse,
        action="append",
        required=True,
        metavar="[NAME=]SIZES[:KIND]",
        help="an input of the model, such as 1,3,224,224, or 2,16:int for token numbers (float by default; int, bool "
        "or a type of torch); given once for each input, by name if the model takes it by name",
    )
    parser.add_argument(
        "--tie", action="append", default=[], metavar="PATTERN", help="a pattern of widths that grow together"
    )
    try:
        given = parser.parse_intermixed_args(list(words))
    except SystemExit as end:  # after --help, or a message
        return int(end.code or 0)
    _print_widths(given.model, given.values, given.input, given.tie)
    return 0


def _print_widths(place: str, values: Sequence[str], inputs: Sequence[Input], tie: Sequence[str]) -> None:
    import neurogenesis as ng

    model = _make_model(place, values)
    try:
        found = ng.widths(model, _example(model, inputs), tie=tie)
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from None
    echo(found if len(found) else f"{place} has no widths: {found.why_none}")


def _example(model: nn.Module, inputs: Sequence[Input]) -> Any:
    """The inputs as a tuple or, if some are given by name, all by name."""
    if all(each.name is None for each in inputs):
        return tuple(each.tensor() for each in inputs)
    names = iter(inspect.signature(model.forward).parameters)
    return {each.name or next(names, ""): each.tensor() for each in sorted(inputs, key=lambda each: bool(each.name))}


def _make_model(place: str, values: Sequence[str]) -> nn.Module:
    from torch import nn

    module, _, name = place.partition(":")
    if not name:
        raise UsageError(f"{place!r} does not name a model: write package.module:name")
    sys.path.insert(0, os.getcwd())  # like python -m
    keywords = dict(value.split("=", 1) for value in values if _KEYWORD.match(value))
    positional = [python_value(value) for value in values if not _KEYWORD.match(value)]
    try:
        made = getattr(importlib.import_module(module), name)
        if callable(made) and not isinstance(made, nn.Module):
            made = made(*positional, **{key: python_value(value) for key, value in keywords.items()})
    except Exception as error:  # code of others can raise anything
        raise UsageError(f"cannot make {place}: {type(error).__name__}: {error}") from error
    if not isinstance(made, nn.Module):
        raise UsageError(f"{place} gives a {type(made).__name__}, not a torch.nn.Module")
    return made


def python_value(text: str) -> Any:
    """The Python value that a text stands for; the text itself if it is none.

    Example:
        >>> python_value("0.5"), python_value("relu")
        (0.5, 'relu')
    """
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
