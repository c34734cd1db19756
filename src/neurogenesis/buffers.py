"""A sliding buffer of a layer's activations, held as Gram matrices: what rank and orthogonality need of them.

A layer with one activation per neuron and sample keeps these rows themselves, which are small. A layer with many
(channels of images, features of tokens) keeps for each batch the neurons x neurons matrix of their products only:
activations live no longer than the training step's own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from . import metrics

_CHUNK = 4096  # samples of one product in single precision, which keeps its rounding small


@dataclass
class Rows:
    """Activations of one batch, samples x neurons x positions, with their Gram matrices when asked for."""

    values: Tensor
    _grams: dict[torch.dtype, Tensor] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        return len(self.values)

    def newest(self, samples: int) -> Rows:
        return Rows(self.values[-samples:])

    def gram(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """The products of all neurons, made in a precision and given in double."""
        if dtype not in self._grams:
            self._grams[dtype] = sum(_gram(part.to(dtype)) for part in self.values.split(_CHUNK))  # type: ignore
        return self._grams[dtype]


@dataclass
class Products:
    """Gram matrices of the older and of the newer part of a batch, neurons x neurons, in double precision."""

    parts: list[tuple[int, Tensor]]  # samples and products

    @property
    def samples(self) -> int:
        return sum(samples for samples, _ in self.parts)

    def newest(self, samples: int) -> Products:
        """The newer part if it fits; a matrix of products cannot be cut elsewhere."""
        kept = self.parts
        while kept and sum(own for own, _ in kept) > samples:
            kept = kept[1:]
        return Products(kept)

    def gram(self, dtype: torch.dtype = torch.float64) -> Tensor:
        return sum(gram for _, gram in self.parts)  # type: ignore[return-value]


def _gram(values: Tensor) -> Tensor:
    """Of samples x neurons x positions: summed over samples and positions."""
    if values.shape[2] == 1:
        matrix = values[:, :, 0]
        return (matrix.T @ matrix).double()
    matrix = values.movedim(1, 0).flatten(1)
    return (matrix @ matrix.T).double()


class Buffer:
    """The activations of a layer on the latest samples.

    Args:
        samples: how many samples it holds at most.
        whole: keep all activations, also of layers with many positions per neuron: for the orthogonality of
            convolutions, which is a matter of samples x samples.
    """

    def __init__(self, samples: int, whole: bool = False):
        self.limit = samples
        self.whole = whole
        self.blocks: list[Rows | Products] = []
        self.positions = 1
        self._aside: Tensor | None = None

    def add(self, values: Tensor) -> None:
        """Add the activations of one batch, samples x neurons x positions; the oldest samples go."""
        values = values.detach()[-self.limit :]
        self.positions = values.shape[2]
        if self.whole or self.positions == 1 or self.limit * self.positions <= values.shape[1]:
            block: Rows | Products = Rows(values)
        else:
            # Batches of one size leave the buffer in two parts: cut them where the limit will.
            rest = self.limit % len(values)
            parts = values.double().split([len(values) - rest, rest]) if rest else [values.double()]
            block = Products([(len(part), _gram(part)) for part in parts])
        self.blocks.append(block)
        excess = self.samples - self.limit
        while excess > 0:
            oldest = self.blocks.pop(0)
            if oldest.samples > excess and (kept := oldest.newest(oldest.samples - excess)).samples:
                self.blocks.insert(0, kept)
            excess = self.samples - self.limit

    def clear(self) -> None:
        self.blocks.clear()

    @property
    def samples(self) -> int:
        return sum(block.samples for block in self.blocks)

    @property
    def columns(self) -> int:
        """Activations per neuron."""
        return self.samples * self.positions

    @property
    def neurons(self) -> int:
        block = self.blocks[0]
        return block.values.shape[1] if isinstance(block, Rows) else len(block.parts[0][1])

    def drop_nonfinite(self) -> bool:
        """Drop batches with activations that are no numbers; whether there were any."""
        finite = [block for block in self.blocks if math.isfinite(float(_total(block)))]
        dropped = len(finite) < len(self.blocks)
        self.blocks = finite
        return dropped

    def gram(self) -> Tensor:
        """The products of all neurons over all activations, exact to double precision."""
        return self._summed(torch.float64)

    def _summed(self, dtype: torch.dtype) -> Tensor:
        return sum(block.gram(dtype) for block in self.blocks)  # type: ignore[return-value]

    def rank(self, eps: float, scale: Tensor | None = None) -> int:
        r"""The effective rank, with the rows of neurons scaled if a scale is given.

        Products in single precision decide where no eigenvalue is too close to eps², in double precision else.
        """
        if self.columns <= self.neurons and all(isinstance(block, Rows) for block in self.blocks):
            matrix = torch.cat([_matrix(block) for block in self.blocks], 1)  # neurons x activations
            matrix = matrix if scale is None else matrix * scale[:, None].double()
            return metrics.effective_rank(matrix, eps)
        if isinstance(self.blocks[0], Rows) and self.blocks[0].values.dtype == torch.float32:
            gram = _scaled(self._summed(torch.float32), scale) / self.columns
            if self._aside is None or len(self._aside) != len(gram):
                self._aside = torch.zeros(len(gram), dtype=torch.bool, device=gram.device)
            found = metrics.eigenvalues_surely_above(gram, eps**2, metrics.rounding(gram), self._aside)
            if found is not None:
                return found
        return metrics.eigenvalues_above(_scaled(self.gram(), scale) / self.columns, eps**2)

    def orthogonality(self, scale: Tensor | None = None) -> float:
        """The orthogonality: of neurons x samples, or of (positions x neurons) x samples where there are many."""
        if self.whole:
            rows = torch.cat([block.values for block in self.blocks if isinstance(block, Rows)])
            rows = rows if scale is None else rows * scale[:, None]
            return metrics.orthogonality(rows.flatten(1).T)
        return metrics.orthogonality_of_gram(_scaled(self.gram(), scale), self.columns)

    def state_dict(self) -> dict[str, Any]:
        held = [("rows", b.values) if isinstance(b, Rows) else ("products", b.parts) for b in self.blocks]
        return {"positions": self.positions, "blocks": held}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.positions = state["positions"]
        self.blocks = [Rows(held) if kind == "rows" else Products(list(held)) for kind, held in state["blocks"]]


def _total(block: Rows | Products) -> Tensor:
    return block.values.sum() if isinstance(block, Rows) else sum(gram.trace() for _, gram in block.parts)  # type: ignore


def _matrix(block: Rows | Products) -> Tensor:
    assert isinstance(block, Rows)
    return block.values.double().movedim(1, 0).flatten(1)


def _scaled(gram: Tensor, scale: Tensor | None) -> Tensor:
    return gram if scale is None else gram * torch.outer(scale, scale).double()
