"""Where a width is watched: its first producer, the consumer that sees it first, and what stands between."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from .bridge import Bridge, Kernel, Pooling, pooling_from
from .edits import Edit, edited, grouped, new_values
from .nn import ReLU
from .replay import Call, Side, Watch, observe, replay
from .structure import Axis, named_tensors
from .widths import Width


@dataclass(frozen=True)
class Route:
    """Producer and consumer of a width, and the point where its activations H are taken.

    That is the consumer's input, or, on a residual stream that other layers have already added to, the end of the
    producer's own branch.
    """

    producer: Axis
    consumer: Axis
    point: Axis
    side: Side
    between: tuple[str, ...]  # paths of the modules that run between producer and consumer
    later: frozenset[str]  # paths of those that run no earlier than the consumer
    called: frozenset[str]  # paths of all modules that run
    chain: tuple[str, ...] | None = None  # between two linear layers, if that is all: functions of single numbers

    def neurons(self, width: Width, tensor: Tensor, module: nn.Module) -> Tensor:
        """The activations of the width's neurons at the point, samples x neurons x positions."""
        return pick(tensor, module, width.positions(self.point), width.in_order(self.point))


def pick(tensor: Tensor, module: nn.Module, positions: Tensor, all_in_order: bool = False) -> Tensor:
    """Some channels of a module's input or output, or all as they are, samples x neurons x positions."""
    count, per_neuron = positions.shape
    if isinstance(module, (_ConvNd, _NormBase)):
        if isinstance(module, _ConvNd) and tensor.ndim < module.weight.ndim:
            tensor = tensor[None]  # no batch axis
        if not all_in_order:
            tensor = tensor.index_select(1, positions.flatten().to(tensor.device))
        return tensor.reshape(len(tensor), count, per_neuron, *tensor.shape[2:]).flatten(2)
    if tensor.ndim == 1:
        tensor = tensor[None]
    if not all_in_order:
        tensor = tensor.index_select(-1, positions.flatten().to(tensor.device))
    tensor = tensor.reshape(*tensor.shape[:-1], count, per_neuron)
    return tensor.movedim(-2, 1).flatten(2)


def find_routes(model: nn.Module, widths: Sequence[Width], call: Call) -> dict[str, Route | str]:
    """The route of each width by its name, or why it has none. Runs the model, in evaluation mode."""
    modules = dict(model.named_modules(remove_duplicate=False))
    order: list[tuple[str, Tensor, Tensor]] = []
    inputs: dict[str, Tensor] = {}
    handles = []
    paths = {module: path for path, module in reversed(modules.items())}
    for module, path in paths.items():
        handles.append(observe(module, "input", partial(inputs.__setitem__, path)))
        handles.append(observe(module, "output", partial(_note, order, path, inputs)))
    try:
        replay(model, call, [], evaluation=True)
    finally:
        for handle in handles:
            handle.remove()
    return {width.name: _route(model, width, modules, order, call) for width in widths}


def _note(order: list[tuple[str, Tensor, Tensor]], path: str, inputs: Mapping[str, Tensor], output: Tensor) -> None:
    if path in inputs:
        order.append((path, inputs[path], output))


def _route(
    model: nn.Module,
    width: Width,
    modules: Mapping[str, nn.Module],
    order: Sequence[tuple[str, Tensor, Tensor]],
    call: Call,
) -> Route | str:
    sizes = named_tensors(model)
    when: dict[str, int] = {}
    for number, (path, _, _) in enumerate(order):
        when.setdefault(path, number)

    def called(axes: Sequence[Axis]) -> list[Axis]:
        weights = [a for a in axes if a.module in when and a.tensor in (f"{a.module}.weight", "weight")]
        return sorted((a for a in weights if sizes[a.tensor].ndim >= 2), key=lambda axis: when[axis.module])

    producers = called(width.producers)
    if not producers:
        names = ", ".join(dict.fromkeys(axis.module for axis in width.producers))
        return f"its producer {names} is not a module with a weight that is called as such"
    producer = producers[0]
    consumers = [a for a in called(width.consumers) if when[a.module] > when[producer.module]]
    if not consumers:
        names = ", ".join(dict.fromkeys(axis.module for axis in width.consumers))
        return f"its consumer {names} is not a module with a weight that is called as such"
    consumer = consumers[0]
    start, stop = when[producer.module], when[consumer.module]
    between = tuple(path for path, number in when.items() if start < number < stop and not _inside(path, modules))
    later = frozenset(path for path, number in when.items() if number >= stop)
    route = Route(producer, consumer, consumer, "input", between, later, frozenset(when))
    others = [a for a in producers[1:] if when[a.module] < stop]
    grouped_consumer = getattr(modules[consumer.module], "groups", 1) > 1
    if grouped_consumer or (others and _adds(model, width, route, modules, others, call)):
        return _own_branch(width, route, modules, order[start:stop])
    return route if others else replace(route, chain=_chain(width, route, modules, order[start : stop + 1]))


# Functions of single numbers, without anything per neuron.
_ELEMENTWISE = (
    nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus, nn.Tanh, nn.Sigmoid,
    nn.ReLU6, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.Identity, ReLU,
)  # fmt: skip


def _chain(
    width: Width, route: Route, modules: Mapping[str, nn.Module], order: Sequence[tuple[str, Tensor, Tensor]]
) -> tuple[str, ...] | None:
    """The modules between two linear layers, if each takes what the one before gives, and nothing else happens."""
    ends = modules[route.producer.module], modules[route.consumer.module]
    plain = all(type(end) is nn.Linear for end in ends) and width.in_order(route.producer)
    if not plain or not width.in_order(route.consumer) or order[0][1].ndim != 2 or route.consumer.per_neuron > 1:
        return None
    passed = order[0][2]
    chain: list[str] = []
    for path, given, output in order[1:]:
        if given is passed and path == route.consumer.module:
            return tuple(chain)
        if given is passed and type(modules[path]) in _ELEMENTWISE:
            chain.append(path)
            passed = output
    return None


def _inside(path: str, modules: Mapping[str, nn.Module]) -> bool:
    return next(modules[path].children(), None) is not None


def _adds(
    model: nn.Module,
    width: Width,
    route: Route,
    modules: Mapping[str, nn.Module],
    others: Sequence[Axis],
    call: Call,
) -> bool:
    """Whether other producers are added to the width, rather than multiplied with it as gates are."""
    seen: list[Tensor] = []
    consumer = modules[route.consumer.module]
    silence = [Watch(modules[other.module], "output", torch.zeros_like) for other in others]
    look = Watch(consumer, "input", lambda x: seen.append(route.neurons(width, x, consumer)))
    replay(model, call, [*silence, look], evaluation=True)
    return bool(seen[0].any())


def _own_branch(
    width: Width, route: Route, modules: Mapping[str, nn.Module], order: Sequence[tuple[str, Tensor, Tensor]]
) -> Route:
    """The producer's output, followed through norms that take it as it is."""
    carriers = {axis.module: axis for axis in width.carriers}
    point, end = route.producer, order[0][2]
    for path, given, output in order[1:]:
        if given is end and path in carriers and isinstance(modules[path], _NormBase):
            point, end = carriers[path], output
    return replace(route, point=point, side="output")


# --- the shape of bridging connections -------------------------------------------------------------------


def find_bridge(model: nn.Module, width: Width, route: Route, call: Call) -> Bridge | str:
    """How connections that bridge the width run, or why they cannot be followed."""
    modules = dict(model.named_modules(remove_duplicate=False))
    producer, consumer = modules[route.producer.module], modules[route.consumer.module]
    for axis, module in ((route.producer, producer), (route.consumer, consumer)):
        problem = _unlike_a_layer(axis, module)
        if problem:
            return problem
    if route.producer.per_neuron > 1:
        return f"each neuron is several rows of {route.producer.module}"
    probe = probed(model, width, route, call)
    if isinstance(probe, str):
        return probe
    if not isinstance(producer, _ConvNd):
        if probe.before.movedim(1, -1).shape[:-1] != probe.after_shape[:-1] or isinstance(consumer, _ConvNd):
            return f"positions are mixed between {route.producer.module} and {route.consumer.module}"
        return Bridge()
    kernels = _kernels(producer)
    if isinstance(consumer, _ConvNd):
        grid: tuple[int, ...] | None = tuple(probe.after_shape[2:])
        consumed = _kernels(consumer)
    elif len(probe.after_shape) == 2:  # a flattened image: a kernel as large as it
        grid = probe.grid()
        consumed = tuple(Kernel(length, 1, 0, 1) for length in grid or ())
    else:
        return f"{route.consumer.module} takes each position of {route.producer.module} alone"
    pooling = probe.pooling(grid)
    if isinstance(pooling, str):
        return pooling
    return Bridge(kernels, pooling, consumed)


def _unlike_a_layer(axis: Axis, module: nn.Module) -> str | None:
    weight: Any = module.weight
    if weight.is_complex():
        return f"{axis.module} is complex"
    if isinstance(module, _ConvTransposeNd):
        return f"{axis.module} is a transposed convolution"
    if isinstance(module, _ConvNd):
        if module.groups > 1:
            return f"{axis.module} is a grouped convolution"
        if module.padding_mode != "zeros":
            return f"{axis.module} pads with {module.padding_mode}"
        if module.padding == "same" and any(k % 2 == 0 for k in module.kernel_size):
            return f"{axis.module} pads an even kernel"
    elif not isinstance(module, nn.Linear):
        return f"{axis.module} is neither a linear layer nor a convolution"
    return None


def _kernels(module: _ConvNd) -> tuple[Kernel, ...]:
    sizes, dilations = module.kernel_size, module.dilation
    if module.padding == "same":
        paddings: Sequence[int] = [d * (k - 1) // 2 for k, d in zip(sizes, dilations, strict=True)]
    else:
        paddings = [0] * len(sizes) if isinstance(module.padding, str) else module.padding
    return tuple(map(Kernel, sizes, module.stride, paddings, dilations))


@dataclass
class Probe:
    """What becomes of a new neuron between producer and consumer."""

    before: Tensor  # the producer's output: two new neurons, constant 0 and constant 1, samples first
    after: Tensor  # the neurons as the consumer gets them: samples x neurons x positions
    after_shape: torch.Size  # of all that the consumer gets

    def slope(self) -> Tensor:
        """The gradient of a sum over the new neuron that is 0, weighted by numbers that do not cancel."""
        after = self.after[:, 0]
        weights = torch.linspace(1, 2, after.numel()).reshape(after.shape).to(after)
        return self._gradient((after * weights).sum(), 0)

    @property
    def keeps_zero(self) -> bool:
        """Whether a neuron that is 0 arrives as 0."""
        return not bool(self.after[:, 0].any())

    def grid(self) -> tuple[int, ...] | None:
        """The shape of the positions that arrive, if they are an image, flattened."""
        if self.after.shape[2] > _POSITIONS:
            return None
        supports = [self._support(number) for number in range(self.after.shape[2])]
        if any(support is None for support in supports):
            return None
        starts = [tuple(start for start, _ in support) for support in supports if support is not None]
        sides = tuple(len(set(along)) for along in zip(*starts, strict=True))
        expected = list(itertools.product(*(sorted(set(along)) for along in zip(*starts, strict=True))))
        return sides if starts == expected else None

    def pooling(self, grid: Sequence[int] | None) -> tuple[Pooling, ...] | str:
        """The pooling along each dimension, the same at all positions but those at the border."""
        irregular = "what stands between producer and consumer mixes positions"
        if grid is None or torch.Size(grid).numel() != self.after.shape[2]:
            return irregular
        result = []
        for dim, length in enumerate(grid):
            supports: list[tuple[int, int]] = []
            for place in range(length):
                at = [side // 2 for side in grid]
                at[dim] = place
                support = self._support(_flat_index(at, grid))
                if support is None and 0 < place < length - 1:
                    return irregular
                supports.append((0, 0) if support is None else support[dim])
            middle = max(0, min(length // 2, length - 2))
            pooling = pooling_from(supports[middle : middle + 2], middle)
            for place, (start, stop) in list(enumerate(supports))[1:-1]:
                first = pooling.stride * place + pooling.offset
                if (start, stop) != (first, first + pooling.window):
                    return irregular
            if pooling.stride < 1 or pooling.window < 1:
                return irregular
            result.append(pooling)
        return tuple(result)

    def _support(self, position: int) -> list[tuple[int, int]] | None:
        """From where to where, along each dimension, the producer's outputs are that a position is the mean of."""
        gradient = self._gradient(self.after[0, 1, position], 1)[0]
        weights = gradient[gradient != 0]
        if not len(weights) or float(weights[0]) <= 0 or not torch.allclose(weights, weights[0]):
            return None
        result = []
        for dim, length in enumerate(gradient.shape):
            touched = gradient.movedim(dim, 0).reshape(length, -1).any(1).nonzero().flatten().tolist()
            result.append((touched[0], touched[-1] + 1))
        return result if len(weights) == torch.Size(stop - start for start, stop in result).numel() else None

    def _gradient(self, of: Tensor, neuron: int) -> Tensor:
        if not of.requires_grad:
            return torch.zeros_like(self.before[:, neuron])
        (gradient,) = torch.autograd.grad(of, self.before, retain_graph=True, allow_unused=True)
        return torch.zeros_like(self.before[:, neuron]) if gradient is None else gradient[:, neuron]


_POSITIONS = 1024  # of a flattened image, beyond which it is not looked at


def _flat_index(at: Sequence[int], grid: Sequence[int]) -> int:
    number = 0
    for side, position in zip(grid, at, strict=True):
        number = number * side + position
    return number


def probed(model: nn.Module, width: Width, route: Route, call: Call) -> Probe | str:
    """Send two new neurons, constant 0 and constant 1, from the producer to the consumer; or say why not."""
    modules = dict(model.named_modules(remove_duplicate=False))
    producer, consumer = modules[route.producer.module], modules[route.consumer.module]
    seen: dict[str, Tensor] = {}
    channel = 1 if isinstance(producer, _ConvNd) else -1

    def put_in(z: Tensor) -> Tensor:
        z = z.detach().movedim(channel, 1)
        new = torch.tensor([0.0, 1.0]).to(z).reshape(2, *[1] * (z.ndim - 2)).expand(len(z), 2, *z.shape[2:])
        seen["before"] = new.clone().requires_grad_()
        positions = new_positions(width, route.producer, 2)
        values = seen["before"].repeat_interleave(positions.shape[1], 1)
        order = positions.flatten().argsort()
        edit = Edit("", 1, z.shape[1], positions.flatten()[order], values[:, order], "producer")
        return edited(z, [edit]).movedim(1, channel)

    def take_out(h: Tensor) -> None:
        seen["whole"] = h
        seen["after"] = pick(h, consumer, new_positions(width, route.consumer, 2))

    # The producer keeps its size: what it lacks is put into its output.
    watches = [Watch(producer, "output", put_in), Watch(consumer, "input", take_out)]
    try:
        with torch.enable_grad():
            tensors, attributes = grown_tensors(model, width, route, 2, alone=True)
        replay(model, call, watches, tensors=tensors, attributes=attributes, gradients=True, evaluation=True)
    except Exception as error:  # of the model's own code, which may use the neurons in ways that hooks do not see
        return f"the model does not run with new neurons up to {route.consumer.module}: {error}"
    return Probe(seen["before"], seen["after"], seen["whole"].shape)


def positions_after(width: Width, axis: Axis, count: int) -> Tensor:
    """The positions that neurons will own on an axis when there are `count` more, of shape (neurons, per neuron)."""
    width.atom.size += count
    try:
        return width.positions(axis)
    finally:
        width.atom.size -= count


def new_positions(width: Width, axis: Axis, count: int) -> Tensor:
    """The positions that `count` new neurons will own on an axis, of shape (count, per neuron)."""
    return positions_after(width, axis, count)[width.size :]


def grown_tensors(
    model: nn.Module,
    width: Width,
    route: Route,
    count: int,
    fan_in: Tensor | None = None,
    bias: Tensor | None = None,
    sources: Tensor | None = None,
    alone: bool = False,
) -> tuple[dict[str, Tensor], list[tuple[nn.Module, str, int]]]:
    """Tensors and attributes for a run with more neurons up to their consumer.

    Args:
        model: the model.
        width: the width to be grown.
        route: where it runs.
        count: how many neurons.
        fan_in: weights of the first producer for them, count x per neuron x the rest; without, it is not grown.
        bias: its biases, count x per neuron; zero by default.
        sources: the present neuron that each is a copy of, or -1, for what carries something per neuron.
        alone: let other producers give them nothing.
    """
    tensors, generator = named_tensors(model), torch.Generator().manual_seed(0)
    edits = []
    for axis in width.axes:
        old = tensors[axis.tensor]
        if axis.module == route.producer.module:
            if fan_in is None:
                continue
            shape = (count, axis.per_neuron, *old.movedim(axis.axis, 0).shape[1:])
            given = fan_in if axis == route.producer else bias
            given = old.new_zeros(1).expand(shape) if given is None else given.reshape(shape)
            positions, values = stack(width, axis, given)
        elif axis.module in route.later:
            continue
        else:
            positions = new_positions(width, axis, count).flatten().sort().values
            fill = "zero" if alone and axis.role == "producer" else width.fill(axis)
            values = new_values(old, axis.axis, len(positions), fill, generator)
            if sources is not None and axis.role != "consumer":
                rows = old.detach().movedim(axis.axis, 0)[width.positions(axis)[sources.clamp_min(0)]]
                usual = values.movedim(axis.axis, 0).unflatten(0, rows.shape[:2])  # type: ignore[no-untyped-call]
                copied = (sources >= 0).reshape(-1, *[1] * (rows.ndim - 1)).to(rows.device)
                positions, values = stack(width, axis, torch.where(copied, rows, usual))
        edits.append(Edit(axis.tensor, axis.axis, old.shape[axis.axis], positions, values, axis.role))
    grown = {name: edited(tensors[name].detach(), own) for name, own in grouped(edits).items()}
    return grown, changed_attributes(model, width, count)


def stack(width: Width, axis: Axis, values: Tensor) -> tuple[Tensor, Tensor]:
    """Values of new neurons, count x per neuron x the rest, in the order of their positions on an axis."""
    positions = new_positions(width, axis, len(values)).flatten()
    order = positions.argsort()
    return positions[order], values.flatten(0, 1)[order.to(values.device)].movedim(0, axis.axis)


def changed_attributes(model: nn.Module, width: Width, count: int) -> list[tuple[nn.Module, str, int]]:
    """The attributes of modules that say the width's size, with their values after growth."""
    modules = dict(model.named_modules(remove_duplicate=False))
    structure = width.structure
    before = structure.attribute_values()
    width.atom.size += count
    try:
        after = structure.attribute_values()
    finally:
        width.atom.size -= count
    return [
        (modules[path], name, new) for (path, name, old), (_, _, new) in zip(before, after, strict=True) if old != new
    ]
