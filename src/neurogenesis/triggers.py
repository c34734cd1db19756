r"""When, where and how many: triggers look at a `Layer` after a gradient step and return how many neurons to add.

A trigger is a function of a `Layer` that returns a `Decision`, or just a number; or an object of a subclass of
`Trigger`, which states what it looks at and may remember the beginning.

Reference: Maile, Rachelson, Luga, Wilson, "When, where, and how to add new neurons to ANNs" (AutoML 2022).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch

from . import metrics
from .layer import Layer, Need
from .metrics import Metric
from .passes.buffers import Activations, Untrained
from .passes.record import NotFinite


@dataclass(frozen=True)
class Decision:
    """How many neurons to add now, and what it was decided from."""

    count: int
    metric: float | None = None
    threshold: float | None = None


class Trigger:
    """Base class of triggers: write `__call__`, and set or override what else differs.

    Numbers to be kept from step to step belong in ``layer.memory``, which is saved with the `Grower`.

    Attributes:
        needs: what it cannot do without; widths that cannot give it are left out.
        patient: whether it need not be asked at every step while it returns 0.

    Example:
        >>> import neurogenesis as ng
        >>> class Half(ng.triggers.Trigger):
        ...     needs = frozenset({"activations"})
        ...
        ...     def __call__(self, layer):
        ...         return int(layer.ready and layer.rank() > layer.size / 2)
    """

    needs: ClassVar[frozenset[Need]] = frozenset()
    patient: ClassVar[bool] = False

    @property
    def uses(self) -> frozenset[Need]:
        """What it looks at; what it needs by default."""
        return self.needs

    def start(self, layer: Layer) -> None:
        """Called once per layer, before training: remember what is needed of the beginning in ``layer.memory``."""

    def __call__(self, layer: Layer) -> Decision | int:
        """How many neurons to add now."""
        raise NotImplementedError


class _FunctionTrigger(Trigger):
    """A plain function, which may look at anything and needs nothing."""

    def __init__(self, function: Callable[[Layer], Decision | int]):
        self.function = function

    @property
    def uses(self) -> frozenset[Need]:
        return frozenset(get_args(Need))

    def __call__(self, layer: Layer) -> Decision | int:
        return self.function(layer)

    def __repr__(self) -> str:
        return repr(self.function)


def as_trigger(given: Trigger | Callable[[Layer], Decision | int]) -> Trigger:
    """A trigger as it is, or made of a function."""
    if isinstance(given, Trigger):
        return given
    if not callable(given):
        raise TypeError(f"a trigger is a function of a layer, such as triggers.Activation(): not {given!r}")
    return _FunctionTrigger(given)


GAMMA = 0.97
"""The factor of the baseline of activations."""
GAMMA_CONVOLUTIONAL = 0.9
"""The same in networks with convolutions."""
GAMMA_WEIGHT = 0.99
"""The factor of the baseline of weights."""

Baseline = Literal["initial", "running maximum"]


def _check_metric(metric: str) -> None:
    if metric not in metrics.METRICS:
        raise ValueError(f"unknown metric {metric!r}: {' or '.join(metrics.METRICS)}")


@dataclass(frozen=True)
class Activation(Trigger):
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
    needs: ClassVar[frozenset[Need]] = frozenset({"activations"})
    patient: ClassVar[bool] = True

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
            layer.memory["baseline"] = phi if first is None else self._untrained_metric(layer, *first)
        baseline = layer.memory["baseline"]
        if self.baseline == "running maximum" or (self.baseline is None and layer.convolutional):
            layer.memory["baseline"] = max(baseline, phi)
        return _decide_by_threshold(present, phi, self._gamma(layer) * baseline, size)

    def _untrained_metric(
        self, layer: Layer, seen: Activations, model: Untrained, scale: torch.Tensor | None = None
    ) -> float:
        """The metric of the untrained network on the same samples."""
        if self.metric == "orthogonality":
            return seen.orthogonality(scale, by_sample=layer.convolutional)
        return seen.rank(self.eps, scale) / seen.neurons

    def _gamma(self, layer: Layer) -> float:
        if self.gamma is not None:
            return self.gamma
        return GAMMA_CONVOLUTIONAL if layer.convolutional else GAMMA


def _decide_by_threshold(present: int, phi: float, threshold: float, size: int) -> Decision:
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
        return self._decide(layer, self._usage(layer, layer.fan_out_norms()))

    def _untrained_metric(
        self, layer: Layer, seen: Activations, model: Untrained, scale: torch.Tensor | None = None
    ) -> float:
        return super()._untrained_metric(layer, seen, model, self._usage(layer, model.fan_out_norms[layer.name]))

    @staticmethod
    def _usage(layer: Layer, norms: torch.Tensor) -> torch.Tensor | None:
        unit = layer.memory["fan-out"]
        return (norms / unit).clamp_max(1) if unit > 0 else None


@dataclass(frozen=True)
class Weight(Trigger):
    r"""`Activation` on the producer's weights instead of activations; the width never passes the fan-in.

    .. math:: \max(0, \mathrm{rank}_\epsilon(W/\sqrt n) - \lfloor \gamma \phi_0 M \rfloor), n = \text{fan-in}

    Args:
        gamma: the factor of the baseline.
        eps: threshold of the effective rank.
    """

    gamma: float = GAMMA_WEIGHT
    eps: float = 0.01
    patient: ClassVar[bool] = True

    def start(self, layer: Layer) -> None:
        layer.memory.setdefault("baseline", layer.weight_rank(self.eps) / layer.size)

    def __call__(self, layer: Layer) -> Decision:
        size, room = layer.size, layer.fan_in - layer.size
        if room <= 0:
            return Decision(0)
        rank = layer.weight_rank(self.eps)
        decision = _decide_by_threshold(rank, rank / size, self.gamma * layer.memory["baseline"], size)
        return Decision(min(decision.count, room), decision.metric, decision.threshold)


@dataclass(frozen=True)
class Gradient(Trigger):
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
    needs: ClassVar[frozenset[Need]] = frozenset({"gradients"})
    patient: ClassVar[bool] = True

    def __call__(self, layer: Layer) -> Decision:
        assert layer.bridge is not None
        if not layer.has_gradients or not layer.gradient_norms:
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
class Linear(Trigger):
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

    def __call__(self, layer: Layer) -> Decision:
        return _toward(layer, self.final, min(1.0, layer.step / (self.part * self.steps)))


@dataclass(frozen=True)
class Batched(Trigger):
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

    def __call__(self, layer: Layer) -> Decision:
        done = _floor(self.batches * layer.step / (self.part * self.steps))
        return _toward(layer, self.final, min(1.0, done / self.batches))


def _toward(layer: Layer, final: Final, progress: float) -> Decision:
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
class Static(Trigger):
    """Never grow."""

    def __call__(self, layer: Layer) -> Decision:
        return Decision(0)
