"""Where a width is watched: its first producer, its consumers, and the modules between them."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from ..structure.axes import Axis, named_tensors
from ..structure.paths import submodule
from ..structure.recurrent import is_recurrent
from ..structure.running import constant_calls
from ..structure.weight_norm import lengths_of, why_not_watched
from ..structure.widths import Width
from .inside import Projections, inside, why_not_inside
from .products import Place, Product
from .replay import ModelCall, Side, Watch, observe, replay


@dataclass(frozen=True)
class Route:
    """First producer and a consumer of a width, and the point where its activations H are read.

    The point is the consumer's input or, if other layers have already added to a residual stream there, the end of the
    producer's own branch.

    Args:
        between: paths of the modules that run between producer and consumer.
        later: paths of the consumer and the modules that run after it.
        called: paths of all modules that run.
        chain: paths of the modules from producer to point, if each gets the output of the one before.
        flattened: whether the output of the chain is flattened before it reaches the point.
        region: path of the smallest module that has the producers, and all that runs until the consumer gets its input;
            None if that is the model itself.
        others: of the first consumer: routes to the other ones.
        places: by the name of each weight that no layer of torch applies, or that one applies inside its kernels, the
            products with it, watched in its stead.
    """

    producer: Axis
    consumer: Axis
    point: Axis
    side: Side
    between: tuple[str, ...]
    later: frozenset[str]
    called: frozenset[str]
    chain: tuple[str, ...] | None = None
    flattened: bool = False
    region: str | None = None
    others: tuple[Route, ...] = ()
    places: Mapping[str, Place] = field(default_factory=dict)

    def place(self, model: nn.Module, axis: Axis) -> nn.Module:
        """The module that applies a weight, or the products with it."""
        place = _place_of(axis, self.places)
        return submodule(model, axis.module) if place is None else place

    def neurons(self, width: Width, tensor: Tensor, module: nn.Module) -> Tensor:
        """Activations of the width's neurons, or of those that heads consist of: samples x neurons x positions."""
        return select_neurons(tensor, module, self.positions(width), width.in_order(self.point))

    def positions(self, width: Width) -> Tensor:
        """Channels of each neuron at the point, neurons x per neuron."""
        positions = width.positions(self.point)
        return positions.reshape(-1, 1) if width.kind == "heads" else positions


def _place_of(axis: Axis, places: Mapping[str, nn.Module]) -> Place | None:
    """The products with a weight, if they are watched in place of the module that has it."""
    found = places.get(axis.tensor)
    return found if isinstance(found, Place) and found.stands_for(axis) else None


def select_neurons(tensor: Tensor, module: nn.Module, positions: Tensor, all_in_order: bool = False) -> Tensor:
    """Channels of neurons in a module's input or output, as samples x neurons x positions.

    Args:
        tensor: the input or output.
        module: the module.
        positions: channels of each neuron, neurons x per neuron.
        all_in_order: whether the positions are all channels in order, so that none need to be selected.
    """
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


def find_routes(
    model: nn.Module, widths: Sequence[Width], call: ModelCall, products: bool = False
) -> dict[str, Route | str]:
    """Route of each width by name, or the reason it has none; runs the model in evaluation mode.

    If `products`, weights that no layer of torch applies are watched where the model multiplies by them, and those that
    recurrent layers apply inside their kernels by other runs of these.
    """
    weights = _places(model, widths) if products else {}
    modules = dict(model.named_modules(remove_duplicate=False))
    order: list[tuple[str, Tensor, Tensor]] = []
    inputs: dict[str, Tensor] = {}
    handles = []
    paths = {module: path for path, module in reversed(modules.items())}
    for module, path in paths.items():
        handles.append(observe(module, "input", partial(inputs.__setitem__, path)))
        handles.append(observe(module, "output", partial(_record_call, order, path, inputs)))
    for name, product in weights.items():
        handles.append(observe(product, "input", partial(inputs.__setitem__, name)))
        handles.append(observe(product, "output", partial(_record_call, order, name, inputs)))
    try:
        replay(model, call, [], evaluation=True, products=list(weights.values()))
    finally:
        for handle in handles:
            handle.remove()
    left = {path: constant_calls(module) for module, path in paths.items()}
    counted = []
    for each in order:
        left[each[0]] = left.get(each[0], 0) - 1
        if left[each[0]] < 0:
            counted.append(each)
    together = {**modules, **weights}
    return {width.name: _find_route(model, width, together, counted, set(inputs), call) for width in widths}


_LAYERS = (nn.Linear, _ConvNd, nn.Embedding)  # watched as modules


def _places(model: nn.Module, widths: Sequence[Width]) -> dict[str, Place]:
    """The products with weights that no layer of torch applies, or that one applies inside its kernels."""
    modules, parameters = dict(model.named_modules(remove_duplicate=False)), dict(model.named_parameters())
    axes = [axis for width in widths for axis in (*width.producers, *width.consumers)]
    places: dict[str, Place] = {}
    for axis in axes:
        layer = modules.get(axis.module)
        if axis.tensor not in parameters or parameters[axis.tensor].ndim < 2 or axis.tensor in places:
            continue
        if layer is not None and is_recurrent(layer):
            own = inside(axis.tensor, layer) if axis.role == "consumer" else None
            places |= {} if own is None else {axis.tensor: own}
        elif not isinstance(layer, _LAYERS):
            places[axis.tensor] = Product(axis.tensor)
    return places


def _record_call(
    order: list[tuple[str, Tensor, Tensor]], path: str, inputs: Mapping[str, Tensor], output: Tensor
) -> None:
    if path in inputs:
        order.append((path, inputs[path], output))


def _find_route(
    model: nn.Module,
    width: Width,
    modules: Mapping[str, nn.Module],
    order: Sequence[tuple[str, Tensor, Tensor]],
    entered: Container[str],
    call: ModelCall,
) -> Route | str:
    sizes = named_tensors(model)
    first_call: dict[str, int] = {}
    for number, (path, _, _) in enumerate(order):
        first_call.setdefault(path, number)

    places = {path: module for path, module in modules.items() if isinstance(module, Place)}

    def key(axis: Axis) -> str:
        return axis.module if _place_of(axis, places) is None else axis.tensor

    def applied(axis: Axis, recurrent: bool) -> bool:
        place = _place_of(axis, places)
        return _is_weight(model, axis, recurrent) if place is None else place.multiplies(axis)

    def called_weights(axes: Sequence[Axis], recurrent: bool) -> list[Axis]:
        called = [a for a in axes if key(a) in first_call and sizes[a.tensor].ndim >= 2]
        return sorted((a for a in called if applied(a, recurrent)), key=lambda axis: first_call[key(axis)])

    producers = called_weights(width.producers, recurrent=True)
    if not producers:
        return f"its producer {_why_not_called(width.producers, modules)}"
    producer = producers[0]
    own = called_weights(width.consumers, recurrent=False)
    consumers = [a for a in own if first_call[key(a)] > first_call[key(producer)] or _projects(a, producer, places)]
    if not consumers:
        return f"its consumer {_why_not_called(width.consumers, modules)}"
    start = first_call[key(producer)]

    def route_to(consumer: Axis) -> Route:
        stop = first_call[key(consumer)]
        between = tuple(
            path for path, number in first_call.items() if start < number < stop and not _has_children(path, modules)
        )
        later = frozenset(path for path, number in first_call.items() if number >= stop)
        # Whether candidates follow from its inputs and their weights.
        first = modules[key(producer)]
        alone = not (isinstance(first, (Product, nn.Embedding)) or is_recurrent(first))
        chain, flattened = _chain(order[start : stop + 1], modules) if alone else (None, False)
        called, own = frozenset(first_call), {name: places[name] for name in places if name in first_call}
        by_product = any(_place_of(axis, own) is not None for axis in (*producers, consumer))
        region = _region(width, [*producers, consumer], entered) if alone and not by_product else None
        return Route(
            producer, consumer, consumer, "input", between, later, called, chain, flattened, region, places=own
        )

    route = replace(route_to(consumers[0]), others=tuple(map(route_to, consumers[1:])))
    consumer, stop = route.consumer, first_call[key(route.consumer)]
    others = [a for a in producers[1:] if first_call[key(a)] < stop and a.module != producer.module]
    grouped_consumer = getattr(modules[key(consumer)], "groups", 1) > 1
    if grouped_consumer or (others and _is_added(model, width, route, modules, others, call)):
        return _branch_end(width, route, modules, order[start:stop])
    return route


def _chain(
    order: Sequence[tuple[str, Tensor, Tensor]], modules: Mapping[str, nn.Module]
) -> tuple[tuple[str, ...] | None, bool]:
    """Paths of the modules that each get the output of the one before, from the first call to the last.

    None if there is anything else between them, except that the last may get a flattened output, which is the second
    value.
    """
    paths: list[str] = []
    end = order[0][2]
    for path, given, output in order[1:-1]:
        if given is end and not _has_children(path, modules):
            paths.append(path)
            end = output
    last = order[-1][1]
    flattened = last.ndim == 2 and last.data_ptr() == end.data_ptr() and last.numel() == end.numel()
    return (tuple(paths) if last is end or flattened else None), last is not end


def _region(width: Width, axes: Sequence[Axis], entered: Container[str]) -> str | None:
    """Path of the smallest module that is called and has these axes and the carriers; None if it is the model."""
    owners = [axis.tensor.split(".")[:-1] for axis in (*axes, *width.carriers)]
    common = [each[0] for each in takewhile(lambda each: len(set(each)) == 1, zip(*owners, strict=False))]
    while common and ".".join(common) not in entered:
        common.pop()
    return ".".join(common) or None


def _projects(consumer: Axis, producer: Axis, places: Mapping[str, Place]) -> bool:
    """Whether a consumer is a projection inside the layer that is the producer."""
    return consumer.module == producer.module and isinstance(places.get(consumer.tensor), Projections)


def _is_weight(model: nn.Module, axis: Axis, recurrent: bool) -> bool:
    """Whether a tensor is the weight of a module, or the direction of a weight under weight norm.

    Those of the gates of recurrent layers count as such if `recurrent`.
    """
    tensor = axis.tensor
    if f".{tensor}".endswith(".weight") or (recurrent and is_recurrent(model.get_submodule(axis.module))):
        return True
    return ".parametrizations." in tensor and lengths_of(model, tensor) is not None


def _why_not_called(axes: Sequence[Axis], modules: Mapping[str, nn.Module]) -> str:
    names = list(dict.fromkeys(axis.module for axis in axes))
    for name in names:
        name = name if name in modules else name.rpartition(".")[0]  # 2 of 2.weight_orig
        why = why_not_watched(modules[name]) if name in modules else None
        if name in modules and is_recurrent(modules[name]):
            why = why_not_inside(modules[name]) or "is a recurrent layer, whose gates are watched by `need` alone"
        if why is not None:
            return f"{name} {why}"
    other = ", nor in a product that can be followed" if any(isinstance(m, Product) for m in modules.values()) else ""
    return f"{', '.join(names)} is not called as a module with a weight{other}"


def _has_children(path: str, modules: Mapping[str, nn.Module]) -> bool:
    return isinstance(modules[path], Place) or next(modules[path].children(), None) is not None


def _is_added(
    model: nn.Module,
    width: Width,
    route: Route,
    modules: Mapping[str, nn.Module],
    others: Sequence[Axis],
    call: ModelCall,
) -> bool:
    """Whether other producers are added to the first one; gates are multiplied instead."""
    seen: list[Tensor] = []
    consumer = route.place(model, route.consumer)
    silence = [Watch(route.place(model, other), "output", torch.zeros_like) for other in others]
    look = Watch(consumer, "input", lambda x: seen.append(route.neurons(width, x, consumer)))
    replay(model, call, [*silence, look], evaluation=True)
    return bool(seen[0].any())


def _branch_end(
    width: Width, route: Route, modules: Mapping[str, nn.Module], order: Sequence[tuple[str, Tensor, Tensor]]
) -> Route:
    """Move the point to the producer's output, or past norms applied directly to it."""
    carriers = {axis.module: axis for axis in width.carriers}
    point, end, chain = route.producer, order[0][2], []
    for path, given, output in order[1:]:
        if given is end and path in carriers and isinstance(modules[path], _NormBase):
            point, end = carriers[path], output
            chain.append(path)
    return replace(route, point=point, side="output", chain=tuple(chain), flattened=False, region=None)
