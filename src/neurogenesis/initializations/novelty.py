"""The NORTH* initializations: neurons that differ from the present ones in activations or weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from .. import metrics
from ..candidates.weights import scaled_like
from ..layer import Layer, Requirement
from ..metrics import Metric
from ..passes.records import NotFinite
from ..structure.widths import ALL_KINDS, Kinds
from .base import Initialization, Neurons, candidate_count, parameter_values


@dataclass(frozen=True)
class Random(Initialization):
    """Random fan-in, zero fan-out; the other way round where a norm runs across the width."""

    kinds: ClassVar[frozenset[Kinds]] = ALL_KINDS

    def __call__(self, layer: Layer, count: int, generator: torch.Generator) -> Neurons:
        return Neurons(count)


@dataclass(frozen=True)
class Select(Initialization):
    """The random candidates that each give the highest metric together with the present neurons; zero fan-out.

    Args:
        metric: "effective_dimension", with ties broken by the sum of singular values, or "orthogonality".
        candidates: number of candidates in addition to the neurons to add; by default 1000, or 100 for convolutions.
        eps: threshold of the effective rank.
        least: select the candidates with the lowest metric instead, as the authors' code does in dense layers.
    """

    metric: Metric = "effective_dimension"
    candidates: int | None = None
    eps: float = 0.01
    least: bool = False
    needs: ClassVar[frozenset[Requirement]] = frozenset({"activations", "trials"})

    def __call__(self, layer: Layer, count: int, generator: torch.Generator) -> Neurons:
        fan_in = layer.random_fan_in(candidate_count(self.candidates, layer) + count, generator)
        return self.best(layer, fan_in, count)

    def best(self, layer: Layer, fan_in: Tensor, count: int) -> Neurons:
        """Select the best of the given candidates."""
        H, new = layer.trial(fan_in)
        products = H.products(new)
        if not products.finite:
            raise NotFinite(f"activations of {layer.name}")
        if self.metric == "orthogonality" and layer.convolutional_network:
            scores = _orthogonality_of_images(H.samples, new.samples)
            best = scores.argsort(descending=not self.least, stable=True)[:count]
        else:
            best = metrics.best_by_products(
                products,
                count,
                self.metric,
                lambda i: metrics.singular_sum(H.matrix, new.of(i)),
                eps=self.eps,
                worst=self.least,
            )
        return Neurons(count, parameter_values(layer, layer.producer, fan_in[best.to(fan_in.device)]))


def _orthogonality_of_images(H: Tensor, new: Tensor) -> Tensor:
    """Orthogonality of (neurons x positions) x samples with one candidate appended, for each candidate."""
    flat = metrics.doubled(H.flatten(1))
    gram, n = flat @ flat.mH, len(flat)
    scores = []
    for candidate in metrics.doubled(new).unbind(1):
        own = gram + candidate @ candidate.mH
        scores.append(metrics.orthogonality_of_gram(own, n))
    return torch.tensor(scores)


@dataclass(frozen=True)
class Pre(Select):
    r"""`Select` from candidates whose pre-activations are orthogonal to those of the present neurons.

    .. math:: w = (H_{prev}^T)^+ v, \quad v \text{ a Gaussian vector projected onto the kernel of } Z.

    Supports only dense layers, and needs more samples in the buffer than neurons.
    """

    def check(self, layer: Layer) -> None:
        module = layer.model.get_submodule(layer.producer.module)
        if not isinstance(module, nn.Linear) or layer.producer.per_neuron > 1:
            kind = "a convolution" if layer.tensor(layer.producer).ndim > 2 else "not a plain linear layer"
            raise ValueError(
                f"{layer.name}: 'pre' supports only linear layers, and {layer.producer.module} is {kind}: "
                f"use 'select', or exclude=[{layer.name!r}]"
            )

    def __call__(self, layer: Layer, count: int, generator: torch.Generator) -> Neurons:
        H_prev, Z = map(metrics.doubled, layer.inputs_and_outputs())
        shape = candidate_count(self.candidates, layer) + count, Z.shape[1]
        dtype = torch.complex64 if Z.is_complex() else torch.float32
        v = torch.randn(shape, generator=generator, dtype=dtype).to(Z)
        basis = _row_space(Z)
        if basis.shape[0] >= Z.shape[1]:
            why = f"its {layer.size} neurons span all {Z.shape[1]} samples of the buffer; use a larger buffer"
            return Neurons(0, why_fewer=why)
        v -= v @ basis.mH @ basis
        rows = v @ torch.linalg.pinv(H_prev)
        weight = layer.tensor(layer.producer)
        fan_in = layer.as_fan_in(rows).to(weight)
        rest = weight.movedim(layer.producer.axis, 0).shape[1:]
        return self.best(layer, fan_in.reshape(len(fan_in), 1, *rest), count)


def _row_space(matrix: Tensor) -> Tensor:
    """Orthonormal basis of the row space of a matrix, as rows."""
    _, singular, vectors = torch.linalg.svd(metrics.doubled(matrix), full_matrices=False)
    basis: Tensor = vectors[singular > max(matrix.shape) * torch.finfo(torch.float32).eps * singular.max()]
    return basis


@dataclass(frozen=True)
class Opt(Select):
    r"""`Select` from random candidates that projected gradient ascent has improved.

    Each candidate is moved so that its activations, appended to those of the present neurons, have a larger sum of
    singular values, and is scaled back to the norm of new fan-ins after every step:

    .. math:: w \leftarrow \Pi\Big(w + \rho \frac{\nabla_w \sum_i \sigma_i}{\|\nabla_w \sum_i \sigma_i\|}\Big).

    Every step runs the model forward and backward up to the layer, with all candidates: seven to ten times the cost of
    `Select`. With the metric "orthogonality" the ascent is the same; only the selection uses the metric.

    The sum of singular values also rewards large activations. After rectifiers, candidates therefore move towards one
    direction in which they fire on all inputs, and networks end less accurate than with `Select` or `Random`.

    Args:
        steps: number of ascent steps.
        rate: norm of an ascent step, relative to the mean norm of the present neurons' fan-in.
    """

    steps: int = 10
    rate: float = 0.1

    def __call__(self, layer: Layer, count: int, generator: torch.Generator) -> Neurons:
        fan_in = layer.random_fan_in(candidate_count(self.candidates, layer) + count, generator)
        for _ in range(self.steps):
            fan_in = fan_in.detach().requires_grad_()
            H, new = layer.trial(fan_in, gradients=True)
            with torch.enable_grad():
                total = metrics.singular_sum_with(H.matrix.detach(), new.matrix).sum()
            (gradient,) = torch.autograd.grad(total, fan_in)
            with torch.no_grad():
                step = scaled_like(gradient, layer.weight) * self.rate
                fan_in = layer.as_fan_in(fan_in + step)
        return self.best(layer, fan_in.detach(), count)


@dataclass(frozen=True)
class Weight(Initialization):
    r"""Random fan-in projected onto the kernel of the producer's weights, :math:`w - W^+Ww`; zero fan-out."""

    def __call__(self, layer: Layer, count: int, generator: torch.Generator) -> Neurons:
        basis = _row_space(layer.weight)
        room = layer.fan_in - len(basis)
        why = f"its weights leave only {room} of {layer.fan_in} fan-in directions free"
        if room == 0:
            return Neurons(0, why_fewer=why)
        fan_in = layer.random_fan_in(min(count, room), generator)
        rows = metrics.doubled(fan_in.flatten(1))
        rows = rows - rows @ basis.mH @ basis
        fan_in = layer.as_fan_in(rows).to(fan_in).reshape(fan_in.shape)
        return Neurons(
            len(fan_in), parameter_values(layer, layer.producer, fan_in), why_fewer=why if room < count else None
        )
