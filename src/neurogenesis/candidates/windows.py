r"""Candidates over several steps: would other samples give their fan-out the same gradient?

A window has C candidates with fixed fan-in and no fan-out. At each step, with :math:`h_c` the input that the consumer
would get from candidate c, and H its present inputs,

.. math:: r_c = h_c - \beta_c [1, H]

where :math:`\beta_c` is a least-squares fit, so that only the part counts that the consumer cannot express with its
bias and its present inputs. The fit is made at each step, or over several steps if each has few samples. A candidate is
left out if the fit leaves less than a hundredth of its variance. Let :math:`D_i` be the gradient at the consumer's
output, divided by its root mean square at the step. Then sample i contributes :math:`D_i \otimes r_{ci}` to the
gradient of the fan-out of candidate c.

Each sample belongs to one of K = 16 folds for the whole training, so that a sample that is seen twice stays in its
fold. Let :math:`S_k` be the sum over the :math:`n_k` rows of fold k in all steps of the window, of all candidates
together, each divided by the root mean square of :math:`r_c`. Then

.. math:: P = \frac{\sum_{k \ne l} \langle S_k, S_l \rangle}{\sum_{k \ne l} n_k n_l}, \qquad
          v = \frac{\sum_k \|S_k\|^2 - P \sum_k n_k^2}{\sum_k n_k} \cdot \frac{m}{\sum_k n_k}

P is an unbiased estimate of the squared norm of the mean gradient over all possible samples, however often samples are
repeated. With m different samples in the window, v estimates the variance of the gradient of one sample. (In sequences
and images, each position of a sample is a row of its fold.) So with M samples in the training set,

.. math:: R = \frac{P}{v / M}, \qquad d = \frac{v^2}{T}, \qquad
          \sigma = \frac{M}{m} \sqrt{\frac{2}{d} \cdot \frac{(\sum_k n_k)^2}{\sum_{k \ne l} n_k n_l}}

are the signal-to-noise ratio of the gradient over the whole training set, the number of directions over which the noise
is spread, and the standard error of R without signal. T is the trace of the squared covariance of the gradient of one
sample. It is :math:`(K / (K - 2))^2` times the variance of the entries :math:`k \ne l` of
:math:`\langle S_k, S_l \rangle / \sqrt{n_k n_l}` after centring, which is a little too large, divided by the squared
number of times that a sample is repeated.

The whole R has :math:`h_c` minus its mean in place of :math:`r_c`: it includes the part that the present inputs can
express.

If the width has several consumers, their inner products, each divided by its v, are averaged. So R is the mean over
consumers, with a smaller error. Consumers that have gradients at less than half of the steps are left out.

Reference: the test of a mean in many dimensions of Chen and Qin, "A two-sample test for high-dimensional data with
applications to gene-set testing" (Annals of Statistics 2010).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from ..passes.processes import ALONE, Processes
from ..passes.records import Shapes
from ..passes.samples import KEPT, merged, number_of
from ..structure.axes import Axis
from ..structure.edits import Edit
from ..surgery.plan import Plan
from ..surgery.planning import pad_for_growth
from .looks import Pass, Run, Waiting
from .record import ENOUGH_ROWS, LEAST_ROWS, MOST_WAITING, Record, signal
from .rows import channel_dim, groups_of

LEAST_FOLDS = 4  # with samples


class Statistics(NamedTuple):
    """What a window shows.

    Args:
        ratio: the signal-to-noise ratio R of the gradient over the whole training set.
        error: the standard error of R without signal.
        directions: the number of directions d over which the noise is spread.
        whole: R of the gradient with the part that the present neurons and the bias can express.
    """

    ratio: float
    error: float
    directions: float
    whole: float


@dataclass(frozen=True)
class Window:
    """Candidates, and the gradients of their fan-outs over some steps. It is replaced, not modified.

    Args:
        fan_ins: weights of the candidates in the first producer and in the other ones, count x per neuron x the rest.
        biases: biases of the candidates in the first producer, count x per neuron; None if it has none.
        records: fits and gradients at each consumer.
        shapes: shapes of the first producer's and each consumer's weight.
        samples: the identities of the samples in this process, with repetitions; if there are many, the smallest ones.
        waiting: passes that are not in the records yet.
        steps: number of steps with gradients in the records.
        ready: earlier passes that are not in the records yet either: each has enough rows for a fit. Many small ones
            are recorded one after the other, which takes less time than one now and then.
    """

    fan_ins: tuple[Tensor, ...]
    biases: Tensor | None
    records: tuple[Record, ...]
    shapes: tuple[Shapes, ...]
    samples: Tensor
    waiting: Waiting
    steps: int = 0
    ready: tuple[Waiting, ...] = ()

    @staticmethod
    def new(fan_ins: Sequence[Tensor], biases: Tensor | None, shapes: Sequence[Shapes]) -> Window:
        """A window without any steps."""
        records, none = (Record(),) * len(shapes), torch.empty(0, dtype=torch.int64)
        return Window(tuple(fan_ins), biases, records, tuple(shapes), none, Waiting.none(len(shapes)))

    def state(self) -> dict[str, Any]:
        return {
            "fan_ins": self.fan_ins,
            "biases": self.biases,
            "records": [record.state() for record in self.records],
            "shapes": [[list(shape) for shape in shapes] for shapes in self.shapes],
            "samples": self.samples,
            "waiting": self.waiting.state(),
            "steps": self.steps,
            "ready": [each.state() for each in self.ready],
        }

    @staticmethod
    def from_state(state: dict[str, Any]) -> Window:
        shapes = tuple((torch.Size(producer), torch.Size(consumer)) for producer, consumer in state["shapes"])
        window = Window.new(state["fan_ins"], state["biases"], shapes)
        saved = state.get("waiting")  # earlier versions had none
        return replace(
            window,
            records=tuple(map(Record.from_state, state["records"])),
            samples=state["samples"],
            waiting=window.waiting if saved is None else Waiting.from_state(saved),
            steps=state["steps"],
            ready=tuple(map(Waiting.from_state, state.get("ready", ()))),
        )

    def padded(self, producers: Sequence[Axis], consumers: Sequence[Axis], plans: Sequence[Plan]) -> Window:
        """The window after other widths have grown: nothing has come from new inputs, or gone to new outputs, so far.

        If a consumer has new outputs, passes that wait are dropped, because they lack these. None may be ready.

        Args:
            producers: the first producer and the other ones.
            consumers: the consumer of each record.
            plans: the growth since the latest step.
        """
        fan_ins = []
        for axis, fan_in in zip(producers, self.fan_ins, strict=True):
            new = _padded(fan_in.flatten(0, 1), axis, plans)
            fan_ins.append(new.reshape(*fan_in.shape[:2], *new.shape[1:]))
        records, shapes = [], []
        edits = [edit for plan in plans for edit in plan.edits]
        for axis, record, (producer, consumer) in zip(consumers, self.records, self.shapes, strict=True):
            sums = record.sums
            if sums is not None:
                fan_out = [size for dim, size in enumerate(consumer) if dim != axis.axis]
                new = _padded(sums.reshape(-1, *fan_out), axis, plans)
                sums = new.reshape(*sums.shape[:2], -1)
            records.append(replace(record, sums=sums))
            shapes.append((_shape_after(producer, producers[0], edits), _shape_after(consumer, axis, edits)))
        window = replace(self, fan_ins=tuple(fan_ins), records=tuple(records), shapes=tuple(shapes))
        resized = {edit.tensor for edit in edits}.intersection(axis.tensor for axis in consumers)
        return window.without_waiting if resized else window

    @property
    def without_waiting(self) -> Window:
        """The window as if the steps that wait had not been looked at."""
        return replace(self, waiting=Waiting.none(len(self.records)), ready=())

    @property
    def put_off(self) -> Window:
        """The window with what waits as ready."""
        return replace(self, waiting=Waiting.none(len(self.records)), ready=(*self.ready, self.waiting))

    def after_ready(self, recorded: Window) -> Window:
        """The window with the records of another one, which has what was ready here."""
        return replace(recorded, waiting=self.waiting, ready=())

    def with_only(self, waiting: Waiting) -> Window:
        """The window with nothing that waits but this."""
        return replace(self, waiting=waiting, ready=())

    def completed(self, run: Run) -> Window:
        """The window with candidates run in the passes that wait."""
        return replace(self, waiting=self.waiting.completed(run))

    @property
    def complete(self) -> tuple[tuple[tuple[Pass, ...], ...], ...]:
        """The passes that wait at each consumer, in which candidates have been run."""
        return cast(tuple[tuple[tuple[Pass, ...], ...], ...], self.waiting.passes)

    @property
    def numbers(self) -> int:
        """How many numbers the passes have that wait or are ready."""
        return sum(each.numbers for each in (*self.ready, self.waiting))

    def with_copies(self, before: Window) -> Window:
        """The window with copies of the passes that wait since `before`, as recorded tensors may be overwritten."""
        same = self.waiting is before.waiting
        return self if same else replace(self, waiting=self.waiting.with_copies(before.waiting))

    def due(self, consumers: Sequence[nn.Module], last: bool) -> bool:
        """Whether what waits is to be recorded: a consumer has enough rows for a fit, or no more may wait.

        Args:
            consumers: the consumers.
            last: after the last look, the least number of rows is enough, or any after an earlier fit.
        """
        waiting = self.waiting
        if waiting.numbers >= MOST_WAITING:
            return True
        per_input = LEAST_ROWS if last else ENOUGH_ROWS
        return any(
            (rows and last and record.coefficients is not None)
            or (own and rows >= per_input * own[0][0].H.shape[channel_dim(consumer)] * max(1, groups_of(consumer)))
            for consumer, own, rows, record in zip(consumers, waiting.passes, waiting.rows, self.records, strict=True)
        )

    @property
    def behind(self) -> bool:
        """Whether steps have been lost, because a fit needs more rows than may wait."""
        lost = any(record.products is not None for record in self.records)
        return lost and all(record.coefficients is None for record in self.records)

    def with_records(self, records: Sequence[Record | None]) -> Window:
        """The window with the passes that were waiting in the records of their consumers.

        If none has gradients of them, because fits have too few rows yet, the steps do not count.
        """
        counted = any(new is not None and new.steps > old.steps for old, new in zip(self.records, records, strict=True))
        latest = [old if new is None else new for old, new in zip(self.records, records, strict=True)]
        passes = [each for own in self.waiting.passes for step in own for each in step]
        samples = [each.samples for each in passes if each.samples is not None]
        together = [each.to(self.samples.device) for each in samples] if counted else []
        known = torch.cat([self.samples, *together])
        known = merged(known) if len(known) > 8 * KEPT else known
        steps = self.steps + counted * self.waiting.looks
        return replace(self.without_waiting, records=tuple(latest), samples=known, steps=steps)

    @property
    def devices(self) -> list[set[torch.device]]:
        """The devices of what is known about each consumer."""
        result = []
        for own, record in zip((self.ready or (self.waiting,))[0].passes, self.records, strict=True):
            known = [each.H for step in own for each in step] + ([] if record.energy is None else [record.energy])
            known += [] if record.products is None else [record.products.squares]
            result.append({each.device for each in known})
        return result

    @property
    def looks(self) -> int:
        """The number of steps that have been looked at and count."""
        return self.steps + sum(each.looks for each in (*self.ready, self.waiting))

    @property
    def items(self) -> int:
        """The number of items of batches, of all processes, in these steps."""
        recorded, others = (
            [record.items for record in self.records],
            [each.items for each in (*self.ready, self.waiting)],
        )
        return max(map(sum, zip(recorded, *others, strict=True)))

    def statistics(self, training_samples: float, processes: Processes = ALONE) -> Statistics | None:
        """What the window shows; None if there are too few samples to tell, and a ratio of 0 without any gradients.

        Args:
            training_samples: the number of samples in the training set.
            processes: the processes; all must call this.
        """
        samples = number_of(merged(*processes.gathered(merged(self.samples))))
        often = [record for record in self.records if 2 * record.steps >= self.steps]
        if any(each.counts is not None and int(each.counts.count_nonzero()) < LEAST_FOLDS for each in often):
            return None
        total = max(training_samples, samples)
        found = [each for record in often if (each := record.gram(samples)) is not None]
        if not found:
            return Statistics(0.0, 0.0, 1.0, 0.0)
        wholes = [float(signal(*each)) for record in often if (each := record.gram(samples, whole=True)) is not None]
        gram, parts = (torch.stack([own.cpu() for own in each]).mean(0) for each in zip(*found, strict=True))
        spread, pairs = float(_spread(gram, parts)), float(1 - parts.square().sum())
        directions = 1 / (spread * samples**2) if spread > 0 else math.inf
        whole = sum(wholes) / max(1, len(wholes))
        return Statistics(
            total * float(signal(gram, parts)), total * math.sqrt(2 * spread / pairs), directions, total * whole
        )


def _spread(gram: Tensor, parts: Tensor) -> Tensor:
    """Variance of the inner products of different folds, each with the same number of rows, without signal."""
    used = parts > 0
    gram, roots, K = gram[used][:, used], parts[used].sqrt(), int(used.sum())
    centring = torch.eye(K).to(gram) - torch.outer(roots, roots)
    centred = centring @ (gram / torch.outer(roots, roots)) @ centring
    between = ~torch.eye(K, dtype=torch.bool, device=gram.device)
    return centred[between].var(correction=0) * (K / (K - 2)) ** 2


def _padded(entries: Tensor, axis: Axis, plans: Sequence[Plan]) -> Tensor:
    """Entries of new neurons (first axis) on an axis of a parameter, with zeros for the neurons of other widths."""
    return pad_for_growth((axis.tensor, axis.axis), entries.movedim(0, axis.axis), plans).movedim(axis.axis, 0)


def _shape_after(shape: torch.Size, axis: Axis, edits: Sequence[Edit]) -> torch.Size:
    sizes = list(shape)
    for edit in edits:
        if edit.tensor == axis.tensor:
            sizes[edit.axis] += edit.change
    return torch.Size(sizes)
