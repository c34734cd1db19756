"""What growing and shrinking promise, checked on any model. Used by the tests and by benchmarks/zoo.py."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

import neurogenesis as ng
from neurogenesis.structure.axes import named_tensors
from neurogenesis.structure.examples import Example, call_model, tensors_in
from neurogenesis.structure.outputs import returned
from tests.double import double_throughout


def unsettle(model: nn.Module, seed: int = 0) -> None:
    """Move a fresh model away from special values (zero scales, unit statistics) that could hide a mistake."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in named_tensors(model).items():
            if tensor.is_floating_point():
                noise = torch.rand(tensor.shape, generator=generator).to(tensor) - 0.5
                spread = tensor.std(correction=0) if tensor.ndim > 1 else torch.ones(())
                tensor.add_(0.2 * (spread if spread > 0 else 1.0) * noise)
                if name.endswith("running_var"):
                    tensor.abs_().add_(0.1)


def without_chance(model: nn.Module) -> None:
    """Switch off dropout and the random skipping of layers, in training mode too."""
    for module in model.modules():
        for name in (
            "p",
            "drop_prob",
            "drop_rate",
            "dropout",
            "attention_dropout",
            "attn_drop_prob",
            "dropout_prob",
        ):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)


def outputs_of(model: nn.Module, example: Example, training: bool) -> list[Tensor]:
    """The floating-point outputs of a model in either mode; its buffers and random state are put back."""
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    was_training = model.training
    model.train(training)
    with torch.no_grad(), torch.random.fork_rng(devices=[]), double_throughout(model):
        torch.manual_seed(0)
        outputs = [t for t in returned(model, call_model(model, example)) if t.is_floating_point()]
        for name, buffer in model.named_buffers():
            buffer.copy_(before[name])
    model.train(was_training)
    return outputs


def difference(before: list[Tensor], after: list[Tensor]) -> float:
    """The largest difference between outputs, relative to the largest of them."""
    assert [t.shape for t in before] == [t.shape for t in after]
    scale = max(float(t.abs().max()) for t in before)
    assert 0 < scale < float("inf"), f"outputs of size {scale} show nothing"
    return max(float((a - b).abs().max()) for a, b in zip(before, after, strict=True)) / scale


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in named_tensors(model).items()}


def attributes(model: nn.Module) -> dict[tuple[str, str], Any]:
    """Every number a module states about itself."""
    return {
        (path, name): value
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, (int, float, str, tuple))
    }


def assert_outputs(model: nn.Module, example: Example, expected: dict[bool, list[Tensor]], tolerance: float) -> None:
    """The outputs are what they were, in each mode."""
    for training, outputs in expected.items():
        change = difference(outputs, outputs_of(model, example, training))
        assert change <= tolerance, f"outputs change by {change:.1e}, training={training}"


def everything(model: nn.Module, *others: Any) -> dict[str, Any]:
    """All that must not change when something is refused: a model, its gradients, the states of optimizers and such."""
    states = [copy.deepcopy(other.state_dict()) for other in others]
    gradients = [None if own.grad is None else own.grad.clone() for own in model.parameters()]
    return {"tensors": snapshot(model), "attributes": attributes(model), "gradients": gradients, "others": states}


def assert_same(before: Any, after: Any) -> None:
    """Each number is the same to the last bit."""
    torch.testing.assert_close(after, before, rtol=0, atol=0)


def amount(width: ng.Width, count: int = 3) -> int:
    """How many neurons a width is grown by: `count`, or as many as there are where only copies of all are possible."""
    return count if width.copied is None else width.size


def check_growth(
    model: nn.Module,
    example: Example,
    width: ng.Width,
    expected: dict[bool, list[Tensor]],
    tolerance: float = 1e-9,
) -> None:
    """Growing leaves the outputs, in each mode; shrinking the new neurons away gives back every bit."""
    count = amount(width)
    stated, objects, size = attributes(model), named_tensors(model), width.size
    plan = ng.plan_growth(model, width, count, generator=torch.Generator().manual_seed(1))
    before = {edit.tensor: objects[edit.tensor].detach().clone() for edit in plan.edits}
    plan.apply(model)
    assert width.size == size + count
    grown = named_tensors(model)
    assert all(grown[name] is tensor for name, tensor in objects.items())
    assert_outputs(model, example, expected, tolerance)
    ng.shrink(model, width, range(size, size + count))
    assert attributes(model) == stated
    assert all(torch.equal(old, objects[name]) for name, old in before.items()), "shrinking back changed bits"


def check_growth_together(
    model: nn.Module,
    example: Example,
    found: ng.Widths,
    expected: dict[bool, list[Tensor]],
    tolerance: float = 1e-9,
) -> None:
    """The promises of `check_growth` for all widths grown one after the other, then shrunk again."""
    stated, generator = attributes(model), torch.Generator().manual_seed(1)
    sizes = {width.name: width.size for width in found.growable}
    for width in found.growable:
        ng.grow(model, width, amount(width), generator=generator)
    assert_outputs(model, example, expected, tolerance)
    for width in found.growable:
        ng.shrink(model, width, range(sizes[width.name], width.size))
    assert attributes(model) == stated


def check_learning(model: nn.Module, example: Example, found: ng.Widths) -> None:
    """One optimizer step after growth moves new weights of every width. Leaves the model grown and trained.

    New neurons may happen to be dead behind a ReLU for all samples of a small batch: then a few more follow. Where
    a layer gets no gradient at all, because everything behind it is dead, its old weights do not move either.
    """
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    waiting = found.growable
    for attempt in range(8):
        generator = torch.Generator().manual_seed(attempt)
        for width in waiting:
            ng.grow(model, width, amount(width), optimizer=optimizer, generator=generator)
        before = [_new_weights(model, width) for width in waiting]
        optimizer.zero_grad()
        outputs = [t for t in tensors_in(call_model(model, example)) if t.requires_grad]
        sum((t.double() ** 2).mean() for t in outputs).backward()
        optimizer.step()
        del outputs
        after = [_new_weights(model, width) for width in waiting]
        same = [all(map(torch.equal, old, new)) for old, new in zip(before, after, strict=True)]
        waiting = [width for width, stayed in zip(waiting, same, strict=True) if stayed]
        if not waiting:
            return
    parameters = dict(model.named_parameters())
    unmoved = [w.name for w in waiting if any(parameters[axis.tensor].grad.any() for axis in w.consumers)]
    assert not unmoved, f"one step moved no new weight of {unmoved}"


def _new_weights(model: nn.Module, width: ng.Width) -> list[Tensor]:
    parameters = dict(model.named_parameters())
    return [
        parameters[axis.tensor].detach().index_select(axis.axis, width.positions(axis)[-3:].flatten())
        for axis in width.axes
        if axis.tensor in parameters
    ]


def check_all(
    model: nn.Module,
    example: Example,
    tolerance: float = 1e-9,
    modes: tuple[bool, ...] = (False, True),
    options: dict[str, Any] | None = None,
    alone: bool = True,
) -> ng.Widths:
    """All of it, for every growable width of a model, each alone or all together."""
    without_chance(model)
    unsettle(model)
    before, stated, mode = snapshot(model), attributes(model), model.training
    found = ng.widths(model, example, **options or {})
    assert attributes(model) == stated and model.training == mode
    assert all(torch.equal(before[name], tensor) for name, tensor in named_tensors(model).items())
    expected = {training: outputs_of(model, example, training) for training in modes}
    if alone:
        for width in found.growable:
            check_growth(model, example, width, expected, tolerance=tolerance)
    else:
        check_growth_together(model, example, found, expected, tolerance=tolerance)
    assert all(torch.equal(before[name], tensor) for name, tensor in named_tensors(model).items())
    del before
    check_learning(model, example, found)
    return found
