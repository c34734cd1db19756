"""Two hidden layers grown by gromo, on a schedule: when, how far and in how many parts has to be said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import neurogenesis as ng
from benchmarks.against import Problem, train, widths_of
from neurogenesis.experiments.models import mlp
from neurogenesis.experiments.training import loss_of

START, PARTS = 16, 8
SAMPLES = 4096  # that statistics are made of, at most
SCALES = (1.0, 0.5, 0.25, 0.1, 0.03)  # of new weights; the one with the least loss is taken, as the authors do
METHODS: dict[str, Mapping[str, Any]] = {
    "TINY": {
        "update": {"compute_delta": False},
        "normalization": "match_extending_layer",
    },
    "GradMax": {
        "update": {
            "compute_delta": False, "use_covariance": False, "alpha_zero": True, "use_projection": False,
            "ignore_singular_values": True,
        },
        "normalization": "gradmax_normalization",
    },
}  # fmt: skip
"""The options for both papers, as gromo's documentation has them."""


def planned(start: int, end: int, epochs: int) -> dict[int, int]:
    """The number of neurons after each epoch at which there is growth: eight equal parts in the first half.

    Example:
        >>> planned(16, 36, epochs=16), planned(16, 12, epochs=16)
        ({0: 18, 1: 21, 2: 24, 3: 26, 4: 28, 5: 31, 6: 34, 7: 36}, {})
    """
    moments = {max(1, round(epochs / 2 * part / PARTS)) - 1: part for part in range(1, PARTS + 1)}
    return {epoch: start + round((end - start) * part / PARTS) for epoch, part in moments.items() if end > start}


def grow_by_gromo(problem: Problem, widths: Sequence[int], method: str) -> tuple[nn.Sequential, float]:
    """A trained network with these widths, or less where a method finds fewer neurons, and the processor time."""
    from gromo.containers.growing_mlp import GrowingMLP  # type: ignore[import-not-found]

    torch.manual_seed(problem.seed)
    inputs = problem.data.train[0]
    model = GrowingMLP(inputs.shape[1], problem.data.classes, START, len(widths), activation=ng.nn.ReLU())
    plans = [planned(START, width, problem.task.epochs) for width in widths]

    def after(epoch: int) -> bool:
        """Grow every layer if it is time."""
        missing = [plan.get(epoch, 0) - size for plan, size in zip(plans, widths_of(plain(model)), strict=True)]
        for layer, count in enumerate(missing):
            if count > 0:
                _grow(model, layer, count, problem, METHODS[method])
        return any(count > 0 for count in missing)

    seconds = train(model, problem, after=after)
    return plain(model), seconds


def _grow(model: Any, layer: int, count: int, problem: Problem, method: Mapping[str, Any]) -> None:
    """Add neurons to a hidden layer; what gromo calls growing is the layer behind it."""
    inputs, targets = (each[:SAMPLES] for each in problem.data.train)
    model.set_growing_layers(index=layer)
    model.init_computation()
    model.eval()
    for x, y in zip(inputs.split(problem.task.batch), targets.split(problem.task.batch), strict=True):  # type: ignore[no-untyped-call]
        model.zero_grad()
        (loss_of(model(x), y) * len(x)).backward()  # type: ignore[no-untyped-call]
        model.update_computation()
    consumer = model.layers[layer + 1]
    consumer.compute_optimal_updates(maximum_added_neurons=count, **method["update"])
    model.reset_computation()
    consumer.normalize_optimal_updates(normalization_type=method["normalization"])
    model.currently_updated_layer_index = 0
    losses = {scale: _extended_loss(model, scale, inputs, targets) for scale in SCALES}
    model.set_scaling_factor(min(losses, key=losses.__getitem__))
    consumer.apply_change(extension_size=consumer.eigenvalues_extension.shape[0])
    consumer.delete_update()
    model.zero_grad(set_to_none=True)


@torch.no_grad()
def _extended_loss(model: Any, scale: float, inputs: Tensor, targets: Tensor) -> float:
    """The loss with the new neurons, at a scale of their weights."""
    model.set_scaling_factor(scale)
    return float(loss_of(model.extended_forward(inputs), targets))


def plain(model: Any) -> nn.Sequential:
    """The same network of ordinary layers."""
    linear = [layer.layer for layer in model.layers]
    result = mlp(linear[0].in_features, *(layer.out_features for layer in linear))
    own = [module for module in result if isinstance(module, nn.Linear)]
    for target, source in zip(own, linear, strict=True):
        target.load_state_dict(source.state_dict())
    return result
