"""The auxiliary gradient: the gradient of a bridge, a connection from a producer's input to a consumer's output.

With :math:`D` the gradient at the consumer's output and :math:`H_{prev}` the producer's input, a new neuron with
fan-out v and fan-in w changes the loss by :math:`v^T B w` to first order, if its activation function has slope 1.
For dense layers :math:`B = D^T H_{prev}`. For convolutions the entries of B are entries of the gradient of a bridging
convolution, whose kernel covers both kernels and the pooling between them. It is exact inside the image. Where the
consumer pads, the bridge includes positions beyond the border, which are zero for a real neuron.

Reference: Evci et al., "GradMax: Growing Neural Networks using Gradient Information" (ICLR 2022).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Kernel:
    """A convolution along one dimension."""

    size: int
    stride: int
    padding: int
    dilation: int


@dataclass(frozen=True)
class Pooling:
    """Pooling between producer and consumer along one dimension.

    Output q is the mean of the inputs at stride * q + offset + 0..window-1. New neurons have equal outputs at all
    positions, and max pooling of equal numbers takes the first: a window of 1.
    """

    stride: int = 1
    offset: int = 0
    window: int = 1


@dataclass(frozen=True)
class Bridge:
    """The shape of a bridge, one entry per spatial dimension; without entries it is dense."""

    producer: tuple[Kernel, ...] = ()
    pooling: tuple[Pooling, ...] = ()
    consumer: tuple[Kernel, ...] = ()

    def gradient(self, H_prev: Tensor, D: Tensor) -> Tensor:
        """Gradient of a bridging layer with zero weights, consumer channels x producer channels x kernel.

        Args:
            H_prev: the producer's input, samples x channels x positions; dense: samples x features.
            D: the gradient of the loss at the consumer's output, in the same layout.
        """
        if not self.producer:
            return D.flatten(0, -2).T.to(H_prev.dtype) @ H_prev.flatten(0, -2)
        D = D.reshape(*D.shape[:2], *D.shape[2:] or (1,) * len(self.producer))
        kernels = self._joint_kernels()
        shape, stride = torch.Size(kernel.size for kernel in kernels), [kernel.stride for kernel in kernels]
        if torch.Size(H_prev.shape[2:]).numel() <= shape.numel():
            return self._gradient_by_pairs(H_prev, D)
        pads: list[int] = []
        for kernel, length, outputs in zip(kernels, H_prev.shape[2:], D.shape[2:], strict=True):
            extent = kernel.stride * (outputs - 1) + kernel.size
            pads[:0] = [kernel.padding, extent - kernel.padding - length]
        ones, zeros = [1] * len(shape), [0] * len(shape)
        weight = D.new_zeros(1).expand(D.shape[1], H_prev.shape[1], *shape)
        gradients = torch.ops.aten.convolution_backward(
            D.to(H_prev.dtype), F.pad(H_prev, pads), weight.to(H_prev.dtype), None,
            stride, zeros, ones, False, zeros, 1, [False, True, False],
        )  # fmt: skip
        result: Tensor = gradients[1]
        return result

    def _gradient_by_pairs(self, H_prev: Tensor, D: Tensor) -> Tensor:
        """Compute `gradient` for images smaller than the kernel: products of all pairs of positions, then sums."""
        kernels, outputs, inputs = self._joint_kernels(), D.shape[2:], H_prev.shape[2:]
        channels = H_prev.shape[1]
        # Channels come last so that sums run over contiguous memory.
        left = D.flatten(2).permute(2, 1, 0).reshape(-1, len(D)).to(H_prev.dtype)
        right = H_prev.flatten(2).movedim(1, 2).reshape(len(H_prev), -1)
        pairs = (left @ right).reshape(-1, D.shape[1], *inputs, channels).movedim(1, -2)
        result = pairs.new_zeros(*(kernel.size for kernel in kernels), D.shape[1], channels)
        for own, output in zip(pairs, itertools.product(*map(range, outputs)), strict=True):
            into: list[slice] = []
            taken: list[slice] = []
            for kernel, place, length in zip(kernels, output, inputs, strict=True):
                first = kernel.padding - kernel.stride * place  # index of the first input in the kernel
                start, stop = max(0, first), min(kernel.size, first + length)
                into.append(slice(start, max(start, stop)))
                taken.append(slice(start - first, max(start, stop) - first))
            result[tuple(into)] += own[tuple(taken)]
        dims = range(len(kernels))
        return result.permute(len(kernels), len(kernels) + 1, *dims)

    def matrix(self, gradient: Tensor) -> Tensor:
        """Matrix B, fan-out x fan-in of a new neuron, from the gradient of the bridging layer."""
        if not self.producer:
            return gradient
        dims = len(self.producer)
        for d, (a, pool, b) in enumerate(zip(self.producer, self.pooling, self.consumer, strict=True)):
            index = _offsets(a, pool, b).to(gradient.device)
            axis = 2 + 2 * d  # each earlier dimension has become two
            gradient = gradient.index_select(axis, index.flatten())
            gradient = gradient.unflatten(axis, index.shape).mean(axis + 1)  # type: ignore[no-untyped-call]
        # o, i, b1, a1, b2, a2, ... -> (o, b1, b2, ...) x (i, a1, a2, ...)
        rows, columns = [0, *range(2, 2 + 2 * dims, 2)], [1, *range(3, 3 + 2 * dims, 2)]
        return gradient.permute(*rows, *columns).flatten(len(rows)).flatten(0, len(rows) - 1)

    def frobenius(self, gradient: Tensor) -> float:
        """Frobenius norm of B."""
        if not self.producer:
            return float(gradient.norm())
        if any(pool.window > 1 for pool in self.pooling):
            return float(self.matrix(gradient).norm())
        squares = gradient.flatten(0, 1).square().sum(0)  # each entry counts as often as it occurs in B
        for d, (a, pool, b) in enumerate(zip(self.producer, self.pooling, self.consumer, strict=True)):
            times = torch.bincount(_offsets(a, pool, b).flatten(), minlength=squares.shape[d]).to(squares)
            squares = squares * times.reshape(-1, *[1] * (squares.ndim - d - 1))
        return float(squares.sum().sqrt())

    def bound(self, H_prev: Tensor, D: Tensor) -> Tensor:
        r"""Cheap upper bound on the norm of a dense B, :math:`\sum_n \|d_n\| \|h_n\|`; infinite for convolutions."""
        if self.producer:
            return torch.tensor(math.inf, dtype=torch.float64, device=D.device)
        products: Tensor = H_prev.flatten(0, -2).norm(dim=1) * D.flatten(0, -2).norm(dim=1)
        return products.sum().double()

    def _joint_kernels(self) -> list[Kernel]:
        """Producer, pooling and consumer composed to one kernel per dimension."""
        return [_compose(*each) for each in zip(self.producer, self.pooling, self.consumer, strict=True)]


@lru_cache
def _offsets(producer: Kernel, pool: Pooling, consumer: Kernel) -> Tensor:
    """Index in the bridging kernel, for each entry of consumer kernel x pooling window x producer kernel."""
    a = producer.dilation * torch.arange(producer.size)
    b = pool.stride * consumer.dilation * torch.arange(consumer.size)
    return producer.stride * (b[:, None, None] + torch.arange(pool.window)[:, None]) + a


@lru_cache
def _compose(producer: Kernel, pool: Pooling, consumer: Kernel) -> Kernel:
    return Kernel(
        size=int(_offsets(producer, pool, consumer).max()) + 1,
        stride=producer.stride * pool.stride * consumer.stride,
        padding=producer.padding + producer.stride * (pool.stride * consumer.padding - pool.offset),
        dilation=1,
    )


def pooling_from(supports: Sequence[tuple[int, int]], first: int) -> Pooling:
    """Pooling whose outputs first, first + 1, ... depend on the observed input ranges (start, stop)."""
    (start, stop), *others = supports
    stride = others[0][0] - start if others else 1
    return Pooling(stride, start - stride * first, stop - start)
