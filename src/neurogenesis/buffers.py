"""A sliding buffer of a layer's activations, and their rank and orthogonality.

A layer with one activation per neuron and sample keeps these, which are few. A layer with many (channels of images,
features of tokens) keeps them until the step they belong to has been looked at, no longer than the training step needs
them itself; if the next step does not replace them all, what is left of them is the matrix of their products.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from . import metrics


@dataclass
class Rows:
    """Activations of one batch, samples x neurons x positions."""

    values: Tensor
    inputs: Tensor | None = None  # of the layer that makes them, samples x features, where new neurons need no more
    cache: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.version = 0 if self.inputs is None else self.inputs._version

    def has_inputs(self, features: int) -> bool:
        """Whether the inputs are there, of so many features, and nobody has written into them."""
        inputs = self.inputs
        return inputs is not None and inputs.shape[1] == features and inputs._version == self.version

    @property
    def samples(self) -> int:
        return len(self.values)

    @cached_property
    def norm(self) -> float:
        wide = torch.promote_types(self.values.dtype, torch.float32)  # half precision would overflow
        return float(torch.linalg.vector_norm(self.values, dtype=wide))

    @property
    def finite(self) -> bool:
        return math.isfinite(self.norm)

    @property
    def matrix(self) -> Tensor:
        """Neurons x activations; a copy where there are many positions, not to be kept."""
        return metrics.by_neuron(self.values)

    def newest(self, samples: int) -> Rows:
        known = self.inputs is not None and self.inputs._version == self.version
        return Rows(self.values[-samples:], self.inputs[-samples:] if known and self.inputs is not None else None)

    @cached_property
    def gram(self) -> Tensor:
        """The products of neurons, in double precision."""
        return _gram(self.matrix)

    @cached_property
    def single_gram(self) -> Tensor:
        """The same, made in single precision."""
        parts = metrics.products(self.matrix.T)
        return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0, dtype=torch.float64)

    def along(self, vectors: Tensor) -> Tensor:
        """The Gram matrix of the activations along some vectors of neurons."""
        vectors = vectors.T.to(self.values)
        if self.values.shape[2] < 16:
            projected = vectors @ self.matrix
        else:  # without a copy of all activations
            projected = torch.matmul(vectors, self.values).movedim(1, 0).flatten(1)
        return (projected @ projected.T).double()


@dataclass
class Products:
    """The matrix of the products of neurons over the samples of one batch, in double precision."""

    samples: int
    gram: Tensor

    @cached_property
    def finite(self) -> bool:
        return math.isfinite(float(self.gram.trace()))

    def newest(self, samples: int) -> None:
        """A sum cannot be cut: it goes as a whole."""
        return None


@dataclass
class Spent:
    """Activations that have been looked at and let go."""

    samples: int
    finite = True

    def newest(self, samples: int) -> Spent:
        return Spent(samples)


def _gram(matrix: Tensor) -> Tensor:
    """In double precision, some columns at a time, which need not be copied all at once."""
    total: Tensor | None = None
    for part in matrix.split(max(1, _ENTRIES // len(matrix)), 1):  # type: ignore[no-untyped-call]
        part = part.double()
        total = part @ part.T if total is None else total.addmm_(part, part.T)
    assert total is not None
    return total


_ENTRIES = 2**18


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
        self.blocks: list[Rows | Products | Spent] = []
        self.positions = 1
        self.full = False  # whether it has been; of batches with many positions it holds whole ones, as fit
        self._total: Tensor | None = None  # of products in single precision
        self._counted: list[Rows] = []  # the blocks in it
        self._small: Tensor | None = None  # directions of neurons in which activations were small
        self._patience = 0

    def add(self, values: Tensor, inputs: Tensor | None = None) -> None:
        """Add the activations of one batch, samples x neurons x positions; the oldest samples go."""
        values = values.detach()[-self.limit :]
        inputs = None if inputs is None else inputs[-self.limit :]
        self.settle(len(values))
        if self._held() and self.neurons != values.shape[1]:
            self.clear()  # the width was grown or shrunk by hand
        self.positions = values.shape[2]
        self.blocks.append(Rows(values, inputs))
        self.full = self.full or self.samples >= self.limit
        while (excess := self.samples - self.limit) > 0:
            oldest = self.blocks.pop(0)
            if oldest.samples > excess and (kept := oldest.newest(oldest.samples - excess)) is not None:
                self.blocks.insert(0, kept)

    def settle(self, coming: int | None = None) -> None:
        """Let go of activations with many positions, before `coming` more samples, or after a step.

        After a step a batch that fills the buffer is let go as it is: the next one replaces it.
        """
        if self.whole or self.positions == 1:
            return
        stay = self.limit if coming is None else self.limit - coming
        if stay <= 0:
            self.blocks.clear()  # all of it is replaced
        for number, block in enumerate(self.blocks):
            if isinstance(block, Rows):
                gone = coming is None and block.samples >= stay
                self.blocks[number] = Spent(block.samples) if gone else Products(block.samples, block.gram)
        self._counted, self._total = [], None

    def with_inputs(self, features: int) -> tuple[Tensor, Tensor] | None:
        """Activations and the inputs they come from, samples first, if these are known and of so many features."""
        rows = self._rows()
        if not rows or not all(block.has_inputs(features) for block in rows):
            return None
        return torch.cat([block.values for block in rows]), torch.cat([block.inputs for block in rows])  # type: ignore

    def extend(self, new: Tensor) -> None:
        """Append the activations of new neurons, samples x neurons x positions, on the samples that are there."""
        rows = self._rows()
        assert rows is not None
        parts, full = new.split([block.samples for block in rows]), self.full  # type: ignore[no-untyped-call]
        self.clear()
        self.full = full
        self.blocks += [
            Rows(torch.cat([block.values, part], 1), block.inputs) for block, part in zip(rows, parts, strict=True)
        ]

    def clear(self) -> None:
        self.blocks.clear()
        self.full = False
        self._counted, self._total, self._small = [], None, None

    @property
    def complete(self) -> bool:
        """Whether all samples are there; if not, the model must be run on them again."""
        return not any(isinstance(block, Spent) for block in self.blocks)

    @property
    def samples(self) -> int:
        return sum(block.samples for block in self.blocks)

    @property
    def columns(self) -> int:
        """Activations per neuron."""
        return self.samples * self.positions

    @property
    def neurons(self) -> int:
        block = self._held()[0]
        return block.values.shape[1] if isinstance(block, Rows) else len(block.gram)

    def _held(self) -> list[Rows | Products]:
        return [block for block in self.blocks if not isinstance(block, Spent)]

    def _rows(self) -> list[Rows] | None:
        rows = [block for block in self.blocks if isinstance(block, Rows)]
        return rows if len(rows) == len(self.blocks) else None

    def drop_nonfinite(self) -> bool:
        """Drop batches with activations that are no numbers; whether there were any."""
        finite = [block for block in self.blocks if block.finite]
        dropped = len(finite) < len(self.blocks)
        self.blocks = finite
        return dropped

    def gram(self) -> Tensor:
        """The products of all neurons over all activations, exact to double precision."""
        return sum(block.gram for block in self._held())  # type: ignore[return-value]

    # --- rank --------------------------------------------------------------------------------------------

    def rank(self, eps: float, scale: Tensor | None = None, enough: int | None = None) -> int:
        r"""The effective rank, with the rows of neurons scaled if a scale is given.

        Args:
            eps: threshold of the effective rank.
            scale: factors of neurons.
            enough: if the rank can be shown to be no larger than this, an upper bound that is will do.
        """
        if enough is not None and self._small is not None and len(self._small) == self.neurons:
            bound = self._bound(eps, scale)
            if bound <= enough:
                self._patience = 0
                return bound
            self._small = None  # what was small is so no longer
        rank = self._rank(eps, scale)
        if enough is not None and rank <= enough and self.columns > self.neurons:
            self._remember(eps, scale, self.neurons - enough)
        return rank

    def _bound(self, eps: float, scale: Tensor | None) -> int:
        """An upper bound of the rank: as many eigenvalues are below eps² as in any directions put together."""
        assert self._small is not None
        vectors = self._small if scale is None else self._small * scale[:, None].to(self._small)
        total, norm = torch.zeros((), dtype=torch.float64, device=vectors.device), 0.0
        for block in self._held():
            if isinstance(block, Products):
                own = vectors.T @ block.gram @ vectors
            elif scale is not None:
                own, norm = block.along(vectors), norm + block.norm**2
            else:
                if "along" not in block.cache or block.cache["of"] is not vectors:
                    block.cache["along"], block.cache["of"] = block.along(vectors), vectors
                own, norm = block.cache["along"], norm + block.norm**2
            total = total + own
        # What single precision may add to the length of projections.
        rounding = 16 * torch.finfo(torch.float32).eps * norm**0.5
        limit = (1 - 1e-4) * max(0.0, self.columns**0.5 * eps - rounding) ** 2
        short = limit * torch.eye(len(total), dtype=total.dtype, device=total.device) - total
        if int(torch.linalg.cholesky_ex(short).info) == 0:
            return self.neurons - len(total)
        values, rotation = torch.linalg.eigh(short)
        self._small = self._small @ rotation[:, values > 0]  # those in which they still are
        return self.neurons - self._small.shape[1]

    def _remember(self, eps: float, scale: Tensor | None, needed: int) -> None:
        """Note directions in which activations are small: they mostly stay so for a while."""
        self._patience -= 1
        if self._patience > 0:  # they did not, the last time
            return
        self._patience = 8
        values, vectors = torch.linalg.eigh(_scaled(self.gram(), scale) / self.columns)
        small, smaller = (int((values < part * eps**2).sum()) for part in (1, 0.5))
        self._small = vectors[:, : min(max(smaller, min(small, needed)), needed + 8)].contiguous()

    def _rank(self, eps: float, scale: Tensor | None) -> int:
        """Products in single precision decide where no eigenvalue is too close to eps², in double precision else."""
        rows, columns, size = self._rows(), self.columns, min(self.columns, self.neurons)
        if rows is not None and columns <= self.neurons:
            matrix = torch.cat([block.matrix for block in rows], 1)
            matrix = matrix if scale is None else matrix * scale[:, None].to(matrix)
            return metrics.quick_rank(matrix, eps)
        if rows is not None and size >= metrics.FEW and rows[0].values.dtype == torch.float32:
            gram = _scaled(self._single_gram(rows), scale)
            found = metrics.eigenvalues_surely_above(gram, columns * eps**2, metrics.rounding(gram))
            if found is not None:
                return found
        return metrics.eigenvalues_above(_scaled(self.gram(), scale) / columns, eps**2)

    def _single_gram(self, rows: list[Rows]) -> Tensor:
        """The sum over blocks, brought up to date by what has come and what has gone."""
        gone = [block for block in self._counted if not any(block is own for own in rows)]
        come = [block for block in rows if not any(block is own for own in self._counted)]
        if self._total is None or len(come) == len(rows) or len(self._total) != self.neurons:
            self._total = torch.zeros(self.neurons, self.neurons, dtype=torch.float64, device=rows[0].values.device)
            gone, come = [], rows
        for block in gone:
            self._total.sub_(block.single_gram)
        for block in come:
            self._total.add_(block.single_gram)
        self._counted = list(rows)
        return self._total

    def orthogonality(self, scale: Tensor | None = None) -> float:
        """The orthogonality: of neurons x samples, or of (positions x neurons) x samples where there are many."""
        if self.whole:
            rows = torch.cat([block.values for block in self._rows() or []])
            rows = rows if scale is None else rows * scale[:, None].to(rows)
            return metrics.orthogonality(metrics.by_sample(rows))
        return metrics.orthogonality_of_gram(_scaled(self.gram(), scale), self.columns)

    # --- state -------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        blocks: list[Any] = []
        for block in self.blocks:
            held = (block.values, block.inputs) if isinstance(block, Rows) else getattr(block, "gram", None)
            blocks.append((type(block).__name__, block.samples, held))
        shown = {"small": self._small, "patience": self._patience}  # they decide what is reported: a rank or a bound
        return {"positions": self.positions, "full": self.full, "blocks": blocks, **shown}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.clear()
        self.positions, self.full = state["positions"], state["full"]
        self._small, self._patience = state["small"], state["patience"]
        for kind, samples, held in state["blocks"]:
            block = Rows(*held) if kind == "Rows" else Products(samples, held) if kind == "Products" else Spent(samples)
            self.blocks.append(block)


def _scaled(gram: Tensor, scale: Tensor | None) -> Tensor:
    return gram if scale is None else gram * torch.outer(scale, scale).double()
