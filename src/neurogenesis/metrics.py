"""Metrics of how much the neurons of a layer differ, and scores of candidate neurons.

Pure functions of tensors. `H` is a matrix of activations, neurons x samples (or of weights, neurons x fan-in). All
results are computed from Gram matrices in float64 and are exact: they equal what a singular value decomposition of H
gives. For complex activations read :math:`H^T` as the conjugate transpose :math:`H^*`.

Reference: Maile, Rachelson, Luga, Wilson, "When, where, and how to add new neurons to ANNs" (AutoML 2022).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Metric = Literal["effective_dimension", "orthogonality"]
METRICS: tuple[Metric, ...] = ("effective_dimension", "orthogonality")


def by_neuron(activations: Tensor) -> Tensor:
    """Reshape activations, samples x neurons (x height x width), to neurons x everything else.

    The effective dimension takes this matrix. For weights, neurons x fan-in x kernel, use `weight.flatten(1)`.

    Example:
        >>> by_neuron(torch.zeros(8, 3, 5, 5)).shape
        torch.Size([3, 200])
    """
    return activations.movedim(1, 0).flatten(1)


def by_sample(activations: Tensor) -> Tensor:
    """Reshape activations, samples x neurons (x height x width), to (neurons x positions) x samples.

    The orthogonality of convolutions takes this matrix.

    Example:
        >>> by_sample(torch.zeros(8, 3, 5, 5)).shape
        torch.Size([75, 8])
    """
    return activations.flatten(1).T


def effective_rank(H: Tensor, eps: float = 0.01) -> int:
    r"""Number of singular values of :math:`H / \sqrt n` greater than eps.

    Computed as the number of eigenvalues greater than eps² of :math:`HH^T/n` or :math:`H^TH/n`, the smaller of the two.

    Example:
        >>> effective_rank(torch.tensor([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]]))
        1
    """
    matrix = _as_matrix(H)
    return eigenvalues_above(_smaller_gram(matrix) / matrix.shape[1], eps**2)


def effective_dimension(H: Tensor, eps: float = 0.01) -> float:
    r"""Effective rank per neuron, :math:`\phi_{ED} = \mathrm{rank}_\epsilon(H/\sqrt n) / M`.

    With n < M samples it is at most n / M.

    Example:
        >>> effective_dimension(torch.tensor([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]]))
        0.5
    """
    return effective_rank(H, eps) / H.shape[0]


def orthogonality(H: Tensor) -> float:
    r"""One minus the orthogonality gap, :math:`1 - \| H^TH/\|H\|_F^2 - I/n \|_F`.

    Computed as :math:`1 - \sqrt{\|HH^T\|_F^2 / \|H\|_F^4 - 1/n}`; 0 if all activations are 0.

    Example:
        >>> orthogonality(torch.eye(3))
        1.0
    """
    matrix = _as_matrix(H)
    return orthogonality_of_gram(_smaller_gram(matrix), matrix.shape[1])


def orthogonality_of_gram(gram: Tensor, n: int) -> float:
    r"""Orthogonality of n samples, from the Gram matrix :math:`HH^T` or :math:`H^TH`."""
    total = gram.trace().real
    if total == 0:
        return 0.0
    return 1 - math.sqrt(max(float(_abs_squared(gram / total).sum()) - 1 / n, 0.0))


def eigenvalues_above(gram: Tensor, threshold: float) -> int:
    """Number of eigenvalues of a symmetric or Hermitian matrix greater than a threshold.

    By Sylvester's law of inertia this is the number of positive eigenvalues of D in :math:`LDL^T = G - threshold I`.
    The blocks of D are 1 x 1, or 2 x 2 with one positive and one negative eigenvalue.

    Example:
        >>> eigenvalues_above(torch.diag(torch.tensor([3.0, 1.0, 2.0])), 1.5)
        2
    """
    if _positive_definite(gram, threshold):  # the usual case
        return len(gram)
    return _count_positive_pivots(gram, threshold)


def _positive_definite(gram: Tensor, threshold: float) -> bool:
    """Whether all eigenvalues are greater than a threshold; much faster than counting them."""
    shifted = gram.clone()
    shifted.diagonal().sub_(threshold)
    return bool(torch.linalg.cholesky_ex(shifted).info == 0)


def _count_positive_pivots(gram: Tensor, threshold: float) -> int:
    shifted = gram.clone()
    shifted.diagonal().sub_(threshold)
    factors, pivots = torch.linalg.ldl_factor(shifted, hermitian=shifted.is_complex())
    # LAPACK marks both rows of a 2 x 2 block with negative pivots.
    single = pivots > 0
    return int((factors.diagonal()[single].real > 0).sum()) + int((~single).sum()) // 2


def eigenvalues_surely_above(gram: Tensor, threshold: float, error: float, enough: int | None = None) -> int | None:
    """`eigenvalues_above` for a matrix known up to an error in spectral norm; None if the error leaves it open.

    If the number is at most `enough` for every such error, returns an upper bound that is at most `enough`.

    Example:
        >>> matrix = torch.diag(torch.tensor([3.0, 1.0, 2.0]))
        >>> eigenvalues_surely_above(matrix, 1.5, 0.1), eigenvalues_surely_above(matrix, 1.5, 0.6)
        (2, None)
    """
    if _positive_definite(gram, threshold + error):
        return len(gram)
    most = _count_positive_pivots(gram, threshold - error)
    if enough is not None and most <= enough:
        return most
    return most if _count_positive_pivots(gram, threshold + error) == most else None


_UNIT_ROUNDOFF = torch.finfo(torch.float32).eps / 2


def quick_rank(matrix: Tensor, eps: float) -> int:
    """Same as `effective_rank`, but computed in single precision where its error cannot change the result."""
    M, n = matrix.shape
    if matrix.dtype == torch.float32 and min(M, n) >= MIN_NEURONS_FLOAT32:
        parts = products(matrix.T if n >= M else matrix)
        if len(parts) == 1 and _positive_definite(parts[0], n * eps**2 + 4 * rounding(parts[0])):
            return len(parts[0])  # four times the error, because the factorization is in single precision too
        gram = parts[0].double() if len(parts) == 1 else torch.stack(parts).sum(0, dtype=torch.float64)
        found = eigenvalues_surely_above(gram, n * eps**2, rounding(gram))
        if found is not None:
            return found
    return effective_rank(matrix, eps)


# With fewer neurons, double precision costs no more, and `rounding` is not a safe bound.
MIN_NEURONS_FLOAT32 = 16
_CHUNK_ROWS = 4096  # rows summed in single precision; `rounding` was measured for this chunk size


def products(rows: Tensor) -> list[Tensor]:
    """Gram matrices of the columns, one per chunk of rows, in the precision of the rows."""
    return [part.T @ part for part in rows.split(_CHUNK_ROWS)]  # type: ignore[no-untyped-call]


def rounding(gram: Tensor) -> float:
    r"""Upper bound on the error of `products` in single precision, in spectral norm.

    Entry (i, j), the product of neurons i and j, has an error of about :math:`c\,u \|h_i\|\|h_j\|`, with unit roundoff
    u and a constant c that blocked summation keeps small. The errors of different entries are nearly independent, and
    a random symmetric M x M matrix with entries of size s has spectral norm :math:`2 s \sqrt M`. With trace / M, the
    mean of :math:`\|h_i\|^2`, in place of the products of norms, this gives :math:`2c\,u\,\mathrm{trace}/\sqrt M`. The
    factor 16 is twice the largest one measured on random, constant and rectified activations; the tests repeat this.
    """
    bound: float = 16 * _UNIT_ROUNDOFF * float(gram.trace()) / len(gram) ** 0.5
    return bound


def best_candidates(
    H: Tensor,
    candidates: Tensor,
    k: int,
    metric: Metric = "effective_dimension",
    *,
    eps: float = 0.01,
    worst: bool = False,
) -> Tensor:
    """Indices of the k candidates that give the highest metric when appended to H one at a time, best first.

    Ties of the effective dimension are broken by the sum of singular values.

    Args:
        H: activations of the present neurons, neurons x samples.
        candidates: activations of the candidates on the same samples, candidates x samples.
        k: number of candidates to pick.
        metric: "effective_dimension" or "orthogonality".
        eps: threshold of the effective rank.
        worst: pick the candidates with the lowest metric instead, lowest first.

    Example:
        >>> H = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
        >>> best_candidates(H, torch.tensor([[0.7, 0.7, 0.0], [0.0, 0.0, 1.0]]), 1)
        tensor([1])
    """
    products = products_of([(_checked(H), _checked(candidates))])
    return best_by_products(products, k, metric, lambda i: singular_sum(H, candidates[i]), eps=eps, worst=worst)


@dataclass(frozen=True)
class Products:
    """Products of activations in double precision, summed over n samples.

    Args:
        gram: HHᵀ, neurons x neurons. If there are fewer samples than neurons, R of H = QR replaces H: it has fewer rows
            and, with any row appended, the same singular values.
        cross: cHᵀ of each candidate c, candidates x neurons.
        squares: ‖c‖² of each candidate.
        n: number of samples.
    """

    gram: Tensor
    cross: Tensor
    squares: Tensor
    n: int

    @property
    def finite(self) -> bool:
        """Whether all activations of the candidates are finite."""
        return bool(self.squares.isfinite().all())


def products_of(parts: Iterable[tuple[Tensor, Tensor]]) -> Products:
    """Products of present neurons and candidates, from pairs of both (neurons x samples) on the same samples."""
    parts = list(parts)
    M, n = parts[0][0].shape[0], sum(part.shape[1] for part, _ in parts)
    if n < M:
        H, candidates = (torch.cat(each, 1) for each in zip(*parts, strict=True))
        parts = [(torch.linalg.qr(doubled(H), mode="r").R, candidates)]
        M = n
    rows = parts[0][1].shape[0]
    wide = doubled(parts[0][1][:1, :1]).dtype
    gram, cross = (parts[0][1].new_zeros(size, M, dtype=wide) for size in (M, rows))
    squares = gram.real.new_zeros(rows)
    for own, new in parts:
        size = max(1, _CHUNK_ENTRIES // max(M, rows))
        for h, c in zip(own.split(size, 1), new.split(size, 1), strict=True):  # type: ignore[no-untyped-call]
            h, c = h.to(wide), c.to(wide, copy=True)
            gram.addmm_(h, h.mH)
            cross.addmm_(c, h.mH)
            squares += torch.view_as_real(c).square_().sum((1, 2)) if c.is_complex() else c.square_().sum(1)
    return Products(gram, cross, squares, n)


_CHUNK_ENTRIES = 2**16  # entries converted to double precision at a time: 512 kB, which stay in the cache


def best_by_products(
    products: Products,
    k: int,
    metric: Metric,
    exact_sum: Callable[[int], float],
    *,
    eps: float = 0.01,
    worst: bool = False,
) -> Tensor:
    """Same as `best_candidates`, from products.

    Args:
        products: products of the present neurons and the candidates.
        k: number of candidates to pick.
        metric: "effective_dimension" or "orthogonality".
        exact_sum: maps the index of a candidate to the sum of singular values with it, to sort near ties.
        eps: threshold of the effective rank.
        worst: pick the candidates with the lowest metric instead, lowest first.
    """
    if metric not in METRICS:
        raise ValueError(f"unknown metric {metric!r}: expected {' or '.join(METRICS)}")
    if not 0 <= k <= len(products.squares):
        raise ValueError(f"cannot pick {k} of {len(products.squares)} candidates")
    if metric == "orthogonality":
        return _orthogonality_with(products).argsort(descending=not worst, stable=True)[:k]
    raises, sums = _rank_and_sum_with(products, eps)
    sign = -1.0 if worst else 1.0
    order = _lexicographic(sign * raises.double(), sign * sums)
    return _resolve_ties(order, raises, sums, k, lambda i: sign * exact_sum(i))[:k]


def _orthogonality_with(products: Products) -> Tensor:
    r"""Orthogonality of H with one candidate c appended, for each candidate.

    From :math:`\|G'\|_F^2 = \|G\|_F^2 + 2\|Hc\|^2 + \|c\|^4` and :math:`\|H'\|_F^2 = \|H\|_F^2 + \|c\|^2`.
    """
    squares = products.squares
    norms = products.gram.trace().real + squares
    gram = _abs_squared(products.gram).sum() + 2 * _abs_squared(products.cross).sum(1) + squares.square()
    gaps = (gram / norms.square().clamp_min(torch.finfo(norms.dtype).tiny) - 1 / products.n).clamp_min(0)
    return torch.where(norms > 0, 1 - gaps.sqrt(), 0.0)


def rank_and_sum_with(H: Tensor, candidates: Tensor, eps: float = 0.01) -> tuple[Tensor, Tensor]:
    r"""For each candidate, whether appending it raises the effective rank, and the rise of the sum of singular values.

    With :math:`HH^T/n = V\,\mathrm{diag}(\lambda)V^T`, :math:`b = V^THc/n` and :math:`c_0 = \|c\|^2/n`, the rank
    rises if and only if :math:`c_0 - \epsilon^2 - \sum_i b_i^2/(\lambda_i - \epsilon^2) > 0`. The sum of singular
    values rises by

    .. math:: \frac2\pi \int_0^\infty 1 - \frac{t^2 (1 + \sum_i b_i^2/(\lambda_i+t^2)^2)}
              {c_0 + t^2 - \sum_i b_i^2/(\lambda_i+t^2)} \, dt,

    which is computed by the trapezoidal rule in log t. It converges exponentially and takes two matrix products for
    all candidates together.
    """
    return _rank_and_sum_with(products_of([(_checked(H), _checked(candidates))]), eps)


def _rank_and_sum_with(products: Products, eps: float) -> tuple[Tensor, Tensor]:
    eigenvalues, b_squared, c0 = _append_terms(products)
    distance = eigenvalues - eps**2
    # Treat an eigenvalue equal to the threshold as just below it, to avoid a division by zero.
    distance = torch.where(distance == 0, -torch.finfo(distance.dtype).tiny, distance)
    raises = c0 - eps**2 - b_squared @ distance.reciprocal() > 0
    return raises, _sum_increments(eigenvalues, b_squared, c0)


def singular_sum_with(H: Tensor, candidates: Tensor) -> Tensor:
    """For each candidate, the rise of the sum of singular values if it is appended, with its derivatives."""
    matrix, rows = _as_matrix(H), doubled(candidates)
    n = matrix.shape[1]
    if n < len(matrix):
        matrix = torch.linalg.qr(matrix, mode="r").R
    squares = torch.linalg.vector_norm(rows, dim=1).square()
    return _sum_increments(*_append_terms(Products(matrix @ matrix.mH, rows @ matrix.mH, squares, n)))


def _append_terms(products: Products) -> tuple[Tensor, Tensor, Tensor]:
    """Eigenvalues of the Gram matrix, and b_i^2 and c_0 of each appended row; see `rank_and_sum_with`."""
    eigenvalues, vectors = torch.linalg.eigh(products.gram / products.n)
    eigenvalues = eigenvalues.clamp_min(0)
    c0 = products.squares / products.n
    b_squared = _abs_squared(products.cross @ vectors / products.n)
    # Remove rounding errors in directions outside the range of H; elsewhere b_i^2 <= lambda_i c_0 holds anyway.
    b_squared = b_squared.where(eigenvalues > _EIGENVALUE_TOLERANCE * len(eigenvalues) * eigenvalues.max(), 0.0)
    return eigenvalues, b_squared.minimum(c0[:, None] * eigenvalues), c0


# Relative to the largest eigenvalue, per neuron: about 50 units in the last place of double precision.
_EIGENVALUE_TOLERANCE = 1e-14
_LOG_STEP = 0.4  # step in log t, for which the error of the trapezoidal rule is about exp(-pi^2 / step) = 2e-11
# Lower end of t, relative to the largest singular value: its square is the resolution of a Gram matrix in float64.
_RELATIVE_BOTTOM = 1e-7
_LOG_TOP = 30  # upper end of log t above the largest singular value: the integrand has fallen to exp(-30) = 1e-13


def _sum_increments(eigenvalues: Tensor, b_squared: Tensor, c0: Tensor) -> Tensor:
    largest = max(float(eigenvalues.max()), float(c0.detach().max()))
    if largest == 0:
        return torch.zeros_like(c0)
    # In log t the integrand falls like t below the singular values, where it is extrapolated, and like 1/t above.
    bottom, top = math.log(_RELATIVE_BOTTOM) + 0.5 * math.log(largest), _LOG_TOP + 0.5 * math.log(largest)
    nodes = torch.arange(bottom, top, _LOG_STEP, dtype=c0.dtype, device=c0.device).exp()
    squared = nodes.square()
    weights = (eigenvalues[:, None] + squared).reciprocal()
    residual = (c0[:, None] - b_squared @ weights).clamp_min(0)
    gains = (residual - squared * (b_squared @ weights.square())) / (residual + squared)
    below = gains[:, 0] * nodes[0] / math.expm1(_LOG_STEP)
    return 2 / math.pi * _LOG_STEP * ((gains * nodes).sum(1) + below)


def _lexicographic(first: Tensor, second: Tensor) -> Tensor:
    """Indices that sort by `first`, then by `second`, both descending."""
    order = second.argsort(descending=True, stable=True)
    return order[first[order].argsort(descending=True, stable=True)]


def _resolve_ties(order: Tensor, raises: Tensor, sums: Tensor, k: int, exact_sum: Callable[[int], float]) -> Tensor:
    """Sort neighbors whose sums are too close for the quadrature by their exact sums of singular values."""
    ordered = order.tolist()
    close = _RELATIVE_BOTTOM * float(sums.abs().max())  # the quadrature does not resolve smaller differences
    start = 0
    while start < min(k, len(ordered)):
        stop = start + 1
        while stop < len(ordered) and _nearly_tied(ordered[stop - 1], ordered[stop], raises, sums, close):
            stop += 1
        if stop - start > 1:
            exact = {i: exact_sum(i) for i in ordered[start:stop]}
            ordered[start:stop] = sorted(ordered[start:stop], key=lambda i: -exact[i])
        start = stop
    return torch.tensor(ordered, dtype=torch.long, device=order.device)


def _nearly_tied(a: int, b: int, raises: Tensor, sums: Tensor, close: float) -> bool:
    return bool(raises[a] == raises[b]) and abs(float(sums[a] - sums[b])) <= close


def singular_sum(H: Tensor, candidate: Tensor) -> float:
    """Sum of singular values of H with one candidate appended."""
    return float(torch.linalg.svdvals(torch.cat([_as_matrix(H), _as_matrix(candidate[None])])).sum())


def _as_matrix(H: Tensor) -> Tensor:
    return doubled(_checked(H))


def _checked(H: Tensor) -> Tensor:
    if H.ndim != 2 or 0 in H.shape:
        raise ValueError(f"expected a non-empty matrix of neurons x samples, got shape {tuple(H.shape)}")
    return H.detach()


def doubled(tensor: Tensor) -> Tensor:
    """Convert a real or complex tensor to double precision."""
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _abs_squared(tensor: Tensor) -> Tensor:
    """Squared absolute values."""
    return tensor.real.square() + tensor.imag.square() if tensor.is_complex() else tensor.square()


def _smaller_gram(matrix: Tensor) -> Tensor:
    return matrix @ matrix.mH if matrix.shape[0] <= matrix.shape[1] else matrix.mH @ matrix
