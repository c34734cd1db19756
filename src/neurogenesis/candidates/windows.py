r"""Would-be neurons over several steps: is the gradient of their fan-out signal or noise?

A window has C candidates with fixed fan-in and no fan-out. At each step, with :math:`h_c` the input that the consumer
would get from candidate c, and H the inputs that it gets now,

.. math:: r_c = h_c - \beta_c [1, H], \qquad G_c = \partial L / \partial w^{out}_c \text{ for the input } r_c

where :math:`\beta_c` is the least-squares fit of :math:`h_c`: what the consumer can express with its bias and its
present inputs does not count. Over K steps

.. math:: \Gamma_{ts} = \sum_c \langle G_c(t), G_c(s) \rangle / E_c, \qquad E_c = \text{mean of } r_c^2

          P = \frac{\sum_{t \ne s} \Gamma_{ts}}{K (K - 1)}, \qquad
          N = \frac{1}{K} \sum_t \Gamma_{tt} - P

P and N are unbiased estimates of the squared norm of the mean gradient and of the variance of the gradient, and

.. math:: z = K P / N, \qquad \sigma_z = \frac{\sqrt{2 \sum_{t \ne s} \Gamma_{ts}^2}}{(K - 1) N}

are an F statistic minus 1 and its standard error if there is only noise. z is about 0 then, and otherwise K times the
signal-to-noise ratio of a step. The gradient at the consumer's output is divided by its root mean square at each step,
so that z does not depend on the scale of the loss.

Reference: the test of a mean in many dimensions of Chen and Qin, "A two-sample test for high-dimensional data with
applications to gene-set testing" (Annals of Statistics 2010).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from ..passes.seen import Shapes

RIDGE = 1e-3  # of the mean variance of the inputs, some of which may be constant or dependent
ROWS_PER_INPUT = 2  # samples and positions in a fit, per input of the consumer


class Pass(NamedTuple):
    """A training pass: the consumer's input, what candidates would add to it, and the gradient at its output."""

    H: Tensor
    h: Tensor
    D: Tensor


@dataclass(frozen=True)
class Window:
    """Candidates, and the gradients of their fan-outs over the steps of the window. It is replaced, not modified.

    Args:
        fan_in: weights of the candidates in the producer, count x per neuron x the rest.
        shapes: shapes of the producer's and the consumer's weight when the window began.
        rows: latest rows of [H, h] for the next fit, at most as many as it needs.
        coefficients: the latest fit, (1 + inputs) x columns of candidates; None before there are enough rows.
        gradients: gradients of fan-outs at each step, candidates x fan-out.
        energies: mean square of r at each step, per candidate.
    """

    fan_in: Tensor
    shapes: Shapes
    rows: Tensor | None = None
    coefficients: Tensor | None = None
    gradients: tuple[Tensor, ...] = ()
    energies: tuple[Tensor, ...] = ()

    @property
    def steps(self) -> int:
        """Number of steps with gradients."""
        return len(self.gradients)

    def state(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)} | {"shapes": [*map(list, self.shapes)]}

    @staticmethod
    def from_state(state: dict[str, Any]) -> Window:
        producer, consumer = map(torch.Size, state["shapes"])
        return Window(**{**state, "shapes": (producer, consumer)})

    def fitted(self, consumer: nn.Module, passes: Sequence[Pass], due: bool) -> Window:
        """Fit the candidates to the consumer's inputs if it is due, or keep the rows that the next fit needs."""
        inputs = passes[0].H.shape[_channel(consumer)]
        enough = ROWS_PER_INPUT * inputs
        present = sum(each.H.numel() for each in passes) // inputs
        if present >= enough and not due:
            return self
        rows = torch.cat([sampled_rows(consumer, each, enough) for each in passes])
        rows = (rows if self.rows is None else torch.cat([self.rows, rows]))[-enough:]
        if not due or len(rows) < enough:
            return replace(self, rows=rows)
        kept = None if present >= enough else rows
        return replace(self, rows=kept, coefficients=fit(rows[:, :inputs], rows[:, inputs:]))

    def with_step(self, consumer: nn.Module, passes: Sequence[Pass]) -> Window:
        """Add the gradients of a step."""
        assert self.coefficients is not None
        squares = sum(float(torch.linalg.vector_norm(each.D, dtype=_wide(each.D))) ** 2 for each in passes)
        scale = (squares / sum(each.D.numel() for each in passes)) ** 0.5
        gradients, energies, weights = [], [], []
        for each in passes:
            r = unexplained(consumer, each.H, each.h, self.coefficients)
            D = each.D.to(r.dtype) / scale if scale > 0 else each.D.to(r.dtype)
            gradients.append(fan_out_gradient(consumer, r, D))
            energies.append(r.square().mean([dim for dim in range(r.ndim) if dim != _channel(consumer) % r.ndim]))
            weights.append(each.D.numel())
        count = len(self.fan_in)
        gradient = torch.stack(gradients).sum(0).reshape(count, -1)
        energy = (torch.stack(energies) * torch.tensor(weights).to(gradient)[:, None]).sum(0) / sum(weights)
        energy = energy.reshape(count, -1).mean(1)
        return replace(self, gradients=(*self.gradients, gradient), energies=(*self.energies, energy))

    def statistic(self) -> tuple[float, float]:
        """The statistic z and its standard error; both are 0 if there are no gradients at all."""
        K, energy = self.steps, torch.stack(self.energies).mean(0)
        used = energy > 0
        scaled = torch.stack([(each[used] / energy[used].sqrt()[:, None]).flatten() for each in self.gradients])
        gram = (scaled @ scaled.T).double()
        own, others = gram.diagonal().sum(), gram - gram.diagonal().diag()
        signal = others.sum() / (K * (K - 1))
        noise = own / K - signal
        if not noise > 0:
            return 0.0, 0.0
        error = (2 * others.square().sum()).sqrt() / ((K - 1) * noise)
        return K * float(signal / noise), float(error)


def fit(inputs: Tensor, targets: Tensor) -> Tensor:
    """Coefficients of a constant and the inputs, (1 + inputs) x targets, by least squares with a small ridge."""
    means, target_means = inputs.mean(0), targets.mean(0)
    centred = inputs - means
    gram = (centred.T @ centred).double()
    gram.diagonal().add_(RIDGE * gram.diagonal().mean() + torch.finfo(torch.float32).tiny)
    mixed = (centred.T @ (targets - target_means)).double()
    slopes = torch.cholesky_solve(mixed, torch.linalg.cholesky(gram)).to(targets.dtype)
    return torch.cat([(target_means - means @ slopes)[None], slopes])


def unexplained(consumer: nn.Module, H: Tensor, h: Tensor, coefficients: Tensor) -> Tensor:
    """Residual of candidates after a fit, in the layout of the consumer's input."""
    constant, slopes = coefficients[0], coefficients[1:]
    H, h = H.to(slopes.dtype), h.to(slopes.dtype)
    if not isinstance(consumer, _ConvNd):
        return h - torch.addmm(constant, H.flatten(0, -2), slopes).reshape(h.shape)
    h = h.reshape(-1, *h.shape[-len(consumer.kernel_size) - 1 :])
    H = H.reshape(len(h), -1, *h.shape[2:])
    return h - (slopes.T @ H.flatten(2) + constant[:, None]).reshape(h.shape)


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


def sampled_rows(consumer: nn.Module, each: Pass, enough: int) -> Tensor:
    """Rows of [H, h], one per sample and position: about as many as are enough, spread over all."""
    parts = []
    for part in (each.H, each.h):
        if isinstance(consumer, _ConvNd):
            part = part.reshape(-1, *part.shape[-len(consumer.kernel_size) - 1 :]).flatten(2).movedim(1, 2)
        else:
            part = part.reshape(len(part) if part.ndim > 1 else 1, -1, part.shape[-1])
        samples, positions = part.shape[:2]
        if samples * positions > enough:
            per_sample = max(1, -(-enough // samples))
            spread = torch.randperm(positions, generator=torch.Generator().manual_seed(0))[:per_sample]
            part = part[:: max(1, samples * len(spread) // enough), spread.to(part.device)]
        parts.append(part.flatten(0, 1))
    rows = torch.cat(parts, 1)
    return rows.to(_wide(rows))


def _channel(consumer: nn.Module) -> int:
    return -len(consumer.kernel_size) - 1 if isinstance(consumer, _ConvNd) else -1


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)
