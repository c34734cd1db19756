r"""Would-be neurons over several steps: would their fan-out get the same gradient from other samples?

A window has C candidates with fixed fan-in and no fan-out. At each step, with :math:`h_c` the input that the consumer
would get from candidate c, and H the inputs that it gets now,

.. math:: r_c = h_c - \beta_c [1, H]

where :math:`\beta_c` is the least-squares fit of :math:`h_c`: what the consumer can express with its bias and its
present inputs does not count. The fit is that of the same step, or of several steps together if each has few samples,
and candidates of which it leaves less than a hundredth of the variance are left out. With :math:`D_i` the gradient at
the consumer's output, divided by its root mean square at the step, sample i contributes :math:`D_i \otimes r_{ci}` to
the gradient of the fan-out of candidate c.

Each sample belongs to one of K = 16 folds for the whole training, so that what is seen twice stays in its fold. With
:math:`S_k` the sum over the :math:`n_k` rows of fold k in all steps of the window, all candidates together, each
divided by the root mean square of :math:`r_c`,

.. math:: P = \frac{\sum_{k \ne l} \langle S_k, S_l \rangle}{\sum_{k \ne l} n_k n_l}, \qquad
          v = \frac{\sum_k \|S_k\|^2 - P \sum_k n_k^2}{\sum_k n_k} \cdot \frac{m}{\sum_k n_k}

P is an unbiased estimate of the squared norm of the mean gradient over all samples that there might be, however often
samples are repeated, and v, with m the number of different samples in the window, of the variance of the gradient of
one sample. (Of several positions of a sample, in sequences and images, all are rows of its fold.) So with M samples in
the training set,

.. math:: R = \frac{P}{v / M}, \qquad d = \frac{v^2}{T}, \qquad
          \sigma = \frac{M}{m} \sqrt{\frac{2}{d} \cdot \frac{(\sum_k n_k)^2}{\sum_{k \ne l} n_k n_l}}

are the signal-to-noise ratio of the gradient over the whole training set, the number of directions over which the noise
is spread, and the standard error of R without signal. T is the trace of the squared covariance of the gradient of one
sample. It is :math:`(K / (K - 2))^2` times the variance of the entries :math:`k \ne l` of
:math:`\langle S_k, S_l \rangle / \sqrt{n_k n_l}` after centring, which is a little too large, divided by the squared
number of times that a sample is repeated.

The whole R is that of the gradient with what the present inputs express: of :math:`h_c` minus its mean in place of
:math:`r_c`.

If the width has several consumers, the inner products are the means of theirs, each divided by its own v. So R is the
mean over consumers, and its error is smaller than theirs. Consumers that have gradients at less than half of the steps
are left out.

Reference: the test of a mean in many dimensions of Chen and Qin, "A two-sample test for high-dimensional data with
applications to gene-set testing" (Annals of Statistics 2010).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..passes.processes import ALONE, Processes, Sums, summed
from ..passes.records import NotFinite, Shapes
from ..passes.samples import KEPT, merged, number_of
from ..structure.axes import Axis
from ..structure.edits import Edit
from ..surgery.plan import Plan
from ..surgery.planning import pad_for_growth
from .fits import Products, unexplained
from .folds import fold_gradients
from .looks import Pass, Waiting, joined, sampled_rows
from .rows import channel_dim, channel_sums, mean_squares, minus_means, squared_norm, sum_of

LEAST_ROWS = 2  # samples and positions of a fit, per input of the consumer
ENOUGH_ROWS = 6  # per input: with fewer, a fit explains what it should not, so that steps wait for others
MAX_ROWS = 1024  # of a fit, if this is more than enough
NEW_ROWS = 4  # a fit of several steps is repeated when one of so many rows is new
LEAST_SHARE = 0.01  # of the variance of a candidate that present inputs must leave unexplained
LEAST_FOLDS = 4  # with samples
MOST_WAITING = 2**20  # numbers of passes that wait until there are enough rows: more would take much memory


@dataclass(frozen=True)
class Record:
    """What a window has recorded at one consumer. It is replaced, not modified.

    Args:
        products: of the latest steps, for the next fit.
        new_rows: number of rows since the latest fit.
        coefficients: the latest fit; None before there are enough rows.
        sums: of the gradients of fan-outs in each fold: folds x candidates x fan-out; first those without, then those
            with what the present neurons express.
        counts: number of rows in each fold.
        energy: sum of the mean squares of r.
        variance: sum of the variances of the candidates.
        steps: number of steps with gradients.
        items: number of items of batches in these steps.
    """

    products: Products | None = None
    new_rows: int = 0
    coefficients: Tensor | None = None
    sums: Tensor | None = None
    counts: Tensor | None = None
    energy: Tensor | None = None
    variance: Tensor | None = None
    steps: int = 0
    items: int = 0

    def after(self, consumer: nn.Module, steps: Sequence[Sequence[Pass]]) -> Sums[Record]:
        """The record after some steps: with a new fit, if there are enough rows for one, and then with their gradients.

        All sums are those over processes.

        Args:
            consumer: the consumer.
            steps: the passes of each step in this process.
        """
        passes: Sequence[Pass] = [each for own in steps for each in own]
        channel, device = channel_dim(consumer), passes[0].H.device
        entries = [sum(each.D.numel() for each in own) for own in steps]
        counts = [*entries, sum(each.rows(consumer) for each in passes), sum(each.items for each in passes)]
        totals, squares, present_sums, sums = yield [
            torch.tensor(counts, dtype=torch.float64, device=device),
            torch.stack([sum_of([squared_norm(each.D) for each in own]) for own in steps]),
            *(channel_sums(consumer, [getattr(each, name) for each in passes]) for name in ("H", "h")),
        ]
        *entries, rows, items = map(int, totals.tolist())
        # By the number of rows, not of entries: new outputs have no gradient at first.
        outputs = passes[0].D.shape[channel]
        scales = [(square * outputs / n) ** 0.5 or 1.0 for square, n in zip(squares.tolist(), entries, strict=True)]
        factors = [1 / own for step, own in zip(steps, scales, strict=True) for _ in step]
        passes, of_items = joined(consumer, passes, factors, MOST_WAITING)
        fitted = yield from self._fitted(consumer, passes, rows, torch.cat([present_sums, sums]) / rows)
        if fitted.coefficients is None:
            return fitted
        gradients, row_counts, energies, variances = [], [], [], []
        for each, factor in zip(passes, of_items, strict=True):
            r = unexplained(consumer, each.H, each.h, fitted.coefficients)
            part = len(steps) * each.D.numel() / sum(entries)
            whole = minus_means(consumer, each.h, sums / rows).to(r.dtype)
            both = torch.cat([r, whole.reshape(r.shape)], channel).mul_(factor)  # as D, which may be wider
            gradient, count = fold_gradients(consumer, both, each.D.to(r.dtype), each.samples)
            gradients.append(gradient)
            row_counts.append(count)
            energies.append(mean_squares(consumer, r) * part)
            variances.append(mean_squares(consumer, whole) * part)
        new = yield [sum_of(each) for each in (gradients, row_counts, energies, variances)]
        known = (fitted.sums, fitted.counts, fitted.energy, fitted.variance)
        sums, counts_by_fold, energy, variance = (
            each if old is None else old + each for old, each in zip(known, new, strict=True)
        )
        return replace(
            fitted, sums=sums, counts=counts_by_fold, energy=energy, variance=variance,
            steps=self.steps + len(steps), items=self.items + items,
        )  # fmt: skip

    def _fitted(self, consumer: nn.Module, passes: Sequence[Pass], rows: int, means: Tensor) -> Sums[Record]:
        """Fit the candidates to the consumer's inputs in these passes, and in earlier ones if there are few rows.

        Training changes the inputs, and what an old fit leaves of a candidate has parts of the present neurons, with
        their gradients. So earlier steps are forgotten as soon as later ones have enough rows.

        Args:
            consumer: the consumer.
            passes: the passes of this process.
            rows: number of rows of all processes.
            means: means of [H, h] over all processes.
        """
        inputs = passes[0].H.shape[channel_dim(consumer)]
        enough = ENOUGH_ROWS * inputs
        most = max(enough, MAX_ROWS)
        own = [sampled_rows(consumer, each, -(-most * each.H.numel() // (rows * inputs))) for each in passes]
        new = own[0] if len(own) == 1 else torch.cat(own)
        part = max(0.0, 1 - rows / enough)  # of what is known
        centre = self.products.centre if self.products is not None and part else means
        products = yield from Products.of(new, inputs, centre)
        if self.products is not None and part:
            products = self.products.after(products, part)
        new_rows = self.new_rows + rows
        few = float(products.count) < LEAST_ROWS * inputs
        if few or (self.coefficients is not None and NEW_ROWS * new_rows < float(products.count)):
            return replace(self, products=products, new_rows=new_rows)
        return replace(self, products=products, new_rows=0, coefficients=products.fit())

    @property
    def complete(self) -> bool:
        """Whether the sums have both parts, which those of earlier versions have not."""
        return self.sums is None or self.energy is None or self.sums.shape[1] == 2 * len(self.energy)

    @property
    def found(self) -> list[Tensor]:
        """Sums that are not finite if an activation or a gradient was not."""
        sums = [] if self.products is None else [self.products.squares]
        return sums if self.sums is None else [*sums, self.sums]

    def gram(self, samples: float, whole: bool = False) -> tuple[Tensor, Tensor] | None:
        """Inner products of the sums of folds, and the parts of all rows that are in each fold.

        The sums are divided by the number of all rows, and by the standard deviation of the gradient of one sample;
        None if that is zero.

        Args:
            samples: number of different samples.
            whole: with what the present neurons express.
        """
        if self.sums is None or self.counts is None or self.energy is None or self.variance is None:
            return None
        squares = self.variance if whole else self.energy
        weights = torch.where(self.energy > LEAST_SHARE * self.variance, squares.rsqrt(), 0)
        scaled = (self.sums.chunk(2, 1)[whole] * weights[:, None]).flatten(1)
        total = self.counts.sum()
        gram, parts = (scaled @ scaled.T).double() / total**2, self.counts / total
        variance = samples * (gram.trace() - _signal(gram, parts) * parts.square().sum())
        return (gram / variance, parts) if variance > 0 else None


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
    """Candidates, and the gradients of their fan-outs over the steps of the window. It is replaced, not modified.

    Args:
        fan_ins: weights of the candidates in the first producer and in the other ones, count x per neuron x the rest.
        biases: biases of the candidates in the first producer, count x per neuron; None if it has none.
        records: what was recorded at each consumer.
        shapes: shapes of the first producer's and each consumer's weight.
        samples: the identities of the samples in this process, with repetitions; of very many, the smallest ones.
        waiting: passes that are not in the records yet.
        steps: number of steps with gradients in the records.
    """

    fan_ins: tuple[Tensor, ...]
    biases: Tensor | None
    records: tuple[Record, ...]
    shapes: tuple[Shapes, ...]
    samples: Tensor
    waiting: Waiting
    steps: int = 0

    @staticmethod
    def new(fan_ins: Sequence[Tensor], biases: Tensor | None, shapes: Sequence[Shapes]) -> Window:
        """A window without any steps."""
        records, none = (Record(),) * len(shapes), torch.empty(0, dtype=torch.int64)
        return Window(tuple(fan_ins), biases, records, tuple(shapes), none, Waiting.none(len(shapes)))

    def state(self) -> dict[str, Any]:
        passes = [[[tuple(each) for each in step] for step in own] for own in self.waiting.passes]
        return {
            "fan_ins": self.fan_ins,
            "biases": self.biases,
            "records": [_state(record) for record in self.records],
            "shapes": [[list(shape) for shape in shapes] for shapes in self.shapes],
            "samples": self.samples,
            "waiting": {**self.waiting._asdict(), "passes": passes},
            "steps": self.steps,
        }

    @staticmethod
    def from_state(state: dict[str, Any]) -> Window:
        records = []
        for saved in state["records"]:
            products = saved["products"]
            records.append(Record(**{**saved, "products": None if products is None else Products(**products)}))
        shapes = tuple((torch.Size(producer), torch.Size(consumer)) for producer, consumer in state["shapes"])
        window = Window.new(state["fan_ins"], state["biases"], shapes)
        waiting = window.waiting
        if saved := state.get("waiting"):  # not in those of earlier versions
            passes = tuple(tuple(tuple(Pass(*each) for each in step) for step in own) for own in saved["passes"])
            waiting = Waiting(**{**saved, "passes": passes})
        return replace(window, records=tuple(records), samples=state["samples"], waiting=waiting, steps=state["steps"])

    def padded(self, producers: Sequence[Axis], consumers: Sequence[Axis], plans: Sequence[Plan]) -> Window:
        """The window after other widths have grown: nothing has come from new inputs, or gone to new outputs, so far.

        If a consumer has new outputs, passes that wait are dropped, because they lack these.

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
        return replace(self, waiting=Waiting.none(len(self.records)))

    def with_copies(self, before: Window) -> Window:
        """With copies of the passes that wait since `before`, as what is recorded may be overwritten."""
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
            or (own and rows >= per_input * own[0][0].H.shape[channel_dim(consumer)])
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
        for own, record in zip(self.waiting.passes, self.records, strict=True):
            known = [each.H for step in own for each in step] + ([] if record.energy is None else [record.energy])
            known += [] if record.products is None else [record.products.squares]
            result.append({each.device for each in known})
        return result

    @property
    def looks(self) -> int:
        """The number of steps that have been looked at and count."""
        return self.steps + self.waiting.looks

    @property
    def items(self) -> int:
        """The number of items of batches, of all processes, in these steps."""
        return max(record.items + items for record, items in zip(self.records, self.waiting.items, strict=True))

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
        wholes = [float(_signal(*each)) for record in often if (each := record.gram(samples, whole=True)) is not None]
        gram, parts = (torch.stack([own.cpu() for own in each]).mean(0) for each in zip(*found, strict=True))
        spread, pairs = float(_spread(gram, parts)), float(1 - parts.square().sum())
        directions = 1 / (spread * samples**2) if spread > 0 else math.inf
        whole = sum(wholes) / max(1, len(wholes))
        return Statistics(
            total * float(_signal(gram, parts)), total * math.sqrt(2 * spread / pairs), directions, total * whole
        )


def after_look(
    windows: Mapping[str, Window],
    consumers: Sequence[Sequence[nn.Module]],
    passes: Sequence[Sequence[Sequence[Pass]]],
    processes: Processes = ALONE,
) -> list[Window]:
    """Windows with the passes of a step, which wait to be recorded. Several processes communicate once.

    Consumers without passes in some process do not count, nor does the step if there are no others. `NotFinite` is
    raised in all processes if an entry of one is not finite.

    Args:
        windows: the windows, by the name of the width.
        consumers: the consumers of each window.
        passes: the passes of this process, for each window and consumer.
        processes: the processes.
    """
    own: list[int] = []
    for modules, of_window in zip(consumers, passes, strict=True):
        for module, found in zip(modules, of_window, strict=True):
            own += [bool(found), sum(each.rows(module) for each in found), sum(each.items for each in found)]
        every = [each for found in of_window for each in found]
        own += [sum(each.numbers for each in every), not all(each.finite for each in every)]
    (sums,) = processes.sums([torch.tensor(own, dtype=torch.float64)])
    totals = map(int, sums.tolist())
    result = []
    for (name, window), of_window in zip(windows.items(), passes, strict=True):
        counts = []
        for _ in of_window:
            in_all, *found_counts = next(totals) == processes.count, next(totals), next(totals)
            counts.append(found_counts if in_all else [0, 0])
        rows, items = zip(*counts, strict=True)
        numbers, problems = next(totals), next(totals)
        if problems:
            raise NotFinite(f"activations or gradients of {name}")
        waiting = window.waiting.after(of_window, rows, items, numbers)
        result.append(replace(window, waiting=waiting) if any(rows) else window)
    return result


def record_waiting(
    windows: Sequence[Window], consumers: Sequence[Sequence[nn.Module]], processes: Processes = ALONE
) -> list[Window]:
    """Windows with new fits and the gradients of the passes that were waiting.

    Several processes communicate a few times, however many windows there are.

    Args:
        windows: the windows.
        consumers: the consumers of each window.
        processes: the processes.
    """
    updates = {
        (number, place): record.after(consumer, window.waiting.passes[place])
        for number, window in enumerate(windows)
        for place, (record, consumer) in enumerate(zip(window.records, consumers[number], strict=True))
        if window.waiting.passes[place]
    }
    found = dict(zip(updates, summed(list(updates.values()), processes), strict=True))
    return [
        window.with_records([found.get((number, place)) for place in range(len(window.records))])
        for number, window in enumerate(windows)
    ]


def _spread(gram: Tensor, parts: Tensor) -> Tensor:
    """Variance of the inner products of different folds, each with the same number of rows, without signal."""
    used = parts > 0
    gram, roots, K = gram[used][:, used], parts[used].sqrt(), int(used.sum())
    centring = torch.eye(K).to(gram) - torch.outer(roots, roots)
    centred = centring @ (gram / torch.outer(roots, roots)) @ centring
    between = ~torch.eye(K, dtype=torch.bool, device=gram.device)
    return centred[between].var(correction=0) * (K / (K - 2)) ** 2


def _signal(gram: Tensor, parts: Tensor) -> Tensor:
    """P from the inner products of folds and their parts of all rows."""
    return (gram.sum() - gram.trace()) / (1 - parts.square().sum())


def _padded(entries: Tensor, axis: Axis, plans: Sequence[Plan]) -> Tensor:
    """Entries of new neurons (first axis) on an axis of a parameter, with zeros for the neurons of other widths."""
    return pad_for_growth((axis.tensor, axis.axis), entries.movedim(0, axis.axis), plans).movedim(axis.axis, 0)


def _shape_after(shape: torch.Size, axis: Axis, edits: Sequence[Edit]) -> torch.Size:
    sizes = list(shape)
    for edit in edits:
        if edit.tensor == axis.tensor:
            sizes[edit.axis] += edit.change
    return torch.Size(sizes)


def _state(record: Record) -> dict[str, Any]:
    state = {field.name: getattr(record, field.name) for field in fields(Record)}
    if record.products is not None:
        state["products"] = {field.name: getattr(record.products, field.name) for field in fields(Products)}
    return state
