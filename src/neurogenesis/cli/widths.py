"""`neurogenesis widths`: what can grow in a model."""

from __future__ import annotations

import ast
import importlib
import os
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from ..experiments.errors import UsageError
from ..experiments.messages import echo
from .app import Parameter, app

if TYPE_CHECKING:
    from torch import nn

_KEYWORD = re.compile(r"[A-Za-z_]\w*=")


def _shape(type_: Any, tokens: Sequence[Any]) -> tuple[int, ...]:
    text = tokens[0].value
    if not all(part.isdecimal() and int(part) for part in text.split(",")):
        raise ValueError(f"expected sizes such as 1,3,224,224, not {text!r}")
    return tuple(map(int, text.split(",")))


@app.command
def widths(
    model: str,
    *values: str,
    input: Annotated[Any, Parameter(converter=_shape, n_tokens=1)],
    tie: Annotated[tuple[str, ...], Parameter(negative="")] = (),
) -> int:
    """Print every width of a model: whether it can grow, together with what, and why not.

    Example: neurogenesis widths torch.nn:TransformerEncoderLayer 64 4 dim_feedforward=96 --input 1,10,64

    Parameters
    ----------
    model:
        A function or class that makes the model, as package.module:name.
    values:
        Its arguments as Python values; name=value for keyword arguments.
    input:
        Shape of an input, such as 1,3,224,224.
    tie:
        Pattern of widths that grow together. Can be given several times.
    """
    import torch

    import neurogenesis as ng

    made = _make_model(model, values)
    try:
        found = ng.widths(made, torch.randn(input), tie=tie)
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from None
    echo(found if len(found) else f"{model} has no widths: {found.why_none}")
    return 0


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
