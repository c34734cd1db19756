"""Reasons why a width cannot grow: what kind of reason, how specific it is, and what the user can do about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class Kind(Enum):
    """Kinds of reasons: how vague each is (0: most specific) and the remedy, if there is one."""

    def __init__(self, vagueness: int, remedy: str | None):
        self.vagueness, self.remedy = vagueness, remedy

    def __new__(cls, *_: object) -> Kind:
        member = object.__new__(cls)
        member._value_ = len(cls.__members__)  # distinct values: enum members with equal values would be aliases
        return member

    INPUT = (
        0,
        (
            "growers leave sizes of inputs and outputs alone: grow them by hand, under their names in "
            "neurogenesis.interfaces(model, example), or put a hidden layer between them"
        ),
    )
    OUTPUT = 0, INPUT[1]
    TOKENS = 1, INPUT[1]
    # Sizes of inputs and outputs that hidden layers have, too.
    JOINED = 0, "let a layer read the model's input before it is combined with hidden activations"
    RETURNED = 0, "do not return activations that other layers read, or return what a last layer makes of them"
    PARAMETRIZED = 0, "remove the parametrization, or grow another layer"
    TIED = 0, "untie the weights: give the layer that uses the weight transposed one of its own"
    OPERATION = 1, None
    NO_RULE = 1, "use operations that have a rule, or register a rule for this one with neurogenesis.rules"
    HARD_CODED_SHAPE = 1, "compute shapes from tensors (x.flatten(1), x.view(len(x), -1)) instead of hard-coding them"
    HARD_CODED_SIZE = 1, "compute sizes from tensors (x.shape[1]) instead of hard-coding them"
    MADE_FOR_HEADS = (
        1,
        "those of present heads would change with the number: hold them in a buffer of the layer, an entry per head",
    )
    FAILS = 1, "read sizes from tensors in the model's code instead of assuming the ones it was built with"
    ALIGNED = (
        0,
        (
            "let experts run one after the other, which takes any size: in Transformers with "
            "model.set_experts_implementation('eager')"
        ),
    )
    NORMALIZED = 1, "normalize with BatchNorm, which treats each channel separately, or add a hidden layer"
    FROZEN = 1, "unfreeze the consumer with requires_grad_(True), or grow another layer"
    PARTLY_FROZEN = 1, "frozen parts stay as they are: unfreeze them with requires_grad_(True), or pass frozen=True"
    NOT_CALLED = 1, "pass a list of inputs that together use all layers, as example=[...], or delete unused layers"
    IDLE = 1, NOT_CALLED[1]
    UNUSED = 1, NOT_CALLED[1]
    DIFFERS = 1, "let the buffer hold the same value for all neurons, or compute it in forward()"
    SHARED_MEMORY = 1, "give each parameter its own memory before the optimizer is created"
    PLAIN_TENSOR = 1, "register the tensor with register_buffer, or make it a Parameter"
    PACKED = 0, "grow first and quantize then, or leave this layer as it was"
    ADAPTER = 0, "use plain LoRA or DoRA with the default init_lora_weights, whose ranks can grow"
    ONLY_BUFFERS = 1, "consume it with a trained layer"
    # These concern one factor of a size rather than the whole width, or are consequences of another reason.
    HEADS = 2, "the size of a head is fixed: grow the number of heads, or the feed-forward layers, instead"
    CONTRACTED = 2, HEADS[1]
    NOT_PRODUCED = 2, None
    NOT_CONSUMED = 2, "pass an example that uses all layers of the model"
    SIZE_ONE = 2, None
    INDEXED = 2, None
    GROUPS = 2, None


@dataclass(frozen=True)
class Reason:
    """A reason why a size cannot change; `output` is the name or position of a model's output that has it."""

    text: str
    kind: Kind = Kind.OPERATION
    output: str | int | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return self.text
