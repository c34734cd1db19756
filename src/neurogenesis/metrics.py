"""How much a layer's neurons differ: effective dimension, orthogonality, and scores of candidates.

Pure functions of tensors. `H` holds activations, neurons x samples (or weights, neurons x fan-in). They are
computed from Gram matrices in float64: identities, not approximations, of what singular values would give. Complex
activations are multiplied with their conjugates: read :math:`H^T` as :math:`H^*`.

Reference: Maile, Rachelson, Luga, Wilson, "When, where, and how to add new neurons to ANNs" (AutoML 2022).
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

Metric = Literal["effective_dimension", "orthogonality"]
METRICS: tuple[Metric, ...] = ("effective_dimension", "orthogonality")


def by_neuron(activations: Tensor) -> Tensor:
    """Activations, samples x neurons or samples x channels x height x width, as neurons x everything else.

    What the effective dimension is of. Weights, neurons x fan-in x kernel, are `weight.flatten(1)`.

    Example:
        >>> by_neuron(torch.zeros(8, 3, 5, 5)).shape
        torch.Size([3, 200])
    """
    return activations.movedim(1, 0).flatten(1)


def by_sample(activations: Tensor) -> Tensor:
    """The same as (neurons x positions) x samples, which the orthogonality of convolutions is of.

    Example:
        >>> by_sample(torch.zeros(8, 3, 5, 5)).shape
        torch.Size([75, 8])
    """
    return activations.flatten(1).T


def effective_rank(H: Tensor, eps: float = 0.01) -> int:
    r"""The number of singular values of :math:`H / \sqrt n` that are greater than eps.

    It is the number of eigenvalues of :math:`HH^T/n` above eps², of whichever Gram matrix is smaller.

    Example:
        >>> effective_rank(torch.tensor([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]]))
        1
    """
    matrix = _matrix(H)
    return eigenvalues_above(_smaller_gram(matrix) / matrix.shape[1], eps**2)


def effective_dimension(H: Tensor, eps: float = 0.01) -> float:
    r"""The effective rank per neuron, :math:`\phi_{ED} = \mathrm{rank}_\epsilon(H/\sqrt n) / M`.

    With n < M samples it is at most n / M.

    Example:
        >>> effective_dimension(torch.tensor([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]]))
        0.5
    """
    return effective_rank(H, eps) / H.shape[0]


def orthogonality(H: Tensor) -> float:
    r"""One minus the orthogonality gap, :math:`1 - \| H^TH/\|H\|_F^2 - I/n \|_F`.

    Computed as :math:`1 - \sqrt{\|HH^T\|_F^2 / \|H\|_F^4 - 1/n}`; 0 where all activations are 0.

    Example:
        >>> orthogonality(torch.eye(3))
        1.0
    """
    matrix = _matrix(H)
    return orthogonality_of_gram(_smaller_gram(matrix), matrix.shape[1])


def orthogonality_of_gram(gram: Tensor, n: int) -> float:
    r"""The orthogonality of n samples from the products :math:`HH^T` of their neurons, or :math:`H^TH`."""
    total = gram.trace().real
    if total == 0:
        return 0.0
    return 1 - math.sqrt(max(float(_squares(gram / total).sum()) - 1 / n, 0.0))


def eigenvalues_above(gram: Tensor, threshold: float) -> int:
    """How many eigenvalues of a symmetric, or Hermitian, matrix are greater than a threshold.

    By Sylvester's law of inertia: as many as :math:`LDL^T = G - threshold I` has positive eigenvalues of D,
    whose blocks are 1 x 1, or 2 x 2 with one eigenvalue of either sign.

    Example:
        >>> eigenvalues_above(torch.diag(torch.tensor([3.0, 1.0, 2.0])), 1.5)
        2
    """
    if _positive_definite(gram, threshold):  # as healthy layers are
        return len(gram)
    return _positive_pivots(gram, threshold)


def _positive_definite(gram: Tensor, threshold: float) -> bool:
    """Whether all eigenvalues are greater than a threshold, in a fraction of the time it takes to count them."""
    shifted = gram.clone()
    shifted.diagonal().sub_(threshold)
    return bool(torch.linalg.cholesky_ex(shifted).info == 0)


def _positive_pivots(gram: Tensor, threshold: float) -> int:
    shifted = gram.clone()
    shifted.diagonal().sub_(threshold)
    factors, pivots = torch.linalg.ldl_factor(shifted, hermitian=shifted.is_complex())
    # LAPACK marks the two rows of a 2 x 2 block by negative pivots.
    single = pivots > 0
    return int((factors.diagonal()[single].real > 0).sum()) + int((~single).sum()) // 2


def eigenvalues_surely_above(gram: Tensor, threshold: float, error: float, enough: int | None = None) -> int | None:
    """`eigenvalues_above` of a matrix that is known up to an error in norm; None where that leaves it open.

    If they are no more than `enough` whatever the error, an upper bound.

    Example:
        >>> matrix = torch.diag(torch.tensor([3.0, 1.0, 2.0]))
        >>> eigenvalues_surely_above(matrix, 1.5, 0.1), eigenvalues_surely_above(matrix, 1.5, 0.6)
        (2, None)
    """
    if _positive_definite(gram, threshold + error):
        return len(gram)
    most = _positive_pivots(gram, threshold - error)
    if enough is not None and most <= enough:
        return most
    return most if _positive_pivots(gram, threshold + error) == most else None


_UNIT = torch.finfo(torch.float32).eps / 2


def quick_rank(matrix: Tensor, eps: float) -> int:
    """`effective_rank` by products in single precision where these leave no doubt, in double precision else."""
    M, n = matrix.shape
    if matrix.dtype == torch.float32 and min(M, n) >= FEW:
        parts = products(matrix.T if n >= M else matrix)
        if len(parts) == 1 and _positive_definite(parts[0], n * eps**2 + 4 * rounding(parts[0])):
            return len(parts[0])  # four times the error: the factorization is in single precision too
        gram = parts[0].double() if len(parts) == 1 else torch.stack(parts).sum(0, dtype=torch.float64)
        found = eigenvalues_surely_above(gram, n * eps**2, rounding(gram))
        if found is not None:
            return found
    return effective_rank(matrix, eps)


FEW = 16  # below so many neurons, products in double precision cost no more, and `rounding` is not a safe bound
_CHUNK = 4096  # rows that are summed in single precision; `rounding` was measured for chunks of this length


def products(rows: Tensor) -> list[Tensor]:
    """The Gram matrices of the columns of chunks of rows, in the precision of the rows."""
    return [part.T @ part for part in rows.split(_CHUNK)]  # type: ignore[no-untyped-call]


def rounding(gram: Tensor) -> float:
    r"""An upper bound of the error, as a spectral norm, of `products` in single precision.

    An entry, the product of neurons i and j, is wrong by about :math:`c\,u \|h_i\|\|h_j\|` with unit roundoff u and a
    constant c that blocked summation keeps small. Errors of different entries are nearly independent, and a random
    symmetric M x M matrix with entries of size s has a spectral norm of :math:`2 s \sqrt M`; with the mean of
    :math:`\|h_i\|^2`, trace / M, for the products of norms this is :math:`2c\,u\,\mathrm{trace}/\sqrt M`. The factor 16
    is twice the largest that was seen over random, constant and rectified activations, which the tests repeat.
    """
    bound: float = 16 * _UNIT * float(gram.trace()) / len(gram) ** 0.5
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
    """The indices of the k candidates that, each appended alone to H, give the highest metric, best first.

    Ties of the effective dimension are broken by the sum of singular values. `worst` turns the order round.

    Args:
        H: activations of the present neurons, neurons x samples.
        candidates: activations of the candidates on the same samples, candidates x samples.
        k: how many to pick.
        metric: "effective_dimension" or "orthogonality".
        eps: threshold of the effective rank.
        worst: pick those with the lowest metric, lowest first.

    Example:
        >>> H = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
        >>> best_candidates(H, torch.tensor([[0.7, 0.7, 0.0], [0.0, 0.0, 1.0]]), 1)
        tensor([1])
    """
    if metric not in METRICS:
        raise ValueError(f"unknown metric {metric!r}: {' or '.join(METRICS)}")
    if not 0 <= k <= len(candidates):
        raise ValueError(f"cannot pick {k} of {len(candidates)} candidates")
    if metric == "orthogonality":
        scores = orthogonality_with(H, candidates)
        return scores.argsort(descending=not worst, stable=True)[:k]
    raises, sums = rank_and_sum_with(H, candidates, eps)
    sign = -1.0 if worst else 1.0
    order = _lexicographic(sign * raises.double(), sign * sums)
    return _settled(order, raises, sums, k, H, candidates, sign)[:k]


def orthogonality_with(H: Tensor, candidates: Tensor) -> Tensor:
    r"""The orthogonality of H with each candidate c appended alone, for all candidates at once.

    From :math:`\|G'\|_F^2 = \|G\|_F^2 + 2\|Hc\|^2 + \|c\|^4` and :math:`\|H'\|_F^2 = \|H\|_F^2 + \|c\|^2`.
    """
    matrix, rows = _matrix(H), _matrix(candidates)
    squares = _squares(rows).sum(1)
    norms = _squares(matrix).sum() + squares
    gram = _squares(_smaller_gram(matrix)).sum() + 2 * _squares(rows @ matrix.mH).sum(1) + squares.square()
    gaps = (gram / norms.square().clamp_min(torch.finfo(norms.dtype).tiny) - 1 / matrix.shape[1]).clamp_min(0)
    return torch.where(norms > 0, 1 - gaps.sqrt(), 0.0)


def rank_and_sum_with(H: Tensor, candidates: Tensor, eps: float = 0.01) -> tuple[Tensor, Tensor]:
    r"""Whether each candidate, appended alone, raises the effective rank, and how much the sum of singular values.

    With :math:`HH^T/n = V\,\mathrm{diag}(\lambda)V^T`, :math:`b = V^THc/n` and :math:`c_0 = \|c\|^2/n` the rank
    rises exactly if :math:`c_0 - \epsilon^2 - \sum_i b_i^2/(\lambda_i - \epsilon^2) > 0`, and the sum by

    .. math:: \frac2\pi \int_0^\infty 1 - \frac{t^2 (1 + \sum_i b_i^2/(\lambda_i+t^2)^2)}
              {c_0 + t^2 - \sum_i b_i^2/(\lambda_i+t^2)} \, dt,

    by the trapezoidal rule in log t, which converges exponentially: two matrix products for all candidates.
    """
    eigenvalues, squares, own = _bordered(_matrix(H), _matrix(candidates))
    distance = eigenvalues - eps**2
    # An eigenvalue on the threshold itself has no inertia to count: let it lie just below.
    distance = torch.where(distance == 0, -torch.finfo(distance.dtype).tiny, distance)
    raises = own - eps**2 - squares @ distance.reciprocal() > 0
    return raises, _sum_increments(eigenvalues, squares, own)


def singular_sum_with(H: Tensor, candidates: Tensor) -> Tensor:
    """How much each candidate, appended alone, raises the sum of singular values; differentiable in the candidates."""
    return _sum_increments(*_bordered(_matrix(H), doubled(candidates)))


def _bordered(matrix: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Eigenvalues of the Gram matrix, and for each row appended to it its b_i^2 and c_0."""
    n = matrix.shape[1]
    eigenvalues, vectors = torch.linalg.eigh(matrix @ matrix.mH / n)
    eigenvalues = eigenvalues.clamp_min(0)
    own = torch.linalg.vector_norm(rows, dim=1).square() / n
    squares = _squares(rows @ matrix.mH @ vectors / n)
    # What rounding leaves in directions that H does not have; elsewhere b_i^2 <= lambda_i c_0 holds anyway.
    squares = squares.where(eigenvalues > _RELATIVE * len(eigenvalues) * eigenvalues.max(), 0.0)
    return eigenvalues, squares.minimum(own[:, None] * eigenvalues), own


_RELATIVE = 1e-14  # of the largest eigenvalue, per neuron: some 50 units in the last place of double precision
_STEP = 0.4  # of log t: the trapezoidal rule is then wrong by about exp(-pi^2 / step) = 2e-11
_BOTTOM = 1e-7  # of the largest singular value: the square is what double precision resolves of a Gram matrix
_TOP = 30  # in log t above it: the integrand has fallen to exp(-30) = 1e-13


def _sum_increments(eigenvalues: Tensor, squares: Tensor, own: Tensor) -> Tensor:
    largest = float(max(eigenvalues.max(), own.max()))
    if largest == 0:
        return torch.zeros_like(own)
    # The integrand in log t falls like t below the singular values, from where it is extrapolated, and like 1/t above.
    bottom, top = math.log(_BOTTOM) + 0.5 * math.log(largest), _TOP + 0.5 * math.log(largest)
    nodes = torch.arange(bottom, top, _STEP, dtype=own.dtype, device=own.device).exp()
    squared = nodes.square()
    weights = (eigenvalues[:, None] + squared).reciprocal()
    residual = (own[:, None] - squares @ weights).clamp_min(0)
    gains = (residual - squared * (squares @ weights.square())) / (residual + squared)
    below = gains[:, 0] * nodes[0] / math.expm1(_STEP)
    return 2 / math.pi * _STEP * ((gains * nodes).sum(1) + below)


def _lexicographic(first: Tensor, second: Tensor) -> Tensor:
    """Indices in descending order of the first, and where that is equal of the second."""
    order = second.argsort(descending=True, stable=True)
    return order[first[order].argsort(descending=True, stable=True)]


def _settled(order: Tensor, raises: Tensor, sums: Tensor, k: int, H: Tensor, candidates: Tensor, sign: float) -> Tensor:
    """The order with neighbours too close for the quadrature put right by their singular values."""
    ordered = order.tolist()
    close = _BOTTOM * float(sums.abs().max())  # singular values below that are not in the quadrature
    start = 0
    while start < min(k, len(ordered)):
        stop = start + 1
        while stop < len(ordered) and _near(ordered[stop - 1], ordered[stop], raises, sums, close):
            stop += 1
        if stop - start > 1:
            exact = {i: sign * _singular_sum(H, candidates[i]) for i in ordered[start:stop]}
            ordered[start:stop] = sorted(ordered[start:stop], key=lambda i: -exact[i])
        start = stop
    return torch.tensor(ordered, dtype=torch.long, device=order.device)


def _near(a: int, b: int, raises: Tensor, sums: Tensor, close: float) -> bool:
    return bool(raises[a] == raises[b]) and abs(float(sums[a] - sums[b])) <= close


def _singular_sum(H: Tensor, candidate: Tensor) -> float:
    return float(torch.linalg.svdvals(torch.cat([_matrix(H), _matrix(candidate[None])])).sum())


def _matrix(H: Tensor) -> Tensor:
    if H.ndim != 2 or 0 in H.shape:
        raise ValueError(f"expected a matrix of neurons x samples, got shape {tuple(H.shape)}")
    return doubled(H.detach())


def doubled(tensor: Tensor) -> Tensor:
    """A tensor in double precision, complex ones too."""
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _squares(tensor: Tensor) -> Tensor:
    """The squared absolute values of numbers."""
    return tensor.real.square() + tensor.imag.square() if tensor.is_complex() else tensor.square()


def _smaller_gram(matrix: Tensor) -> Tensor:
    return matrix @ matrix.mH if matrix.shape[0] <= matrix.shape[1] else matrix.mH @ matrix
