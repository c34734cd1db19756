"""The record of a window at one consumer: fits of candidates, and the gradients of what these leave unexplained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..passes.processes import Sums
from .fits import Products, fit_gains, unexplained
from .folds import fold_gradients
from .looks import Pass, joined, sampled_rows
from .rows import (
    Gain,
    channel_dim,
    channel_sums,
    groups_of,
    mean_squares,
    minus_means,
    squared_norm,
    sum_of,
    wide,
)

LEAST_ROWS = 2  # samples and positions of a fit, per input of the consumer
ENOUGH_ROWS = 6  # per input: with fewer, a fit explains what it should not, so that steps wait for others
MAX_ROWS = 1024  # of a fit, if this is more than enough
NEW_ROWS = 4  # a fit of several steps is repeated when one of so many rows is new
LEAST_SHARE = 0.01  # of the variance of a candidate that present inputs must leave unexplained
MOST_WAITING = 2**20  # numbers of passes that wait until there are enough rows: more would take much memory


@dataclass(frozen=True)
class Record:
    """Fits and gradients at one consumer. It is replaced, not modified.

    Args:
        products: products of inputs and candidates in the latest steps, for the next fit.
        new_rows: number of rows since the latest fit.
        coefficients: the latest fit; None before there are enough rows.
        sums: sums of the gradients of fan-outs, folds x (2 candidates) x fan-out: of the parts that the fits leave,
            then of the whole candidates.
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
            gradient, count = fold_gradients(consumer, both, each.D.to(r.dtype), each.owners)
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

        Training changes the inputs: after an old fit, a part of the present neurons remains in a candidate, with their
        gradients. So earlier steps are forgotten as soon as later ones have enough rows.

        Args:
            consumer: the consumer.
            passes: the passes of this process.
            rows: number of rows of all processes.
            means: means of [H, h] over all processes.
        """
        if isinstance(consumer, Gain):
            return (yield from self._with_gains(passes, rows))
        inputs, groups = passes[0].H.shape[channel_dim(consumer)], max(1, groups_of(consumer))
        enough = ENOUGH_ROWS * inputs * groups
        most = max(enough, MAX_ROWS)
        own = [sampled_rows(consumer, each, -(-most * each.H.numel() // (rows * inputs))) for each in passes]
        new = own[0] if len(own) == 1 else torch.cat(own, -2)
        part = max(0.0, 1 - rows / enough)  # of what is known
        centre = self.products.centre if self.products is not None and part else means
        products = yield from Products.of(new, inputs, centre)
        if self.products is not None and part:
            products = self.products.after(products, part)
        new_rows = self.new_rows + rows
        few = float(products.count.sum()) < LEAST_ROWS * inputs * groups
        if few or (self.coefficients is not None and NEW_ROWS * new_rows < float(products.count.sum())):
            return replace(self, products=products, new_rows=new_rows)
        return replace(self, products=products, new_rows=0, coefficients=products.fit())

    def _with_gains(self, passes: Sequence[Pass], rows: int) -> Sums[Record]:
        """Fit each channel of a gain to the same channel of the present one."""
        columns = []
        for each in passes:
            H, h = (own.flatten(0, -2).to(wide(own)) for own in (each.H, each.h))
            columns.append(torch.stack([part.sum(0) for part in (H, h, H * H, H * h)]))
        (sums,) = yield [sum_of(columns)]
        return replace(self, coefficients=fit_gains(rows, *sums))

    @property
    def complete(self) -> bool:
        """Whether the sums have both halves; states of earlier versions have only the first."""
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
            whole: of the whole candidates, instead of the parts that the fits leave.
        """
        if self.sums is None or self.counts is None or self.energy is None or self.variance is None:
            return None
        squares = self.variance if whole else self.energy
        weights = torch.where(self.energy > LEAST_SHARE * self.variance, squares.rsqrt(), 0)
        scaled = (self.sums.chunk(2, 1)[whole] * weights[:, None]).flatten(1)
        total = self.counts.sum()
        gram, parts = (scaled @ scaled.T).double() / total**2, self.counts / total
        variance = samples * (gram.trace() - signal(gram, parts) * parts.square().sum())
        return (gram / variance, parts) if variance > 0 else None

    def state(self) -> dict[str, Any]:
        state = {field.name: getattr(self, field.name) for field in fields(Record)}
        if self.products is not None:
            state["products"] = {field.name: getattr(self.products, field.name) for field in fields(Products)}
        return state

    @staticmethod
    def from_state(state: Mapping[str, Any]) -> Record:
        products = state["products"]
        return Record(**{**state, "products": None if products is None else Products(**products)})


def signal(gram: Tensor, parts: Tensor) -> Tensor:
    """P from the inner products of folds and their parts of all rows."""
    return (gram.sum() - gram.trace()) / (1 - parts.square().sum())
