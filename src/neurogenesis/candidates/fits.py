"""Least-squares fits of candidates by the present inputs of a consumer, and what they leave unexplained."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from ..passes.processes import Sums
from .rows import Gain

RIDGE = 1e-4  # of the mean variance of the inputs, some of which may be constant or dependent


@dataclass(frozen=True)
class Products:
    """Sums over rows x of [H, h], by which h is fitted to H; or those of several groups, which are the first axis.

    It is replaced, not modified.

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
            rows.new_full(rows.shape[:-2], rows.shape[-2], dtype=torch.float64),
            centred.sum(-2), centred.mT @ centred[..., :inputs],
        ]  # fmt: skip
        return Products(centre, count, sums, squares)

    def after(self, new: Products, part: float) -> Products:
        """A fraction of these sums plus the new ones, about the same centre."""
        sums, squares = (torch.add(getattr(new, name), getattr(self, name), alpha=part) for name in ("sums", "squares"))
        return Products(self.centre, part * self.count + new.count, sums, squares)

    def fit(self) -> Tensor:
        """Least-squares fit of h by a constant and H, with a small ridge: (1 + inputs) x candidates."""
        inputs, offset = self.squares.shape[-1], self.sums / self.count.to(self.sums.dtype)[..., None]
        covariance = (self.squares - self.sums[..., None] * offset[..., None, :inputs]).double()
        mean = (self.centre + offset).double()[..., None, :]
        # In the order of Fortran: no copies.
        gram, mixed_products = covariance[..., :inputs, :].mT, covariance[..., inputs:, :].mT
        diagonal = gram.diagonal(dim1=-2, dim2=-1)
        diagonal.add_(RIDGE * diagonal.mean(-1, keepdim=True) + torch.finfo(torch.float32).tiny)
        # Cholesky's method needs half the operations, but takes several times as long on two threads as on one.
        slopes = torch.linalg.solve_ex(gram, mixed_products).result
        constant = mean[..., inputs:] - mean[..., :inputs] @ slopes
        return torch.cat([constant, slopes], -2).to(self.squares.dtype)

    @property
    def last(self) -> Products:
        """The sums of the last group."""
        return Products(self.centre[-1], self.count[-1], self.sums[-1], self.squares[-1])


def fit_gains(count: float, H: Tensor, h: Tensor, squares: Tensor, products: Tensor) -> Tensor:
    """Least-squares fits of h by a constant and H, channel by channel, given sums over rows: 2 x channels."""
    variance = squares - H * H / count
    slopes = (products - H * h / count) / (variance + RIDGE * variance.mean() + torch.finfo(torch.float32).tiny)
    return torch.stack([(h - slopes * H) / count, slopes])


def unexplained(consumer: nn.Module, H: Tensor, h: Tensor, coefficients: Tensor) -> Tensor:
    """Residual of candidates after a fit, in the layout of the consumer's input."""
    if coefficients.ndim > 2:
        H, h = H.to(coefficients.dtype), h.to(coefficients.dtype)
        return h - ((H[..., None, :] @ coefficients[:, 1:])[..., 0, :] + coefficients[:, 0])
    constant, slopes = coefficients[0], coefficients[1:]
    H, h = H.to(slopes.dtype), h.to(slopes.dtype)
    if isinstance(consumer, Gain):
        return h - constant - slopes[0] * H
    if not isinstance(consumer, _ConvNd):
        return h - torch.addmm(constant, H.flatten(0, -2), slopes).reshape(h.shape)
    h = h.reshape(-1, *h.shape[-len(consumer.kernel_size) - 1 :])
    H = H.reshape(len(h), -1, *h.shape[2:])
    return h - (slopes.T @ H.flatten(2) + constant[:, None]).reshape(h.shape)
