r"""How well the neurons of a layer explain each other, and the loss when some of them are removed.

A neuron j is removed from what a consumer gets, H (neurons x rows), by replacing it with its least squares fit on a
constant and the neurons that stay, :math:`h_j \approx c + \sum_k \beta_k h_k`. The fit is folded into the consumer:

.. math:: w_k \leftarrow w_k + \beta_k w_j, \qquad b \leftarrow b + c\, w_j,

so that the consumer's outputs lose no more than the unexplained part of :math:`h_j`, times :math:`w_j`. With the
covariance C of H and :math:`P = C^{-1}`,

.. math:: \text{loss}_j = v_j \|w_j\|^2, \qquad v_j = 1 / P_{jj}, \qquad \beta_k = -P_{kj} / P_{jj}.

:math:`v_j = \det C / \det C_{-j}` is what j adds to the volume that the neurons span: without j the rank of H falls by
one if :math:`v_j > 0`, and not at all if the others explain j. The factor :math:`\|w_j\|^2` makes it the change of the
function, and independent of the scale of a neuron, which a rectifier can exchange between fan-in and fan-out.

Losses of removals one after the other add up to the loss of all together: what a later one loses is in the space of the
neurons that had stayed, and orthogonal to what was lost before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# Added to the variance of each neuron, relative to it, so that dependent neurons have an inverse. After one of them is
# removed, the inverse of the others is known to about the unit roundoff divided by this.
RIDGE = 1e-11
CONSTANT = 1e-12  # a neuron is constant if its variance is below this part of its mean square


@dataclass(frozen=True)
class Moments:
    """Number of rows, and sums and products of the neurons over all rows, in double precision.

    Example:
        >>> (Moments.of(torch.ones(2, 3)) + Moments.of(torch.ones(2, 1))).rows
        4
    """

    rows: int
    sums: Tensor
    products: Tensor

    @staticmethod
    def of(H: Tensor) -> Moments:
        """Moments of activations, neurons x rows."""
        wide = H.double()
        return Moments(H.shape[1], wide.sum(1), wide @ wide.T)

    def __add__(self, other: Moments) -> Moments:
        return Moments(self.rows + other.rows, self.sums + other.sums, self.products + other.products)

    @property
    def mean(self) -> Tensor:
        return self.sums / self.rows

    def covariance(self, constant: bool = True) -> Tensor:
        """Covariance of the neurons; if no `constant` can be fitted, their mean products.

        Rows and columns of constant neurons are zero.

        Example:
            >>> Moments.of(torch.tensor([[1.0, 3.0], [5.0, 5.0]])).covariance()
            tensor([[1., 0.],
                    [0., 0.]], dtype=torch.float64)
        """
        squares = self.products / self.rows
        result = squares - torch.outer(self.mean, self.mean) if constant else squares
        varies = result.diagonal() > CONSTANT * squares.diagonal()
        return result * torch.outer(varies, varies)


def regularized(covariance: Tensor) -> Tensor:
    """The covariance with a small ridge, and variance 1 for constant neurons, which explain nothing."""
    result, variances = covariance.clone(), covariance.diagonal()
    result.diagonal().add_(torch.where(variances > 0, RIDGE * variances, 1.0))
    return result


def coefficients(covariance: Tensor, removed: Sequence[int]) -> Tensor:
    r"""Coefficients :math:`\beta` of the neurons that stay in the fits of removed ones, removed x stay.

    Example:
        >>> H = torch.tensor([[1.0, 0.0, 2.0], [0.0, 1.0, 2.0], [2.0, 3.0, 10.0]])
        >>> coefficients(Moments.of(H).covariance(constant=False), [2]).round(decimals=6)
        tensor([[2., 3.]], dtype=torch.float64)
    """
    stays = staying(len(covariance), removed)
    factor = torch.linalg.cholesky(regularized(covariance[stays][:, stays]))
    return torch.cholesky_solve(covariance[stays][:, list(removed)], factor).T


def staying(count: int, removed: Sequence[int]) -> list[int]:
    """Indices of the neurons that are not removed, in order."""
    gone = set(removed)
    return [neuron for neuron in range(count) if neuron not in gone]


class Remaining:
    """The neurons that a consumer has left while others are removed from it one at a time.

    Losses are relative to the variance of the consumer's outputs, so that those of different consumers can be added. In
    convolutions the parts of the kernel count as outputs of their own.

    Args:
        covariance: covariance of what the consumer gets, neurons x neurons.
        fan_out: weights of the consumer, neurons x outputs.

    Example:
        >>> remaining = Remaining(torch.diag(torch.tensor([1.0, 3.0])).double(), torch.ones(2, 1).double())
        >>> remaining.losses
        tensor([0.2500, 0.7500], dtype=torch.float64)
    """

    def __init__(self, covariance: Tensor, fan_out: Tensor):
        self._varies = covariance.diagonal() > 0
        self._inverse = torch.cholesky_inverse(torch.linalg.cholesky(regularized(covariance)))
        self._weights = fan_out @ fan_out.T  # products of the fan-outs of two neurons
        variance = float((covariance * self._weights).sum())
        self._scale = 1 / variance if variance > 0 else 0.0

    @property
    def losses(self) -> Tensor:
        """The loss by removing each neuron; meaningless for those already removed."""
        return self._scale * self._weights.diagonal() / self._inverse.diagonal() * self._varies

    def remove(self, neuron: int) -> None:
        r"""Remove a neuron and fold it into the others.

        .. math:: P \leftarrow P - P_{:j} P_{:j}^T / P_{jj}, \qquad W \leftarrow W + \beta w_j^T,

        with :math:`\beta_j = -1`, so that row j of both becomes zero.
        """
        column = self._inverse[:, neuron].clone()
        beta = -column / column[neuron]
        own = self._weights[:, neuron].clone()
        self._inverse.addr_(column, beta)
        self._weights.addr_(beta, own).addr_(own, beta).addr_(beta, beta, alpha=float(own[neuron]))
        self._inverse[neuron, neuron] = 1.0


class Unfolded:
    """The same for a consumer whose weights cannot take the fit: what a neuron gives it is lost.

    Args:
        squares: mean square of each neuron.
        fan_out: weights of the consumer, neurons x outputs.
    """

    def __init__(self, squares: Tensor, fan_out: Tensor):
        given = squares * fan_out.square().sum(1)
        total = float(given.sum())
        self.losses = given / total if total > 0 else given

    def remove(self, neuron: int) -> None:
        """Nothing changes for the others."""


def total_loss(consumers: Sequence[Remaining | Unfolded], removed: Sequence[int] = ()) -> Tensor:
    """The loss by removing each neuron, over all consumers; infinite for those already removed."""
    losses = torch.stack([consumer.losses for consumer in consumers]).sum(0)
    losses[list(removed)] = torch.inf
    return losses
