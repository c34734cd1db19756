"""Neurons that lower the loss fastest: GradMax, Firefly, NeST."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from ..candidates.probes import run_probe
from ..candidates.weights import scaled_like
from ..layer import Layer, Requirement
from ..structure.axes import Axis
from .base import Initialization, Neurons, candidate_count, parameter_values


@dataclass(frozen=True)
class GradMax(Initialization):
    r"""The fan-out v for which the gradient of the fan-in weights (without biases) is largest.

    The fan-outs are left singular vectors of the auxiliary gradient, at most as many as the next layer has neurons.
    With convolutions or norms the auxiliary gradient is measured in the network, with one trial neuron per entry of the
    fan-out, if the fan-out has at most 2,048 entries.

    In the paper, fan-ins are zero. Behind a rectifier such a neuron is linear for a single step: where inputs are
    positive, the step turns it to a side where it fires on all samples, or on none, and then it never learns again. In
    networks without norms more than half of them die in this way. So new neurons are pairs of equal random fan-ins and
    opposite fan-outs, as in `Twins`:

    .. math:: \sigma(w \cdot x) v + \sigma(w \cdot x) (-v) = 0

    The last of an odd number has no fan-out. Where a dropout lies between, pairs cancel out in evaluation, and on
    average in training.

    Args:
        pairs: whether new neurons are pairs; otherwise their fan-ins are zero, as in the paper.

    Reference: Evci et al., "GradMax: Growing Neural Networks using Gradient Information" (ICLR 2022).
    """

    pairs: bool = True
    needs: ClassVar[frozenset[Requirement]] = frozenset({"gradients"})

    def check(self, layer: Layer) -> None:
        assert layer.route is not None
        assert layer.example is not None
        probe = run_probe(layer.model, layer.width, layer.route, layer.example)
        if isinstance(probe, str):
            raise ValueError(f"{layer.name}: {probe}")
        where = f"between {layer.route.producer.module!r} and {layer.route.consumer.module!r}"
        if not probe.slope().any():
            modules = [path for path in layer.route.between if type(layer.model.get_submodule(path)) is nn.ReLU]
            what = f"the ReLU {', '.join(map(repr, modules))}" if modules else "the activation function"
            raise ValueError(
                f"{layer.name}: {what} {where} has derivative 0 at 0, so new neurons with zero fan-in would never get "
                "a gradient: call ng.nn.replace_relu(model) first, or use ng.nn.ReLU where your code calls relu"
            )
        if not probe.keeps_zero:
            raise ValueError(
                f"{layer.name}: the function {where} is not 0 at 0, so new neurons with zero fan-in would change the "
                f"outputs: use another initialization, or exclude=[{layer.name!r}]"
            )

    def __call__(self, layer: Layer, count: int, generator: torch.Generator) -> Neurons:
        if not layer.has_gradients:
            return Neurons(0, why_fewer=_NO_GRADIENT)
        wanted = -(-count // 2) if self.pairs else count  # of fan-outs
        vectors, singular = _left_singular_vectors(self._matrix(layer).double(), wanted)
        useful = int((singular > _NOISE_LEVEL * singular[0]).sum()) if singular[0] > 0 else 0
        present = layer.of_neurons(layer.consumer)
        consumer_neurons = layer.tensor(layer.consumer).movedim(layer.consumer.axis, 0).shape[1]
        limit = min(wanted, consumer_neurons, useful)
        number = min(count, 2 * limit) if self.pairs else limit
        why = f"the auxiliary gradient has only {useful} directions, and the next layer {consumer_neurons} neurons"
        why_fewer = why if number < count else None
        if not number:
            return Neurons(0, why_fewer=why_fewer)
        # A row of the matrix is one consumer neuron at one kernel position. Where a neuron has several columns of the
        # consumer, its fan-out is stored with the position first.
        fan_out = scaled_like(_as_fan_out(layer, vectors[:, :limit].T, present), present)
        if self.pairs:
            fan_out = torch.cat([fan_out[: number // 2], -fan_out[: number // 2], fan_out[:1] * 0])[:number]
        values = parameter_values(layer, layer.consumer, fan_out)
        for axis in layer.width.axes if self.pairs else layer.width.producers:
            if axis.role != "consumer":
                values |= parameter_values(layer, axis, self._values(layer, axis, number, generator))
        return Neurons(number, values, why_fewer=why_fewer)

    def _values(self, layer: Layer, axis: Axis, number: int, generator: torch.Generator) -> Tensor:
        """Values of new neurons along an axis of the producers or in between."""
        if not self.pairs:
            return layer.tensor(axis).new_zeros(1).expand(number, *layer.of_neurons(axis).shape[1:])
        new = layer.default(axis, -(-number // 2), generator)
        return torch.cat([new[: number // 2], new])

    @staticmethod
    def _matrix(layer: Layer) -> Tensor:
        """Gradient of the fan-in for each unit vector of fan-out, fan-out x fan-in."""
        assert layer.bridge is not None
        assert layer.route is not None
        norms = {axis.module for axis in layer.width.carriers} & set(layer.route.between)
        present, weight = layer.of_neurons(layer.consumer), layer.of_neurons(layer.producer)
        if (not layer.bridge.producer and not norms) or present[0].numel() > _MAX_UNITS:
            return layer.bridge.matrix(layer.auxiliary_gradient())
        units = torch.eye(present[0].numel()).to(present)
        fan_out = _as_fan_out(layer, units, present)
        gradient, _ = layer.trial_gradients(weight.new_zeros(len(units), *weight.shape[1:]), fan_out)
        return gradient.flatten(1)


_NO_GRADIENT = "no gradient has reached it"

_MAX_UNITS = 2048  # entries of fan-out: one trial neuron for each of more would take more memory than the model
_NOISE_LEVEL = 1e-6  # relative to the largest singular value: smaller ones are rounding errors of single precision
_MAX_EXACT_SVD = 1024  # of the smaller side, for which an SVD takes less than a second
_OVERSAMPLING = 16  # extra directions, with which subspace iteration converges for the requested ones
_ITERATIONS = 20  # of subspace iteration: the error at singular value s falls by (s_last / s)^40, s_last the last extra


def _left_singular_vectors(matrix: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Leading left singular vectors as columns, at least `count`, and their singular values, largest first."""
    if min(matrix.shape) <= _MAX_EXACT_SVD:
        if matrix.shape[1] > matrix.shape[0]:  # A = LQ: the left singular vectors of A are those of L
            matrix = torch.linalg.qr(matrix.T, mode="r").R.T
        vectors, singular, _ = torch.linalg.svd(matrix, full_matrices=False)
        return vectors, singular
    # Large matrices: subspace iteration with a fixed seed.
    start = torch.randn(
        matrix.shape[1], count + _OVERSAMPLING, generator=torch.Generator().manual_seed(0), dtype=matrix.dtype
    )
    basis = torch.linalg.qr(matrix @ start.to(matrix)).Q
    for _ in range(_ITERATIONS):
        basis = torch.linalg.qr(matrix @ (matrix.T @ basis)).Q
    inner, singular, _ = torch.linalg.svd(basis.T @ matrix, full_matrices=False)
    return basis @ inner, singular


def _as_fan_out(layer: Layer, rows: Tensor, present: Tensor) -> Tensor:
    """Reshape vectors over (consumer neurons x positions) like `present`, neurons x per neuron x the rest."""
    per_neuron = present.shape[1]
    if per_neuron > 1:  # a flattened image: the positions are the columns
        rows = rows.reshape(len(rows), -1, per_neuron).movedim(1, 2)
    return rows.reshape(len(rows), *present.shape[1:]).to(present)


@dataclass(frozen=True)
class Firefly(Initialization):
    r"""The candidates with the largest gradients among splits of present neurons and new neurons.

    A split divides a neuron with fan-in w and fan-out v into two:

    .. math:: \left(w + \delta, \tfrac12 v + u\right) \quad\text{and}\quad \left(w - \delta, \tfrac12 v - u\right)

    with random noise :math:`\delta`, and u of a random direction. Without u, as in the paper, both halves get the same
    gradients but for the effect of the noise, and stay alike for a long time, above all if the optimizer treats them
    alike, as with ages. A new neuron has random fan-in and a small random fan-out. Gradients are first-order: they use
    the gradient at the consumer's output without the candidates.

    Args:
        noise: norm of the noise and of the small fan-outs, relative to the mean norm of the present neurons.
        candidates: number of candidates in addition to the neurons to add, half of them splits; by default 1000, or
            100 for convolutions.
        apart: norm of u, relative to that of v / 2; 0 as in the paper.

    Reference: Wu et al., "Firefly Neural Architecture Descent" (NeurIPS 2020).
    """

    noise: float = 1e-4
    candidates: int | None = None
    apart: float = 1.0
    needs: ClassVar[frozenset[Requirement]] = frozenset({"gradients", "trials"})
    changes_present_neurons: ClassVar[bool] = True

    def check(self, layer: Layer) -> None:
        assert layer.route is not None
        for axis in layer.width.consumers:
            module = layer.model.get_submodule(axis.tensor.rpartition(".")[0])
            if not isinstance(module, (nn.Linear, _ConvNd)) or axis.module not in layer.route.called:
                raise ValueError(
                    f"{layer.name}: {axis.module} is not called as a linear layer or convolution, and half a fan-out "
                    f"may not have half the effect there: pass exclude=[{layer.name!r}]"
                )

    def __call__(self, layer: Layer, count: int, generator: torch.Generator) -> Neurons:
        if not layer.has_gradients:
            return Neurons(0, why_fewer=_NO_GRADIENT)
        total = candidate_count(self.candidates, layer) + count
        splits = total // 2
        present, columns = layer.of_neurons(layer.producer), layer.of_neurons(layer.consumer)
        copied = torch.randint(layer.size, (splits,), generator=generator)
        noise = scaled_like(_uniform(present, splits, generator), present) * self.noise
        fresh = layer.random_fan_in(total - splits, generator)
        small = scaled_like(_uniform(columns, total - splits, generator), columns) * self.noise
        fan_in = torch.cat([present[copied] - noise, fresh])
        fan_outs = {}
        for axis in layer.width.consumers:
            own = layer.of_neurons(axis)
            new = small if axis == layer.consumer else own.new_zeros(total - splits, *own.shape[1:])
            fan_outs[axis] = torch.cat([self._halves(own[copied], generator), new])
        sources = torch.cat([copied, torch.full((total - splits,), -1)])
        bias = fan_in.new_zeros(total, present.shape[1])
        for axis in layer.biases:
            bias[:splits] = layer.of_neurons(axis)[copied]
        gradients = layer.trial_gradients(fan_in, fan_outs[layer.consumer], bias, sources)
        scores = torch.cat([each.flatten(1) for each in gradients], 1).norm(dim=1)
        chosen = torch.tensor(self._choose(scores, sources, count))
        return self._neurons(layer, fan_in, fan_outs, noise, sources, chosen)

    def _halves(self, fan_outs: Tensor, generator: torch.Generator) -> Tensor:
        """One half of each fan-out, v / 2 - u."""
        if not self.apart:
            return fan_outs / 2
        u = _uniform(fan_outs, len(fan_outs), generator)
        lengths = [each.flatten(1).norm(dim=1).reshape(-1, *[1] * (u.ndim - 1)) for each in (fan_outs, u)]
        half: Tensor = (fan_outs - u * (self.apart * lengths[0] / lengths[1])) / 2
        return half

    @staticmethod
    def _choose(scores: Tensor, sources: Tensor, count: int) -> list[int]:
        """Indices of the candidates with the highest scores, at most one split per neuron."""
        chosen: list[int] = []
        taken: set[int] = set()
        for index in scores.argsort(descending=True, stable=True).tolist():
            source = int(sources[index])
            if len(chosen) < count and source not in taken:
                chosen.append(index)
                if source >= 0:
                    taken.add(source)
        return chosen

    @staticmethod
    def _neurons(
        layer: Layer, fan_in: Tensor, fan_outs: Mapping[Axis, Tensor], noise: Tensor, sources: Tensor, chosen: Tensor
    ) -> Neurons:
        source = sources[chosen]
        split = source >= 0
        halved, own = source[split], chosen[split]
        values: dict[tuple[str, int], Tensor] = {}
        changes: dict[str, Tensor] = {}
        for axis in layer.width.axes:
            if axis == layer.producer:
                new = fan_in[chosen]
                changes[axis.tensor] = layer.change(axis, halved, noise[own])
            elif axis.role == "consumer":
                new = fan_outs[axis][chosen]
                change = layer.change(axis, halved, -fan_outs[axis][own])
                changes[axis.tensor] = changes.get(axis.tensor, 0) + change
            else:
                default = layer.default(axis, len(chosen))
                copies = layer.of_neurons(axis)[source.clamp_min(0)].to(default)
                new = torch.where(split.reshape(-1, *[1] * (copies.ndim - 1)).to(copies.device), copies, default)
            values |= parameter_values(layer, axis, new)
        return Neurons(len(chosen), values, changes)


def _uniform(like: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Vectors like those of a tensor (first axis), with entries from -1 to 1."""
    noise: Tensor = torch.rand((count, *like.shape[1:]), generator=generator).to(like) * 2 - 1
    return noise


@dataclass(frozen=True)
class NeST(Initialization):
    r"""Neurons that bridge the pairs of units with the largest auxiliary gradient, with signs that lower the loss.

    Dense layers: each of the largest entries (o, i) of the auxiliary gradient A adds :math:`s\sqrt{|A_{oi}|}` to fan-in
    i and :math:`-\mathrm{sign}(A_{oi}) s\sqrt{|A_{oi}|}` to fan-out o, with a random sign s. Convolutions: the random
    candidates that each lower the loss most; this requires `Grower.step(closure)`.

    Args:
        part: fraction of the entries of A to use.
        candidates: for convolutions, number of candidates in addition to the neurons to add; by default 100.

    Reference: Dai et al., "NeST: A Neural Network Synthesis Tool Based on a Grow-and-Prune Paradigm" (2019).
    """

    part: float = 0.4
    candidates: int | None = None
    needs: ClassVar[frozenset[Requirement]] = frozenset({"gradients"})

    def needs_loss(self, layer: Layer) -> bool:
        """Whether it evaluates the loss again, as it does for convolutions."""
        return layer.bridge is not None and bool(layer.bridge.producer)

    def __call__(self, layer: Layer, count: int, generator: torch.Generator) -> Neurons:
        if self.needs_loss(layer):
            return self._by_loss(layer, count, generator)
        if not layer.has_gradients:
            return Neurons(0, why_fewer=_NO_GRADIENT)
        assert layer.bridge is not None
        gradient = layer.bridge.matrix(layer.auxiliary_gradient())
        size = gradient.abs()
        kept = size >= size.flatten().kthvalue(max(1, round((1 - self.part) * size.numel()))).values
        root = (size * kept).sqrt()
        signs = torch.rand((count, *gradient.shape), generator=generator).to(root) < 0.5
        entries = torch.where(signs, -root, root)
        fan_in, fan_out = entries.sum(1), -(gradient.sign() * entries).sum(2)
        present, columns = layer.of_neurons(layer.producer), layer.of_neurons(layer.consumer)
        fan_in = scaled_like(fan_in.reshape(count, *present.shape[1:]), present)
        fan_out = scaled_like(_as_fan_out(layer, fan_out, columns), columns)
        values = parameter_values(layer, layer.producer, fan_in) | parameter_values(layer, layer.consumer, fan_out)
        return Neurons(count, values)

    def _by_loss(self, layer: Layer, count: int, generator: torch.Generator) -> Neurons:
        if layer.now.loss_with is None:
            raise TypeError(
                f"{layer.name}: 'nest' evaluates the loss again for convolutions: call grower.step(closure) with "
                "a function that runs the model and returns the loss"
            )
        total = candidate_count(self.candidates, layer) + count
        columns = layer.of_neurons(layer.consumer)
        fan_in = layer.random_fan_in(total, generator)
        fan_out = scaled_like(_uniform(columns, total, generator), columns)
        losses = []
        for index in range(total):
            one = slice(index, index + 1)
            losses.append(layer.now.loss_with(self._fan_values(layer, fan_in[one], fan_out[one])))
        best = torch.tensor(losses, dtype=torch.float64).argsort(stable=True)[:count]
        return Neurons(count, self._fan_values(layer, fan_in[best], fan_out[best]))

    @staticmethod
    def _fan_values(layer: Layer, fan_in: Tensor, fan_out: Tensor) -> dict[tuple[str, int], Tensor]:
        return parameter_values(layer, layer.producer, fan_in) | parameter_values(layer, layer.consumer, fan_out)
