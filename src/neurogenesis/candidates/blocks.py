r"""Would-be blocks in a training pass: a copy of a block, behind it, whose last projections are zero.

Such a copy does not change what the model computes. It would get the output x of the block that it copies, and the
gradient G of the loss at x would be that at its own output. So one more run of the block, on x and with zeros in place
of its last projections, shows the gradient that these would get, without a deeper model: for a matrix,

.. math:: \sum_i D_i \otimes h_i

over all samples and positions i, where h is the input of the projection in that run, and D is G at its output, behind
dropout and what else may follow; for a gain per channel, :math:`\sum_i G_i t_i`, where t is the derivative of the
output by the gain. H is the same input in the block itself, which its own projection can already use.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules.conv import _ConvNd
from torch.utils._pytree import tree_leaves, tree_map_only

from ..depth.planning import identity_values
from ..depth.stacks import Stack
from ..passes.checkpointing import saving_apart
from ..passes.products import Product, watching
from ..passes.replay import observe, without_checkpointing
from ..structure.examples import tensors_in
from ..structure.paths import submodule, tensor_at
from ..structure.randomness import random_state_restored, set_seed
from ..structure.running import internal_run, restoring_attributes
from .looks import Pass
from .rows import Gain, channel_dim

Values = Sequence[Mapping[str, Tensor]]  # by module of a block: parameters and buffers by name
Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]


@dataclass(frozen=True, eq=False)
class Projection:
    """A last projection of a block.

    Args:
        module: number of the block's module that has it.
        name: the parameter, in that module.
        place: where it is applied: a layer, the products with it, or a gain.
    """

    module: int
    name: str
    place: nn.Module


class Trial(NamedTuple):
    """A would-be block in a training pass.

    Args:
        stream: what it returns.
        present: by matrix, the inputs of that of the block that it copies.
        inputs: by matrix, its own inputs.
        outputs: by matrix, its outputs, of which `stream` is a function.
        gains: by gain, the derivatives of what the block and the would-be one return, and the axis of their channels.
    """

    stream: Tensor
    present: Mapping[Projection, Sequence[Tensor]]
    inputs: Mapping[Projection, Sequence[Tensor]]
    outputs: Mapping[Projection, Sequence[Tensor]]
    gains: Mapping[Projection, tuple[Tensor, Tensor, int]]

    def passes(
        self, projections: Sequence[Projection], gradient: Tensor, samples: Tensor | None, most: int | None = None
    ) -> list[list[Pass]]:
        """The passes of each projection.

        Args:
            projections: the projections.
            gradient: the gradient of the loss at the output of the block.
            samples: the identity of each item of the batch, if it is known.
            most: how many of the inputs of a matrix are asked about at most; all by default.
        """
        leaves = [leaf for own in self.outputs.values() for leaf in own]
        found: dict[int, Tensor] = {}
        if leaves and self.stream.requires_grad:
            gradients = torch.autograd.grad(self.stream, leaves, gradient.to(self.stream.dtype), allow_unused=True)
            found = {id(leaf): own for leaf, own in zip(leaves, gradients, strict=True) if own is not None}
        result = []
        for each in projections:
            if each in self.gains:
                H, h, axis = self.gains[each]
                H, h, D = (tensor.movedim(axis, -1) for tensor in (H, h, gradient))
                result.append([Pass(H, h, D, samples)])
                continue
            own = zip(*(part.get(each, ()) for part in (self.present, self.inputs, self.outputs)), strict=False)
            result.append(
                [
                    Pass(H, _some(each.place, h, most), found[id(leaf)], samples)
                    for H, h, leaf in own
                    if id(leaf) in found
                ]
            )
        return result


@dataclass(frozen=True)
class WouldBe:
    """A would-be copy of a block.

    Args:
        modules: the modules of the block that it copies.
        projections: its last projections.
        made: values of parameters that are not those of the block, by module and name.
        entry: the argument by which the block gets its input.
        seed: seed of random numbers in it.
    """

    modules: Sequence[nn.Module]
    projections: Sequence[Projection]
    made: Mapping[tuple[int, str], Tensor]
    entry: str
    seed: int = 0
    _axes: dict[Projection, int] = field(default_factory=dict)  # of channels, by gain

    @property
    def changed(self) -> bool:
        """Whether parameters of the block have been resized since."""
        return any(
            self.modules[child].get_parameter(name).shape != own.shape for (child, name), own in self.made.items()
        )

    def trial(self, model: nn.Module, arguments: Arguments, output: Tensor) -> Trial:
        """What a training pass shows when the block has run, before the gradient at its output is known.

        Args:
            model: the model, whose hooks ignore this.
            arguments: those of the block in the pass.
            output: what it has returned there.
        """
        own = [{name: each.detach() for name, each in _tensors(module).items()} for module in self.modules]
        new = [
            {name: self.made.get((number, name), tensor) for name, tensor in each.items()}
            for number, each in enumerate(own)
        ]
        behind = with_entry(arguments, self.entry, output.detach())
        with _running(model, self.modules):
            present, _, _ = self._watched(own, arguments)
            inputs, outputs, stream = self._watched(new, behind, leaves=True)
            gains = {each: self._gain(each, own, arguments, new, behind) for each in self._gains}
        return Trial(stream, present, inputs, outputs, gains)

    @property
    def _gains(self) -> list[Projection]:
        return [each for each in self.projections if isinstance(each.place, Gain)]

    def _watched(
        self, values: Values, arguments: Arguments, leaves: bool = False
    ) -> tuple[dict[Projection, list[Tensor]], dict[Projection, list[Tensor]], Tensor]:
        """The inputs of matrices, their outputs if these are to be leaves of a graph, and what the block returns."""
        inputs: dict[Projection, list[Tensor]] = {}
        outputs: dict[Projection, list[Tensor]] = {}

        def arrived(each: Projection, tensor: Tensor) -> None:
            inputs.setdefault(each, []).append(tensor.detach().clone())

        def left(each: Projection, tensor: Tensor) -> Tensor | None:
            if not leaves:
                return None
            outputs.setdefault(each, []).append(tensor.detach().requires_grad_())
            return outputs[each][-1]

        with ExitStack() as stack, torch.set_grad_enabled(leaves):
            for each in self.projections:
                if not isinstance(each.place, Gain):
                    stack.callback(observe(each.place, "input", partial(arrived, each)).remove)
                    stack.callback(observe(each.place, "output", partial(left, each)).remove)
            return inputs, outputs, self._stream(values, arguments)

    def _stream(self, values: Values, arguments: Arguments) -> Tensor:
        """What the block returns with other values of its parameters."""
        set_seed({tensor.device for own in values for tensor in own.values()}, self.seed)
        arguments = _copied(arguments)
        for number, (module, own) in enumerate(zip(self.modules, values, strict=True)):
            products = [e.place for e in self.projections if e.module == number and isinstance(e.place, Product)]
            buffers = {name: each.clone() for name, each in module.named_buffers()}
            args, kwargs = without_caches(module, arguments)
            with watching(module, products, own):
                output = torch.func.functional_call(module, {**own, **buffers}, args, dict(kwargs), strict=False)
            stream = next(tensors_in(output))
            arguments = (stream,), {}
        return stream

    def _gain(
        self, gain: Projection, own: Values, arguments: Arguments, new: Values, behind: Arguments
    ) -> tuple[Tensor, Tensor, int]:
        """The derivatives by a gain of what the block and the would-be one return, and the axis of their channels."""
        like = own[gain.module][gain.name]
        if gain not in self._axes:
            first = torch.zeros_like(like)
            first.view(-1)[0] = 1
            self._axes[gain] = _channel_axis(self._derivative(own, gain, first, arguments), like.numel(), gain.name)
        every = torch.ones_like(like)
        H, h = self._derivative(own, gain, every, arguments), self._derivative(new, gain, every, behind)
        return H, h, self._axes[gain]

    def _derivative(self, values: Values, gain: Projection, direction: Tensor, arguments: Arguments) -> Tensor:
        with torch.no_grad(), forward_ad.dual_level():
            changed = [dict(own) for own in values]
            dual = forward_ad.make_dual(changed[gain.module][gain.name], direction)  # type: ignore[no-untyped-call]
            changed[gain.module][gain.name] = dual
            stream, tangent = forward_ad.unpack_dual(self._stream(changed, arguments))  # type: ignore[no-untyped-call]
            return torch.zeros_like(stream) if tangent is None else tangent.clone()


def would_be_block(model: nn.Module, stack: Stack, number: int, seed: int = 0) -> WouldBe:
    """The would-be copy of a block of a stack; raises ValueError if it cannot be asked about."""
    modules, own = stack.run.modules(model, number), stack.projections[number]
    made = identity_values(modules, stack.run.paths(number), own)
    found = projections_in(modules, list(made))
    if not stack.direct:
        raise ValueError(f"functions stand between the blocks of {stack.name}")
    if not found:
        raise ValueError(f"no last projection of {stack.name} is a layer, a product or a gain")
    return WouldBe(modules, found, made, stack.entries[number], seed)


def projections_in(modules: Sequence[nn.Module], names: Sequence[tuple[int, str]]) -> list[Projection]:
    """The last projections of a block that can be asked about, given the names of their parameters.

    Biases of matrices are left out: what they would learn, those of the block can learn.
    """
    matrices = {(number, name.rpartition(".")[0]) for number, name in names if _is_matrix(modules[number], name)}
    result = []
    for number, name in names:
        owner, _, own = name.rpartition(".")
        layer = submodule(modules[number], owner)
        if not _is_matrix(modules[number], name):
            if (number, owner) not in matrices:
                result.append(Projection(number, name, Gain()))
        elif isinstance(layer, (nn.Linear, _ConvNd)) and own == "weight":
            if getattr(layer, "groups", 1) == 1:
                result.append(Projection(number, name, layer))
        else:
            result.append(Projection(number, name, Product(name)))
    return result


def _is_matrix(module: nn.Module, name: str) -> bool:
    tensor = tensor_at(module, name)
    return tensor.ndim > 1 and tensor.numel() > max(tensor.shape)


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return dict(module.named_parameters())


@contextmanager
def _running(model: nn.Module, modules: Sequence[nn.Module]) -> Iterator[None]:
    """Run modules of a model without side effects, even inside a checkpoint."""
    with ExitStack() as stack:
        for module in modules:
            stack.enter_context(restoring_attributes(module))
        for context in (
            internal_run(model), random_state_restored(model), saving_apart(), without_checkpointing(),
            torch.compiler.set_stance("force_eager"),
        ):  # fmt: skip
            stack.enter_context(context)
        yield


def with_entry(arguments: Arguments, entry: str, tensor: Tensor) -> Arguments:
    """Arguments with another tensor in a place: a position or a name, or the number of a tensor in what is there."""
    place, _, inner = entry.partition(".")
    wanted = int(inner or 0)

    def replaced(value: Any) -> Any:
        numbers = iter(range(len(tree_leaves(value)) + 1))
        return tree_map_only(Tensor, lambda own: tensor if next(numbers) == wanted else own, value)

    args, kwargs = arguments
    if place.isdigit():
        return tuple(replaced(each) if str(number) == place else each for number, each in enumerate(args)), kwargs
    return args, {name: replaced(each) if name == place else each for name, each in kwargs.items()}


def without_caches(module: nn.Module, arguments: Arguments) -> Arguments:
    """Arguments without objects that a call may write to, such as a cache of keys, where None may be in their place."""
    args, kwargs = arguments
    if not any(map(_is_object, (*args, *kwargs.values()))):
        return arguments
    parameters = inspect.signature(module.forward).parameters
    names = list(parameters)

    def kept(name: str, value: Any) -> Any:
        known = parameters.get(name)
        optional = known is None or known.default is None
        return None if optional and _is_object(value) else value

    new = tuple(kept(name, value) for name, value in zip(names, args, strict=False))
    return (*new, *args[len(new) :]), {name: kept(name, value) for name, value in kwargs.items()}


def _is_object(value: Any) -> bool:
    """Whether a value is neither a tensor nor plain data, nor an object of torch such as a mask."""
    return any(type(each).__module__.partition(".")[0] not in ("builtins", "torch") for each in tree_leaves(value))


def _copied(arguments: Arguments) -> Arguments:
    """Arguments outside of any graph, which a block may overwrite."""
    args, kwargs = arguments
    copies: Arguments = tree_map_only(Tensor, lambda own: own.detach().clone(), (tuple(args), dict(kwargs)))
    return copies


def _channel_axis(derivative: Tensor, size: int, name: str) -> int:
    """The axis on which only the first of so many entries depends on the first entry of a gain."""
    for axis in range(derivative.ndim):
        if derivative.shape[axis] == size and not bool(derivative.narrow(axis, 1, size - 1).any()):
            return axis
    raise ValueError(f"{name} acts on no axis of what the block returns")


def _some(place: nn.Module, inputs: Tensor, most: int | None) -> Tensor:
    """Some inputs of a matrix, evenly spread over all."""
    channel = channel_dim(place)
    count = inputs.shape[channel]
    if most is None or count <= most:
        return inputs
    return inputs.index_select(channel, torch.arange(most, device=inputs.device) * count // most)
