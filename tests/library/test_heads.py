"""Heads, the stream and other widths grow by each strategy that supports them; of the others, the reason is said."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

import neurogenesis as ng
from neurogenesis.candidates.folds import fold_gradients
from neurogenesis.passes.context import StepContext
from neurogenesis.passes.samples import FOLDS, folds
from tests import oracles
from tests.cases import CASES, Case, randn
from tests.growing import always, loss_of, step
from tests.promises import assert_outputs, outputs_of, unsettle, without_chance

OF_CASE = {case.name: case for case in CASES}
DECODER = OF_CASE["decoder_with_shared_keys"]
TOKENS = torch.arange(8 * 6).reshape(8, 6) * 5 % 7  # eight different samples


def kinds(case: Case) -> dict[str, str]:
    """The kind of each width that can grow."""
    return {width.name: width.kind for width in ng.widths(case.make(), case.example, **case.options).growable}


def decoder(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    model = DECODER.make().double()
    unsettle(model)
    return model


def grower_of(model: nn.Module, strategy: Any = "need", **options: Any) -> ng.Grower:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return ng.Grower(model, optimizer, strategy, example=options.pop("example", TOKENS), **options)


def loss_of_samples(model: nn.Module, tokens: Tensor, chosen: Tensor) -> Tensor:
    """The part of some samples in the mean loss of all."""
    logits = model(tokens)
    losses = F.cross_entropy(logits.flatten(0, 1), tokens.roll(-1, 1).flatten(), reduction="none")
    return losses.reshape(len(tokens), -1).mean(1)[chosen].sum() / len(tokens)


@pytest.mark.parametrize("name", ["attentions.0.q", "attentions.1.q"])
def test_gradients_of_would_be_heads_are_those_of_heads_that_are_there_in_each_fold(name: str) -> None:
    model = decoder()
    grower = grower_of(model, max_width={"heads": "9x"})
    everything = torch.ones(len(TOKENS), dtype=torch.bool)
    loss_of_samples(model, TOKENS, everything).backward()
    grower.optimizers[0].step()  # of a learning rate, so that the model is now another one
    layer = next(each for each in grower.layers if each.name == name)
    fan_ins = layer.random_fan_ins(1, torch.Generator().manual_seed(1))
    before = decoder()
    with torch.no_grad(), layer.during(StepContext(samples=grower.samples)):
        for own, other in zip(model.parameters(), before.parameters(), strict=True):
            own.copy_(other)  # as in the recorded pass
        ((seen,),) = layer.passes_with(fan_ins)
    consumer = model.get_submodule(layer.consumer.module)
    found, _ = fold_gradients(consumer, seen.h, seen.D, seen.samples)

    grown, axes = copy.deepcopy(before), (layer.producer, *layer.other_producers)
    values = {axis.tensor: layer.values(axis, rows) for axis, rows in zip(axes, fan_ins, strict=True)}
    ng.grow(grown, name, 1, initialization=values, example=TOKENS)
    columns = ng.widths(grown, TOKENS)[name].positions(layer.consumer)[-1]
    assert seen.samples is not None
    fold_of = folds(seen.samples)
    assert len(fold_of.unique()) > 2
    for fold in range(FOLDS):
        grown.zero_grad()
        loss_of_samples(grown, TOKENS, fold_of == fold).backward()
        gradient = grown.get_parameter(layer.consumer.tensor).grad
        assert gradient is not None
        torch.testing.assert_close(found[fold], gradient[:, columns].T, rtol=1e-10, atol=1e-14)


def test_would_be_heads_run_alone_in_the_module_around_them() -> None:
    """A look runs neither other layers nor the present heads."""
    model = decoder()
    grower = grower_of(model, max_width={"heads": "9x"})
    loss_of(model, TOKENS).backward()
    layer = next(each for each in grower.layers if each.name == "attentions.1.q")
    fan_ins = layer.random_fan_ins(3, torch.Generator().manual_seed(1))
    layer.passes_with(fan_ins)  # the first time, the shortcut is compared with a run of the model
    ran: list[tuple[str, tuple[int, ...]]] = []
    for path, module in model.named_modules():
        module.register_forward_hook(lambda _, __, out, path=path: ran.append((path, tuple(out.shape))))
    ((seen,),) = layer.passes_with(fan_ins)
    queries, keys = 3 * 6, 3 * 2  # three key heads of two entries, with three heads of queries each
    assert ran == [
        (f"attentions.1.{name}", (8, 6, size)) for name, size in zip("qkv", (queries, keys, keys), strict=True)
    ]
    assert seen.h.shape == (8, 6, queries)


def test_attention_dropout_does_not_cost_the_shortcut_and_dropout_before_the_heads_is_that_of_the_pass() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v, self.out = (nn.Linear(6, 6) for _ in range(4))

        def forward(self, x: Tensor) -> Any:
            q, k, v = (layer(x).unflatten(-1, (-1, 2)).transpose(1, 2) for layer in (self.q, self.k, self.v))
            h = F.scaled_dot_product_attention(q, k, v, dropout_p=self.training * 0.5)
            return self.out(h.transpose(1, 2).flatten(2))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.drop, self.attend = nn.Linear(3, 6), nn.Dropout(0.5), Attention()

        def forward(self, x: Tensor) -> Any:
            return self.attend(self.drop(self.embed(x)))

    model = Model()
    grower = grower_of(model, example=randn(2, 5, 3), max_width={"heads": "2x"}, include=["heads"])
    (layer,) = grower.layers
    loss_of(model, randn(4, 5, 3)).backward()
    (pair,) = layer.records[0].pairs
    assert pair.region is not None
    assert pair.region.args[0] is not None and torch.equal(pair.region.args[0], pair.H_prev)
    assert layer._shortcuts[0] is not None


@pytest.mark.parametrize("trigger", [ng.triggers.Activation(), ng.triggers.Integrated()], ids=["activations", "in use"])
def test_the_rank_of_heads_is_that_of_their_outputs_by_heads(trigger: ng.triggers.Trigger) -> None:
    model = decoder()
    grower = grower_of(model, ng.Strategy(trigger), max_width={"heads": "9x"})
    step(model, grower.optimizers[0], TOKENS)
    layer = next(each for each in grower.layers if each.name == "attentions.1.q")
    seen: list[Tensor] = []
    handle = model.attentions[1].out.register_forward_pre_hook(lambda _, args: seen.append(args[0].detach()))  # type: ignore
    model.eval()(TOKENS)  # no training pass, which would count
    handle.remove()
    outputs = seen[0].flatten(0, 1).T  # two heads of six neurons
    assert layer.activations.shape == outputs.shape == (12, 48)
    rank = oracles.effective_rank(outputs)
    assert layer.rank() == rank
    decision = trigger(layer)
    assert isinstance(decision, ng.Decision) and decision.metric is not None
    assert decision.metric <= rank / 12 + 1e-12


def test_heads_are_as_many_as_the_next_layer_has_outputs_unless_the_user_says_otherwise() -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fused, self.out, self.head = nn.Linear(6, 12), nn.Linear(4, 9), nn.Linear(9, 1)

        def forward(self, x: Tensor) -> Any:
            q, k, v = (each.unflatten(-1, (-1, 2)).transpose(1, 2) for each in self.fused(x).chunk(3, -1))
            h = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            return self.head(self.out(h).relu())

    def maximum(strategy: Any = "need", **options: Any) -> int | None:
        grower = grower_of(Wide(), strategy, example=randn(2, 5, 6), include=["heads"], **options)
        return next(layer.maximum for layer in grower.layers if layer.name == "fused")

    assert maximum() == 4  # of two neurons, where the next layer has nine outputs
    assert maximum(max_parameters=10**6) == 4
    assert maximum(max_width={"heads": 7}) == maximum(max_width=7) == 7
    assert maximum(ng.Strategy(ng.triggers.Linear(10, "3x"))) is None


@pytest.mark.parametrize("case", [case for case in CASES if case.growable], ids=str)
def test_a_schedule_doubles_widths_of_every_kind_and_leaves_the_outputs(case: Case) -> None:
    torch.manual_seed(0)
    model = case.make().double()
    unsettle(model)
    without_chance(model)
    example = tree_map_only(Tensor, lambda t: t.double() if t.is_floating_point() else t, case.example)
    schedule = ng.triggers.Batched(4, final="2x", batches=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    grower = ng.Grower(model, optimizer, ng.Strategy(schedule), example=example, **case.options)
    before = {
        name: size for name, size in ng.widths(model, example, **case.options).sizes.items() if name in case.growable
    }
    assert grower.widths == before == case.growable
    expected = {training: outputs_of(model, example, training) for training in (False, True)}
    model.train()
    for _ in range(3):
        step(model, optimizer, example)
        grower.step()
    assert grower.widths == {name: 2 * size for name, size in case.growable.items()}
    grower.detach()
    # Running statistics have moved in training.
    training = any(isinstance(module, nn.modules.batchnorm._NormBase) for module in model.modules())
    assert_outputs(model, example, {True: expected[True]} if training else expected, 1e-10)


@pytest.mark.filterwarnings("ignore:nothing can be measured")
@pytest.mark.parametrize("name", [each for each in ng.strategies.STRATEGIES if each != "gradmax"])
def test_each_strategy_grows_a_width_or_says_why_not(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every width that can grow is watched, or is listed with a reason. GradMax needs another activation function."""
    monkeypatch.setenv("COLUMNS", "999")
    grower = grower_of(DECODER.make(), name, max_width={"heads": "2x"})
    listed = {line.split()[0]: line for line in str(grower).splitlines() if "does not grow: " in line}
    growable = kinds(DECODER)
    assert set(growable) == set(grower.widths) | set(listed)
    watched = {growable[name] for name in grower.widths}
    heads = {"need", "north-random", "north-integrated", "static"}
    assert ("heads" in watched, "stream" in watched) == (name in heads, name == "static")


def test_widths_that_a_strategy_does_not_support_are_a_warning_only_if_they_were_asked_for() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        grower_of(DECODER.make(), "north-select")
    for asked in ("stream", "embedding", "embed*"):
        with pytest.warns(UserWarning, match="embedding: norms.0 .RMSNorm. runs across it"):
            grower_of(DECODER.make(), "need", include=[asked, "neurons"])
    with pytest.raises(ValueError, match="a schedule"):
        grower_of(DECODER.make(), "need", include=["stream"])


def test_widths_are_chosen_by_kind_and_a_width_that_is_called_like_a_kind_by_a_pattern() -> None:
    def chosen(**options: Any) -> set[str]:
        strategy = ng.Strategy(ng.triggers.Static())
        return set(grower_of(DECODER.make(), strategy, **options).widths)

    heads, neurons = {"attentions.0.q", "attentions.1.q"}, {"gates.0", "gates.1"}
    assert chosen(include=["heads"]) == heads
    assert chosen(exclude=["stream"]) == heads | neurons
    assert chosen(include=["heads", "gates.*"], exclude=["*.1", "attentions.1.*"]) == {"attentions.0.q", "gates.0"}
    with pytest.raises(ValueError, match="leave no width to grow"):
        chosen(include=["channels"])
    with pytest.raises(ValueError, match="'hedas' matches no width"):
        chosen(include=["hedas"])

    model = nn.Sequential()
    model.add_module("heads", nn.Linear(6, 8))
    model.add_module("act", nn.ReLU())
    model.add_module("other", nn.Linear(8, 2))
    static = ng.Strategy(ng.triggers.Static())
    assert grower_of(model, static, example=randn(5, 6), include=["[h]eads"]).widths == {"heads": 8}
    assert grower_of(model, static, example=randn(5, 6), max_width={"heads": 9}).layers[0].maximum == 9
    with pytest.raises(ValueError, match="leave no width to grow"):
        grower_of(model, static, example=randn(5, 6), include=["heads"])


def test_narrowing_and_pruning_choose_by_kind() -> None:
    model = DECODER.make()
    assert set(ng.narrow(model, TOKENS, 0.5, include=["heads"])) == {"attentions.0.q", "attentions.1.q"}
    pruned = ng.prune(DECODER.make(), randn_tokens(200), to=0.5, include=["neurons"])
    assert {plan.width for plan in pruned} == {"gates.0", "gates.1"}


def randn_tokens(count: int) -> Tensor:
    return torch.randint(7, (count, 6), generator=torch.Generator().manual_seed(0))


class PostNorm(nn.Module):
    """A norm follows the addition: the stream grows by copies of all entries."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.up, self.down = nn.Linear(6, 4), nn.Linear(4, 6), nn.Linear(6, 4)
        self.norm, self.last, self.head = nn.LayerNorm(4), nn.LayerNorm(4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Any:
        x = self.embed(x)
        x = self.norm(x + self.down(self.up(x).relu()))
        return self.head(self.last(x + self.down(self.up(x).relu())))


@pytest.mark.parametrize("limit", [1500, 2000, 4000])
def test_the_budget_holds_across_kinds_with_whole_heads_and_multiples_of_neurons(limit: int) -> None:
    model = DECODER.make()
    grower = grower_of(model, ng.Strategy(always(3)), round_to=4, max_parameters=limit, max_width=64)
    for _ in range(6):
        step(model, grower.optimizers[0], TOKENS)
        grower.step()
        assert sum(parameter.numel() for parameter in model.parameters()) <= limit
    grown = {name: size for name, size in grower.widths.items() if size != DECODER.growable[name]}
    assert grown
    kind = kinds(DECODER)
    assert all(size % 4 == 0 for name, size in grown.items() if kind[name] in ("neurons", "stream"))
    assert all(layer.out_of_budget for layer in grower.layers)


def test_copied_entries_grow_by_multiples_within_a_budget() -> None:
    model = PostNorm()
    grower = grower_of(model, ng.Strategy(always(5)), example=randn(3, 6), max_parameters=600, round_to=4, max_width=99)
    assert [width.copied is not None for width in ng.widths(model, randn(3, 6)).growable] == [True, False]
    for _ in range(8):
        step(model, grower.optimizers[0], randn(3, 6))
        grower.step()
        assert grower.widths["embed"] % 4 == 0
        assert sum(parameter.numel() for parameter in model.parameters()) <= 600
    assert grower.widths["embed"] in (8, 16)
    assert grower.widths["up"] % 4 == 0


def test_twin_heads_cancel_out_and_learn_apart() -> None:
    model = decoder()
    unlike = outputs_of(model, TOKENS, training=True)
    ng.grow(model, "attentions.1.q", 2, initialization="twins", example=TOKENS)
    assert_outputs(model, TOKENS, {True: unlike}, 1e-12)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    step(model, optimizer, TOKENS)
    first, second = model.attentions[1].q.weight[-12:-6], model.attentions[1].q.weight[-6:]
    assert not torch.equal(first, second)


def test_a_decoder_that_needs_heads_gets_them_and_goes_on_from_a_file_to_the_bit(tmp_path: Any) -> None:
    """Each token is to be named that stood three places before: one head of two cannot look there."""

    def fresh() -> tuple[nn.Module, torch.optim.Optimizer, ng.Grower]:
        torch.manual_seed(0)
        model = DECODER.make()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        options: dict[str, Any] = {"max_width": {"heads": "8x"}, "include": ["heads"]}
        return model, optimizer, ng.Grower(model, optimizer, example=TOKENS, **options)

    def train(model: nn.Module, optimizer: torch.optim.Optimizer, grower: ng.Grower, first: int, last: int) -> None:
        for number in range(first, last):
            tokens = torch.randint(7, (64, 6), generator=torch.Generator().manual_seed(number))
            optimizer.zero_grad()
            F.cross_entropy(model(tokens)[:, 3:].flatten(0, 1), tokens[:, :3].flatten()).backward()
            optimizer.step()
            grower.step()

    run = fresh()
    train(*run, 0, 30)
    ng.save(tmp_path / "run.pt", *run)
    train(*run, 30, 45)
    assert run[2].history.events
    assert all(layer.kind == "heads" for layer in (each.width for each in run[2].layers))
    again = fresh()
    ng.load(tmp_path / "run.pt", *again)
    train(*again, 30, 45)
    assert again[2].widths == run[2].widths
    for own, other in zip(run[0].parameters(), again[0].parameters(), strict=True):
        assert torch.equal(own, other)


def test_layers_that_run_with_would_be_neurons_inside_another_module_have_no_shortcut_around_them() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.out = nn.LSTM(4, 6, batch_first=True), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Any:
            return self.out(self.lstm(x)[0])

    model = nn.Sequential(nn.Linear(5, 4), Recurrent(), nn.ReLU(), nn.Linear(3, 2))
    grower = grower_of(model, example=randn(2, 7, 5), include=["1.lstm"])
    (layer,) = grower.layers
    step(model, grower.optimizers[0], randn(8, 7, 5))
    ((seen,),) = layer.passes_with(layer.random_fan_ins(3, torch.Generator().manual_seed(1)))
    assert layer._shortcuts == [None]
    assert seen.h.shape == (8, 7, 3)
