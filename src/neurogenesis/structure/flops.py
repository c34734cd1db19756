r"""Floating-point operations of a forward pass, as `torch.utils.flop_counter` counts them.

A product of matrices of :math:`m \times k` and :math:`k \times n` entries takes :math:`2 m k n`: a multiplication and
an addition for each of its terms. Matrix products, convolutions and attention are counted, the two products of causal
attention in full; everything else takes little in comparison.

The backward pass has two products for each one of the forward pass, by inputs and by weights, so that a gradient step
takes about :math:`3 \times` the forward pass: less where inputs or weights need no gradient.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from .examples import Example, call_model, copied_example, tensors_in
from .modes import ordinary_tensors
from .running import internal_run, preserved
from .terms import Sizes, Term, size

Factors = tuple[int | Term, ...]
"""Sizes whose product is a number of multiplications."""

GRADIENT_STEP = 3
"""A gradient step takes so many times the operations of its forward pass."""
_ATTENTION = re.compile(r"_scaled_dot_product_\w*attention\w*")


def multiplications(
    name: str, arguments: Mapping[str, Any], output: Tensor, sizes: Callable[[Tensor], Sequence[int | Term]]
) -> list[Factors]:
    """The multiplications of an operation; none of those that are not counted.

    Args:
        name: the operation's name, such as ``mm``.
        arguments: by name, as in its schema.
        output: its first output.
        sizes: the sizes of an argument, as numbers or as terms.

    Example:
        >>> a, b = torch.ones(2, 3), torch.ones(3, 5)
        >>> multiplications("mm", {"self": a, "mat2": b}, a @ b, lambda tensor: tensor.shape)
        [(2, 3, 5)]
    """
    if name in _PRODUCTS:
        first, second = (sizes(arguments[argument]) for argument in _PRODUCTS[name])
        rest = second[-1:] if len(first) <= len(second) and len(second) > 1 else ()
        return [(*first, *rest)]
    if name == "convolution":
        x, weight = arguments["input"], arguments["weight"]
        spatial = weight.ndim - 2
        positions = (x if arguments["transposed"] else output).shape[-spatial:]
        batch = sizes(x)[:1] if x.ndim == weight.ndim else ()
        return [(*batch, *sizes(weight), *positions)]
    if _ATTENTION.fullmatch(name):
        query, key, value = (sizes(arguments[argument]) for argument in ("query", "key", "value"))
        return [(*query, key[-2]), (*query[:-1], key[-2], value[-1])]
    return []


_PRODUCTS = {
    "mm": ("self", "mat2"), "addmm": ("mat1", "mat2"), "bmm": ("self", "mat2"), "baddbmm": ("batch1", "batch2"),
    "mv": ("self", "vec"), "addmv": ("mat", "vec"), "dot": ("self", "tensor"), "vdot": ("self", "other"),
}  # fmt: skip


def is_counted(name: str) -> bool:
    """Whether an operation is counted, by its name."""
    return name in _PRODUCTS or name == "convolution" or _ATTENTION.fullmatch(name) is not None


@dataclass(frozen=True)
class Hidden:
    """Operations inside a module that a rule describes as a whole: they grow with the entries of its tensors."""

    module: str
    operations: int
    tensors: tuple[str, ...]
    entries: int


@dataclass
class Work:
    """The multiplications of a forward pass on an example, which has so many samples, and entries in all.

    Example:
        >>> from neurogenesis.structure.terms import Atom
        >>> rows, columns = Atom(8), Atom(4)
        >>> work = Work(samples=10, entries=40, factors=[("0", (10, columns, rows))])
        >>> work.flops({}), work.flops({}, {rows: 16})
        (640, 1280)
    """

    samples: int
    entries: int
    factors: list[tuple[str, Factors]] = field(default_factory=list)
    """Each with the path of the module that multiplies."""
    hidden: list[Hidden] = field(default_factory=list)

    @staticmethod
    def on(example: Any) -> Work:
        """The work on an example, of which nothing is known yet."""
        first = first_tensor(example)
        return Work(samples_in(first), max(1, 0 if first is None else first.numel()))

    def flops(self, axes: Mapping[str, Sequence[Term]], sizes: Sizes | None = None, inside: str = "") -> int:
        """Operations of the pass, at other sizes if they are given, inside a module; `axes` are of all tensors."""
        factors = [each for path, each in self.factors if _is_inside(path, inside)]
        multiplied = sum(prod(_number(factor, sizes) for factor in each) for each in factors)
        return 2 * multiplied + sum(
            each.operations * _entries(axes, each.tensors, sizes) // each.entries if each.entries else each.operations
            for each in self.hidden
            if _is_inside(each.module, inside)
        )


def _is_inside(path: str, module: str) -> bool:
    return not module or path == module or path.startswith(f"{module}.")


def _entries(axes: Mapping[str, Sequence[Term]], tensors: Sequence[str], sizes: Sizes | None) -> int:
    return sum(prod(size(term, sizes) for term in axes[name]) for name in tensors)


def first_tensor(arguments: Any) -> Tensor | None:
    """The first tensor with axes among the arguments of a model."""
    return next((tensor for tensor in tensors_in(arguments) if tensor.ndim), None)


def samples_in(tensor: Tensor | None) -> int:
    """The number of samples: the size of the first axis."""
    return 1 if tensor is None else max(1, tensor.shape[0])


def _number(factor: int | Term, sizes: Sizes | None) -> int:
    return factor if isinstance(factor, int) else size(factor, sizes)


class _Count(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the operations that run."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        self.flops += operations_of(func, args, kwargs or {}, output)
        return output


def operations_of(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> int:
    """Floating-point operations of a call; 0 for one that is not counted."""
    name = func.overloadpacket.__name__
    if not is_counted(name):
        return 0
    schema = func._schema.arguments
    arguments = {argument.name: argument.default_value for argument in schema}
    arguments |= {**dict(zip((argument.name for argument in schema), args, strict=False)), **kwargs}
    first = output if isinstance(output, Tensor) else output[0]
    found = multiplications(name, arguments, first, lambda tensor: list(tensor.shape))
    return 2 * sum(prod(_number(factor, None) for factor in each) for each in found)


@contextmanager
def _without_fused_layers() -> Iterator[None]:
    """Run recurrent layers as the operations that they consist of."""
    backends: Any = torch.backends.mkldnn, torch.backends.cudnn
    before = [backend.enabled for backend in backends]
    try:
        for backend in backends:
            backend.enabled = False
        yield
    finally:
        for backend, enabled in zip(backends, before, strict=True):
            backend.enabled = enabled


def flops(model: nn.Module, example: Example) -> int:
    """Floating-point operations of a forward pass: matrix products, convolutions and attention.

    A multiplication and an addition are two operations. A gradient step takes about three times as many. The model is
    not changed.

    Args:
        model: the model.
        example: its input: a tensor, a tuple of arguments or a dict of keyword arguments.

    Example:
        >>> import torch, neurogenesis as ng
        >>> ng.flops(torch.nn.Linear(4, 8), torch.randn(10, 4))
        640
    """
    with ExitStack() as stack:
        for context in (
            ordinary_tensors(), torch.no_grad(), internal_run(model), preserved(model, model.training),
            _without_fused_layers(),
        ):  # fmt: skip
            stack.enter_context(context)
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}  # a model may change them
        example = copied_example(example, {})
        count = _Count()
        stack.enter_context(count)
        call_model(lambda *args, **kwargs: torch.func.functional_call(model, buffers, args, kwargs), example)
    return count.flops
