"""The consumers of a width: measurements of their inputs, and weights that make up for removed neurons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from ..explained import Moments, Remaining, Unfolded, coefficients, staying
from ..passes.measurements import Measurement, Point
from ..structure.axes import Axis
from ..structure.weight_norm import weight_of
from ..structure.widths import Width
from ..surgery.checks import averaged_model
from ..surgery.plan import Plan
from ..surgery.planning import plan_shrinkage


@dataclass(frozen=True)
class Consumer:
    """A layer that consumes a width, as far as pruning is concerned.

    Args:
        axis: the columns of its weight.
        module: the layer.
        folds: whether its weight can take what the other neurons explain; not if it is computed from other parameters,
            shared with another layer, or used in a forward method that is not torch's.
        bias: name of the bias that can take a constant; None if there is none, or if the layer pads its input with
            zeros, which are not that constant.
    """

    axis: Axis
    module: nn.Linear | _ConvNd
    folds: bool
    bias: str | None

    def point(self, width: Width) -> Point:
        """The input of the consumer. In front of a grouped convolution, a neuron is one channel of every group."""
        positions = width.positions(self.axis)
        if not isinstance(self.module, _ConvNd) or self.module.groups == 1 or self.module.transposed:
            return Point(self.axis.module, "input", positions, width.in_order(self.axis))
        first = torch.arange(self.module.groups) * (self.module.in_channels // self.module.groups)
        return Point(self.axis.module, "input", (positions[:, None] + first[:, None]).flatten(1), False)

    def fan_out(self, model: nn.Module, width: Width) -> Tensor:
        """The weights of the consumer, neurons x the rest."""
        return width.neurons(self.axis, weight_of(model, self.axis.tensor)).flatten(1).double()

    def remaining(self, model: nn.Module, width: Width, moments: Moments) -> Remaining | Unfolded:
        """The state of a removal of one neuron after the other."""
        fan_out = self.fan_out(model, width)
        if not self.folds:
            return Unfolded(moments.products.diagonal() / moments.rows, fan_out)
        return Remaining(moments.covariance(self.bias is not None), fan_out)

    def changes(self, model: nn.Module, width: Width, moments: Moments, removed: Sequence[int]) -> dict[str, Tensor]:
        """The changes of its weight and bias that make up for neurons about to be removed."""
        if not self.folds:
            return {}
        weight = weight_of(model, self.axis.tensor)
        rows = width.neurons(self.axis, weight).double()
        stays, gone = staying(width.size, removed), list(removed)
        beta = coefficients(moments.covariance(self.bias is not None), removed)
        added = torch.zeros_like(rows)
        added[stays] = torch.einsum("rs,r...->s...", beta, rows[gone])
        result = {self.axis.tensor: _placed(width, self.axis, added, weight)}
        if self.bias is not None:
            constants = moments.mean[gone] - beta @ moments.mean[stays]
            outputs = rows[gone].sum(1)[..., None].flatten(2).sum(2)  # over the positions of a neuron and of the kernel
            result[self.bias] = (constants @ outputs).to(weight.dtype)
        return result


def _placed(width: Width, axis: Axis, by_neuron: Tensor, like: Tensor) -> Tensor:
    """A tensor in the layout of a parameter, from its entries by neuron: neurons x per neuron x the rest."""
    result, positions = torch.zeros_like(like), width.positions(axis).flatten().to(like.device)
    return result.index_copy_(axis.axis, positions, by_neuron.flatten(0, 1).movedim(0, axis.axis).to(like))


def find_consumers(model: nn.Module, width: Width) -> list[Consumer] | str:
    """The consumers of a width, or the reason why their inputs cannot be measured."""
    if width.kind == "stream":
        return f"{width.structure.compensations.where(width.atom)} runs across it: each entry changes all others"
    modules = dict(model.named_modules(remove_duplicate=False))
    parameters = dict(model.named_parameters(remove_duplicate=False))
    uses = Counter(map(id, parameters.values()))
    result = []
    for axis in width.consumers:
        module = modules.get(axis.module)
        if not isinstance(module, nn.Linear | _ConvNd):
            kind = "not a layer" if module is None else f"a {type(module).__name__}"
            return f"its consumer {axis.module} is {kind}, whose inputs cannot be measured"
        weight, bias = (f"{axis.module}.{name}" for name in ("weight", "bias"))
        own = {name for name in (weight, bias) if name in parameters and uses[id(parameters[name])] == 1}
        folds = weight in own and _is_plain(module)
        result.append(
            Consumer(axis, module, folds, bias if folds and bias in own and _takes_constant(module) else None)
        )
    return result or "nothing consumes it"


def _is_plain(module: nn.Module) -> bool:
    """Whether a layer uses its weight as torch's layers do; a subclass may scale it, for example."""
    methods = (getattr(type(module), name, None) for name in ("forward", "_conv_forward"))
    return all(method is None or method.__module__.startswith("torch.nn.") for method in methods)


def _takes_constant(module: nn.Linear | _ConvNd) -> bool:
    """Whether a constant in all inputs is the same in all outputs, so that a bias can take it."""
    if isinstance(module, _ConvTransposeNd):
        return False
    if isinstance(module, nn.Linear) or module.padding_mode != "zeros":
        return True
    if isinstance(module.padding, str):
        return module.padding == "valid"
    return not any(module.padding)


def measure(
    measurement: Measurement, consumers: Mapping[Width, Sequence[Consumer]], *, evaluation: bool
) -> dict[Width, list[Moments] | str]:
    """Moments of the inputs of each consumer of each width, or the reason why they cannot be measured."""
    points = {
        f"{width.name} {number}": consumer.point(width)
        for width, own in consumers.items()
        for number, consumer in enumerate(own)
    }
    seen = measurement.in_all_calls(points, evaluation=evaluation)
    result: dict[Width, list[Moments] | str] = {}
    for width, own in consumers.items():
        moments: list[Moments] = []
        for number, consumer in enumerate(own):
            found = seen.get(f"{width.name} {number}")
            if found is None:
                result[width] = f"its consumer {consumer.axis.module} is not called as a module"
            elif found.batches[0].is_complex():
                result[width] = f"its consumer {consumer.axis.module} gets complex numbers"
            else:
                moments.append(found.moments)
        result.setdefault(width, moments)
    return result


def plan_removal(
    model: nn.Module,
    width: Width,
    consumers: Sequence[Consumer],
    moments: Sequence[Moments],
    removed: Sequence[int],
    ema: nn.Module | None = None,
) -> Plan:
    """Plan to remove neurons; the part of them that the others explain is folded into the consumers."""

    def changes(of: nn.Module) -> dict[str, Tensor]:
        result: dict[str, Tensor] = {}
        for consumer, own in zip(consumers, moments, strict=True):
            result |= consumer.changes(of, width, own, removed)
        return result

    averaged = None if ema is None else changes(averaged_model(ema))
    return plan_shrinkage(model, width, removed, changes(model), averaged=averaged)
