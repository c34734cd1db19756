"""Sizes of a model's inputs and outputs grow by hand: what the model returned before stays."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import neurogenesis as ng


class Case(NamedTuple):
    make: Callable[[], nn.Module]
    example: Any
    sizes: dict[str, int]


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3))


class Pixels(nn.Module):
    """Reads flattened images, of a size that it checks."""

    def __init__(self) -> None:
        super().__init__()
        self.channels = 2
        self.hidden, self.head = nn.Linear(2 * 9, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] != self.channels:
            raise ValueError("wrong number of channels")
        logits: Tensor = self.head(self.hidden(x.flatten(1)).relu())
        return logits


class Words(nn.Module):
    """Scores the next token at each position; its loss needs the size of the vocabulary."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.tokens = 11
        self.embed, self.places = nn.Embedding(11, 6), nn.Embedding(5, 6)
        self.norm, self.head = nn.LayerNorm(6), nn.Linear(6, 11, bias=not tied)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Any:
        h = self.embed(x) + self.places(torch.arange(x.shape[1]))
        logits = self.head(self.norm(h))
        if targets is None:
            return logits
        return logits, nn.functional.cross_entropy(logits.view(-1, self.tokens), targets.view(-1))


class Tagger(nn.Module):
    """Has as many classes as tokens, but one score per class and sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.EmbeddingBag(11, 6), nn.Linear(6, 11)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.embed(x).tanh())
        return scores


TEXT = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 10]])
CASES = {
    "perceptron": Case(perceptron, torch.randn(5, 4).double(), {"input of 0": 4, "output of 2": 3}),
    "convolutions": Case(
        convolutions, torch.randn(2, 3, 6, 6).double(), {"input of 0": 3, "output of 3": 2}
    ),
    "pixels": Case(
        Pixels, torch.randn(2, 2, 3, 3).double(),
        {"input of hidden": 2, "input of hidden#2": 3, "input of hidden#3": 3, "output of head": 3},
    ),
    "words": Case(Words, TEXT, {"vocabulary of embed": 11, "tokens of embed": 11, "output of head": 11}),
    "tied": Case(lambda: Words(tied=True), TEXT, {"vocabulary of embed": 11}),
    "targets": Case(
        Words, (TEXT, TEXT), {"vocabulary of embed": 11, "tokens of embed": 11, "output of head": 11}
    ),
    "tagger": Case(Tagger, TEXT, {"tokens of embed": 11, "output of head": 11}),
}  # fmt: skip
PLACES = [(case, name) for case, (_, _, sizes) in CASES.items() for name in sizes]


def built(name: str) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    case = CASES[name]
    return case.make().double(), case.example


def call(model: nn.Module, example: Any) -> Tensor:
    result = model(*example) if isinstance(example, tuple) else model(example)
    scores: Tensor = result[0] if isinstance(result, tuple) else result
    return scores


def trained(model: nn.Module, example: Any) -> torch.optim.Adam:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(2):
        optimizer.zero_grad()
        call(model, example).square().mean().backward()
        optimizer.step()
    return optimizer


def with_new_features(example: Any, name: str, count: int) -> Any:
    """The example with zeros for new features."""
    if not name.startswith("input"):
        return example
    axis = 1 + int(name.partition("#")[2] or 1) - 1
    more = list(example.shape)
    more[axis] = count
    return torch.cat([example, example.new_zeros(more)], axis)


@pytest.mark.parametrize("name", CASES)
def test_interfaces_are_found_with_their_sizes(name: str) -> None:
    model, example = built(name)
    found = ng.interfaces(model, example)
    assert {each.name: each.size for each in found if each.growable} == CASES[name].sizes
    assert all(each.name in str(found) for each in found)


@pytest.mark.parametrize(("name", "interface"), PLACES)
@pytest.mark.parametrize("training", [False, True])
def test_what_the_model_returned_stays(name: str, interface: str, training: bool) -> None:
    model, example = built(name)
    model.train(training)
    before = call(model, example)
    size = CASES[name].sizes[interface]
    ng.grow(model, interface, 2, example=example)
    if not (name == "pixels" and interface[-1] in "23"):  # a grown height is no multiple of the present sizes
        after = call(model, with_new_features(example, interface, 2))
        kept = after.narrow(1 if name == "convolutions" else -1, 0, before.shape[1 if name == "convolutions" else -1])
        assert torch.allclose(kept, before, rtol=0, atol=1e-12)
    assert ng.interfaces(model, with_new_features(example, interface, 2))[interface].size == size + 2


@pytest.mark.parametrize(("name", "interface"), PLACES)
def test_shrinking_restores_every_bit(name: str, interface: str) -> None:
    model, example = built(name)
    optimizer = trained(model, example)
    average = torch.optim.swa_utils.AveragedModel(model)
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict(), average.state_dict()))
    size = CASES[name].sizes[interface]
    ng.grow(model, interface, 3, example=example, optimizer=optimizer, ema=average)
    ng.ages.forget(optimizer)
    ng.shrink(model, interface, range(size, size + 3), optimizer=optimizer, ema=average)
    torch.testing.assert_close(
        (model.state_dict(), optimizer.state_dict(), average.state_dict()), before, rtol=0, atol=0
    )


@pytest.mark.parametrize(("name", "interface"), PLACES)
def test_new_entries_learn_with_ages_of_their_own(name: str, interface: str) -> None:
    model, example = built(name)
    optimizer = trained(model, example)
    plan = ng.grow(model, interface, 2, example=example, optimizer=optimizer)
    if name == "pixels" and interface[-1] in "23":
        return
    more = with_new_features(example, interface, 2)
    if interface.startswith(("vocabulary", "tokens")):
        more = (11 + TEXT % 2, *more[1:]) if isinstance(more, tuple) else 11 + more % 2
    if interface.startswith("input"):
        more = more + 1
    edits = {edit.tensor: edit for edit in plan.edits}
    new = {key: model.get_parameter(key).detach().clone() for key in edits}
    optimizer.zero_grad()
    call(model, more).square().mean().backward()
    optimizer.step()
    for key, edit in edits.items():
        moved = (model.get_parameter(key) - new[key]).detach().movedim(edit.axis, 0)[edit.positions]
        # At its first step Adam moves each entry with a gradient by the learning rate.
        assert bool((moved != 0).any()) and moved.abs().max() <= 1e-2 * (1 + 1e-6)


def test_new_classes_start_where_they_are_told() -> None:
    model, example = built("perceptron")
    before = call(model, example)
    ng.grow(model, "output", 1, example=example)
    assert torch.allclose(call(model, example)[:, 3], before.mean(1))
    ng.grow(model, "output", 2, initialization=-4.0)
    assert torch.equal(call(model, example)[:, 4:], torch.full((5, 2), -4.0).double())
    ng.grow(model, "output", 1, initialization="zero")
    assert torch.equal(call(model, example)[:, 6], torch.zeros(5).double())
    ng.grow(model, "output", 1, initialization={"2.weight": torch.ones(1, 8).double(), "2.bias": torch.ones(1)})
    assert torch.equal(model[2].weight[7], torch.ones(8).double()) and model[2].bias[7] == 1  # type: ignore[index]
    torch.manual_seed(1)
    ng.grow(model, "output", 1, initialization="random")
    norms = model[2].weight.detach().norm(dim=1)  # type: ignore[index, union-attr, operator]
    assert torch.allclose(norms[8], norms[:8].mean())


def test_new_tokens_score_as_the_mean_of_all() -> None:
    for name in ("words", "tied"):
        model, example = built(name)
        before = call(model, example)
        ng.grow(model, "vocabulary", 2, example=example)
        after = call(model, example)
        assert torch.allclose(after[..., 11], before.mean(-1)) and torch.allclose(after[..., 11], after[..., 12])
        assert call(model, torch.tensor([[11, 12, 3]])).shape == (1, 3, 13)


def test_the_loss_is_that_of_the_grown_vocabulary() -> None:
    model, example = built("targets")
    ng.grow(model, "vocabulary", 2, example=example)
    assert model.tokens == 13
    logits, loss = model(*example)
    assert torch.equal(loss, nn.functional.cross_entropy(logits.flatten(0, 1), TEXT.flatten()))


class LogProbabilities(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = perceptron()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.net(x).log_softmax(-1)
        return result


def test_probabilities_are_refused_as_new_classes_would_change_them() -> None:
    model, x = LogProbabilities(), torch.randn(3, 4)
    reason = ng.interfaces(model, x)["output of net.2"].reason
    assert reason is not None and reason.startswith("present entries of an output change")
    with pytest.raises(ValueError, match=r"output of net\.2 cannot be resized: present entries of an output change"):
        ng.grow(model, "output of net.2", 1)


def refused() -> list[tuple[Callable[[nn.Module], object], type[Exception], str]]:
    return [
        (lambda m: ng.grow(m, "output", 0), ValueError, "must be positive, not 0"),
        (lambda m: ng.grow(m, "output of 3", 1), KeyError, "did you mean 'output of 2'"),
        (lambda m: ng.grow(m, "output", 1, initialization="select"), ValueError, "expected one of 'mean', 'zero'"),
        (lambda m: ng.grow(m, "output", 1, initialization=float("nan")), ValueError, "not finite"),
        (lambda m: ng.grow(m, "input", 1, initialization=1.0), ValueError, "would be a bias, and it has none"),
        (lambda m: ng.grow(m, "0", 1, initialization=1.0), TypeError, "is the bias of new outputs, and 0 is a width"),
        (lambda m: ng.grow(m, "output", 1, initialization={"0.bias": torch.ones(1)}), ValueError, "do not belong"),
        (lambda m: ng.shrink(m, "output", [0, 1, 2]), ValueError, "cannot remove all 3"),
        (lambda m: ng.shrink(m, "output", [5]), IndexError, "out of range"),
        (lambda m: ng.grow(m, "2", 1), ValueError, r"under their names in neurogenesis\.interfaces"),
        (lambda m: ng.grow(perceptron(), "output", 1), ValueError, r"call interfaces\(model, example\)"),
    ]


@pytest.mark.parametrize(("change", "error", "message"), refused())
def test_bad_input_is_refused_before_anything_changes(
    change: Callable[[nn.Module], object], error: type[Exception], message: str
) -> None:
    model, example = built("perceptron")
    ng.interfaces(model, example)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(error, match=message):
        change(model)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_frozen_outputs_grow_only_if_that_is_asked_for() -> None:
    model, example = built("perceptron")
    model[2].weight.requires_grad_(False)  # type: ignore[index, union-attr, operator]
    ng.interfaces(model, example)
    with pytest.raises(ValueError, match=r"2\.weight would be resized, but is frozen"):
        ng.grow(model, "output", 1)
    assert ng.grow(model, "output", 1, frozen=True).after == 4


# --- training, saving and loading ------------------------------------------------------------------------


class Run:
    """A training run whose inputs and classes grow in between."""

    def __init__(self, strategy: str = "north-random") -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 6), ng.nn.ReLU(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.grower = ng.Grower(self.model, self.optimizer, strategy, max_width=12, buffer=32)

    def train(self, steps: range) -> None:
        for step in steps:
            torch.manual_seed(step)
            features, classes = self.model[0].in_features, self.model[4].out_features
            x = torch.randn(16, features)  # type: ignore[arg-type]
            loss = nn.functional.cross_entropy(self.model(x), x.argmax(1) % classes)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.grower.step()

    def grow(self, interface: str) -> None:
        ng.interfaces(self.model, torch.randn(2, 4))
        ng.grow(self.model, interface, 2)  # with the optimizer of the grower

    def same(self, other: Run) -> bool:
        pairs = zip(self.model.parameters(), other.model.parameters(), strict=True)
        return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("interface", ["input", "output"])
@pytest.mark.parametrize("strategy", ["need", "north-select", "north-integrated", "gradmax", "firefly", "nest"])
def test_growth_goes_on_after_an_interface_has_grown(strategy: str, interface: str) -> None:
    run = Run(strategy)
    run.train(range(9))
    run.grow(interface)
    run.train(range(9, 30))
    assert run.grower.steps == 30 and all(p.isfinite().all() for p in run.model.parameters())
    assert all(s["exp_avg"].shape == p.shape for p, s in run.optimizer.state.items())


@pytest.mark.parametrize("interface", ["input", "output"])
def test_a_run_with_a_grown_interface_is_saved_and_resumed_bit_by_bit(interface: str, tmp_path: Any) -> None:
    run = Run()
    run.train(range(4))
    early = ng.snapshot(run.model, run.optimizer, run.grower)
    run.grow(interface)
    run.train(range(4, 8))
    ng.save(tmp_path / "run.pt", run.model, run.optimizer, run.grower)
    again = Run()
    ng.load(tmp_path / "run.pt", again.model, again.optimizer, again.grower)
    for each in (run, again):
        each.train(range(8, 14))
    assert run.same(again) and run.grower.widths == again.grower.widths
    alone = Run().model
    ng.load(tmp_path / "run.pt", alone)
    assert alone[4].out_features == run.model[4].out_features
    ng.save(tmp_path / "again.pt", again.model)
    ng.load(tmp_path / "again.pt", Run().model)  # what was loaded is known to have grown
    ng.restore(early, run.model, run.optimizer, run.grower)
    assert (run.model[0].in_features, run.model[4].out_features) == (4, 3)


def test_a_plain_state_is_loaded_with_other_interfaces_only_if_that_is_asked_for() -> None:
    model, example = built("words")
    ng.grow(model, "vocabulary", 4, example=example)
    fresh, _ = built("words")
    with pytest.raises(ValueError, match="cannot be resized"):
        ng.load_state_dict(fresh, model.state_dict(), example=example)
    ng.load_state_dict(fresh, model.state_dict(), example=example, interfaces=True)
    assert torch.equal(call(fresh, example + 4), call(model, example + 4))
    assert fresh.embed.num_embeddings == fresh.head.out_features == 15  # type: ignore[union-attr]
