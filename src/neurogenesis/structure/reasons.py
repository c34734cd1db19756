"""Why a width cannot grow, as data: what kind of reason it is, how much it explains, and what its user can do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """Kinds of reasons: how much each explains (0 most) and the remedy, if there is one."""

    def __init__(self, vagueness: int, remedy: str | None):
        self.vagueness, self.remedy = vagueness, remedy

    def __new__(cls, *_: object) -> Kind:
        member = object.__new__(cls)
        member._value_ = len(cls.__members__)  # members with equal contents are still different kinds
        return member

    BOUNDARY = 0, "sizes of inputs and outputs are fixed: put a hidden layer between two linear layers or convolutions"
    PARAMETRIZED = 0, "remove the parametrization, or grow another layer"
    OPERATION = 1, None
    NO_RULE = 1, "use operations that are known, or register a rule for this one with neurogenesis.rules"
    WRITTEN_SHAPE = 1, "compute shapes from tensors (x.flatten(1), x.view(len(x), -1)) instead of writing numbers"
    WRITTEN_SIZE = 1, "compute sizes from tensors (x.shape[1]) instead of writing numbers"
    FAILS = 1, "let the model's code read sizes from its tensors instead of expecting those it was built with"
    NORMALIZED = 1, "normalize with BatchNorm, which treats each channel alone, or add a hidden layer"
    FROZEN = 1, "train the consumer, with requires_grad_(True), or grow another layer"
    DIFFERS = 1, "let the buffer hold the same value for all neurons, or derive it in forward()"
    SHARED_MEMORY = 1, "give each parameter its own memory before the optimizer is created"
    PLAIN_TENSOR = 1, "register the tensor with register_buffer, or make it a Parameter"
    ATTENTION = 1, "grow the feed-forward layers of attention blocks: head sizes and counts are fixed"
    RECURRENT = 1, "add a hidden layer before or after the recurrent layer"
    ONLY_BUFFERS = 1, "let a trained layer consume it"
    # These concern a factor of a size rather than the width itself, or follow from something else.
    HEADS = 2, ATTENTION[1]
    NOT_PRODUCED = 2, None
    NOT_CONSUMED = 2, "pass an example that runs the whole model"
    SIZE_ONE = 2, None
    INDEXED = 2, None
    GROUPS = 2, None


@dataclass(frozen=True)
class Reason:
    """Why a size cannot change."""

    text: str
    kind: Kind = Kind.OPERATION

    def __str__(self) -> str:
        return self.text
