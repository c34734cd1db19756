"""Rehearse a change of blocks: the model is run with it, and without it, and must return the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..structure.axes import named_tensors
from ..structure.examples import Example
from ..structure.extensions import Operation
from ..structure.outputs import returned
from ..structure.rehearsal import check_equal_outputs, perturbed
from .flow import Flow, run


class Unequal(ValueError):
    """A change of blocks that a rehearsal has refused."""


def rehearse(
    model: nn.Module,
    examples: Sequence[Example],
    operations: Sequence[Operation],
    blocks: Sequence[nn.Module],
    sources: Mapping[int, Tensor],
    *,
    noisy: bool = False,
    equal: bool = True,
) -> None:
    """Raise `Unequal` unless a model runs with changed blocks and returns the same, in both modes.

    Args:
        model: the model, which is changed only meanwhile.
        examples: its inputs.
        operations: the change.
        blocks: the blocks afterwards, all of which must be called.
        sources: by ids of new tensors, the ones whose values they have.
        noisy: whether to add noise to all parameters, as training may; their present values may hide differences.
        equal: whether outputs must be the same.
    """
    tensors = named_tensors(model)
    before = perturbed(tensors, dict(model.named_parameters()), noisy) if noisy else tensors
    values = {id(tensor): before[name] for name, tensor in tensors.items()}
    expected = {
        key: _outcome(model, example, before, *key[1:])
        for number, example in enumerate(examples)
        for key in [(number, False, False), (number, True, True)]
    }
    with applied(operations):
        present = named_tensors(model)
        after = {name: values.get(id(sources.get(id(own), own)), own) for name, own in present.items()}
        for (number, training, _), (norms, outputs) in expected.items():
            flow = Flow(model, blocks, record=False)
            try:
                found = run(model, examples[number], flow, after, training, norms)
            except Exception as error:
                raise Unequal(f"the model fails with other blocks: {type(error).__name__}: {error}") from error
            called = {model.get_submodule(call.path) for call in flow.calls}
            if any(each not in called for each in blocks):
                raise Unequal("the model does not call all blocks: its code counts them or calls them by name")
            if equal:
                _compare(model, outputs, found)


def _outcome(model: nn.Module, example: Example, tensors: Mapping[str, Tensor], training: bool, norms: bool) -> Any:
    """Whether batch norms were trained, and the outputs; they cannot be on a single value per channel."""
    if norms:
        try:
            return True, run(model, example, Flow(model, (), record=False), tensors, training)
        except ValueError:
            pass
    return False, run(model, example, Flow(model, (), record=False), tensors, training, norms=False)


@contextmanager
def applied(operations: Sequence[Operation]) -> Iterator[None]:
    """Apply operations, and revert them on exit."""
    done: list[Operation] = []
    try:
        for each in operations:
            each.apply()
            done.append(each)
        yield
    finally:
        for each in reversed(done):
            each.revert()


def _compare(model: nn.Module, before: Any, after: Any) -> None:
    old, new = _comparable(before, after)
    first, second = returned(model, old), returned(model, new)
    if len(first) != len(second):
        raise Unequal(f"the model returns {len(second)} tensors, not {len(first)}")
    coarsest = max((torch.finfo(each.dtype).eps for each in first if each.is_floating_point()), default=0.0)
    weights = (own.dtype for own in model.parameters() if own.is_floating_point())
    coarsest = max([coarsest, *(torch.finfo(dtype).eps for dtype in set(weights))])
    try:
        check_equal_outputs(first, second, coarsest)
    except ValueError:
        raise Unequal("the outputs would change") from None


def _comparable(before: Any, after: Any) -> tuple[Any, Any]:
    """Outputs without lists that have an entry per block, such as all hidden states."""
    if not (isinstance(before, Mapping) and isinstance(after, Mapping)):
        return before, after
    kept = [
        key
        for key, value in before.items()
        if key in after and not (isinstance(value, (tuple, list)) and len(value) != len(after[key]))
    ]
    return {key: before[key] for key in kept}, {key: after[key] for key in kept}
