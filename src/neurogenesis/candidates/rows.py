"""Rows of a consumer's inputs, one per sample and position, in the layout that its kind of layer takes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from ..passes.products import Product
from ..passes.samples import mixed


class Gain(nn.Module):
    """Stands for a gain per channel, as the consumer of what it scales; channels are the last axis."""


def channel_dim(consumer: nn.Module) -> int:
    """The axis of channels in inputs and outputs, counted from the end."""
    return -len(consumer.kernel_size) - 1 if isinstance(consumer, _ConvNd) else -1


def all_but_channel(consumer: nn.Module, tensor: Tensor) -> list[int]:
    """The axes of samples and positions."""
    channel = channel_dim(consumer) % tensor.ndim
    return [dim for dim in range(tensor.ndim) if dim != channel]


def groups_of(consumer: nn.Module) -> int:
    """The number of groups of a product, an axis before the last in inputs and outputs; 0 if there is no such axis."""
    return consumer.groups if isinstance(consumer, Product) else 0


def wide(tensor: Tensor) -> torch.dtype:
    """A type in which sums of such numbers do not overflow: at least single precision."""
    return torch.promote_types(tensor.dtype, torch.float32)


def rows_match(consumer: nn.Module, H: Tensor, h: Tensor) -> bool:
    """Whether two tensors can be inputs of the consumer together: equal but for the number of channels."""
    return H.ndim == h.ndim and H.select(channel_dim(consumer), 0).shape == h.select(channel_dim(consumer), 0).shape


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


def channel_sums(consumer: nn.Module, inputs: Sequence[Tensor]) -> Tensor:
    """Sum of each input of the consumer over samples and positions of all passes."""
    return sum_of([each.sum(all_but_channel(consumer, each), dtype=wide(each)) for each in inputs])


def minus_means(consumer: nn.Module, inputs: Tensor, means: Tensor) -> Tensor:
    """Inputs of the consumer minus a number for each."""
    if isinstance(consumer, _ConvNd):
        inputs = inputs.reshape(-1, *inputs.shape[channel_dim(consumer) :])
        means = means.reshape(-1, *[1] * len(consumer.kernel_size))
    return inputs - means


def mean_squares(consumer: nn.Module, inputs: Tensor) -> Tensor:
    """Mean square of each input of the consumer."""
    norms = torch.linalg.vector_norm(inputs, dim=all_but_channel(consumer, inputs))
    squares: Tensor = norms.square() * (len(norms) / inputs.numel())
    return squares


def squared_norm(tensor: Tensor) -> Tensor:
    """The squared norm of all entries."""
    norm: Tensor = torch.linalg.vector_norm(tensor, dtype=wide(tensor))
    return norm.square()


def sum_of(tensors: Sequence[Tensor]) -> Tensor:
    return sum(tensors[1:], tensors[0])
