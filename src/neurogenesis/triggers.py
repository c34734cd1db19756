r"""When, where and how many: triggers look at a `Layer` after a gradient step and say how many neurons to add.

A trigger is a function of a `Layer` that returns a `Decision`, or just a number. It may have

* ``needs``: what it looks at, of "activations" and "gradients"; a function without it gets both;
* ``start(layer)``: called once for each layer before training, for what is to be remembered of the beginning;
* ``patient = True``: it need not be asked at every step while it asks for nothing. A trigger without it is.

Numbers to be kept from step to step go into ``layer.memory``.

Reference: Maile, Rachelson, Luga, Wilson, "When, where, and how to add new neurons to ANNs" (AutoML 2022).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from . import metrics
from .layer import Layer, NotFinite
from .metrics import Metric
from .passes.buffers import Activations, Untrained


@dataclass(frozen=True)
class Decision:
    """How many neurons to add now, and what it was decided from."""

    count: int
    metric: float | None = None
    threshold: float | None = None


Trigger = Callable[[Layer], "Decision | int"]
Baseline = Literal["initial", "running maximum"]


def _check_metric(metric: str) -> None:
    if metric not in metrics.METRICS:
        raise ValueError(f"unknown metric {metric!r}: {' or '.join(metrics.METRICS)}")


@dataclass(frozen=True)
class Activation:
    r"""Grow while activations are as different from each other as they were in the untrained network.

    .. math:: \max(0, \mathrm{rank}_\epsilon(H/\sqrt n) - \lfloor \gamma \phi_0 M \rfloor)

    for the effective dimension and :math:`\max(0, \lceil M\phi \rceil - \lfloor \gamma \phi_0 M \rfloor)` for the
    orthogonality. The paper prints a minimum and rounds the difference down, which would never grow a layer,
    or never a narrow one.

    Args:
        gamma: the factor of the baseline; 0.97, or 0.9 in networks with convolutions.
        metric: "effective_dimension" or "orthogonality".
        baseline: the metric of the untrained network ("initial"), or the largest so far ("running maximum"),
            which is the default in networks with convolutions.
        eps: threshold of the effective rank.

    The maximum is raised after the decision, as in the authors' program: a metric that has risen is compared with what
    it was before.

    The metric it reports is exact where neurons are added; where none are, it may be an upper bound of the effective
    dimension that already shows so.
    """

    gamma: float | None = None
    metric: Metric = "effective_dimension"
    baseline: Baseline | None = None
    eps: float = 0.01
    needs = frozenset({"activations"})
    patient = True

    def __post_init__(self) -> None:
        _check_metric(self.metric)
        if self.baseline not in (None, "initial", "running maximum"):
            raise ValueError(f"unknown baseline {self.baseline!r}: 'initial' or 'running maximum'")

    def __call__(self, layer: Layer) -> Decision:
        return self._decide(layer, None)

    def _decide(self, layer: Layer, scale: torch.Tensor | None) -> Decision:
        if not layer.ready:
            return Decision(0)
        size = layer.size
        if self.metric == "orthogonality":
            phi = layer.orthogonality(scale)
            present = math.ceil(size * phi)
        else:
            # A rank that is no larger than this adds nothing, and does not raise the maximum either.
            known, gamma = layer.memory.get("baseline"), self._gamma(layer)
            enough = None if known is None or gamma > 1 else _floor(gamma * known * size)
            present = layer.rank(self.eps, scale, enough)
            phi = present / size
        if "baseline" not in layer.memory:
            first = layer.untrained()
            layer.memory["baseline"] = phi if first is None else self._untrained(layer, *first)
        baseline = layer.memory["baseline"]
        if self.baseline == "running maximum" or (self.baseline is None and layer.convolutional):
            layer.memory["baseline"] = max(baseline, phi)
        return _from_threshold(present, phi, self._gamma(layer) * baseline, size)

    def _untrained(self, layer: Layer, seen: Activations, model: Untrained, scale: torch.Tensor | None = None) -> float:
        """The metric of the untrained network on the same samples."""
        if self.metric == "orthogonality":
            return seen.orthogonality(scale, by_sample=layer.convolutional)
        return seen.rank(self.eps, scale) / seen.neurons

    def _gamma(self, layer: Layer) -> float:
        return self.gamma if self.gamma is not None else 0.9 if layer.convolutional else 0.97


def _from_threshold(present: int, phi: float, threshold: float, size: int) -> Decision:
    return Decision(max(0, present - _floor(threshold * size)), phi, threshold)


def _floor(number: float) -> int:
    """Rounded down, but for rounding errors: 0.9 * 10 is a whole number, whatever floating point makes of it."""
    return math.floor(number + 1e-9)


@dataclass(frozen=True)
class Integrated(Activation):
    r"""`Activation` with each neuron counted only as far as the next layer uses it.

    The row of neuron m in H is scaled by :math:`\min(1, \|w^{out}_m\| / r)`, r the mean norm of the untrained
    width's outgoing weights, over all consumers together. A new neuron, whose fan-out is zero, counts for nothing until
    gradient descent has taken it up: growth waits for integration.
    """

    def start(self, layer: Layer) -> None:
        layer.memory.setdefault("fan-out", float(layer.fan_out_norms().mean()))

    def __call__(self, layer: Layer) -> Decision:
        return self._decide(layer, self._used(layer, layer.fan_out_norms()))

    def _untrained(self, layer: Layer, seen: Activations, model: Untrained, scale: torch.Tensor | None = None) -> float:
        return super()._untrained(layer, seen, model, self._used(layer, model.fan_out_norms[layer.name]))

    @staticmethod
    def _used(layer: Layer, norms: torch.Tensor) -> torch.Tensor | None:
        unit = layer.memory["fan-out"]
        return (norms / unit).clamp_max(1) if unit > 0 else None


@dataclass(frozen=True)
class Weight:
    r"""`Activation` on the producer's weights instead of activations; the width never passes the fan-in.

    .. math:: \max(0, \mathrm{rank}_\epsilon(W/\sqrt n) - \lfloor \gamma \phi_0 M \rfloor), n = \text{fan-in}

    Args:
        gamma: the factor of the baseline.
        eps: threshold of the effective rank.
    """

    gamma: float = 0.99
    eps: float = 0.01
    needs = frozenset[str]()
    patient = True

    def start(self, layer: Layer) -> None:
        layer.memory.setdefault("baseline", layer.weight_rank(self.eps) / layer.size)

    def __call__(self, layer: Layer) -> Decision:
        size, room = layer.size, layer.fan_in - layer.size
        if room <= 0:
            return Decision(0)
        rank = layer.weight_rank(self.eps)
        decision = _from_threshold(rank, rank / size, self.gamma * layer.memory["baseline"], size)
        return Decision(min(decision.count, room), decision.metric, decision.threshold)


@dataclass(frozen=True)
class Gradient:
    r"""As many neurons as would get larger gradients than all present neurons together.

    The number of singular values of the auxiliary gradient (see `neurogenesis.candidates.bridge`) greater than

    .. math:: scale \cdot \sum_m \left( \|\partial L/\partial w^{in}_m\| + \|\partial L/\partial w^{out}_m\| \right).

    The metric it reports is the largest singular value, or the first upper bound of it that is below the
    threshold and so settles the matter: norms of the factors, then the Frobenius norm.

    Args:
        scale: the factor of the threshold. The paper's equation has 1, its authors' program 0.5.
        mean: take the mean over neurons instead of the sum, a much lower threshold for wide layers.
    """

    scale: float = 0.5
    mean: bool = False
    needs = frozenset({"gradients"})
    patient = True

    def __call__(self, layer: Layer) -> Decision:
        assert layer.bridge is not None
        if not layer.pairs or not layer.gradient_norms:
            return Decision(0)  # no backward pass has reached it
        norms = torch.stack(list(layer.gradient_norms.values())).sum(0).double()
        threshold = self.scale * float(norms.mean() if self.mean else norms.sum())
        if not math.isfinite(threshold):
            raise NotFinite(f"gradients of {layer.name}")
        bound = layer.auxiliary_bound()
        if bound <= threshold:
            return Decision(0, bound, threshold)
        gradient = layer.auxiliary_gradient()
        bound = layer.bridge.frobenius(gradient)
        if bound <= threshold:
            return Decision(0, bound, threshold)
        matrix = layer.bridge.matrix(gradient).double()
        gram = matrix @ matrix.T if len(matrix) <= matrix.shape[1] else matrix.T @ matrix
        singular = torch.linalg.eigvalsh(gram).clamp_min(0).sqrt()
        return Decision(int((singular > threshold).sum()), float(singular[-1]), threshold)


Final = int | float | Mapping[str, int | float] | None


@dataclass(frozen=True)
class Linear:
    """One neuron after the other, evenly until the final width, over the first part of training.

    Args:
        steps: gradient steps of the whole training.
        final: the final width: a number of neurons, a float times the initial width, or a mapping by name; the
            maximum width by default.
        part: the part of training to grow in.
    """

    steps: int
    final: Final = None
    part: float = 0.75
    needs = frozenset[str]()

    def __call__(self, layer: Layer) -> Decision:
        return _towards(layer, self.final, min(1.0, layer.step / (self.part * self.steps)))


@dataclass(frozen=True)
class Batched:
    """Equal additions at equal distances until the final width, over the first part of training.

    Args:
        steps: gradient steps of the whole training.
        final: the final width, as in `Linear`.
        part: the part of training to grow in.
        batches: how many additions.
    """

    steps: int
    final: Final = None
    part: float = 0.75
    batches: int = 8
    needs = frozenset[str]()

    def __call__(self, layer: Layer) -> Decision:
        done = _floor(self.batches * layer.step / (self.part * self.steps))
        return _towards(layer, self.final, min(1.0, done / self.batches))


def _towards(layer: Layer, final: Final, progress: float) -> Decision:
    if isinstance(final, Mapping):
        final = final.get(layer.name, layer.maximum)
    target = layer.maximum if final is None else resolved_size(final, layer.initial)
    if target is None:
        raise ValueError(f"the schedule has no final width for {layer.name}: give final= or max_width=")
    now = layer.initial + _floor((target - layer.initial) * progress)
    return Decision(max(0, now - layer.size), layer.size, now)


def resolved_size(size: int | float, initial: int) -> int:
    """A size: an int as it is, a float times the initial size."""
    return size if isinstance(size, int) else _floor(size * initial)


@dataclass(frozen=True)
class Static:
    """Never grow."""

    needs = frozenset[str]()

    def __call__(self, layer: Layer) -> Decision:
        return Decision(0)
