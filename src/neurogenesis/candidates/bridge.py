"""The auxiliary gradient: that of connections which bridge a layer, from its producer's input to its consumer's output.

With :math:`D` the gradient at the consumer's output and :math:`H_{prev}` the producer's input, a new neuron with
fan-out v and fan-in w changes the loss by :math:`v^T B w` to first order, if its activation function has slope 1.
For dense layers :math:`B = D^T H_{prev}`. For convolutions the entries of B are those of the gradient of a bridging
convolution, whose kernel reaches as far as both kernels, and the pooling between them, do together. It is exact inside
the image; where the consumer pads, it goes on beyond the border, where a real neuron would be cut off.

Reference: Evci et al., "GradMax: Growing Neural Networks using Gradient Information" (ICLR 2022).
"""

from __future__ import annotations

import itertools
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
    """What stands between along one dimension: output q takes the mean of inputs stride * q + offset + 0..window-1.

    Max pooling of equal numbers, as new neurons give, takes the first: a window of 1.
    """

    stride: int = 1
    offset: int = 0
    window: int = 1


@dataclass(frozen=True)
class Bridge:
    """The shape of a bridging connection, dimension by dimension; without dimensions it is dense."""

    producer: tuple[Kernel, ...] = ()
    pooling: tuple[Pooling, ...] = ()
    consumer: tuple[Kernel, ...] = ()

    def gradient(self, H_prev: Tensor, D: Tensor) -> Tensor:
        """The gradient of a bridging layer with zero weights, consumer's x producer's channels x kernel.

        Args:
            H_prev: the producer's input, samples x channels x positions; dense: samples x features.
            D: the gradient of the loss at the consumer's output, likewise.
        """
        if not self.producer:
            return D.flatten(0, -2).T.to(H_prev.dtype) @ H_prev.flatten(0, -2)
        D = D.reshape(*D.shape[:2], *D.shape[2:] or (1,) * len(self.producer))
        ways = self._ways()
        kernel, stride = torch.Size(way.size for way in ways), [way.stride for way in ways]
        if torch.Size(H_prev.shape[2:]).numel() <= kernel.numel():
            return self._by_pairs(H_prev, D)
        pads: list[int] = []
        for way, length, outputs in zip(ways, H_prev.shape[2:], D.shape[2:], strict=True):
            extent = way.stride * (outputs - 1) + way.size
            pads[:0] = [way.padding, extent - way.padding - length]
        ones, zeros = [1] * len(kernel), [0] * len(kernel)
        weight = D.new_zeros(1).expand(D.shape[1], H_prev.shape[1], *kernel)
        gradients = torch.ops.aten.convolution_backward(
            D.to(H_prev.dtype), F.pad(H_prev, pads), weight.to(H_prev.dtype), None,
            stride, zeros, ones, False, zeros, 1, [False, True, False],
        )  # fmt: skip
        result: Tensor = gradients[1]
        return result

    def _by_pairs(self, H_prev: Tensor, D: Tensor) -> Tensor:
        """The same for images smaller than the kernel: all pairs of positions at once, then their sums."""
        ways, outputs, inputs = self._ways(), D.shape[2:], H_prev.shape[2:]
        channels = H_prev.shape[1]
        # Channels come last, so that sums run over stretches of memory: outputs x consumer's, inputs x producer's.
        left = D.flatten(2).permute(2, 1, 0).reshape(-1, len(D)).to(H_prev.dtype)
        right = H_prev.flatten(2).movedim(1, 2).reshape(len(H_prev), -1)
        pairs = (left @ right).reshape(-1, D.shape[1], *inputs, channels).movedim(1, -2)
        result = pairs.new_zeros(*(way.size for way in ways), D.shape[1], channels)
        for own, output in zip(pairs, itertools.product(*map(range, outputs)), strict=True):
            into: list[slice] = []
            taken: list[slice] = []
            for way, place, length in zip(ways, output, inputs, strict=True):
                first = way.padding - way.stride * place  # where the first input lies in the kernel
                start, stop = max(0, first), min(way.size, first + length)
                into.append(slice(start, max(start, stop)))
                taken.append(slice(start - first, max(start, stop) - first))
            result[tuple(into)] += own[tuple(taken)]
        dims = range(len(ways))
        return result.permute(len(ways), len(ways) + 1, *dims)

    def matrix(self, gradient: Tensor) -> Tensor:
        """B, fan-out x fan-in of a new neuron, from the gradient of the bridging layer."""
        if not self.producer:
            return gradient
        dims = len(self.producer)
        for d, (a, pool, b) in enumerate(zip(self.producer, self.pooling, self.consumer, strict=True)):
            index = _offsets(a, pool, b).to(gradient.device)
            axis = 2 + 2 * d  # the dimensions before have become two each
            gradient = gradient.index_select(axis, index.flatten())
            gradient = gradient.unflatten(axis, index.shape).mean(axis + 1)  # type: ignore[no-untyped-call]
        # o, i, b1, a1, b2, a2, ... -> (o, b1, b2, ...) x (i, a1, a2, ...)
        rows, columns = [0, *range(2, 2 + 2 * dims, 2)], [1, *range(3, 3 + 2 * dims, 2)]
        return gradient.permute(*rows, *columns).flatten(len(rows)).flatten(0, len(rows) - 1)

    def frobenius(self, gradient: Tensor) -> float:
        """The Frobenius norm of B."""
        if not self.producer:
            return float(gradient.norm())
        if any(pool.window > 1 for pool in self.pooling):
            return float(self.matrix(gradient).norm())
        squares = gradient.flatten(0, 1).square().sum(0)  # each entry counts as often as it stands in B
        for d, (a, pool, b) in enumerate(zip(self.producer, self.pooling, self.consumer, strict=True)):
            times = torch.bincount(_offsets(a, pool, b).flatten(), minlength=squares.shape[d]).to(squares)
            squares = squares * times.reshape(-1, *[1] * (squares.ndim - d - 1))
        return float(squares.sum().sqrt())

    def bound(self, H_prev: Tensor, D: Tensor) -> float:
        r"""An upper bound of the norm of a dense B, from norms alone: :math:`\sum_n \|d_n\| \|h_n\|`."""
        if self.producer:
            return float("inf")
        return float((H_prev.flatten(0, -2).norm(dim=1) * D.flatten(0, -2).norm(dim=1)).sum())

    def _ways(self) -> list[Kernel]:
        """Producer, pooling and consumer as one kernel."""
        return [_joined(*each) for each in zip(self.producer, self.pooling, self.consumer, strict=True)]


@lru_cache
def _offsets(producer: Kernel, pool: Pooling, consumer: Kernel) -> Tensor:
    """Where in the bridging kernel an entry of the consumer's kernel, the pooling and the producer's lies."""
    a = producer.dilation * torch.arange(producer.size)
    b = pool.stride * consumer.dilation * torch.arange(consumer.size)
    return producer.stride * (b[:, None, None] + torch.arange(pool.window)[:, None]) + a


@lru_cache
def _joined(producer: Kernel, pool: Pooling, consumer: Kernel) -> Kernel:
    return Kernel(
        size=int(_offsets(producer, pool, consumer).max()) + 1,
        stride=producer.stride * pool.stride * consumer.stride,
        padding=producer.padding + producer.stride * (pool.stride * consumer.padding - pool.offset),
        dilation=1,
    )


def pooling_from(supports: Sequence[tuple[int, int]], first: int) -> Pooling:
    """The pooling whose outputs first, first + 1, ... depend on inputs from start to stop, as was observed."""
    (start, stop), *others = supports
    stride = others[0][0] - start if others else 1
    return Pooling(stride, start - stride * first, stop - start)
