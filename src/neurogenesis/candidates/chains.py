"""Candidates alone, through the modules between their producer and a point, several times faster than in the model.

If nothing lies between but modules that each get the output of the one before (`Route.chain`), the candidates'
activations follow from the producer's input and these modules. They are compared with those of the model once
(`Trials.verified_chain`); a `ChainRun` sees whether a run of the model takes the chain.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

from ..nn import ReLU
from ..passes.records import Pair
from ..passes.replay import Hook, ModelCall, Watch, as_called
from ..passes.routes import Route, select_neurons
from ..structure.running import internal_run, restoring_attributes
from ..structure.widths import Width
from .grown import Candidates, apply_weights

_RECTIFIERS = {ReLU, nn.ReLU}  # computed in place, which saves memory
_RANDOM = (_DropoutNd, nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
FEW_INPUTS = 2**15  # of a pass: more would take memory, and no time is saved that counts
CHUNK_ENTRIES = 2**20  # outputs of the producer that are computed at a time: 4 MB, which stay in the cache


@dataclass(frozen=True)
class Chain:
    """A producer and the modules after it, each of which gets the output of the one before.

    Args:
        model: the model.
        width: the width.
        route: a route with a chain.
    """

    model: nn.Module
    width: Width
    route: Route

    @cached_property
    def producer(self) -> nn.Module:
        return self.model.get_submodule(self.route.producer.module)

    @cached_property
    def modules(self) -> list[nn.Module]:
        """The modules after the producer."""
        assert self.route.chain is not None
        return [self.model.get_submodule(path) for path in self.route.chain]

    @cached_property
    def of_rows(self) -> bool:
        """Whether its outputs follow from its inputs row by row, whenever it runs: activation functions of a layer."""
        plain = not any(module._parameters or module._buffers or isinstance(module, _RANDOM) for module in self.modules)
        return isinstance(self.producer, nn.Linear) and plain and all(map(_takes_parts, self.modules))

    def runs_later(self, pair: Pair) -> bool:
        """Whether candidates can be run in a recorded pass later, from few numbers."""
        small = pair.H_prev.ndim == pair.H.ndim == pair.D.ndim == 2 and pair.H_prev.numel() <= FEW_INPUTS
        return small and self.of_rows and not self.route.flattened and pair.call.autocast is None

    def of(self, fan_in: Tensor, bias: Tensor | None = None) -> Callable[[Tensor], Tensor]:
        """A function from the producer's inputs to the chain's outputs, for candidates alone."""
        modules = [(module, self._tensors_of(module, len(fan_in))) for module in self.modules]

        def run(x: Tensor) -> Tensor:
            h, own = apply_weights(self.producer, x, fan_in, self.route.producer, bias), True
            for module, tensors in modules:
                if own and type(module) in _RECTIFIERS and _plain(module):
                    h = h.clamp_min_(0)
                    continue
                h = torch.func.functional_call(module, tensors, (h,), strict=False) if tensors else module(h)
                own = own and _is_known(module)  # a module of other kinds may keep what it returns
            return h.flatten(1) if self.route.flattened else h

        return run

    def _tensors_of(self, module: nn.Module, count: int) -> dict[str, Tensor]:
        """Parameters and buffers of a module for `count` new neurons alone; the other ones are copied."""
        tensors = {name: buffer.clone() for name, buffer in module.named_buffers()}
        if not (module._parameters or module._buffers):
            return tensors  # no axis runs through it, as through activation functions
        for axis in self.width.axes:
            if self.model.get_submodule(axis.module) is module:
                name = axis.tensor.rpartition(".")[2]
                old = getattr(module, name)
                tensors[name] = self.width.new_entries(axis, count, old, torch.Generator().manual_seed(0))
        return tensors

    def in_pair(self, candidates: Candidates, pair: Pair, seed: int) -> Tensor:
        """The chain's outputs for candidates in a recorded pass."""
        return self.in_call(candidates, pair.H_prev, pair.call, seed)

    def in_call(self, candidates: Candidates, H_prev: Tensor, call: ModelCall, seed: int = 0) -> Tensor:
        """The chain's outputs for candidates, as in a training pass that was recorded.

        Args:
            candidates: the candidates; only their weights and biases in the first producer are used.
            H_prev: the producer's input.
            call: the call of the model that H_prev is from.
            seed: seed of random operations in the modules.
        """
        random = any(not _is_known(module) or isinstance(module, _RANDOM) for module in self.modules)
        with ExitStack() as stack:
            stack.enter_context(internal_run(self.model))
            if random:  # or code that is not known: it may also store results
                stack.enter_context(restoring_attributes(self.model))
            stack.enter_context(as_called(self.model, call, seed if random else None))
            return self.of(candidates.fan_in, candidates.bias)(H_prev)


class ChainRun:
    """A run of the model on a call, from which candidates follow if it takes the chain.

    Run the model with `watches`. If `complete` is true then, `present` has the activations of the present neurons, and
    `candidates` computes those of candidates.

    Args:
        chain: the chain.
    """

    def __init__(self, chain: Chain):
        self.chain = chain
        self.present: Tensor | None = None  # samples x neurons x positions
        self._inputs: _Seen | None = None  # of the producer
        self._end: _Seen | None = None  # output of the latest module of the chain
        self._done = 0  # modules of the chain that have run
        self._entered = False  # whether the next one runs
        self._reached = False  # whether the point got the output of the last one
        self._outputs_per_sample = 1  # of one neuron of the producer

    @property
    def watches(self) -> list[Watch]:
        producer, route = self.chain.producer, self.chain.route
        result = [Watch(producer, "input", self._at_input), Watch(producer, "output", self._at_output)]
        for number, module in enumerate(self.chain.modules):
            result.append(Watch(module, "input", partial(self._enter, number)))
            result.append(Watch(module, "output", partial(self._leave, number)))
        return [*result, Watch(self._point, route.side, self._at_point)]

    @property
    def _point(self) -> nn.Module:
        return self.chain.model.get_submodule(self.chain.route.point.module)

    def _at_input(self, x: Tensor) -> None:
        self._inputs = self._inputs or _Seen.now(x)  # of a layer called more than once, the first call counts

    def _at_output(self, z: Tensor) -> None:
        if self._end is None:
            weight = self.chain.producer.weight
            assert isinstance(weight, Tensor)
            neurons = weight.shape[self.chain.route.producer.axis]
            self._end, self._outputs_per_sample = _Seen.now(z), z.numel() // (len(z) * neurons)

    def _enter(self, number: int, x: Tensor) -> None:
        if number == self._done:
            self._entered = self._end is not None and self._end.is_still(x)

    def _leave(self, number: int, y: Tensor) -> None:
        if number == self._done and self._entered:
            self._end, self._done, self._entered = _Seen.now(y), number + 1, False

    def _at_point(self, h: Tensor) -> None:
        if self.present is None:
            route, end = self.chain.route, self._end
            self.present = route.neurons(self.chain.width, h, self._point)
            as_given = end is not None and (end.is_still(h) or (route.flattened and end.is_flattened(h)))
            self._reached = as_given and self._done == len(self.chain.modules)

    @property
    def complete(self) -> bool:
        """Whether the run has taken the chain, without chance, on inputs that are still there.

        The precision of its weights differs from that of its inputs or outputs if the model uses autocast inside.
        """
        seen, weight = self._inputs, self.chain.producer.weight
        assert isinstance(weight, Tensor)
        if not self._reached or seen is None or self.present is None or not seen.is_still(seen.tensor):
            return False
        if any(isinstance(module, _RANDOM) and module.training for module in self.chain.modules):
            return False
        batched = seen.tensor.ndim >= 2 if weight.ndim == 2 else seen.tensor.ndim == weight.ndim
        return batched and {seen.tensor.dtype, self.present.dtype} == {weight.dtype} and _plain(self.chain.producer)

    def candidates(self, fan_in: Tensor, samples: int) -> list[Tensor]:
        """Activations of candidates on the latest samples, in parts of samples x candidates x positions."""
        assert self._inputs is not None
        x, count, run = self._inputs.tensor, len(fan_in), self.chain.of(fan_in)
        layout = (
            _CHANNELS_LAST.get(x.ndim) if isinstance(self.chain.producer, _ConvNd) and x.device.type == "cpu" else None
        )
        if layout is not None:  # in which pooling is several times faster
            x = x.contiguous(memory_format=layout)
        if not all(map(_takes_parts, self.chain.modules)):
            return [self._by_neuron(run(x), count)[-samples:]]
        size = max(1, CHUNK_ENTRIES // (count * self._outputs_per_sample))
        parts = x[-samples:].split(size)  # type: ignore[no-untyped-call]
        return [self._by_neuron(run(part), count) for part in parts]

    def _by_neuron(self, h: Tensor, count: int) -> Tensor:
        """Outputs of the chain as samples x neurons x positions."""
        channels = h.shape[1 if isinstance(self._point, (_ConvNd, _NormBase)) else -1]
        return select_neurons(h, self._point, torch.arange(channels).reshape(count, -1), all_in_order=True)


class _Seen(NamedTuple):
    """A tensor, and its version when it was seen."""

    tensor: Tensor
    version: int

    @staticmethod
    def now(tensor: Tensor) -> _Seen:
        return _Seen(tensor, tensor._version)

    def is_still(self, x: Tensor) -> bool:
        """Whether another tensor is the same, and has not been modified since."""
        return x is self.tensor and x._version == self.version

    def is_flattened(self, x: Tensor) -> bool:
        """Whether another tensor is a view of the same with two dimensions, and has not been modified since."""
        same = x.data_ptr() == self.tensor.data_ptr() and x.numel() == self.tensor.numel()
        return same and x.ndim == 2 and x._version == self.version


def _plain(module: nn.Module) -> bool:
    """Whether a module computes what its class does: no hooks of others, no replaced method."""
    groups = module._forward_hooks, module._forward_pre_hooks, _global_forward_hooks, _global_forward_pre_hooks
    hooks = [hook for group in groups for hook in group.values()]
    return "forward" not in vars(module) and all(isinstance(hook, Hook) for hook in hooks)


def _is_known(module: nn.Module) -> bool:
    return type(module).__module__.startswith(("torch.nn.modules.", "neurogenesis."))


def _takes_parts(module: nn.Module) -> bool:
    """Whether a module certainly computes each sample alone: no norm with the statistics of the batch."""
    return _is_known(module) and not (
        isinstance(module, _BatchNorm) and (module.training or module.running_mean is None)
    )
