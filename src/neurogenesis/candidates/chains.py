"""Candidates alone, through the modules between their producer and a point, several times faster than in the model.

If nothing lies between but modules that each get the output of the one before, the candidates' activations follow from
the producer's input and these modules. For inputs recorded in training passes, a chain is found once, and compared with
runs of the model (`Trials.chain`). A new run of the model shows whether it has one (`ChainInRun`): modules of known
kinds, and no other code that touches the neurons.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

from ..nn import ReLU
from ..passes.replay import Hook, ModelCall, Watch, as_called
from ..passes.routes import Route, select_neurons
from ..structure.axes import Axis
from ..structure.running import internal_run, restoring_attributes
from ..structure.widths import Width
from .grown import Candidates, apply_weights

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
_CONVOLUTIONS = {nn.Conv1d, nn.Conv2d, nn.Conv3d}
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
_CHUNK_ENTRIES = 2**20  # outputs of the producer that are computed at a time: 4 MB, which stay in the cache


@dataclass(frozen=True)
class Chain:
    """A producer and the modules after it, each of which gets the output of the one before.

    Args:
        model: the model.
        width: the width.
        producer: rows of the producer.
        paths: the modules.
        flattened: whether the output of the last one is flattened.
    """

    model: nn.Module
    width: Width
    producer: Axis
    paths: tuple[str, ...]
    flattened: bool = False

    def of(self, fan_in: Tensor, bias: Tensor | None = None) -> Callable[[Tensor], Tensor]:
        """A function from the producer's inputs to the outputs of the last module, for candidates alone."""
        producer = self.model.get_submodule(self.producer.module)
        modules = [(self.model.get_submodule(path), self._tensors_of(path, len(fan_in))) for path in self.paths]

        def run(x: Tensor) -> Tensor:
            h, own = apply_weights(producer, x, fan_in, self.producer, bias), True
            for module, tensors in modules:
                if own and type(module) in _RECTIFIERS and _plain(module):
                    h = h.clamp_min_(0)
                    continue
                h = torch.func.functional_call(module, tensors, (h,), strict=False) if tensors else module(h)
                own = own and _is_known(module)  # a module of other kinds may keep what it returns
            return h.flatten(1) if self.flattened else h

        return run

    def consumed(self, candidates: Candidates, H_prev: Tensor, call: ModelCall, seed: int = 0) -> Tensor:
        """Candidates in the consumer's input: as `Trials.consumed`.

        Args:
            candidates: the candidates; only their weights and biases in the first producer are used.
            H_prev: the producer's input.
            call: the call of the model that H_prev is from.
            seed: seed of random operations in the modules.
        """
        random = not all(_is_deterministic(self.model.get_submodule(path)) for path in self.paths)
        with ExitStack() as stack:
            stack.enter_context(internal_run(self.model))
            if random:  # or code that is not known: it may also store results
                stack.enter_context(restoring_attributes(self.model))
            stack.enter_context(as_called(self.model, call, seed if random else None))
            return self.of(candidates.fan_in, candidates.bias)(H_prev)

    def _tensors_of(self, path: str, count: int) -> dict[str, Tensor]:
        """Parameters and buffers of a module for `count` new neurons alone; the other ones are copied."""
        module = self.model.get_submodule(path)
        tensors = {name: buffer.clone() for name, buffer in module.named_buffers()}
        for axis in self.width.axes:
            if axis.module == path:
                name = axis.tensor.rpartition(".")[2]
                old = getattr(module, name)
                tensors[name] = self.width.new_entries(axis, count, old, torch.Generator().manual_seed(0))
        return tensors


class ChainInRun:
    """The chain that one call of the model applies to a producer's output, up to the point of a width.

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
        x, count = self._inputs[0], len(fan_in)
        run = Chain(self.model, self.width, self.route.producer, tuple(self._paths)).of(fan_in)
        layout = _CHANNELS_LAST.get(x.ndim) if self._images and x.device.type == "cpu" else None
        if layout is not None:  # in which pooling is several times faster
            x = x.contiguous(memory_format=layout)
        if any(_uses_batch(self.model.get_submodule(path)) for path in self._paths):
            return [self._by_neuron(run(x), count)[-samples:]]
        size = max(1, _CHUNK_ENTRIES // (count * self._outputs_per_sample))
        parts = x[-samples:].split(size)  # type: ignore[no-untyped-call]
        return [self._by_neuron(run(part), count) for part in parts]

    def _by_neuron(self, h: Tensor, count: int) -> Tensor:
        """Outputs of the last module as samples x neurons x positions."""
        return h.reshape(len(h), count, -1) if self._images else h[..., None].movedim(-2, 1).flatten(2)


def _same(x: Tensor, known: tuple[Tensor, int] | None) -> bool:
    """Whether a tensor is the known one, and has not been modified since."""
    return known is not None and x is known[0] and x._version == known[1]


def _plain(module: nn.Module) -> bool:
    """Whether a module computes what its class does: no hooks of others, no replaced method."""
    groups = module._forward_hooks, module._forward_pre_hooks, _global_forward_hooks, _global_forward_pre_hooks
    hooks = [hook for group in groups for hook in group.values()]
    return "forward" not in vars(module) and all(isinstance(hook, Hook) for hook in hooks)


def _is_known(module: nn.Module) -> bool:
    return type(module).__module__.startswith(("torch.nn.modules.", "neurogenesis."))


def _is_deterministic(module: nn.Module) -> bool:
    """Whether a module certainly uses no random numbers."""
    kinds = (_DropoutNd, nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)
    return _is_known(module) and not isinstance(module, kinds)


def _uses_batch(module: nn.Module) -> bool:
    """Whether a module is a norm with the statistics of the batch, which it must see whole."""
    return isinstance(module, _BatchNorm) and (module.training or module.running_mean is None)
