"""The ranks of LoRA adapters grow like other widths; layers, configs, files and checkpoints follow."""

from __future__ import annotations

import copy
import json
import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

import neurogenesis as ng

pytest.importorskip("peft")
pytest.importorskip("torchao")

from accelerate.state import AcceleratorState, GradientState
from peft import (
    AdaLoraConfig,
    IA3Config,
    LoHaConfig,
    LoraConfig,
    PeftModel,
    PrefixTuningConfig,
    PromptTuningConfig,
    get_peft_model,
)
from peft.tuners.lora import LoraLayer
from torchao.quantization import Int8WeightOnlyConfig, quantize_
from transformers import LlamaConfig, LlamaForCausalLM, Trainer

from neurogenesis.integrations.huggingface import GrowerCallback, from_pretrained, save_pretrained
from neurogenesis.integrations.peft import described, matching_alpha
from neurogenesis.strategies import STRATEGIES
from neurogenesis.structure.updates import StructureUpdate
from tests.integrations.test_huggingface import TOKENS, Worse, bert, losses, same_parameters, trainer_in

EXAMPLE = {"input_ids": TOKENS}
QUERY = "base_model.model.bert.encoder.layer.0.attention.self.query"
VALUE = "base_model.model.bert.encoder.layer.1.attention.self.value"
RANKS = ["*.lora_*A.*"]
TARGETS = ["query", "value"]


@pytest.fixture(autouse=True)
def fresh_accelerate() -> Iterator[None]:
    yield
    AcceleratorState._reset_state(True)
    GradientState._reset_state()


def lora(base: nn.Module | None = None, trained: bool = True, **changes: Any) -> Any:
    """A model with adapters of rank 3; if `trained`, they do something already."""
    base = bert() if base is None else base
    given = {"r": 3, "lora_alpha": 5, "target_modules": TARGETS}
    model = get_peft_model(base, LoraConfig(**{**given, **changes})).eval()
    if trained:
        train(model)
    return model


@torch.no_grad()
def train(model: nn.Module) -> None:
    generator = torch.Generator().manual_seed(3)
    for name, parameter in model.named_parameters():
        if "lora_" in name and "magnitude" not in name and not parameter.any():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 5)


def output(model: nn.Module, example: Any = None) -> Tensor:
    with torch.no_grad():
        return model(**EXAMPLE).logits if example is None else model(example)


def layers(model: nn.Module) -> dict[str, Any]:
    return {path: layer for path, layer in model.named_modules() if isinstance(layer, LoraLayer)}


def books(model: Any) -> dict[str, Any]:
    """All that layers and configs store of ranks."""
    stored = {path: (dict(own.r), dict(own.lora_alpha), dict(own.scaling)) for path, own in layers(model).items()}
    fields = ("r", "lora_alpha", "rank_pattern", "alpha_pattern", "init_lora_weights")
    configs = {name: [getattr(config, field) for field in fields] for name, config in model.peft_config.items()}
    return copy.deepcopy({**stored, **configs})


def grow_differently(model: nn.Module, example: Any = EXAMPLE) -> dict[str, int]:
    """Grow every rank, by different amounts."""
    widths = [width for width in ng.widths(model, example) if ".lora_" in width.name and width.growable]
    for number, width in enumerate(widths):
        ng.grow(model, width, 1 + number)
    return {width.name: width.size for width in widths}


def assert_reloaded(model: Any, base: nn.Module, path: Path, example: Any = None, adapter: str = "default") -> None:
    """PEFT itself loads what was saved: equal outputs, and equal scalings to the last bit."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="The following (rank|alpha)_pattern")
        again = PeftModel.from_pretrained(base, path).eval()
    assert torch.equal(output(again, example), output(model, example))
    for inner, layer in layers(again).items():
        own = layers(model)[inner]
        assert layer.r == {"default": own.r[adapter]} and layer.scaling == {"default": own.scaling[adapter]}


# --- ranks as widths -------------------------------------------------------------------------------------


def test_every_rank_is_a_width() -> None:
    found = ng.widths(lora(), EXAMPLE)
    ranks = [width for width in found if width.name.endswith(".lora_A.default")]
    assert len(ranks) == 4 and all(width.growable and width.size == 3 for width in ranks)
    (consumer,) = ranks[0].consumers
    assert ranks[0].name == f"{QUERY}.lora_A.default" and consumer.module == f"{QUERY}.lora_B.default"


def test_parts_that_are_switched_off_neither_warn_nor_hold_ranks() -> None:
    model = lora(task_type="SEQ_CLS")  # trains a copy of the classifier
    model.add_adapter("other", LoraConfig(r=2, target_modules=["query"], task_type="SEQ_CLS"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = ng.widths(model, EXAMPLE)
    assert len([width for width in found.growable if width.name.endswith(".lora_A.default")]) == 4


@pytest.mark.parametrize("stable", [False, True])
def test_a_grown_rank_keeps_the_outputs_and_the_scaling(stable: bool) -> None:
    model = lora(use_rslora=stable)
    before, layer, scaling = output(model), layers(model)[QUERY], layers(model)[QUERY].scaling["default"]
    ng.grow(model, f"{QUERY}.lora_A.default", 2, example=EXAMPLE)
    torch.testing.assert_close(output(model), before)
    assert layer.r == {"default": 5} and layer.scaling == {"default": scaling}
    assert layer.lora_A["default"].weight.shape == (5, 8) and not layer.lora_B["default"].weight[:, 3:].any()
    assert layer.lora_A["default"].weight[3:].norm(dim=1).min() > 0
    layer.set_scale("default", 1)  # computed from alpha and r
    assert layer.scaling == {"default": scaling}


def test_shrinking_gives_everything_back() -> None:
    model = lora(rank_pattern={"query": 4}, use_rslora=True)
    tensors, stored = copy.deepcopy(model.state_dict()), books(model)
    ng.grow(model, f"{QUERY}.lora_A.default", 3, example=EXAMPLE)
    assert books(model) != stored
    ng.shrink(model, f"{QUERY}.lora_A.default", [4, 5, 6])
    torch.testing.assert_close(model.state_dict(), tensors, rtol=0, atol=0)
    assert layers(model)[QUERY].r == {"default": 4} and books(model)[QUERY] == stored[QUERY]


def test_one_rank_for_all_layers_is_the_rank_of_the_config() -> None:
    model = lora(alpha_pattern={"query": 6})
    ng.resize(model, {f"{path}.lora_A.default": 6 for path in layers(model)}, EXAMPLE)
    config = model.peft_config["default"]
    assert (config.r, config.rank_pattern) == (6, {})
    assert {own.lora_alpha["default"] for path, own in layers(model).items() if "value" in path} == {10}
    assert {own.lora_alpha["default"] for path, own in layers(model).items() if "query" in path} == {12}


def test_a_scale_that_the_user_has_set_stays() -> None:
    model = lora()
    layer = layers(model)[QUERY]
    layer.set_scale("default", 0.3)
    scaling = layer.scaling["default"]
    ng.grow(model, f"{QUERY}.lora_A.default", 2, example=EXAMPLE)
    assert layer.scaling["default"] == scaling
    layer.unscale_layer()
    assert layer.scaling["default"] == 5 / 3


def test_a_growth_that_fails_leaves_layers_and_configs_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    model = lora()
    found, before, stored = ng.widths(model, EXAMPLE), copy.deepcopy(model.state_dict()), books(model)

    def fail(self: StructureUpdate) -> None:
        assert layers(model)[QUERY].r == {"default": 4}
        raise MemoryError("at the last moment")

    monkeypatch.setattr(StructureUpdate, "apply", fail)
    with pytest.raises(MemoryError, match="at the last moment"):
        ng.grow(model, found[f"{QUERY}.lora_A.default"], 1)
    assert books(model) == stored
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_the_average_of_a_model_follows() -> None:
    model = lora()
    average = AveragedModel(model)
    ng.grow(model, f"{QUERY}.lora_A.default", 2, ema=average, example=EXAMPLE)
    assert books(average.module) == books(model)
    assert average.module.peft_config["default"] is not model.peft_config["default"]


@pytest.mark.parametrize("rank", range(1, 40))
def test_alpha_gives_the_scaling_back_as_nearly_as_a_double_can(rank: int) -> None:
    for alpha in (1, 5, 16, 0.3):
        for other in range(1, 40):
            for stable in (False, True):
                scaling = alpha / (math.sqrt(other) if stable else other)
                found = matching_alpha(scaling, rank, stable) / (math.sqrt(rank) if stable else rank)
                assert abs(found - scaling) <= math.ulp(scaling)
    assert matching_alpha(16 / 8, rank) == 2 * rank and isinstance(matching_alpha(16 / 8, rank), int)


def test_patterns_of_the_user_stay_and_those_of_single_layers_come_first() -> None:
    common, patterns = described({"a.q": 4, "b.q": 8, "b.v": 2}, 2, {"q": 4, "w": 1})
    assert common == 2 and list(patterns.items()) == [(r"^b\.q", 8), ("q", 4), ("w", 1)]
    common, patterns = described({"a.q": 4, "b.q": 4, "b.v": 2}, 2, patterns)
    assert list(patterns.items()) == [("q", 4), ("w", 1)]


# --- growing in training ---------------------------------------------------------------------------------


class Student(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).tanh())


def taught(strategy: Any, steps: int, quantized: bool = False, **changes: Any) -> tuple[Any, ng.Grower]:
    """An adapter of rank 1 that learns what takes more, and its grower."""
    torch.manual_seed(0)
    teacher, base = Student(), Student()
    if quantized:
        quantize_(base, Int8WeightOnlyConfig())
    model = get_peft_model(base, LoraConfig(r=1, lora_alpha=1, target_modules=["first", "second"], **changes))
    optimizer = torch.optim.Adam([own for own in model.parameters() if own.requires_grad], lr=1e-2)
    grower = ng.Grower(model, optimizer, strategy, include=RANKS, max_width=4)
    for _ in range(steps):
        x = torch.randn(64, 8)
        loss = (model(x) - teacher(x)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        grower.step()
    return model, grower


@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name != "static"])
def test_ranks_grow_from_the_first_steps_though_adapters_begin_at_zero(strategy: str, dora: bool) -> None:
    model, grower = taught(strategy, 20, use_dora=dora)
    assert grower.history.events and all(event.width.endswith(".lora_A.default") for event in grower.history)
    for path, layer in layers(model).items():
        assert layer.r["default"] == layer.lora_A["default"].weight.shape[0] == grower.widths[f"{path}.lora_A.default"]
        assert layer.scaling["default"] == 1
        latest = [each for each in grower.history if each.step == grower.steps and each.width.startswith(path)]
        trained = layer.r["default"] - sum(each.after - each.before for each in latest)
        assert layer.lora_B["default"].weight[:, :trained].norm(dim=0).min() > 0


def test_a_plain_grower_grows_ranks_only() -> None:
    model = lora(trained=False, target_modules=["query", "dense"]).train()
    optimizer = torch.optim.Adam([own for own in model.parameters() if own.requires_grad])
    grower = ng.Grower(model, optimizer)
    model(**EXAMPLE, labels=torch.tensor([0, 1])).loss.backward()
    assert grower.widths == {f"{path}.lora_A.default": 3 for path in layers(model)}
    grower.detach()


def test_a_snapshot_restores_ranks_and_what_layers_store_of_them() -> None:
    model = lora().train()
    optimizer = torch.optim.Adam([own for own in model.parameters() if own.requires_grad])
    grower = ng.Grower(model, optimizer, ng.Strategy(ng.triggers.Linear(steps=4, final=6)))

    def train(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            model(**EXAMPLE, labels=torch.tensor([0, 1])).loss.backward()
            optimizer.step()
            grower.step()

    train(1)
    best, before = ng.snapshot(model, optimizer, grower), copy.deepcopy(model.state_dict())
    ranks = {path: layer.r["default"] for path, layer in layers(model).items()}
    train(3)
    assert all(layer.r["default"] == 6 for layer in layers(model).values())
    ng.restore(best, model, optimizer, grower)
    assert {path: layer.r["default"] for path, layer in layers(model).items()} == ranks
    assert set(ranks.values()) == {4}
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    train(1)


def test_adapters_can_be_switched_while_one_grows() -> None:
    model = lora(trained=False).train()
    model.add_adapter("other", LoraConfig(r=2, target_modules=["query"]))
    optimizer = torch.optim.Adam([own for name, own in model.named_parameters() if "lora_" in name])
    grower = ng.Grower(model, optimizer, "north-random", buffer=16)
    sizes = []
    for adapter in ("default", "other", "default"):
        model.set_adapter(adapter)
        model(**EXAMPLE, labels=torch.tensor([0, 1])).loss.backward()
        optimizer.step()
        grower.step()
        sizes.append(sum(grower.widths.values()))
    assert 12 < sizes[0] == sizes[1] < sizes[2]
    assert {layer.r["other"] for layer in layers(model).values() if "other" in layer.r} == {2}


@pytest.mark.parametrize("strategy", ["need", "north-random", "gradmax"])
def test_ranks_grow_on_a_quantized_base_model(strategy: str) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="the example does not use")
        model, grower = taught(strategy, 20, quantized=True)
    assert type(model.base_model.model.first.base_layer.weight) is not nn.Parameter
    assert grower.history.events and all(event.width.endswith(".lora_A.default") for event in grower.history)
    assert {path: layer.r["default"] for path, layer in layers(model).items()} == {
        name.removesuffix(".lora_A.default"): size for name, size in grower.widths.items()
    }


def test_the_base_model_is_not_touched_in_training() -> None:
    torch.manual_seed(0)
    Student()  # the teacher
    base = Student()
    model, grower = taught("north-random", 10)
    assert grower.history.events
    for name in ("first", "second"):
        trained = model.get_submodule(f"base_model.model.{name}.base_layer")
        assert torch.equal(trained.weight, base.get_submodule(name).weight) and not trained.weight.requires_grad


def test_ranks_of_an_embedding_learn_though_all_present_rows_are_zero() -> None:
    model = lora(trained=False, target_modules=["word_embeddings"])
    optimizer = torch.optim.SGD([own for own in model.parameters() if own.requires_grad], lr=1.0)
    ng.grow(model, "base_model.model.bert.embeddings.word_embeddings.lora_embedding_A.default", 2,
            example=EXAMPLE, optimizer=optimizer)  # fmt: skip
    (layer,) = layers(model).values()
    assert layer.r == {"default": 5}
    model(**EXAMPLE, labels=torch.tensor([0, 1])).loss.backward()
    optimizer.step()
    assert layer.lora_embedding_B["default"][:, 3:].any()


# --- files -----------------------------------------------------------------------------------------------


class Pictures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.features, self.head = nn.Conv2d(2, 4, 3, padding=1), nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).relu().flatten(1))


IMAGES = torch.randn(2, 2, 4, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"use_rslora": True},
        {"use_dora": True},
        {"target_modules": ["word_embeddings", "query"]},
        {"target_modules": ["word_embeddings", "query"], "use_dora": True},
        {"rank_pattern": {"value": 2}, "alpha_pattern": {"layer.1.attention.self.query": 7}},
        {"task_type": "SEQ_CLS"},  # saves the classifier, too
        {"lora_bias": True, "bias": "lora_only"},
        {"init_lora_weights": "orthogonal", "r": 4},
    ],
    ids=str,
)
def test_peft_loads_a_grown_adapter(changes: dict[str, Any], tmp_path: Path) -> None:
    model = lora(**changes)
    before = output(model)
    assert len(set(grow_differently(model).values())) > 1
    torch.testing.assert_close(output(model), before)
    model.save_pretrained(tmp_path / "own")  # the config has followed already
    assert_reloaded(model, bert(), tmp_path / "own")
    assert save_pretrained(model, tmp_path / "ours")
    assert_reloaded(model, bert(), tmp_path / "ours")
    assert sorted(each.name for each in (tmp_path / "ours").glob("*.safetensors")) == ["adapter_model.safetensors"]
    torch.testing.assert_close(output(model.merge_and_unload()), before)


@pytest.mark.parametrize("dora", [False, True])
def test_ranks_of_convolutions_grow_and_are_loaded(dora: bool, tmp_path: Path) -> None:
    model = lora(Pictures(), target_modules=["features", "head"], use_dora=dora)
    before = output(model, IMAGES)
    assert grow_differently(model, IMAGES) == {
        "base_model.model.features.lora_A.default": 4,
        "base_model.model.head.lora_A.default": 5,
    }
    torch.testing.assert_close(output(model, IMAGES), before)
    assert save_pretrained(model, tmp_path)
    assert_reloaded(model, Pictures(), tmp_path, IMAGES)
    torch.testing.assert_close(output(model.merge_and_unload(), IMAGES), before)


def test_one_adapter_of_several_grows(tmp_path: Path) -> None:
    model = lora()
    model.add_adapter("other", LoraConfig(r=2, lora_alpha=2, target_modules=["query"]))
    model.set_adapter("other")
    train(model)
    before = books(model)["default"]
    sizes = grow_differently(model)
    assert sorted(sizes.values()) == [3, 4] and all(name.endswith("lora_A.other") for name in sizes)
    assert layers(model)[QUERY].r == {"default": 3, "other": 3} and books(model)["default"] == before
    assert save_pretrained(model, tmp_path)
    assert_reloaded(model, bert(), tmp_path / "other", adapter="other")
    model.set_adapter("default")
    assert_reloaded(model, bert(), tmp_path)


def test_adapters_added_by_transformers_follow(tmp_path: Path) -> None:
    model = bert().eval()
    model.add_adapter(LoraConfig(r=3, lora_alpha=5, target_modules=TARGETS))
    train(model)
    grow_differently(model)
    assert save_pretrained(model, tmp_path)
    again = bert().eval()
    again.load_adapter(str(tmp_path))
    assert torch.equal(output(again), output(model))


def test_the_sizes_of_a_base_model_that_its_config_does_not_say_are_told(tmp_path: Path) -> None:
    model = lora(task_type="SEQ_CLS")
    assert save_pretrained(model, tmp_path)
    ng.resize(model, {"base_model.model.bert.encoder.layer.0.intermediate.dense": 14}, EXAMPLE)
    assert not save_pretrained(model, tmp_path)


def test_directories_of_adapters_are_refused_with_the_remedy(tmp_path: Path) -> None:
    save_pretrained(lora(), tmp_path)
    with pytest.raises(ValueError, match=r"has adapters, not a model: load them with PeftModel\.from_pretrained"):
        from_pretrained(type(bert()), tmp_path)


def test_models_with_adapters_are_saved_and_loaded_whole(tmp_path: Path) -> None:
    model, fresh = lora(), lora(trained=False)
    grow_differently(model)
    ng.save(tmp_path / "run.pt", model)
    ng.load(tmp_path / "run.pt", fresh)
    assert books(fresh) == books(model) and torch.equal(output(fresh), output(model))
    fresh = lora(trained=False)
    ng.load_state_dict(fresh, model.state_dict(), example=EXAMPLE)
    assert books(fresh) == books(model) and torch.equal(output(fresh), output(model))


def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 12}
    return LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=20, use_cache=False))


LINEAR = ["q_proj", "up_proj"]


@pytest.mark.parametrize(
    "config",
    [
        PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
        PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
        IA3Config(target_modules=[*LINEAR, "down_proj"], feedforward_modules=["down_proj"]),
        LoHaConfig(r=3, target_modules=LINEAR),
        AdaLoraConfig(init_r=4, target_r=2, total_step=10, target_modules=LINEAR),
    ],
    ids=lambda config: config.peft_type.value,
)
def test_other_adapters_are_saved_as_they_are(config: Any, tmp_path: Path) -> None:
    model = get_peft_model(llama(), copy.deepcopy(config)).eval()
    assert save_pretrained(model, tmp_path)
    again = PeftModel.from_pretrained(llama(), tmp_path).eval()
    assert torch.equal(output(again), output(model))


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (LoHaConfig(r=3, target_modules=LINEAR), "only ranks of LoRA are resized, not the sizes inside loha"),
        (AdaLoraConfig(init_r=4, target_r=2, total_step=10, target_modules=LINEAR), "by a budget of its own"),
        (LoraConfig(init_lora_weights="pissa", r=3, target_modules=LINEAR), "changed the base weights by this rank"),
        (LoraConfig(init_lora_weights="mica", r=3, target_modules=LINEAR), "MiCALinearVariant is a kind of LoRA"),
    ],
    ids=["loha", "adalora", "pissa", "mica"],
)
def test_ranks_that_could_not_be_loaded_again_say_why_they_are_fixed(config: Any, reason: str) -> None:
    found = ng.widths(get_peft_model(llama(), copy.deepcopy(config)), EXAMPLE)
    inside = [width for width in found if ".default" in width.name and "base_layer" not in width.name]
    assert len(inside) >= 2 and all(reason in str(width.fixed) for width in inside)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attention(x, x, x, need_weights=False)[0])


def test_ranks_of_whole_attention_layers_say_why_they_are_fixed() -> None:
    found = ng.widths(lora(Attention(), target_modules=["attention"]), torch.randn(2, 5, 4))
    width = found["base_model.model.attention.lora_A.default"]
    assert "LoRA writes into the weights of nn.MultiheadAttention" in str(width.fixed)


# --- the Trainer -----------------------------------------------------------------------------------------


def start(path: Path, strategy: str, model: nn.Module | None = None, **changes: Any) -> tuple[Trainer, GrowerCallback]:
    model = lora(trained=False, task_type="SEQ_CLS", lora_dropout=0.1) if model is None else model
    callback = GrowerCallback(strategy, include=RANKS, max_width=6, buffer=32)
    return trainer_in(path, callback, model, **changes), callback


@pytest.mark.parametrize("strategy", ["static", "north-random", "gradmax"])
def test_resumed_training_of_adapters_is_that_of_one_without_a_break(strategy: str, tmp_path: Path) -> None:
    whole, callback = start(tmp_path, strategy)
    whole.train()
    assert callback.grower is not None
    assert bool(callback.grower.history.events) == (strategy != "static")
    checkpoint = tmp_path / "checkpoint-4"
    assert [each.name for each in checkpoint.glob("*.safetensors")] == ["adapter_model.safetensors"]
    again, resumed = start(tmp_path, strategy)
    again.train(resume_from_checkpoint=str(checkpoint))
    assert same_parameters(whole.model, again.model) and losses(whole) == losses(again)
    assert books(whole.model) == books(again.model)
    assert resumed.grower is not None and resumed.grower.widths == callback.grower.widths
    assert [str(event) for event in resumed.grower.history] == [str(event) for event in callback.grower.history]


def test_a_checkpoint_is_loaded_by_peft(tmp_path: Path) -> None:
    trainer, callback = start(tmp_path, "north-random", max_steps=4)
    trainer.train()
    assert callback.grower is not None and callback.grower.history.events
    assert json.loads((tmp_path / "checkpoint-4" / "adapter_config.json").read_text())["r"] > 3
    assert_reloaded(trainer.model.eval(), bert(), tmp_path / "checkpoint-4")


def test_the_best_adapter_is_loaded_though_it_is_smaller(tmp_path: Path) -> None:
    options = {"eval_strategy": "steps", "eval_steps": 2, "save_steps": 2, "load_best_model_at_end": True}
    options |= {"metric_for_best_model": "worse", "greater_is_better": False, "max_steps": 4}
    trainer, callback = start(tmp_path, "north-random", **options)
    trainer.compute_metrics = Worse()
    trainer.train()
    assert trainer.state.best_model_checkpoint == str(tmp_path / "checkpoint-2")
    assert callback.grower is not None and callback.grower.history.events[-1].step > 2
    assert_reloaded(trainer.model.eval(), bert(), tmp_path / "checkpoint-2")
    trainer.train()  # the optimizer has been resized, too


def test_a_named_adapter_beside_another_is_resumed(tmp_path: Path) -> None:
    def model() -> Any:
        made = lora()
        made.add_adapter("other", LoraConfig(r=2, lora_alpha=2, target_modules=["query"]))
        made.set_adapter("other")
        return made

    whole, callback = start(tmp_path, "north-random", model())
    again, _ = start(tmp_path, "north-random", model())
    whole.train()
    assert callback.grower is not None and callback.grower.history.events
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert same_parameters(whole.model, again.model) and books(whole.model) == books(again.model)


def test_heads_and_the_stream_of_a_wrapped_llama_grow_with_their_adapters_once_unfrozen() -> None:
    sizes = {"hidden_size": 24, "intermediate_size": 36, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = lora(
        LlamaForCausalLM(LlamaConfig(vocab_size=60, num_hidden_layers=1, **sizes)), target_modules=["q_proj", "o_proj"]
    )
    heads, stream = (
        f"base_model.model.model.{name}" for name in ("layers.0.self_attn.q_proj.base_layer", "embed_tokens")
    )
    found = ng.widths(model, EXAMPLE)
    assert all("is frozen" in str(found[name].reason) for name in (heads, stream))
    model.requires_grad_(True)
    before = output(model)
    for name, kind in ((heads, "heads"), (stream, "stream")):
        assert ng.widths(model, EXAMPLE)[name].kind == kind
        ng.grow(model, name, 1)
    attention = model.base_model.model.model.layers[0].self_attn
    assert attention.q_proj.lora_B["default"].out_features == 36 == attention.o_proj.lora_A["default"].in_features
    torch.testing.assert_close(output(model), before, rtol=0, atol=1e-5)
