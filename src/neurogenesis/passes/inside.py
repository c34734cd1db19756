r"""Products inside recurrent layers, whose kernels compute all steps of a sequence as one operation.

The gates of a layer get :math:`W x_t` of its input, and an LSTM with projections returns :math:`r_t = P h_t` of its
cells' outputs. Hooks reach neither the gradient at these products nor :math:`h_t`. Both come from other runs of the
same kernels:

- With :math:`[W, 1]` in place of W and inputs :math:`[x_t, e_t]`, the layer adds :math:`e_t` to the product. At
  :math:`e = 0` it computes the same, and the gradient of e is that at the product.
- What is added to :math:`r_t` is added to the output, and through the recurrent weights U to the gates of the next
  step: with :math:`[W, U]` in place of W and inputs :math:`[x_t, e_{t-1}]`.
- With :math:`[P, 1]` in place of P, the layer also returns :math:`h_t`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_map_only

from ..structure.axes import Axis
from ..structure.randomness import RandomState, random_state_restored
from .packing import ends, shifted, tensor_of, with_tensor
from .products import Act, Place, Wanted, always
from .replay import Hook


@dataclass(frozen=True)
class LayerCall:
    """The arguments of a recurrent layer, without gradients, and the random numbers of the dropout between its layers.

    Args:
        x: its input.
        hx: its initial states, or None.
        random: the state of the generators, if it draws from them.
    """

    x: Any
    hx: Any
    random: RandomState | None

    @staticmethod
    def of(layer: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> LayerCall:
        given = dict(zip(("input", "hx"), args, strict=False)) | kwargs
        x, dtype = given["input"], next(layer.parameters()).dtype  # as if without autocast
        states = tree_map_only(Tensor, lambda each: each.detach().to(dtype), given.get("hx"))
        draws = layer.training and layer.dropout > 0 and layer.num_layers > 1
        random = RandomState.present(layer) if draws else None
        return LayerCall(with_tensor(x, tensor_of(x).detach().to(dtype)), states, random)

    @contextmanager
    def running(self, layer: nn.Module) -> Iterator[None]:
        """Run with the same random numbers, and without autocast."""
        device = tensor_of(self.x).device.type
        with torch.autocast(device, enabled=False):
            if self.random is None:
                yield
                return
            with random_state_restored(layer, self.random):
                yield


class Inside(Place):
    """The products with one weight inside a recurrent layer, as if they were a module.

    Actions on the input get it once for all steps. Actions on the output get zeros in its place: their gradient is that
    at the output.
    """

    def __init__(self, tensor: str, layer: Any):
        super().__init__(tensor)
        self._layer = (layer,)  # not a part of this module
        self.name = tensor.rpartition(".")[2]

    @property
    def layer(self) -> Any:
        return self._layer[0]

    def stands_for(self, axis: Axis) -> bool:
        return axis.role == "consumer"

    def multiplies(self, axis: Axis) -> bool:
        return axis.role == "consumer"

    def observe(self, side: str, action: Act, wanted: Wanted = always) -> Any:
        """Call `action` with the input or output whenever the layer runs; what it returns is ignored."""
        if side == "output":
            return _GradientWatch(self, action, wanted)

        def before(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if wanted():
                action(self.inputs(LayerCall.of(layer, args, kwargs)))

        return self.layer.register_forward_pre_hook(Hook(before), with_kwargs=True)

    def inputs(self, call: LayerCall) -> Tensor:
        """What the weight is multiplied by, with the axes of the layer's input."""
        raise NotImplementedError

    def outputs(self, call: LayerCall, added: Tensor) -> list[Tensor]:
        """The outputs and states of the layer if something is added to the products with the weight."""
        raise NotImplementedError


class _GradientWatch:
    """Shows zeros in place of a product, and lets them get their gradient when those of all outputs have arrived."""

    def __init__(self, place: Inside, action: Act, wanted: Wanted):
        self._place, self._action, self._wanted = place, action, wanted
        self._begun: list[tuple[LayerCall, Tensor]] = []
        layer = place.layer
        self._handles = (
            layer.register_forward_pre_hook(Hook(self._before), with_kwargs=True),
            layer.register_forward_hook(Hook(self._after)),
        )

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _before(self, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._begun.clear()
        if not self._wanted():
            return
        weight = getattr(layer, self._place.name)
        zeros = weight.new_zeros(*tensor_of((*args, *kwargs.values())[0]).shape[:-1], len(weight))
        zeros.requires_grad_(torch.is_grad_enabled())
        self._action(zeros)
        if zeros._backward_hooks:
            self._begun.append((LayerCall.of(layer, args, kwargs), zeros))

    def _after(self, layer: Any, args: Any, output: Any) -> None:
        found = [each for each in _tensors(output) if each.requires_grad]
        if not self._begun or not found:
            return
        call, zeros = self._begun.pop()
        chosen = [number for number, each in enumerate(_tensors(output)) if each.requires_grad]

        def arrived(gradients: Sequence[Tensor | None]) -> None:
            with torch.enable_grad(), call.running(layer):
                outputs = self._place.outputs(call, zeros)
            known = [(outputs[number], own) for number, own in zip(chosen, gradients, strict=True) if own is not None]
            if known:
                tensors, given = zip(*((each, own.to(each.dtype)) for each, own in known), strict=True)
                torch.autograd.backward(tensors, given, inputs=[zeros])

        register_multi_grad_hook(found, arrived)


class GateInputs(Inside):
    """The products of a recurrent layer's input with the weight of its gates, in one direction."""

    def inputs(self, call: LayerCall) -> Tensor:
        found: Tensor = tensor_of(call.x)
        return found

    def outputs(self, call: LayerCall, added: Tensor) -> list[Tensor]:
        layer, x = self.layer, tensor_of(call.x)
        gates = added.shape[-1]
        weights = [weight.detach() for weight in layer._flat_weights]
        for number, name in enumerate(layer._flat_weights_names):
            if name.removesuffix("_reverse") == "weight_ih_l0":
                own = weights[number]
                more = torch.eye(gates).to(own) if name == self.name else own.new_zeros(gates, gates)
                weights[number] = torch.cat([own, more], 1)
        wider = _like(layer, x.shape[-1] + gates, layer.num_layers, weights)
        return _tensors(wider(with_tensor(call.x, torch.cat([x, added], -1)), call.hx))


class Projections(Inside):
    """The products of the cells' outputs with a projection, in one layer and direction of an LSTM."""

    def __init__(self, tensor: str, layer: Any):
        super().__init__(tensor, layer)
        name = self.name.removesuffix("_reverse")
        self._number, self._backwards = int(name.rpartition("_l")[2]), name != self.name

    def inputs(self, call: LayerCall) -> Tensor:
        layer = self.layer
        with torch.no_grad(), call.running(layer):
            x = call.x
            for number in range(self._number):
                x, _ = self._run(number, x, call.hx)
                x = self._between(number, x)
            weights = self._weights(self._number)
            size = layer.hidden_size
            for own in weights:
                own["weight_hr"] = torch.cat([own["weight_hr"], torch.eye(size).to(own["weight_hr"])])
                own["weight_hh"] = F.pad(own["weight_hh"], (0, size))
            states, cells = self._states(self._number, call.hx) or (None, None)
            wider = None if states is None else (F.pad(states, (0, size)), cells)
            output, _ = _layer_of(layer, x, weights, layer.proj_size + size)(x, wider)
        found: Tensor = tensor_of(output)
        last = (layer.proj_size + size) * (1 + self._backwards)
        return found[..., last - size : last]

    def outputs(self, call: LayerCall, added: Tensor) -> list[Tensor]:
        x, states, cells = call.x, list[Tensor](), list[Tensor]()
        for number in range(self.layer.num_layers):
            x, (state, cell) = self._run(number, x, call.hx, added if number == self._number else None)
            states.append(state)
            cells.append(cell)
            x = self._between(number, x)
        return [tensor_of(x), torch.cat(states), torch.cat(cells)]

    def _run(self, number: int, x: Any, hx: Any, added: Tensor | None = None) -> tuple[Any, tuple[Tensor, Tensor]]:
        """Outputs and last states of one layer, with something added to its projections."""
        layer, weights = self.layer, self._weights(number)
        if added is None:
            found: tuple[Any, tuple[Tensor, Tensor]] = _layer_of(layer, x, weights, layer.proj_size)(
                x, self._states(number, hx)
            )
            return found
        for backwards, own in enumerate(weights):
            more = own["weight_hh"] if backwards == self._backwards else torch.zeros_like(own["weight_hh"])
            own["weight_ih"] = torch.cat([own["weight_ih"], more], 1)
        before, end = _at_other_steps(added, x, layer.batch_first, self._backwards)
        x = with_tensor(x, torch.cat([tensor_of(x), before], -1))
        output, (state, cell) = _layer_of(layer, x, weights, layer.proj_size)(x, self._states(number, hx))
        left = layer.proj_size * self._backwards
        right = layer.proj_size * (layer.bidirectional - self._backwards)
        output = with_tensor(output, tensor_of(output) + F.pad(added, (left, right)))
        ends_by_direction = [end if each == self._backwards else torch.zeros_like(end) for each in range(len(state))]
        return output, (state + torch.stack(ends_by_direction), cell)

    def _between(self, number: int, x: Any) -> Any:
        """The input of the next layer."""
        layer = self.layer
        if number == layer.num_layers - 1 or not layer.dropout:
            return x
        return with_tensor(x, F.dropout(tensor_of(x), layer.dropout, layer.training))

    def _weights(self, number: int) -> list[dict[str, Tensor]]:
        """The weights of one layer, of each direction."""
        kinds = ("weight_ih", "weight_hh", *(("bias_ih", "bias_hh") if self.layer.bias else ()), "weight_hr")
        suffixes = (f"_l{number}", f"_l{number}_reverse")[: 1 + self.layer.bidirectional]
        return [{kind: getattr(self.layer, kind + suffix).detach() for kind in kinds} for suffix in suffixes]

    def _states(self, number: int, hx: Any) -> tuple[Tensor, Tensor] | None:
        """The initial states of one layer."""
        directions = 1 + self.layer.bidirectional
        start, stop = directions * number, directions * (number + 1)
        return None if hx is None else (hx[0][start:stop], hx[1][start:stop])


def inside(tensor: str, layer: Any) -> Inside | None:
    """The products with a weight inside a recurrent layer, if they can be watched."""
    name = tensor.rpartition(".")[2]
    if why_not_inside(layer) is None and name in layer._parameters:
        if name.removesuffix("_reverse") == "weight_ih_l0":
            return GateInputs(tensor, layer)
        if name.startswith("weight_hr_l"):
            return Projections(tensor, layer)
    return None


def why_not_inside(layer: nn.Module) -> str | None:
    """Why products inside a recurrent layer cannot be watched; None if they can."""
    if not isinstance(layer, nn.RNNBase):
        return "is a recurrent cell, which gets a gradient at each step: a layer such as nn.LSTM can be watched"
    if not type(layer).forward.__module__.startswith("torch.nn."):
        return "is a recurrent layer with a forward method of its own"
    return None


def _like(layer: Any, input_size: int, layers: int, weights: list[Tensor]) -> Any:
    """A recurrent layer with other weights."""
    kind: Any = {"LSTM": nn.LSTM, "GRU": nn.GRU}.get(layer.mode, nn.RNN)
    own = {"nonlinearity": layer.mode.removeprefix("RNN_").lower()} if kind is nn.RNN else {}
    result = kind(
        input_size, layer.hidden_size, layers, **own, bias=layer.bias, batch_first=layer.batch_first,
        dropout=layer.dropout if layers > 1 else 0.0, bidirectional=layer.bidirectional, device="meta",
    )  # fmt: skip
    result.proj_size = layer.proj_size
    result._flat_weights = weights
    return result.train(layer.training)


def _layer_of(layer: Any, x: Any, weights: Sequence[dict[str, Tensor]], projected: int) -> Any:
    """One layer of an LSTM with projections, with other weights."""
    result = _like(layer, tensor_of(x).shape[-1], 1, [each for own in weights for each in own.values()])
    result.proj_size = projected
    return result


def _at_other_steps(rows: Tensor, x: Any, batch_first: bool, backwards: bool) -> tuple[Tensor, Tensor]:
    """The rows of the step before each, and those of the last step, in a direction."""
    if isinstance(x, PackedSequence):
        return shifted(rows, x, backwards), ends(rows, x, backwards)
    time = 1 if batch_first and rows.ndim == 3 else 0
    by_step = rows.movedim(time, 0)
    nothing = torch.zeros_like(by_step[:1])
    parts = [by_step[1:], nothing] if backwards else [nothing, by_step[:-1]]
    return torch.cat(parts).movedim(0, time), by_step[0 if backwards else -1]


def _tensors(output: Any) -> list[Tensor]:
    """The output and the last states of a recurrent layer."""
    first, states = output
    return [tensor_of(first), *(states if isinstance(states, tuple) else (states,))]
