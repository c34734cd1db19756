"""Neurons unlike the present ones, by activations or weights: the NORTH* initializations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from .. import metrics
from ..layer import Layer, Need, scaled_like
from ..metrics import Metric
from .base import Initialization, Neurons, candidate_count, parameter_values


@dataclass(frozen=True)
class Random(Initialization):
    """Random fan-in, zero fan-out."""

    def __call__(self, layer: Layer, count: int, generator: torch.Generator) -> Neurons:
        return Neurons(count)


@dataclass(frozen=True)
class Select(Initialization):
    """The best of random candidates: those that, each alone, give the highest metric beside the present neurons.

    Args:
        metric: "effective_dimension", whose ties the sum of singular values breaks, or "orthogonality".
        candidates: how many beyond the neurons to add; 1000, or 100 for convolutions.
        eps: threshold of the effective rank.
        least: keep those with the lowest metric instead, an ablation: the paper's program does so in dense layers.
    """

    metric: Metric = "effective_dimension"
    candidates: int | None = None
    eps: float = 0.01
    least: bool = False
    needs: ClassVar[frozenset[Need]] = frozenset({"activations", "trials"})

    def __call__(self, layer: Layer, count: int, generator: torch.Generator) -> Neurons:
        fan_in = layer.random_fan_in(candidate_count(self.candidates, layer) + count, generator)
        return self.best(layer, fan_in, count)

    def best(self, layer: Layer, fan_in: Tensor, count: int) -> Neurons:
        """The best of given candidates."""
        H, new = layer.trial(fan_in)
        if self.metric == "orthogonality" and layer.convolutional:
            scores = _orthogonality_of_images(H.samples, new.samples)
            best = scores.argsort(descending=not self.least, stable=True)[:count]
        else:
            best = metrics.best_candidates(H.matrix, new.matrix, count, self.metric, eps=self.eps, worst=self.least)
        return Neurons(count, parameter_values(layer, layer.producer, fan_in[best.to(fan_in.device)]))


def _orthogonality_of_images(H: Tensor, new: Tensor) -> Tensor:
    """The orthogonality of (positions x neurons) x samples with the positions of each candidate appended."""
    flat = metrics.doubled(H.flatten(1))
    gram, n = flat @ flat.mH, len(flat)
    scores = []
    for candidate in metrics.doubled(new).unbind(1):
        own = gram + candidate @ candidate.mH
        scores.append(metrics.orthogonality_of_gram(own, n))
    return torch.tensor(scores)


@dataclass(frozen=True)
class Pre(Select):
    r"""Candidates whose pre-activations are orthogonal to the present ones, then selected like `Select`.

    .. math:: w = (H_{prev}^T)^+ v, \quad v \text{ a Gaussian vector projected on the kernel of } Z.

    For dense layers only, and with more samples in the buffer than neurons.
    """

    def check(self, layer: Layer) -> None:
        module = layer.model.get_submodule(layer.producer.module)
        if not isinstance(module, nn.Linear) or layer.producer.per_neuron > 1:
            kind = "a convolution" if layer.tensor(layer.producer).ndim > 2 else "anything but a plain linear layer"
            raise ValueError(
                f"{layer.name}: no fan-in is known that makes pre-activations of {kind} orthogonal: use 'select', or "
                f"leave it out with exclude=[{layer.name!r}]"
            )

    def __call__(self, layer: Layer, count: int, generator: torch.Generator) -> Neurons:
        H_prev, Z = map(metrics.doubled, layer.inputs_and_outputs())
        shape = candidate_count(self.candidates, layer) + count, Z.shape[1]
        dtype = torch.complex64 if Z.is_complex() else torch.float32
        v = torch.randn(shape, generator=generator, dtype=dtype).to(Z)
        basis = _row_space(Z)
        if basis.shape[0] >= Z.shape[1]:
            return Neurons(0, why_fewer=f"its {layer.size} neurons fill all {Z.shape[1]} samples of the buffer")
        v -= v @ basis.mH @ basis
        rows = v @ torch.linalg.pinv(H_prev)
        weight = layer.tensor(layer.producer)
        fan_in = layer.as_fan_in(rows).to(weight)
        rest = weight.movedim(layer.producer.axis, 0).shape[1:]
        return self.best(layer, fan_in.reshape(len(fan_in), 1, *rest), count)


def _row_space(matrix: Tensor) -> Tensor:
    """An orthonormal basis of the rows of a matrix, as rows."""
    _, singular, vectors = torch.linalg.svd(metrics.doubled(matrix), full_matrices=False)
    basis: Tensor = vectors[singular > max(matrix.shape) * torch.finfo(torch.float32).eps * singular.max()]
    return basis


@dataclass(frozen=True)
class Opt(Select):
    """Candidates improved by projected gradient ascent of the sum of singular values, then selected like `Select`.

    Costly: each step runs the model again up to the layer, forwards and backwards.

    Args:
        steps: gradient steps.
        rate: length of a step, relative to the candidates' norm.
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
    r"""Random fan-in projected on the kernel of the producer's weights, :math:`w - W^+Ww`; zero fan-out."""

    def __call__(self, layer: Layer, count: int, generator: torch.Generator) -> Neurons:
        basis = _row_space(layer.weight)
        room = layer.fan_in - len(basis)
        why = f"its weights leave only {room} of {layer.fan_in} fan-in directions"
        if room == 0:
            return Neurons(0, why_fewer=why)
        fan_in = layer.random_fan_in(min(count, room), generator)
        rows = metrics.doubled(fan_in.flatten(1))
        rows = rows - rows @ basis.mH @ basis
        fan_in = layer.as_fan_in(rows).to(fan_in).reshape(fan_in.shape)
        return Neurons(
            len(fan_in), parameter_values(layer, layer.producer, fan_in), why_fewer=why if room < count else None
        )
