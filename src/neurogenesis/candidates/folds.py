"""Gradients of fan-outs, summed over the samples of each fold."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from ..passes.products import Product
from ..passes.samples import FOLDS, folds
from .rows import Gain, row_samples, sum_of

MAX_PADDING = 2  # rows of folds that are padded to the same length, relative to all rows
FEW_ROWS = 512  # in all folds: of more rows, a product per fold takes less time than padded ones at once
SMALL = 2**20  # numbers, up to which more padding does not matter


def fold_gradients(consumer: nn.Module, inputs: Tensor, D: Tensor, samples: Tensor | None) -> tuple[Tensor, Tensor]:
    """Sums of the gradients of fan-outs in each fold, folds x columns x fan-out, and the number of rows in each."""
    if isinstance(consumer, Product) and consumer.groups:
        parts = [_in_folds(consumer, *own, samples) for own in zip(inputs.unbind(-2), D.unbind(-2), strict=True)]
        gradients, counts = zip(*parts, strict=True)
        return consumer.as_fan_out(torch.stack(gradients, 1)), sum_of(counts)
    return _in_folds(consumer, inputs, D, samples)


def _in_folds(consumer: nn.Module, inputs: Tensor, D: Tensor, samples: Tensor | None) -> tuple[Tensor, Tensor]:
    """Same as `fold_gradients` for one group."""
    dims = len(consumer.kernel_size) + 1 if isinstance(consumer, _ConvNd) else 1
    leading, rest = D.shape[:-dims], math.prod(D.shape[-dims + 1 :]) if dims > 1 else 1
    of_row = folds(row_samples(samples, leading, D.device))
    counts = torch.bincount(of_row, minlength=FOLDS)
    if isinstance(consumer, Gain):
        products = (inputs * D.repeat(*[1] * (D.ndim - 1), inputs.shape[-1] // D.shape[-1])).flatten(0, -2)
        sums = products.new_zeros(FOLDS, products.shape[-1]).index_add_(0, of_row, products)
        return sums[..., None], counts.double()
    order, sizes = of_row.argsort(), counts.tolist()
    padded = FOLDS * max(sizes)
    if (
        dims == 1
        and len(order) <= FEW_ROWS
        and (padded <= MAX_PADDING * len(order) or padded * (inputs.shape[-1] + D.shape[-1]) <= SMALL)
    ):
        x, y = (each.reshape(-1, each.shape[-1]) for each in (inputs, D))
        return _products_of_folds(x, y, order, counts, max(sizes)), counts.double()
    x, y = (each.reshape(-1, *each.shape[-dims:]).index_select(0, order) for each in (inputs, D))
    parts = zip(x.split(sizes), y.split(sizes), strict=True)  # type: ignore[no-untyped-call]
    gradients = [_of_rows(consumer, *each) if len(each[0]) else None for each in parts]
    nothing = torch.zeros_like(next(each for each in gradients if each is not None))
    return torch.stack([nothing if each is None else each for each in gradients]), counts.double() * rest


def _products_of_folds(x: Tensor, y: Tensor, order: Tensor, counts: Tensor, most: int) -> Tensor:
    """The product of x and y in each fold, by one operation on folds that are padded to the same number of rows.

    Args:
        x: rows x columns.
        y: rows x outputs.
        order: the rows, fold by fold.
        counts: the number of rows in each fold.
        most: the largest of these.
    """
    places = torch.arange(most, device=order.device)
    present = places < counts[:, None]
    rows = order[((counts.cumsum(0) - counts)[:, None] + places).clamp_max(len(order) - 1)].flatten()
    x, y = (each.index_select(0, rows).reshape(*present.shape, -1) for each in (x, y))
    (x if x.shape[-1] < y.shape[-1] else y).masked_fill_(~present[..., None], 0)
    return x.mT @ y


def fan_out_gradient(consumer: nn.Module, inputs: Tensor, D: Tensor) -> Tensor:
    """Gradient of the consumer's weights of some input columns, columns x fan-out."""
    if isinstance(consumer, Product) and consumer.groups:
        x, y = (each.reshape(-1, *each.shape[-2:]).movedim(1, 0) for each in (inputs, D))
        return consumer.as_fan_out(x.mT @ y)
    return _of_rows(consumer, inputs, D)


def _of_rows(consumer: nn.Module, inputs: Tensor, D: Tensor) -> Tensor:
    """Same as `fan_out_gradient` for one group."""
    if not isinstance(consumer, _ConvNd):
        return inputs.reshape(-1, inputs.shape[-1]).T @ D.reshape(-1, D.shape[-1])
    dims = len(consumer.kernel_size)
    if isinstance(consumer, _ConvTransposeNd):
        return _transposed_gradient(consumer, inputs, D)
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


def _transposed_gradient(consumer: _ConvTransposeNd, inputs: Tensor, D: Tensor) -> Tensor:
    """Same as `fan_out_gradient` for a transposed convolution: that of a convolution of D which returns the inputs.

    What a size asked of the layer, or its `output_padding`, has added to the outputs is read by no window.
    """
    dims = len(consumer.kernel_size)
    D, inputs = (each.reshape(-1, *each.shape[-dims - 1 :]) for each in (D, inputs))
    weight = D.new_zeros(1).expand(inputs.shape[1], D.shape[1], *consumer.kernel_size)
    gradients = torch.ops.aten.convolution_backward(
        inputs, D, weight, None,
        consumer.stride, consumer.padding, consumer.dilation, False, (0,) * dims, 1, [False, True, False],
    )  # fmt: skip
    result: Tensor = gradients[1]
    return result.flatten(1)
