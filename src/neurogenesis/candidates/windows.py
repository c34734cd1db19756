r"""Would-be neurons over several steps: is the gradient of their fan-out signal or noise?

A window has C candidates with fixed fan-in and no fan-out. At each step, with :math:`h_c` the input that the consumer
would get from candidate c, and H the inputs that it gets now,

.. math:: r_c = h_c - \beta_c [1, H], \qquad G_c = \partial L / \partial w^{out}_c \text{ for the input } r_c

where :math:`\beta_c` is the least-squares fit of :math:`h_c`: what the consumer can express with its bias and its
present inputs does not count. The fit is that of the same step, and candidates of which it leaves less than a
hundredth of the variance are left out. (A step with few samples is fitted together with the ones before it.) Over K
steps

.. math:: \Gamma_{ts} = \sum_c \langle G_c(t), G_c(s) \rangle / E_c, \qquad E_c = \text{mean of } r_c^2

          P = \frac{\sum_{t \ne s} \Gamma_{ts}}{K (K - 1)}, \qquad
          N = \frac{1}{K} \sum_t \Gamma_{tt} - P

P and N are unbiased estimates of the squared norm of the mean gradient and of the variance of the gradient, and

.. math:: R = P / N, \qquad \sigma = \frac{1}{N} \sqrt{\frac{2 S}{K (K - 1)}}

are the signal-to-noise ratio of a single step and its standard error without signal. (K R + 1 is an F statistic.) S
estimates the trace of the squared covariance of the gradient, so the error is larger the fewer dimensions the gradient
varies in. It is :math:`(K / (K - 2))^2` times the variance of the entries off the diagonal of :math:`\Gamma` after
centring, which is a little too large for short windows.

If the width has several consumers, :math:`\Gamma` is the mean of theirs, each divided by its own N. So R is the mean
over consumers, and its error is smaller than theirs. If a consumer does not run at a step, its gradient counts as zero.
Consumers that have gradients at less than half of the steps are left out.

The gradient at the consumer's output is divided by its root mean square norm at each step, so that R does not depend on
the scale of the loss.

Reference: the test of a mean in many dimensions of Chen and Qin, "A two-sample test for high-dimensional data with
applications to gene-set testing" (Annals of Statistics 2010).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from ..passes.ranks import ALONE, Ranks, Sums, summed
from ..passes.seen import Shapes
from ..structure.axes import Axis
from ..structure.edits import Edit
from ..surgery.plan import Plan, pad_for_growth

RIDGE = 1e-4  # of the mean variance of the inputs, some of which may be constant or dependent
MAX_BLOCKS = 20  # of gradients that are kept; steps are added up to fewer when there are more
ROWS_PER_INPUT = 2  # samples and positions that a fit takes at least, per input of the consumer
MAX_ROWS = 1024  # of a fit, if that is more than it needs
NEW_ROWS = 4  # a fit of several steps is repeated when one of so many rows is new: one of many inputs takes long
LEAST_SHARE = 0.01  # of the variance of a candidate that present inputs must leave unexplained


class Pass(NamedTuple):
    """A training pass: the consumer's input, what candidates would add to it, and the gradient at its output."""

    H: Tensor
    h: Tensor
    D: Tensor


@dataclass(frozen=True)
class Record:
    """What a window has recorded at one consumer. It is replaced, not modified.

    Args:
        present: some present inputs of the consumer, for comparison.
        rows: latest rows of [H, h] for the next fit, by step, about as many as it needs.
        new_rows: number of rows since the latest fit.
        coefficients: the latest fit, (1 + inputs) x columns of candidates; None before there are enough rows.
        blocks: sums of gradients of fan-outs over consecutive steps: (candidates and present inputs) x fan-out. All
            blocks have the same number of steps, except that the last one may not be complete.
        energy: sum of the mean squares of r, and of the present inputs after centring.
        variance: sum of the variances of the candidates.
        steps: number of steps with gradients.
    """

    present: Tensor
    rows: tuple[Tensor, ...] = ()
    new_rows: int = 0
    coefficients: Tensor | None = None
    blocks: tuple[Tensor, ...] = ()
    energy: Tensor | None = None
    variance: Tensor | None = None
    steps: int = 0

    def after(self, consumer: nn.Module, passes: Sequence[Pass], before: int, ranks: Ranks) -> Sums[Record]:
        """The record after a step of the window, `before` steps after it began: with a new fit, if there are enough
        rows for one, and then with the gradients of the step.

        All sums are those over processes.
        """
        channel, device = _channel(consumer), passes[0].H.device
        inputs, candidates = passes[0].H.shape[channel], passes[0].h.shape[channel]
        both = [torch.cat([each.h, each.H.index_select(channel, self.present.to(device))], channel) for each in passes]
        norms = [torch.linalg.vector_norm(each.D, dtype=_wide(each.D)) for each in passes]
        counts = [sum(getattr(each, name).numel() for each in passes) for name in ("H", "D")]
        local = torch.tensor(counts, dtype=torch.float64, device=device), _sum_of([n.square() for n in norms])
        present_sums = [] if ranks is ALONE else [_sums(consumer, [each.H for each in passes])]
        totals, squares, sums, *present_sums = yield [*local, _sums(consumer, both), *present_sums]
        rows, entries = int(totals[0]) // inputs, int(totals[1])
        means = torch.cat([*present_sums, sums[:candidates]]) / rows if present_sums else None
        fitted = yield from self._fitted(consumer, passes, rows, means, ranks)
        if fitted.coefficients is None:
            return fitted
        # By the number of rows, not of entries: new outputs have no gradient at first.
        scale = float(squares.sqrt()) / (entries / passes[0].D.shape[channel]) ** 0.5 or 1.0
        gradients, energies, variances = [], [], []
        for each, own in zip(passes, both, strict=True):
            centred = _minus(consumer, own, sums / rows)
            variance = _mean_squares(consumer, centred)
            r = unexplained(consumer, each.H, each.h, fitted.coefficients)
            present = centred.narrow(channel, candidates, len(self.present))
            x = torch.cat([r, present.to(r.dtype)], channel)
            part = each.D.numel() / entries
            gradients.append(fan_out_gradient(consumer, x, each.D.to(r.dtype)) / scale)
            energies.append(torch.cat([_mean_squares(consumer, r), variance[candidates:]]) * part)
            variances.append(variance[:candidates] * part)
        gradient, energy, variance = yield [_sum_of(each) for each in (gradients, energies, variances)]
        return fitted._with_step(gradient, energy, variance, before)

    def _fitted(
        self, consumer: nn.Module, passes: Sequence[Pass], rows: int, means: Tensor | None, ranks: Ranks
    ) -> Sums[Record]:
        """Fit the candidates to the consumer's inputs of this step, or of the latest steps if there are few rows.

        A fit of earlier steps would not do: training changes the inputs, and what it leaves of a candidate would then
        have parts of the present neurons, with their gradients.

        Args:
            consumer: the consumer.
            passes: the passes of this process.
            rows: number of rows of all processes.
            means: means of [H, h] over all processes, if there are several.
            ranks: the processes.
        """
        inputs = passes[0].H.shape[_channel(consumer)]
        enough = ROWS_PER_INPUT * inputs
        most = max(enough, MAX_ROWS)
        own = [sampled_rows(consumer, each, -(-most * each.H.numel() // (rows * inputs))) for each in passes]
        new = own[0] if len(own) == 1 else torch.cat(own)
        if rows >= enough:
            coefficients = yield from fit(new, inputs, means)
            return replace(self, rows=(), new_rows=0, coefficients=coefficients)
        kept = (*self.rows, *ranks.gathered(new))
        while sum(map(len, kept[1:])) >= most:
            kept = kept[1:]
        count, new_rows = sum(map(len, kept)), self.new_rows + rows
        if count < enough or (self.coefficients is not None and NEW_ROWS * new_rows < count):
            return replace(self, rows=kept, new_rows=new_rows)
        coefficients = yield from fit(torch.cat(kept), inputs)
        return replace(self, rows=kept, new_rows=0, coefficients=coefficients)

    def _with_step(self, gradient: Tensor, energy: Tensor, variance: Tensor, before: int) -> Record:
        if self.energy is not None and self.variance is not None:
            energy, variance = self.energy + energy, self.variance + variance
        blocks = self.blocks
        if not blocks:
            blocks = (torch.zeros_like(gradient),) * -(-before // block_length(before))
        blocks = _with_block(blocks, gradient, before)
        return replace(self, blocks=blocks, energy=energy, variance=variance, steps=self.steps + 1)

    def without_gradient(self, before: int) -> Record:
        """Add a step at which the consumer did not run, had no gradient, or too few rows for a fit."""
        if not self.blocks:
            return self
        return replace(self, blocks=_with_block(self.blocks, torch.zeros_like(self.blocks[0]), before))

    def gram(self, part: Literal["candidates", "present"], count: int) -> Tensor | None:
        """Inner products of the first `count` blocks, divided by their noise; None if there is none."""
        if self.energy is None or self.variance is None:
            return None
        split = len(self.variance)
        rows = slice(split) if part == "candidates" else slice(split, None)
        energy = self.energy[rows]
        used = energy > (LEAST_SHARE * self.variance if part == "candidates" else 0)
        weights = torch.where(used, energy.rsqrt(), 0)
        scaled = (torch.stack(self.blocks[:count])[:, rows] * weights[:, None]).flatten(1)
        gram = (scaled @ scaled.T).double()
        noise = _signal_and_noise(gram)[1]
        return gram / noise if noise > 0 else None


@dataclass(frozen=True)
class Window:
    """Candidates, and the gradients of their fan-outs over the steps of the window. It is replaced, not modified.

    Args:
        fan_ins: weights of the candidates in the first producer and in the other ones, count x per neuron x the rest.
        records: what was recorded at each consumer.
        shapes: shapes of the first producer's and each consumer's weight.
        steps: number of steps with gradients.
    """

    fan_ins: tuple[Tensor, ...]
    records: tuple[Record, ...]
    shapes: tuple[Shapes, ...]
    steps: int = 0

    def state(self) -> dict[str, Any]:
        return {
            "fan_ins": self.fan_ins,
            "records": [
                {field.name: getattr(record, field.name) for field in fields(Record)} for record in self.records
            ],
            "shapes": [[list(shape) for shape in shapes] for shapes in self.shapes],
            "steps": self.steps,
        }

    @staticmethod
    def from_state(state: dict[str, Any]) -> Window:
        records = tuple(Record(**record) for record in state["records"])
        shapes = tuple((torch.Size(producer), torch.Size(consumer)) for producer, consumer in state["shapes"])
        return Window(state["fan_ins"], records, shapes, state["steps"])

    def padded(self, producers: Sequence[Axis], consumers: Sequence[Axis], plans: Sequence[Plan]) -> Window:
        """The window after other widths have grown: nothing has come from new inputs, or gone to new outputs, so far.

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
            fan_out = [size for dim, size in enumerate(consumer) if dim != axis.axis]
            blocks = [_padded(block.reshape(-1, *fan_out), axis, plans).flatten(1) for block in record.blocks]
            records.append(replace(record, blocks=tuple(blocks)))
            edits = [edit for plan in plans for edit in plan.edits]
            shapes.append((_shape_after(producer, producers[0], edits), _shape_after(consumer, axis, edits)))
        return replace(self, fan_ins=tuple(fan_ins), records=tuple(records), shapes=tuple(shapes))

    def with_records(self, records: Sequence[Record | None]) -> Window:
        """The window after a step, with the records of the consumers that have run.

        If none has gradients of the step, because fits have too few rows yet, the step does not count.
        """
        if not any(records):
            return self
        counted = [new is not None and new.steps > old.steps for old, new in zip(self.records, records, strict=True)]
        latest = [old if new is None else new for old, new in zip(self.records, records, strict=True)]
        if any(counted):
            latest = [
                each if has else each.without_gradient(self.steps) for each, has in zip(latest, counted, strict=True)
            ]
        return replace(self, records=tuple(latest), steps=self.steps + any(counted))

    def statistics(self) -> tuple[float, float, float]:
        """The ratio R of candidates, its standard error, and the ratio of the present inputs."""
        return *self._statistic("candidates"), self._statistic("present")[0]

    def _statistic(self, part: Literal["candidates", "present"]) -> tuple[float, float]:
        """R and its standard error; both are 0 if there are no gradients at all."""
        length = block_length(self.steps)
        K = self.steps // length  # the number of blocks: R is that of a block, divided by its length
        often = [record for record in self.records if 2 * record.steps >= self.steps]
        grams = [gram for record in often if (gram := record.gram(part, K)) is not None]
        if not grams:
            return 0.0, 0.0
        gram = torch.stack([each.to(grams[0].device) for each in grams]).mean(0)
        signal, noise = _signal_and_noise(gram)
        centring = torch.eye(K).to(gram) - 1 / K
        spread = (centring @ gram @ centring)[_between(gram)].var(correction=0) * (K / (K - 2)) ** 2
        error = (2 * spread / (K * (K - 1))).sqrt()
        return float(signal / noise) / length, float(error / noise) / length


def after_step(
    windows: Sequence[Window],
    consumers: Sequence[Sequence[nn.Module]],
    passes: Sequence[Sequence[Sequence[Pass]]],
    ranks: Ranks = ALONE,
) -> list[Window]:
    """Windows after a step, with new fits and the gradients of the step.

    Several processes communicate a few times, however many windows there are.

    Args:
        windows: the windows.
        consumers: the consumers of each window.
        passes: the passes of this process, for each window and consumer.
        ranks: the processes.
    """
    run_in_all = iter(ranks.least([bool(own) for of_window in passes for own in of_window]))
    updates = {
        (number, place): record.after(consumer, own, window.steps, ranks)
        for number, window in enumerate(windows)
        for place, (record, consumer, own) in enumerate(
            zip(window.records, consumers[number], passes[number], strict=True)
        )
        if next(run_in_all)
    }
    found = dict(zip(updates, summed(list(updates.values()), ranks), strict=True))
    return [
        window.with_records([found.get((number, place)) for place in range(len(window.records))])
        for number, window in enumerate(windows)
    ]


def _padded(entries: Tensor, axis: Axis, plans: Sequence[Plan]) -> Tensor:
    """Entries of new neurons (first axis) on an axis of a parameter, with zeros for the neurons of other widths."""
    return pad_for_growth((axis.tensor, axis.axis), entries.movedim(0, axis.axis), plans).movedim(axis.axis, 0)


def _shape_after(shape: torch.Size, axis: Axis, edits: Sequence[Edit]) -> torch.Size:
    sizes = list(shape)
    for edit in edits:
        if edit.tensor == axis.tensor:
            sizes[edit.axis] += edit.change
    return torch.Size(sizes)


def _signal_and_noise(gram: Tensor) -> tuple[Tensor, Tensor]:
    """P and N from the inner products of gradients."""
    signal = gram[_between(gram)].mean()
    return signal, gram.diagonal().mean() - signal


def _between(gram: Tensor) -> Tensor:
    return ~torch.eye(len(gram), dtype=torch.bool, device=gram.device)


def block_length(steps: int) -> int:
    """Number of steps in a block: the smallest power of two with at most `MAX_BLOCKS` blocks."""
    length = 1
    while length * MAX_BLOCKS < steps:
        length *= 2
    return length


def _with_block(blocks: tuple[Tensor, ...], gradient: Tensor, steps: int) -> tuple[Tensor, ...]:
    """Blocks of `steps` steps and a further one."""
    if steps % block_length(steps):
        return (*blocks[:-1], blocks[-1] + gradient)
    if len(blocks) == MAX_BLOCKS:
        blocks = tuple(a + b for a, b in zip(blocks[::2], blocks[1::2], strict=True))
    return (*blocks, gradient)


def rows_match(consumer: nn.Module, H: Tensor, h: Tensor) -> bool:
    """Whether two tensors can be inputs of the consumer together: equal but for the number of channels."""
    return H.ndim == h.ndim and H.select(_channel(consumer), 0).shape == h.select(_channel(consumer), 0).shape


def fit(rows: Tensor, inputs: int, means: Tensor | None = None) -> Sums[Tensor]:
    """Least-squares fit, with a small ridge, of the columns after the first `inputs` by a constant and these.

    Returns the coefficients, (1 + inputs) x targets.

    Args:
        rows: the rows of this process.
        inputs: number of columns to fit by.
        means: if the rows of all processes are to be fitted, about their means: the same in all processes.
    """
    centre = rows.mean(0) if means is None else means.to(rows.dtype)
    centred = rows - centre
    products = centred.T @ centred[:, :inputs]
    if means is None:
        products = products.double()
    else:
        count, sums, products = yield [centred.new_tensor(len(rows)), centred.sum(0), products]
        products = products.double() - torch.outer(sums, sums[:inputs]) / count
        centre = centre + sums / count
    gram, mixed = products[:inputs].T, products[inputs:].T  # in the order of Fortran, which saves copies
    gram.diagonal().add_(RIDGE * gram.diagonal().mean() + torch.finfo(torch.float32).tiny)
    # Cholesky's method needs half the operations, but takes several times as long on two threads as on one.
    slopes = torch.linalg.solve_ex(gram, mixed).result.to(rows.dtype)
    return torch.cat([(centre[inputs:] - centre[:inputs] @ slopes)[None], slopes])


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
