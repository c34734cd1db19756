"""Derive the labels of outputs from those of inputs: which parameters they depend on, which zeros make them zero."""

from __future__ import annotations

from collections.abc import Sequence

from .calls import OperationCall
from .labels import Label


def derived(call: OperationCall, labels: Sequence[Label]) -> Label:
    """The label of the outputs of an operation, but for their axes, from the labels of its inputs."""
    static = all(label.static for label in labels)
    zero_lost_in = next((label.zero_lost_in for label in labels if label.zero_lost_in), None)
    if call.name not in _ZERO_PRESERVING and not call.keeps_values:
        zero_lost_in = zero_lost_in or call.name
    return Label(
        [],
        static,
        frozenset[str]().union(*(label.sources for label in labels)) if static else frozenset[str](),
        _zero_sources(call, labels),
        weight=call.keeps_values and all(label.weight for label in labels),
        zero_lost_in=zero_lost_in,
    )


def _zero_sources(call: OperationCall, labels: Sequence[Label]) -> frozenset[str]:
    """The sources that must be zero for the result to be zero."""
    candidates = [(label, tensor) for label, tensor in zip(labels, call.tensors(), strict=True) if label.sources]
    if call.name == "aten.mul" and candidates:
        # One zero factor is enough; if both were zero, neither would get a gradient.
        return max(candidates, key=lambda pair: (pair[0].weight, pair[1].ndim))[0].zeros
    return frozenset[str]().union(*(label.zeros for label, _ in candidates))


# Operations that map zeros to zeros with a nonzero gradient; for products, one zero factor is enough.
_ZERO_PRESERVING = {
    f"aten.{name}"
    for name in (
        "_to_copy _unsafe_view _weight_norm_interface add addmm atan baddbmm bmm cat clone constant_pad_nd "
        "convolution copy detach div dot flip gather index index_select masked_fill mean mm mul mv neg repeat roll "
        "rsub sin stack sub sum tanh where"
    ).split()
}
