"""Candidates run alone through the modules between producer and point, if each of these treats neurons separately.

A run of the current model records the chain: the producer, then modules of known kinds, each of which gets the output
of the one before. Candidates then go through these modules only, a part of the samples at a time. If any other code
touches the neurons in that run, the chain is not complete. (`chains` finds chains once, in evaluation mode, for inputs
that were recorded in training passes.)
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

from ..nn import ReLU
from ..passes.replay import Hook, Watch
from ..passes.routes import Route, select_neurons
from ..structure.axes import named_tensors
from ..structure.widths import Width

_RECTIFIERS = {ReLU, nn.ReLU}  # computed in place, which saves memory
_ELEMENTWISE = {
    *_RECTIFIERS, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Sigmoid, nn.Tanh,
    nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.LogSigmoid, nn.Identity,
}  # fmt: skip
_POOLING = {
    nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d,
    nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d,
    nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d,
}  # fmt: skip
_BATCH_NORMS = {nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d}
_DROPOUTS = {nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout}
_CONVOLUTIONS: Mapping[type[nn.Module], Any] = {nn.Conv1d: F.conv1d, nn.Conv2d: F.conv2d, nn.Conv3d: F.conv3d}
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
_CHUNK_ENTRIES = 2**20  # outputs of the producer that are computed at a time: 4 MB, which stay in the cache


class RecordedChain:
    """What one call of the model applies to a producer's output, up to the point of a width.

    Run the model with `watches`. If `complete` is true then, `present` has the activations of the present neurons, and
    `candidates` computes those of candidates.

    Args:
        model: the model.
        width: the width.
        route: where the width is watched.
    """

    def __init__(self, model: nn.Module, width: Width, route: Route):
        self.model, self.width, self.route = model, width, route
        self.producer, self.point = (model.get_submodule(axis.module) for axis in (route.producer, route.point))
        self.complete = False
        self._present: Tensor | None = None
        self._inputs: tuple[Tensor, int] | None = None  # of the producer, and their version
        self._end: tuple[Tensor, int] | None = None  # output of the last module so far, and its version
        self._entered: str | None = None  # the module that got it
        self._paths: list[str] = []  # of the modules after the producer
        self._outputs_per_sample = 1  # of one neuron of the producer

    @staticmethod
    def possible(model: nn.Module, route: Route) -> bool:
        """Whether candidates can be run through the producer alone."""
        module, axis = model.get_submodule(route.producer.module), route.producer
        if axis.tensor != f"{axis.module}.weight" or axis.axis != 0 or axis.per_neuron != 1 or not _plain(module):
            return False
        if isinstance(module, _ConvNd):
            return type(module) in _CONVOLUTIONS and module.groups == 1 and module.padding_mode == "zeros"
        return type(module) is nn.Linear

    @property
    def present(self) -> Tensor:
        """Activations of the present neurons, samples x neurons x positions."""
        assert self._present is not None
        return self._present

    @property
    def watches(self) -> list[Watch]:
        route = self.route
        result = [Watch(self.producer, "input", self._at_input), Watch(self.producer, "output", self._at_output)]
        for path in route.between if route.side == "input" else {route.point.module} - {route.producer.module}:
            module = self.model.get_submodule(path)
            result.append(Watch(module, "input", partial(self._enter, path)))
            result.append(Watch(module, "output", partial(self._leave, path)))
        return [*result, Watch(self.point, route.side, self._at_point)]

    def _at_input(self, x: Tensor) -> None:
        if self._inputs is None:  # of a layer called more than once, the first call counts
            self._inputs = x, x._version

    def _at_output(self, z: Tensor) -> None:
        if self._end is None:
            self._end = z, z._version
            self._outputs_per_sample = z.numel() // (len(z) * len(self.producer.weight))  # type: ignore[arg-type]

    def _enter(self, path: str, x: Tensor) -> None:
        self._entered = path if _same(x, self._end) else None

    def _leave(self, path: str, y: Tensor) -> None:
        if self._entered == path:
            self._paths.append(path)
            self._end, self._entered = (y, y._version), None

    def _at_point(self, h: Tensor) -> None:
        if self._present is None:
            point, width = self.route.point, self.width
            self._present = select_neurons(h, self.point, width.positions(point), width.in_order(point))
            self.complete = _same(h, self._end) and self._inputs_usable and all(map(self._separate, self._paths))

    @property
    def _images(self) -> bool:
        return isinstance(self.producer, _ConvNd)

    @property
    def _inputs_usable(self) -> bool:
        """Whether the producer's inputs have not been modified in place, and have a batch axis.

        The precision of its weights differs from that of its inputs or outputs if the model uses autocast inside.
        """
        assert self._inputs is not None and self._present is not None
        x, version = self._inputs
        if {x.dtype, self._present.dtype} != {self.producer.weight.dtype}:
            return False
        return x._version == version and (x.ndim == self.producer.weight.ndim if self._images else x.ndim >= 2)

    def _separate(self, path: str) -> bool:
        """Whether a module computes each neuron from that neuron alone, without chance."""
        assert self._inputs is not None
        module = self.model.get_submodule(path)
        if not _plain(module):
            return False
        kind = type(module)
        if kind in _DROPOUTS:
            return not module.training
        if kind in _BATCH_NORMS:
            return self._images or self._inputs[0].ndim == 2
        if isinstance(module, nn.Flatten):
            return self._images and (module.start_dim, module.end_dim) == (1, -1)
        return kind in _ELEMENTWISE or (self._images and kind in _POOLING)

    def candidates(self, fan_in: Tensor, samples: int) -> list[Tensor]:
        """Activations of candidates on the latest samples, in parts of samples x candidates x positions."""
        assert self._inputs is not None
        inputs, count, weight = self._inputs[0], len(fan_in), fan_in.flatten(0, 1)
        modules = {path: self.model.get_submodule(path) for path in self._paths}
        norms = {path: self._entries(path, count) for path, own in modules.items() if isinstance(own, _BatchNorm)}
        if any(_uses_batch(modules[path]) for path in norms):
            return [self._run(inputs, weight, norms)[-samples:]]
        size = max(1, _CHUNK_ENTRIES // (count * self._outputs_per_sample))
        parts = inputs[-samples:].split(size)  # type: ignore[no-untyped-call]
        return [self._run(part, weight, norms) for part in parts]

    def _entries(self, path: str, count: int) -> dict[str, Tensor]:
        """Parameters and buffers of a norm for new neurons."""
        tensors, generator = named_tensors(self.model), torch.Generator().manual_seed(0)
        axes = [axis for axis in self.width.axes if axis.module == path]
        return {
            axis.tensor.rpartition(".")[2]: self.width.new_entries(axis, count, tensors[axis.tensor], generator)
            for axis in axes
        }

    def _run(self, x: Tensor, weight: Tensor, norms: Mapping[str, Mapping[str, Tensor]]) -> Tensor:
        h = self._produce(x, weight)
        for path in self._paths:
            module = self.model.get_submodule(path)
            if type(module) in _RECTIFIERS:
                h = h.clamp_min_(0)
            else:
                h = _normalize(module, h, norms[path]) if isinstance(module, _BatchNorm) else module.forward(h)
        if self._images:
            return h.reshape(len(h), len(weight), -1)
        return h[..., None].movedim(-2, 1).flatten(2)

    def _produce(self, x: Tensor, weight: Tensor) -> Tensor:
        """The producer's output, without bias."""
        module = self.producer
        if not isinstance(module, _ConvNd):
            return F.linear(x, weight)
        layout = _CHANNELS_LAST.get(x.ndim) if x.device.type == "cpu" else None
        if layout is not None:  # in which pooling is several times faster
            x, weight = x.contiguous(memory_format=layout), weight.contiguous(memory_format=layout)
        z: Tensor = _CONVOLUTIONS[type(module)](x, weight, None, module.stride, module.padding, module.dilation)
        return z


def _same(x: Tensor, known: tuple[Tensor, int] | None) -> bool:
    """Whether a tensor is the known one, and has not been modified since."""
    return known is not None and x is known[0] and x._version == known[1]


def _plain(module: nn.Module) -> bool:
    """Whether a module computes what its class does: no hooks of others, no replaced method."""
    groups = module._forward_hooks, module._forward_pre_hooks, _global_forward_hooks, _global_forward_pre_hooks
    hooks = [hook for group in groups for hook in group.values()]
    return "forward" not in vars(module) and all(isinstance(hook, Hook) for hook in hooks)


def _uses_batch(module: nn.Module) -> bool:
    """Whether a norm uses the statistics of the batch, which it must see whole."""
    return module.training or getattr(module, "running_mean", None) is None


def _normalize(module: _BatchNorm, x: Tensor, entries: Mapping[str, Tensor]) -> Tensor:
    batch = _uses_batch(module)
    mean, variance = (None, None) if batch else (entries["running_mean"], entries["running_var"])
    return F.batch_norm(x, mean, variance, entries.get("weight"), entries.get("bias"), batch, 0.0, module.eps)
