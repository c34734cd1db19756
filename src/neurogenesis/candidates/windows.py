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
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from ..passes.ranks import ALONE, Ranks, Sums, summed
from ..passes.samples import FOLDS, KEPT, folds, merged, mixed, number_of
from ..passes.seen import Shapes
from ..structure.axes import Axis
from ..structure.edits import Edit
from ..surgery.plan import Plan, pad_for_growth

RIDGE = 1e-4  # of the mean variance of the inputs, some of which may be constant or dependent
LEAST_ROWS = 2  # samples and positions of a fit, per input of the consumer
ENOUGH_ROWS = 6  # per input: with fewer, a fit explains what it should not, and earlier steps are added
MAX_ROWS = 1024  # of a step, if this is more than enough
NEW_ROWS = 4  # a fit of several steps is repeated when one of so many rows is new
LEAST_SHARE = 0.01  # of the variance of a candidate that present inputs must leave unexplained
LEAST_FOLDS = 4  # with samples
MOST_WAITING = 2**20  # numbers of passes that wait until there are enough rows: more would take much memory
MAX_PADDING = 2  # rows of folds that are padded to the same length, relative to all rows
SMALL = 2**20  # numbers, up to which more padding does not matter


class Pass(NamedTuple):
    """A training pass: the consumer's input, what candidates would add to it, and the gradient at its output.

    `samples` has the identity of each item of the model's batch, if it is known.
    """

    H: Tensor
    h: Tensor
    D: Tensor
    samples: Tensor | None = None

    @property
    def items(self) -> int:
        """The number of items of the batch."""
        return len(self.H) if self.samples is None else len(self.samples)

    @property
    def finite(self) -> bool:
        """Whether all entries are finite."""
        sums = [each.sum(dtype=_wide(each)) for each in (self.H, self.h, self.D)]
        return math.isfinite(float(sums[0] + sums[1] + sums[2]))

    @property
    def numbers(self) -> int:
        return self.H.numel() + self.h.numel() + self.D.numel()

    def rows(self, consumer: nn.Module) -> int:
        """The number of samples and positions."""
        return self.H.numel() // self.H.shape[_channel(consumer)]

    def divided(self, scale: float) -> Pass:
        """With the gradient divided by a number."""
        return self._replace(D=self.D.to(_wide(self.D)) / scale)

    def copied(self) -> Pass:
        """The same in memory of its own, to which nothing else is written."""
        return self._replace(H=self.H.clone(), h=self.h.clone(), D=self.D.clone())


class Waiting(NamedTuple):
    """Passes of steps that have been looked at, until there are enough rows for a fit.

    Numbers are the same in all processes.

    Args:
        passes: of this process, for each consumer and each step that it has run at in all processes.
        rows: number of rows at each consumer, of all processes.
        items: number of items of batches, of all processes.
        numbers: how many numbers the passes have, in the process that has most.
        looks: number of steps.
        finite: whether all numbers are finite, in all processes.
    """

    passes: tuple[tuple[tuple[Pass, ...], ...], ...]
    rows: tuple[int, ...]
    items: int = 0
    numbers: int = 0
    looks: int = 0
    finite: bool = True

    def after(
        self, passes: Sequence[Sequence[Pass]], rows: Sequence[int], items: int, numbers: int, finite: bool
    ) -> Waiting:
        """With the passes of another step; of consumers without rows, those of this process do not count."""
        return Waiting(
            tuple((*old, tuple(own)) if n else old for old, own, n in zip(self.passes, passes, rows, strict=True)),
            tuple(old + n for old, n in zip(self.rows, rows, strict=True)),
            self.items + items, self.numbers + numbers, self.looks + 1, self.finite and finite,
        )  # fmt: skip

    def copied(self, before: Waiting) -> Waiting:
        """With copies of the passes that are new."""
        new = [(len(old), own) for old, own in zip(before.passes, self.passes, strict=True)]
        return self._replace(
            passes=tuple((*own[:n], *(tuple(each.copied() for each in step) for step in own[n:])) for n, own in new)
        )

    @staticmethod
    def none(consumers: int) -> Waiting:
        return Waiting(((),) * consumers, (0,) * consumers)


@dataclass(frozen=True)
class Products:
    """Sums over rows x of [H, h], by which h is fitted to H. It is replaced, not modified.

    Args:
        centre: a number that is subtracted from each column: about its mean.
        count: number of rows; less of those that have been forgotten in part.
        sums: sum of x.
        squares: sum of the products of x and H, columns x inputs.
    """

    centre: Tensor
    count: Tensor
    sums: Tensor
    squares: Tensor

    @staticmethod
    def of(rows: Tensor, inputs: int, centre: Tensor) -> Sums[Products]:
        """The sums over the rows of all processes."""
        centred = rows - centre
        count, sums, squares = yield [
            rows.new_tensor(len(rows), dtype=torch.float64), centred.sum(0), centred.T @ centred[:, :inputs]
        ]  # fmt: skip
        return Products(centre, count, sums, squares)

    def after(self, new: Products, part: float) -> Products:
        """A part of these and the new ones, about the same centre."""
        sums, squares = (torch.add(getattr(new, name), getattr(self, name), alpha=part) for name in ("sums", "squares"))
        return Products(self.centre, part * self.count + new.count, sums, squares)

    def fit(self) -> Tensor:
        """Least-squares fit of h by a constant and H, with a small ridge: (1 + inputs) x candidates."""
        inputs, count = self.squares.shape[1], float(self.count)
        covariance = torch.addr(self.squares, self.sums, self.sums[:inputs], alpha=-1 / count).double()
        mean = (self.centre + self.sums / count).double()
        gram, mixed_products = covariance[:inputs].T, covariance[inputs:].T  # in the order of Fortran: no copies
        gram.diagonal().add_(RIDGE * gram.diagonal().mean() + torch.finfo(torch.float32).tiny)
        # Cholesky's method needs half the operations, but takes several times as long on two threads as on one.
        slopes = torch.linalg.solve_ex(gram, mixed_products).result
        return torch.cat([(mean[inputs:] - mean[:inputs] @ slopes)[None], slopes]).to(self.squares.dtype)


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
        channel, device = _channel(consumer), passes[0].H.device
        entries = [sum(each.D.numel() for each in own) for own in steps]
        counts = [*entries, sum(each.rows(consumer) for each in passes), sum(each.items for each in passes)]
        totals, squares, present_sums, sums = yield [
            torch.tensor(counts, dtype=torch.float64, device=device),
            torch.stack([_sum_of([_square(each.D) for each in own]) for own in steps]),
            *(_sums(consumer, [getattr(each, name) for each in passes]) for name in ("H", "h")),
        ]
        *entries, rows, items = map(int, totals.tolist())
        # By the number of rows, not of entries: new outputs have no gradient at first.
        outputs = passes[0].D.shape[channel]
        scales = [(square * outputs / n) ** 0.5 or 1.0 for square, n in zip(squares.tolist(), entries, strict=True)]
        passes = joined([each.divided(own) for step, own in zip(steps, scales, strict=True) for each in step])
        fitted = yield from self._fitted(consumer, passes, rows, torch.cat([present_sums, sums]) / rows)
        if fitted.coefficients is None:
            return fitted
        gradients, row_counts, energies, variances = [], [], [], []
        for each in passes:
            r = unexplained(consumer, each.H, each.h, fitted.coefficients)
            part = each.D.numel() / sum(entries)
            whole = _minus(consumer, each.h, sums / rows).to(r.dtype)
            both = torch.cat([r, whole.reshape(r.shape)], channel)
            gradient, count = fold_gradients(consumer, both, each.D.to(r.dtype), each.samples)
            gradients.append(gradient)
            row_counts.append(count)
            energies.append(_mean_squares(consumer, r) * part)
            variances.append(_mean_squares(consumer, whole) * part)
        new = yield [_sum_of(each) for each in (gradients, row_counts, energies, variances)]
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
        inputs = passes[0].H.shape[_channel(consumer)]
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
        return replace(
            window, records=tuple(records), samples=state["samples"], waiting=waiting, steps=state["steps"]
        )  # fmt: skip

    def padded(self, producers: Sequence[Axis], consumers: Sequence[Axis], plans: Sequence[Plan]) -> Window:
        """The window after other widths have grown: nothing has come from new inputs, or gone to new outputs, so far.

        Passes that wait are dropped, because they have other shapes.

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
        for axis, record, (producer, consumer) in zip(consumers, self.records, self.shapes, strict=True):
            sums = record.sums
            if sums is not None:
                fan_out = [size for dim, size in enumerate(consumer) if dim != axis.axis]
                new = _padded(sums.reshape(-1, *fan_out), axis, plans)
                sums = new.reshape(*sums.shape[:2], -1)
            records.append(replace(record, sums=sums))
            edits = [edit for plan in plans for edit in plan.edits]
            shapes.append((_shape_after(producer, producers[0], edits), _shape_after(consumer, axis, edits)))
        return replace(
            self, fan_ins=tuple(fan_ins), records=tuple(records), shapes=tuple(shapes),
            waiting=Waiting.none(len(records)),
        )  # fmt: skip

    def kept(self, before: Window) -> Window:
        """With copies of the passes that wait since `before`."""
        same = self.waiting is before.waiting
        return self if same else replace(self, waiting=self.waiting.copied(before.waiting))

    def due(self, consumers: Sequence[nn.Module], last: bool) -> bool:
        """Whether what waits is to be recorded: enough rows for a fit, or as many numbers as may wait.

        Args:
            consumers: the consumers.
            last: after the last look, the least number of rows is enough.
        """
        waiting = self.waiting
        if waiting.numbers >= MOST_WAITING:
            return True
        per_input = LEAST_ROWS if last else ENOUGH_ROWS
        return any(
            (rows and last and record.coefficients is not None)
            or (own and rows >= per_input * own[0][0].H.shape[_channel(consumer)])
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
        known = torch.cat([self.samples.to(samples[0].device), *samples]) if counted and samples else self.samples
        known = merged(known) if len(known) > 8 * KEPT else known
        steps = self.steps + counted * self.waiting.looks
        return replace(
            self, records=tuple(latest), samples=known, waiting=Waiting.none(len(latest)), steps=steps
        )  # fmt: skip

    @property
    def devices(self) -> list[set[torch.device]]:
        """The devices of what is known about each consumer."""
        waiting = [[each.H for step in own for each in step] for own in self.waiting.passes]
        recorded = [[] if record.energy is None else [record.energy] for record in self.records]
        return [{each.device for each in (*a, *b)} for a, b in zip(waiting, recorded, strict=True)]

    @property
    def looks(self) -> int:
        """The number of steps that have been looked at and count."""
        return self.steps + self.waiting.looks

    @property
    def items(self) -> int:
        """The number of items of batches, of all processes, in these steps."""
        return max(record.items for record in self.records) + self.waiting.items

    def statistics(self, training_samples: float, ranks: Ranks = ALONE) -> Statistics | None:
        """What the window shows; None if there are too few samples to tell, and a ratio of 0 without any gradients.

        Args:
            training_samples: the number of samples in the training set.
            ranks: the processes; all must call this.
        """
        samples = number_of(merged(*ranks.gathered(merged(self.samples))))
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


def _spread(gram: Tensor, parts: Tensor) -> Tensor:
    """Variance of the inner products of different folds, each with the same number of rows, without signal."""
    used = parts > 0
    gram, roots, K = gram[used][:, used], parts[used].sqrt(), int(used.sum())
    centring = torch.eye(K).to(gram) - torch.outer(roots, roots)
    centred = centring @ (gram / torch.outer(roots, roots)) @ centring
    between = ~torch.eye(K, dtype=torch.bool, device=gram.device)
    return centred[between].var(correction=0) * (K / (K - 2)) ** 2


def after_look(
    windows: Sequence[Window],
    consumers: Sequence[Sequence[nn.Module]],
    passes: Sequence[Sequence[Sequence[Pass]]],
    ranks: Ranks = ALONE,
) -> list[Window]:
    """Windows with the passes of a step, which wait to be recorded. Several processes communicate once.

    Without passes in all processes, the step does not count.

    Args:
        windows: the windows.
        consumers: the consumers of each window.
        passes: the passes of this process, for each window and consumer.
        ranks: the processes.
    """
    own = []
    for modules, of_window in zip(consumers, passes, strict=True):
        every = [each for of_consumer in of_window for each in of_consumer]
        own += [sum(each.rows(module) for each in found) for module, found in zip(modules, of_window, strict=True)]
        own.append(max(sum(each.items for each in of_consumer) for of_consumer in of_window))
        own += [-sum(each.numbers for each in every), all(each.finite for each in every)]
    agreed = iter(ranks.least(own))
    result = []
    for window, of_window in zip(windows, passes, strict=True):
        rows = [ranks.count * next(agreed) for _ in of_window]
        items, numbers, finite = ranks.count * next(agreed), -next(agreed), bool(next(agreed))
        waiting = window.waiting.after(of_window, rows, items, numbers, finite)
        result.append(replace(window, waiting=waiting) if any(rows) else window)
    return result


def recorded(windows: Sequence[Window], consumers: Sequence[Sequence[nn.Module]], ranks: Ranks = ALONE) -> list[Window]:
    """Windows with new fits and the gradients of the passes that were waiting.

    Several processes communicate a few times, however many windows there are.

    Args:
        windows: the windows.
        consumers: the consumers of each window.
        ranks: the processes.
    """
    updates = {
        (number, place): record.after(consumer, window.waiting.passes[place])
        for number, window in enumerate(windows)
        for place, (record, consumer) in enumerate(zip(window.records, consumers[number], strict=True))
        if window.waiting.passes[place]
    }
    found = dict(zip(updates, summed(list(updates.values()), ranks), strict=True))
    return [
        window.with_records([found.get((number, place)) for place in range(len(window.records))])
        for number, window in enumerate(windows)
    ]


def joined(passes: Sequence[Pass]) -> Sequence[Pass]:
    """Passes of different items as one, if their shapes allow it: fewer operations."""
    shapes = {tuple(each.shape[1:] for each in (own.H, own.h, own.D)) for own in passes}
    batched = all(own.H.ndim > 1 and own.samples is not None and len(own.samples) == len(own.H) for own in passes)
    if len(passes) == 1 or len(shapes) > 1 or not batched:
        return passes
    return [Pass(*(torch.cat(parts) for parts in zip(*passes, strict=True)))]


def _padded(entries: Tensor, axis: Axis, plans: Sequence[Plan]) -> Tensor:
    """Entries of new neurons (first axis) on an axis of a parameter, with zeros for the neurons of other widths."""
    return pad_for_growth((axis.tensor, axis.axis), entries.movedim(0, axis.axis), plans).movedim(axis.axis, 0)


def _shape_after(shape: torch.Size, axis: Axis, edits: Sequence[Edit]) -> torch.Size:
    sizes = list(shape)
    for edit in edits:
        if edit.tensor == axis.tensor:
            sizes[edit.axis] += edit.change
    return torch.Size(sizes)


def _signal(gram: Tensor, parts: Tensor) -> Tensor:
    """P from the inner products of folds and their parts of all rows."""
    return (gram.sum() - gram.trace()) / (1 - parts.square().sum())


def _state(record: Record) -> dict[str, Any]:
    state = {field.name: getattr(record, field.name) for field in fields(Record)}
    if record.products is not None:
        state["products"] = {field.name: getattr(record.products, field.name) for field in fields(Products)}
    return state


def fold_gradients(consumer: nn.Module, inputs: Tensor, D: Tensor, samples: Tensor | None) -> tuple[Tensor, Tensor]:
    """Sums of the gradients of fan-outs in each fold, folds x columns x fan-out, and the number of rows in each."""
    dims = len(consumer.kernel_size) + 1 if isinstance(consumer, _ConvNd) else 1
    leading, rest = D.shape[:-dims], math.prod(D.shape[-dims + 1 :]) if dims > 1 else 1
    of_row = folds(row_samples(samples, leading, D.device))
    counts = torch.bincount(of_row, minlength=FOLDS)
    order, sizes = of_row.argsort(), counts.tolist()
    padded = FOLDS * max(sizes)
    if dims == 1 and (padded <= MAX_PADDING * len(order) or padded * (inputs.shape[-1] + D.shape[-1]) <= SMALL):
        x, y = (each.reshape(-1, each.shape[-1]) for each in (inputs, D))
        return _products_of_folds(x, y, order, counts, max(sizes)), counts.double()
    x, y = (each.reshape(-1, *each.shape[-dims:]).index_select(0, order) for each in (inputs, D))
    parts = zip(x.split(sizes), y.split(sizes), strict=True)  # type: ignore[no-untyped-call]
    gradients = [fan_out_gradient(consumer, *each) if len(each[0]) else None for each in parts]
    nothing = torch.zeros_like(next(each for each in gradients if each is not None))
    return torch.stack([nothing if each is None else each for each in gradients]), counts.double() * rest


def _products_of_folds(x: Tensor, y: Tensor, order: Tensor, counts: Tensor, most: int) -> Tensor:
    """The product of x and y in each fold, by one operation on folds that are padded to the same number of rows.

    Args:
        x: rows x columns.
        y: rows x outputs.
        order: the rows, fold by fold.
        counts: the number of rows in each fold.
        most: the largest of these.
    """
    places = torch.arange(most, device=order.device)
    present = places < counts[:, None]
    rows = order[((counts.cumsum(0) - counts)[:, None] + places).clamp_max(len(order) - 1)].flatten()
    x, y = (each.index_select(0, rows).reshape(*present.shape, -1) for each in (x, y))
    return x.masked_fill_(~present[..., None], 0).mT @ y


def row_samples(samples: Tensor | None, leading: Sequence[int], device: torch.device) -> Tensor:
    """The sample that each row of a consumer's input comes from, given the dimensions before the channel.

    The batch is the first of these, or the second, as in sequences with the time first, or the first is a multiple of
    it, as in a batch of all tokens. Otherwise it is not known where rows come from: each is taken for a sample.
    """
    count = math.prod(leading)
    if samples is not None:
        samples = samples.to(device)
        items = len(samples)
        if not leading:  # a single sample without a batch
            return mixed(samples.sum()[None])
        if len(leading) > 1 and leading[0] != items == leading[1]:
            after = math.prod(leading[2:])
            return samples.repeat_interleave(after).repeat(leading[0])
        if leading[0] % items == 0:
            return samples.repeat_interleave(count // items)
    return mixed(torch.arange(count, device=device))


def rows_match(consumer: nn.Module, H: Tensor, h: Tensor) -> bool:
    """Whether two tensors can be inputs of the consumer together: equal but for the number of channels."""
    return H.ndim == h.ndim and H.select(_channel(consumer), 0).shape == h.select(_channel(consumer), 0).shape


def unexplained(consumer: nn.Module, H: Tensor, h: Tensor, coefficients: Tensor) -> Tensor:
    """Residual of candidates after a fit, in the layout of the consumer's input."""
    constant, slopes = coefficients[0], coefficients[1:]
    H, h = H.to(slopes.dtype), h.to(slopes.dtype)
    if not isinstance(consumer, _ConvNd):
        return h - torch.addmm(constant, H.flatten(0, -2), slopes).reshape(h.shape)
    h = h.reshape(-1, *h.shape[-len(consumer.kernel_size) - 1 :])
    H = H.reshape(len(h), -1, *h.shape[2:])
    return h - (slopes.T @ H.flatten(2) + constant[:, None]).reshape(h.shape)


def _sums(consumer: nn.Module, inputs: Sequence[Tensor]) -> Tensor:
    """Sum of each input of the consumer over samples and positions of all passes."""
    return _sum_of([each.sum(_all_but_channel(consumer, each), dtype=_wide(each)) for each in inputs])


def _square(tensor: Tensor) -> Tensor:
    """The squared norm of all entries."""
    norm: Tensor = torch.linalg.vector_norm(tensor, dtype=_wide(tensor))
    return norm.square()


def _sum_of(tensors: Sequence[Tensor]) -> Tensor:
    return sum(tensors[1:], tensors[0])


def _minus(consumer: nn.Module, inputs: Tensor, means: Tensor) -> Tensor:
    """Inputs of the consumer minus a number for each."""
    if isinstance(consumer, _ConvNd):
        inputs = inputs.reshape(-1, *inputs.shape[_channel(consumer) :])
        means = means.reshape(-1, *[1] * len(consumer.kernel_size))
    return inputs - means


def _mean_squares(consumer: nn.Module, inputs: Tensor) -> Tensor:
    """Mean square of each input of the consumer."""
    norms = torch.linalg.vector_norm(inputs, dim=_all_but_channel(consumer, inputs))
    squares: Tensor = norms.square() * (len(norms) / inputs.numel())
    return squares


def _all_but_channel(consumer: nn.Module, tensor: Tensor) -> list[int]:
    channel = _channel(consumer) % tensor.ndim
    return [dim for dim in range(tensor.ndim) if dim != channel]


def fan_out_gradient(consumer: nn.Module, inputs: Tensor, D: Tensor) -> Tensor:
    """Gradient of the consumer's weights of some input columns, columns x fan-out."""
    if not isinstance(consumer, _ConvNd):
        return inputs.flatten(0, -2).T @ D.flatten(0, -2)
    dims = len(consumer.kernel_size)
    weight = D.new_zeros(1).expand(D.shape[-dims - 1], inputs.shape[1], *consumer.kernel_size)
    padding = consumer.padding
    if isinstance(padding, str):
        sizes = zip(consumer.kernel_size, consumer.dilation, strict=True)
        padding = tuple(d * (k - 1) // 2 for k, d in sizes) if padding == "same" else (0,) * dims
    gradients = torch.ops.aten.convolution_backward(
        D.reshape(len(inputs), *D.shape[-dims - 1 :]), inputs, weight, None,
        consumer.stride, padding, consumer.dilation, False, (0,) * dims, 1, [False, True, False],
    )  # fmt: skip
    result: Tensor = gradients[1]
    return result.movedim(1, 0).flatten(1)


def sampled_rows(consumer: nn.Module, each: Pass, count: int) -> Tensor:
    """Rows of [H, h], one per sample and position: all, or about `count` that are spread over all."""
    parts = []
    for part in (each.H, each.h):
        if isinstance(consumer, _ConvNd):
            part = part.reshape(-1, *part.shape[-len(consumer.kernel_size) - 1 :]).flatten(2).movedim(1, 2)
        else:
            part = part.reshape(len(part) if part.ndim > 1 else 1, -1, part.shape[-1])
        samples, positions = part.shape[:2]
        if samples * positions > count:
            per_sample = max(1, -(-count // samples))
            spread = torch.randperm(positions, generator=torch.Generator().manual_seed(0))[:per_sample]
            part = part[:: max(1, samples * len(spread) // count), spread.to(part.device)]
        parts.append(part.flatten(0, 1))
    rows = torch.cat(parts, 1)
    return rows.to(_wide(rows))


def _channel(consumer: nn.Module) -> int:
    return -len(consumer.kernel_size) - 1 if isinstance(consumer, _ConvNd) else -1


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)
