r"""Triggers decide when, where and how many neurons to add. They are asked about layers after gradient steps.

A trigger is a function of a `Layer` that returns a `Decision` or an integer, or an instance of a subclass of `Trigger`,
which states what it needs and can store the initial state of a layer.

Reference: Maile, Rachelson, Luga, Wilson, "When, where, and how to add new neurons to ANNs" (AutoML 2022).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import torch

from . import metrics
from .candidates.windows import Statistics, Window
from .defaults import FACTOR, GAMMA, GAMMA_CONVOLUTIONAL, GAMMA_WEIGHT
from .layer import Layer, Requirement, after_step, stable_repr
from .metrics import Metric
from .passes.activations import Activations
from .passes.records import NotFinite, check_finite
from .passes.samples import Samples
from .passes.untrained import Untrained
from .structure.widths import ALL_KINDS, SINGLE, Kinds
from .surgery.plan import Plan


@dataclass(frozen=True)
class Decision:
    """The number of neurons to add now, and the metric and threshold behind it.

    Args:
        count: number of neurons to add.
        metric: the value that was measured.
        threshold: the value that it was compared with.
        wait: number of gradient steps until the trigger must be asked again about this layer. By default the grower
            decides.
    """

    count: int
    metric: float | None = None
    threshold: float | None = None
    wait: int | None = None


class Trigger:
    """Base class of triggers: implement `__call__`, and override the rest as needed.

    Store numbers that are needed at later steps in ``layer.memory``, which is saved with the `Grower`.

    Attributes:
        needs: what the trigger requires ("activations", "gradients", "fan-out gradients", "trials"); widths without it
            do not grow.
        patient: whether the trigger may be asked less often while it returns 0.
        limit: the maximum size of each width as a factor of its initial size, if neither `max_width` nor
            `max_parameters` is given; infinite if growth ends by itself. If the trigger has needs, heads also stop when
            together they have as many neurons as the next layer has outputs, unless `max_width` says otherwise.
        kinds: the kinds of widths that it can decide about. Those with needs leave out the stream, whose new entries
            begin as zeros or means, which cannot be measured.

    Example:
        >>> import neurogenesis as ng
        >>> class Half(ng.triggers.Trigger):
        ...     needs = frozenset({"activations"})
        ...
        ...     def __call__(self, layer):
        ...         return int(layer.ready and layer.rank() > layer.size / 2)
    """

    needs: ClassVar[frozenset[Requirement]] = frozenset()
    patient: ClassVar[bool] = False
    limit: ClassVar[float] = FACTOR
    kinds: ClassVar[frozenset[Kinds]] = ALL_KINDS

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.needs and "kinds" not in vars(cls):
            cls.kinds = cls.kinds - {"stream"}

    @property
    def uses(self) -> frozenset[Requirement]:
        """What the trigger may use; `needs` by default."""
        return self.needs

    def start(self, layer: Layer) -> None:
        """Store what is needed of the initial state in ``layer.memory``; called once per layer, before training."""

    def resized(self, layer: Layer, plans: Sequence[Plan]) -> None:
        """Adapt ``layer.memory`` to new shapes; called for each layer after any of them have grown."""

    def keeps(self, layers: Sequence[Layer], samples: Samples) -> list[Decision] | None:
        """Keep what the passes since the last step show, in ``layer.memory``, if nothing can be decided by it yet.

        Returns decisions to add nothing; None if the trigger must be asked, as by default. There is a single process.
        """
        return None

    def saved(self, memory: Mapping[str, Any]) -> dict[str, Any]:
        """What is saved of a layer's memory: numbers, and containers of numbers and tensors; all of it by default."""
        return dict(memory)

    def __repr__(self) -> str:
        """A text that identifies the trigger in saved states, the same in every process."""
        return f"{type(self).__qualname__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def __call__(self, layer: Layer) -> Decision | int:
        """Return how many neurons to add now."""
        raise NotImplementedError

    def decide(self, layers: Sequence[Layer]) -> list[Decision]:
        """Decide about the layers that are looked at in a step; override it if that is faster than one by one."""
        return [_as_decision(self(layer), layer) for layer in layers]


def _as_decision(given: Decision | int, layer: Layer) -> Decision:
    if isinstance(given, Decision):
        return given
    if isinstance(given, bool) or not hasattr(given, "__index__"):
        raise TypeError(f"{layer.name}: a trigger must return a Decision or an integer, not {given!r}")
    return Decision(int(given))


class _FunctionTrigger(Trigger):
    """A plain function, which may use anything and requires nothing."""

    def __init__(self, function: Callable[[Layer], Decision | int]):
        self.function = function

    @property
    def uses(self) -> frozenset[Requirement]:
        return frozenset(get_args(Requirement))

    def __call__(self, layer: Layer) -> Decision | int:
        return self.function(layer)

    def __repr__(self) -> str:
        return stable_repr(self.function)


def as_trigger(given: Trigger | Callable[[Layer], Decision | int]) -> Trigger:
    """Return a trigger unchanged; wrap a function as one."""
    if isinstance(given, Trigger):
        return given
    if not callable(given):
        raise TypeError(f"a trigger is a function of a layer, such as triggers.Activation(), not {given!r}")
    return _FunctionTrigger(given)


Baseline = Literal["initial", "running maximum"]


def _check_metric(metric: str) -> None:
    if metric not in metrics.METRICS:
        raise ValueError(f"unknown metric {metric!r}: expected {' or '.join(metrics.METRICS)}")


@dataclass(frozen=True)
class Activation(Trigger):
    r"""Grow while the activations of neurons differ from each other as much as in the untrained network.

    .. math:: \max(0, \mathrm{rank}_\epsilon(H/\sqrt n) - \lfloor \gamma \phi_0 M \rfloor)

    for the effective dimension and :math:`\max(0, \lceil M\phi \rceil - \lfloor \gamma \phi_0 M \rfloor)` for the
    orthogonality. The paper prints min instead of max, which would never grow a layer, and rounds the difference down,
    which would never grow a narrow one.

    The rank of heads is that of the neurons that they consist of, divided by the number of these in a head.

    The running maximum is updated after the decision, as in the authors' code, so a metric that has risen is compared
    with its previous maximum. If no neurons are added, the reported metric may be an upper bound on the effective
    dimension; if neurons are added, it is exact.

    Args:
        gamma: factor of the baseline; by default 0.97, or 0.9 in networks with convolutions.
        metric: "effective_dimension" or "orthogonality".
        baseline: the metric of the untrained network ("initial"), or the largest so far ("running maximum"); by
            default "initial", or "running maximum" in networks with convolutions.
        eps: threshold of the effective rank.
    """

    gamma: float | None = None
    metric: Metric = "effective_dimension"
    baseline: Baseline | None = None
    eps: float = 0.01
    needs: ClassVar[frozenset[Requirement]] = frozenset({"activations"})
    patient: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_metric(self.metric)
        if self.baseline not in (None, "initial", "running maximum"):
            raise ValueError(f"unknown baseline {self.baseline!r}: expected 'initial' or 'running maximum'")

    def __call__(self, layer: Layer) -> Decision:
        return self._decide(layer, None)

    def _decide(self, layer: Layer, scale: torch.Tensor | None) -> Decision:
        if not layer.ready:
            return Decision(0)
        size, each = layer.size, layer.features
        if self.metric == "orthogonality":
            phi = layer.orthogonality(scale)
            present = math.ceil(size * phi)
        else:
            # A rank of at most `enough` adds no neurons and does not raise the running maximum.
            known, gamma = layer.memory.get("baseline"), self._gamma(layer)
            enough = None if known is None or gamma > 1 else _floor(gamma * known * size) * each
            rank = layer.rank(self.eps, scale, enough)
            present, phi = rank // each, rank / (size * each)
        if "baseline" not in layer.memory:
            first = layer.untrained()
            layer.memory["baseline"] = phi if first is None else self._untrained_metric(layer, *first)
        baseline = layer.memory["baseline"]
        if self.baseline == "running maximum" or (self.baseline is None and layer.convolutional_network):
            layer.memory["baseline"] = max(baseline, phi)
        return _decide_by_threshold(present, phi, self._gamma(layer) * baseline, size)

    def _untrained_metric(
        self, layer: Layer, seen: Activations, model: Untrained, scale: torch.Tensor | None = None
    ) -> float:
        """Metric of the untrained network on the same samples."""
        if self.metric == "orthogonality":
            return seen.orthogonality(scale, by_sample=layer.convolutional_network)
        return seen.rank(self.eps, scale) / seen.neurons

    def _gamma(self, layer: Layer) -> float:
        if self.gamma is not None:
            return self.gamma
        return GAMMA_CONVOLUTIONAL if layer.convolutional_network else GAMMA


def _decide_by_threshold(present: int, phi: float, threshold: float, size: int) -> Decision:
    return Decision(max(0, present - _floor(threshold * size)), phi, threshold)


def _floor(number: float) -> int:
    """Round down with a tolerance for floating-point errors, so that 0.29 * 100 is 29."""
    return math.floor(number + 1e-9)


@dataclass(frozen=True)
class Integrated(Activation):
    r"""`Activation` with each neuron weighted by how much the next layer uses it.

    The row of neuron m in H is scaled by :math:`\min(1, \|w^{out}_m\| / r)`, where r is the mean norm of the outgoing
    weights of the untrained width, over all consumers. A new neuron with zero fan-out does not count until training has
    increased its fan-out, so growth waits until new neurons are in use.
    """

    limit: ClassVar[float] = math.inf

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
        return (norms / unit).clamp_max(1).repeat_interleave(layer.features) if unit > 0 else None


@dataclass(frozen=True)
class Weight(Trigger):
    r"""`Activation` on the producer's weights instead of activations; the size never exceeds the fan-in.

    .. math:: \max(0, \mathrm{rank}_\epsilon(W/\sqrt n) - \lfloor \gamma \phi_0 M \rfloor), n = \text{fan-in}

    Args:
        gamma: factor of the baseline.
        eps: threshold of the effective rank.
    """

    gamma: float = GAMMA_WEIGHT
    eps: float = 0.01
    patient: ClassVar[bool] = True
    limit: ClassVar[float] = math.inf
    kinds: ClassVar[frozenset[Kinds]] = SINGLE

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
    r"""Add as many neurons as would get larger gradients than all present neurons together.

    The count is the number of singular values of the auxiliary gradient (see `neurogenesis.candidates.bridge`) greater
    than

    .. math:: scale \cdot \sum_m \left( \|\partial L/\partial w^{in}_m\| + \|\partial L/\partial w^{out}_m\| \right).

    The reported metric is the largest singular value, or the first upper bound on it that is below the threshold: the
    sum of products of norms, then the Frobenius norm.

    Args:
        scale: factor of the threshold. The paper's equation has 1, the authors' code 0.5.
        mean: use the mean over neurons instead of the sum, a much lower threshold for wide layers.
    """

    scale: float = 0.5
    mean: bool = False
    needs: ClassVar[frozenset[Requirement]] = frozenset({"gradients"})
    patient: ClassVar[bool] = True

    def __call__(self, layer: Layer) -> Decision:
        assert layer.bridge is not None
        if not layer.has_gradients or not layer.gradient_norms:
            return Decision(0)  # no backward pass has reached the layer
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


@dataclass(frozen=True)
class Need(Trigger):
    r"""Grow while new neurons would learn something that the present ones cannot, as far as the training set can tell.

    Over a window of gradient steps, the trigger watches candidates: neurons with random fan-in and no fan-out. Which
    gradient would their fan-out get, without the part that the present neurons and the bias of the next layer can
    express? And would other samples give the same? A layer grows if the signal-to-noise ratio of that gradient over the
    training set of M samples,

    .. math:: R = \frac{\text{squared norm of the mean gradient}}{\text{variance of a sample's gradient} / M},

    is above a threshold, which is the largest of three:

    - four standard errors of R under noise alone (see `neurogenesis.candidates.windows`), so that the window can tell R
      from noise;
    - the smaller of two measures of strength, because new neurons also fit noise with their fan-in, and the present
      neurons may be about to learn the same. The first is 225 / d, if the noise is spread over d directions: R is 225
      times as strong as the noise of the training set in one direction. It falls as 80 / step after 80 steps, because
      a gradient that is still there will stay, and in proportion to the size of layers of fewer than 16 neurons,
      whichever is less. The second is a third of the largest R so far, among all layers that are asked together, of the
      whole gradient, including the part that the present neurons can express; it is at least eight standard errors
      (fewer below 16 neurons). So the present neurons clearly cannot express a third of what there was to learn;
    - 1, so that R is as strong as the noise of the training set in all directions.

    Convolutions of fewer than 16 channels are rarely enough, but their gradients are mostly noise, so less evidence is
    asked for: with :math:`s = \text{channels} / 16`, the threshold is the larger of s and :math:`4 (4s - 1) / 3`
    standard errors, which is zero for 4 channels.

    If R is p percent above the threshold, the layer grows by p percent of its size, or of 16 neurons if it has fewer:
    at least by a sixteenth of that and at most by all of it. Would-be heads have random queries, keys and values. A
    head counts as the neurons that the next layer gets from it, and half a head is rounded to a whole one. Layers are
    asked after 10, 20, 40, 80, ... gradient steps, so that new neurons have as much time to learn as has passed before
    them, and size cannot outrun training. A window covers the last 48 steps, or 10 at first. The trigger looks at 5 to
    24 of them, evenly spaced: as many as are needed for 4,096 items of batches, for as many items as there are samples,
    or for 64 items per step so far, whichever is least.

    Args:
        window: number of gradient steps in a window.
        candidates: number of would-be neurons.
    """

    window: int = 48
    candidates: int = 32
    needs: ClassVar[frozenset[Requirement]] = frozenset({"fan-out gradients"})
    limit: ClassVar[float] = 64

    def __post_init__(self) -> None:
        for name in ("window", "candidates"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}: expected a positive integer, not {value!r}")

    def __call__(self, layer: Layer) -> Decision:
        return self.decide([layer])[0]

    def decide(self, layers: Sequence[Layer]) -> list[Decision]:
        reached = [layer for layer in layers if any(record.pairs for record in layer.records)]
        before = [self._window(layer) for layer in reached]
        after = after_step(reached, before, lambda layer, window: window.looks >= self._planned(layer, window)[0])
        windows = list(zip(before, after, strict=True))
        found = [self._found(layer, *own) for layer, own in zip(reached, windows, strict=True)]
        earlier = [layer.memory.get("most", 0.0) for layer in reached]
        most = max([0.0, *earlier, *(each.whole for each in found if each is not None)])
        decided = {}
        for layer, own, each in zip(reached, windows, found, strict=True):
            layer.memory["most"] = most
            decided[layer] = self._decision(layer, *own, each)
        return [decided[layer] if layer in decided else Decision(0, *self._latest(layer)) for layer in layers]

    def keeps(self, layers: Sequence[Layer], samples: Samples) -> list[Decision] | None:
        windows, decisions = [], []
        for layer in layers:
            window = layer.memory.get("window")
            if not isinstance(window, Window) or not window.looks or window.behind:
                return None  # it begins
            if window.looks + 1 >= self._planned(layer, window)[0]:
                return None  # it ends
            kept = layer.with_kept_passes(window, samples)
            if kept is None:
                return None
            looks, interval = self._planned(layer, kept)
            if kept.looks >= looks:
                return None
            windows.append(kept)
            decisions.append(Decision(0, *self._latest(layer), wait=interval))
        most = max(layer.memory.get("most", 0.0) for layer in layers)
        for layer, window in zip(layers, windows, strict=True):
            layer.memory.update(window=window, most=most)
        return decisions

    @staticmethod
    def _latest(layer: Layer) -> tuple[float | None, float | None]:
        """The latest measurement and threshold."""
        latest: tuple[float | None, float | None] = layer.memory.get("latest", (None, None))
        return latest

    def _found(self, layer: Layer, before: Window, window: Window) -> Statistics | None:
        """The statistics of a window that ends at this step; None if it goes on."""
        new = [record for record, old in zip(window.records, before.records, strict=True) if record is not old]
        try:
            check_finite([each for record in new for each in record.found], f"activations or gradients of {layer.name}")
        except NotFinite:  # the same passes would be found at the next look
            layer.memory["window"] = before.without_waiting
            raise
        if window.steps == before.steps or window.steps < self._planned(layer, window)[0]:
            return None
        return layer.statistics(window)

    def _decision(self, layer: Layer, before: Window, window: Window, found: Statistics | None) -> Decision:
        """Go on with a window, or decide by what it shows."""
        latest = self._latest(layer)
        if window is before:
            return Decision(0, *latest)  # no pass can be used
        layer.memory["window"] = window
        if found is None:
            looks, interval = (1, 1) if window.behind else self._planned(layer, window)
            return Decision(0, *latest, wait=interval if window.looks < looks else 1)
        threshold = self._threshold(layer, found)
        layer.memory["latest"] = found.ratio, threshold
        del layer.memory["window"]
        looks, interval = layer.memory["looks"] = self._looks(layer, window, layer.step)
        wait = max(1, layer.step - (looks - 1) * interval)  # it ends when training has gone on for as long again
        if found.ratio <= threshold:
            return Decision(0, found.ratio, threshold, wait)
        part = min(max(found.ratio / threshold - 1, _LEAST_PART), 1.0)
        count = part * max(layer.size * layer.features, _SMALL_SIZE) / layer.features
        whole = round(count) if layer.width.kind == "heads" else _floor(count)
        return Decision(whole, found.ratio, threshold, wait)

    @staticmethod
    def _threshold(layer: Layer, found: Statistics) -> float:
        small, errors = min(1.0, layer.size * layer.features / _SMALL_SIZE), _ERRORS * found.error
        if layer.convolutional_network and small < 1:
            return max((4 * small - 1) / 3 * errors, small)
        return needed_ratio(found, layer.step, layer.memory["most"], small)

    def _planned(self, layer: Layer, window: Window) -> tuple[int, int]:
        """The number of steps to look at in this window, and the interval between them."""
        planned: tuple[int, int] = layer.memory.get("looks") or self._looks(layer, window, 0)
        return planned

    def _looks(self, layer: Layer, window: Window, steps: int) -> tuple[int, int]:
        """The number of steps to look at in the next window, and the interval between them.

        Args:
            layer: the layer.
            window: what shows how large batches are.
            steps: the number of gradient steps up to the latest decision.
        """
        samples = layer.training_samples if steps else math.inf  # in the first window, little is known of it
        return planned_looks(window.looks, window.items, steps, samples, self.window)

    def saved(self, memory: Mapping[str, Any]) -> dict[str, Any]:
        window = memory.get("window")
        return {**memory, "window": window.state()} if isinstance(window, Window) else dict(memory)

    def resized(self, layer: Layer, plans: Sequence[Plan]) -> None:
        window, consumers = self._saved_window(layer), [record.route.consumer for record in layer.records]
        if window is None:
            return
        inputs = {(axis.tensor, axis.axis) for axis in consumers}
        if any((edit.tensor, edit.axis) in inputs for plan in plans for edit in plan.edits):
            del layer.memory["window"]  # the layer itself has grown, or another one whose neurons go to the same place
        else:
            producers = layer.producer, *layer.other_producers
            layer.memory["window"] = layer.settled(window).padded(producers, consumers, plans)

    def _window(self, layer: Layer) -> Window:
        """The window in progress, or a new one if there is none or the layer was changed by others."""
        shapes = tuple(record.shapes for record in layer.records)
        window = self._saved_window(layer)
        if window is not None and window.shapes == shapes and self._same_kind(layer, window):
            return window
        # Of wide fan-outs, few say enough, and they are a noticeable part of a narrow layer's cost.
        count = min(self.candidates, max(8, layer.size // 16)) if layer.convolutional_network else self.candidates
        if layer.width.kind == "heads":
            count = max(_LEAST_HEADS, count // layer.features)
        generator = torch.Generator().manual_seed(layer.now.seed)
        fan_ins = layer.random_fan_ins(count, generator)
        return Window.new(fan_ins, layer.random_biases(fan_ins[0], generator), shapes)

    @staticmethod
    def _saved_window(layer: Layer) -> Window | None:
        """The window in progress, if there is one; a window that an earlier version has saved is not continued."""
        saved = layer.memory.get("window")
        if saved is None or isinstance(saved, Window):
            return saved
        if "biases" not in saved:
            return None
        window = Window.from_state(saved)
        return window if all(record.complete for record in window.records) else None

    def _same_kind(self, layer: Layer, window: Window) -> bool:
        """Whether the weights of the layer have the same shapes, precision and devices as those in the window."""
        producers = (layer.producer, *layer.other_producers)
        if len(producers) != len(window.fan_ins):
            return False
        for axis, fan_in in zip(producers, window.fan_ins, strict=True):
            rows = layer.tensor(axis).movedim(axis.axis, 0)
            if (rows.shape[1:], rows.dtype, rows.device) != (fan_in.shape[2:], fan_in.dtype, fan_in.device):
                return False
        devices = [layer.tensor(record.route.consumer).device for record in layer.records]
        return all(found == {own} for found, own in zip(window.devices, devices, strict=True) if found)


_FIRST_WINDOW = 10  # steps, after which a layer with great need may grow
_LEAST_LOOKS, _MOST_LOOKS = 5, 24  # in a window
_ENOUGH_ITEMS = 4096  # of batches: if fewer steps have so many, not all are looked at, which saves time
_EARLY_ITEMS = 64  # for each step so far: early needs are strong, and can be told from few
_ERRORS = 4  # standard errors: a layer is asked a dozen times, and noise must not pass once
_STRENGTH = 225  # of the mean gradient, squared, relative to the noise in one direction
_SMALL_SIZE, _EARLY_STEPS = 16, 80  # below this size, and after so many steps, less is enough
_PART_OF_MOST = 1 / 3  # of the largest ratio with what the present neurons express: as much is left to learn
_LEAST_PART = 1 / 16  # of the present neurons are added at least: small steps cost as much as large ones

_LEAST_HEADS = 2  # would-be ones: each is a random pattern of attention


def needed_ratio(found: Statistics, step: int, most: float, small: float = 1.0) -> float:
    """The signal-to-noise ratio above which something is needed, as `Need` explains it.

    Args:
        found: what a window shows.
        step: number of gradient steps.
        most: the largest ratio of a whole gradient so far.
        small: the size of what would grow, relative to 16 neurons, if it is smaller.
    """
    errors = _ERRORS * found.error
    strength = _STRENGTH * min(small, _EARLY_STEPS / step) / found.directions
    return max(errors, min(strength, max(_PART_OF_MOST * most, (1 + small) * errors)), 1.0)


def planned_looks(looks: int, items: int, steps: int, samples: float, window: int = 48) -> tuple[int, int]:
    """The number of steps to look at in the next window, and the interval between them.

    Args:
        looks: number of steps that were looked at in the latest window.
        items: number of items of batches in these.
        steps: number of gradient steps up to the latest decision.
        samples: number of samples in the training set.
        window: number of gradient steps in a window.
    """
    length, end = min(window, max(_FIRST_WINDOW, steps)), max(_FIRST_WINDOW, 2 * steps)
    # What is learned first is strong, and a sample that is seen twice says little more.
    enough = float(min(_ENOUGH_ITEMS, _EARLY_ITEMS * end, samples))
    wanted = min(max(math.ceil(enough * looks / items), _LEAST_LOOKS), _MOST_LOOKS, length)
    return wanted, length // wanted


Size = int | float | str
"""A number of neurons, or a factor of the initial size: a float, or a string such as '2x'."""
Final = Size | Mapping[str, Size] | None


@dataclass(frozen=True)
class Linear(Trigger):
    """Grow linearly to the final size over the first part of training.

    Args:
        steps: total number of gradient steps in training.
        final: the final size: an int (number of neurons), a float or a string such as "2x" (factor of the initial
            size), or a mapping from names or kinds of widths to these; the maximum size by default.
        part: fraction of training in which to grow.
    """

    steps: int
    final: Final = None
    part: float = 0.75
    limit: ClassVar[float] = math.inf

    def __call__(self, layer: Layer) -> Decision:
        return _toward(layer, self.final, min(1.0, layer.step / (self.part * self.steps)))


@dataclass(frozen=True)
class Batched(Trigger):
    """Grow to the final size in equal increments at equal intervals over the first part of training.

    Args:
        steps: total number of gradient steps in training.
        final: the final size, as in `Linear`.
        part: fraction of training in which to grow.
        batches: number of increments.
    """

    steps: int
    final: Final = None
    part: float = 0.75
    batches: int = 8
    limit: ClassVar[float] = math.inf

    def __call__(self, layer: Layer) -> Decision:
        done = _floor(self.batches * layer.step / (self.part * self.steps))
        return _toward(layer, self.final, min(1.0, done / self.batches))


def _toward(layer: Layer, final: Final, progress: float) -> Decision:
    if isinstance(final, Mapping):
        final = final.get(layer.name, final.get(layer.width.kind, layer.maximum))
    target = layer.maximum if final is None else resolved_size(final, layer.initial, f"final size of {layer.name}")
    if target is None:
        raise ValueError(f"the schedule has no final size for {layer.name}: pass final= or max_width=")
    now = layer.initial + _floor((target - layer.initial) * progress)
    return Decision(max(0, now - layer.size), layer.size, now)


def resolved_size(size: Size, initial: int, what: str = "the final size") -> int:
    """The number of neurons, given as an int, or as a factor of the initial size: a float or a string.

    Example:
        >>> resolved_size(24, 16), resolved_size(1.5, 16), resolved_size("1.5x", 16)
        (24, 24, 24)
    """
    factor = re.fullmatch(r"(\d+\.?\d*) ?x", size) if isinstance(size, str) else None
    if factor is not None:
        size = float(factor.group(1))
    if isinstance(size, (bool, str)) or not isinstance(size, (int, float)) or not math.isfinite(size):
        raise TypeError(
            f"{what}: expected an int (number of neurons), or a float or a string such as '2x' (factor of the initial "
            f"size), not {size!r}"
        )
    return size if isinstance(size, int) else _floor(size * initial)


@dataclass(frozen=True)
class Static(Trigger):
    """Never grow."""

    limit: ClassVar[float] = math.inf

    def __call__(self, layer: Layer) -> Decision:
        return Decision(0)
