"""Networks grow in the Trainer of Transformers and under Accelerate as in any loop, and their checkpoints fit."""

from __future__ import annotations

import copy
import json
import pickle
import runpy
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import neurogenesis as ng
from tests.growing import mlp

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
    ViTModel,
    set_seed,
)

from neurogenesis.integrations.accelerate import register_for_checkpointing
from neurogenesis.integrations.huggingface import GrowerCallback, from_pretrained, save_pretrained, update_config


@pytest.fixture(autouse=True)
def fresh_accelerate() -> Iterator[None]:
    yield
    AcceleratorState._reset_state(True)
    GradientState._reset_state()


NARROW = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 12}
MLPS = "*.intermediate.dense"


def bert(seed: int = 0, **changes: Any) -> BertForSequenceClassification:
    torch.manual_seed(seed)
    return BertForSequenceClassification(
        BertConfig(**{**NARROW, "vocab_size": 20, "max_position_embeddings": 16, **changes})
    )


def gpt2(**changes: Any) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    given = {"vocab_size": 20, "n_positions": 16, "n_embd": 8, "n_layer": 2, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(**{**given, "bos_token_id": 0, "eos_token_id": 0, **changes}))


TOKENS = torch.randint(20, (2, 6), generator=torch.Generator().manual_seed(0))


class Sentences(torch.utils.data.Dataset[dict[str, Any]]):
    """Token sequences whose class is whether the first token is even."""

    def __init__(self, count: int = 64, length: int = 6):
        self.tokens = torch.randint(20, (count, length), generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": self.tokens[index], "labels": int(self.tokens[index, 0]) % 2}


def trainer_in(path: Path, callback: TrainerCallback, model: nn.Module | None = None, **changes: Any) -> Trainer:
    options = {
        "max_steps": 8,
        "per_device_train_batch_size": 8,
        "learning_rate": 1e-2,
        "save_strategy": "steps",
        "save_steps": 4,
        "logging_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        **changes,
    }
    return Trainer(
        bert() if model is None else model,
        TrainingArguments(str(path), **options),
        train_dataset=Sentences(),
        eval_dataset=Sentences(16),
        callbacks=[callback],
    )


def growing(**changes: Any) -> GrowerCallback:
    return GrowerCallback("north-random", **{"max_width": 30, "buffer": 32, "every": 2, **changes})


def same_parameters(first: nn.Module, second: nn.Module) -> bool:
    pairs = zip(first.state_dict().items(), second.state_dict().items(), strict=True)
    return all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)


def losses(trainer: Trainer) -> list[float]:
    return [each["loss"] for each in trainer.state.log_history if "loss" in each]


# --- the Trainer -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["north-random", "need", "gradmax"])
def test_resumed_training_is_that_of_one_without_a_break(strategy: str, tmp_path: Path) -> None:
    def start() -> tuple[Trainer, GrowerCallback]:
        callback = GrowerCallback(strategy, max_width=30, buffer=32)
        return trainer_in(tmp_path, callback), callback

    whole, callback = start()
    whole.train()
    assert callback.grower is not None
    assert strategy == "need" or len(callback.grower.history.events) > 0  # it looks, but has no reason to grow here
    again, resumed = start()
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert same_parameters(whole.model, again.model)
    assert losses(whole) == losses(again)
    assert resumed.grower is not None and resumed.grower.widths == callback.grower.widths
    events = [(event.step, event.width, event.after) for event in callback.grower.history]
    assert [(event.step, event.width, event.after) for event in resumed.grower.history] == events
    assert resumed.grower.steps == whole.state.global_step


def test_a_trainer_goes_back_to_its_own_checkpoint(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path, callback := growing())
    for parameter in trainer.model.bert.embeddings.parameters():
        parameter.requires_grad_(False)  # the same in every checkpoint
    trainer.train()
    assert callback.grower is not None
    before, sizes = copy.deepcopy(trainer.model), callback.grower.widths
    set_seed(trainer.args.seed)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert same_parameters(before, trainer.model) and callback.grower.widths == sizes


class Classifier(nn.Module):
    """A model that is not of Transformers, and has a config of another kind."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(hidden=5)
        self.embedding, self.hidden, self.head = nn.Embedding(20, 4), nn.Linear(24, 5), nn.Linear(5, 2)

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.head(self.hidden(self.embedding(input_ids).flatten(1)).tanh())
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def test_any_model_that_the_trainer_takes_is_resumed(tmp_path: Path) -> None:
    def start() -> Trainer:
        torch.manual_seed(0)
        return trainer_in(tmp_path, growing(buffer=16), Classifier())

    whole, again = start(), start()
    whole.train()
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert same_parameters(whole.model, again.model) and again.model.hidden.out_features > 5


def test_accumulated_gradients_in_bfloat16_count_as_one_step_and_resume(tmp_path: Path) -> None:
    options = {"gradient_accumulation_steps": 2, "max_grad_norm": 0.1, "bf16": True, "max_steps": 6, "save_steps": 3}
    whole = trainer_in(tmp_path, callback := growing(), **options)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", module="neurogenesis")
        whole.train()
    assert callback.grower is not None and callback.grower.steps == 6 and callback.grower.history.events
    shutil.rmtree(tmp_path / "checkpoint-6")
    again = trainer_in(tmp_path, growing(), **options)
    again.train(resume_from_checkpoint=True)
    assert same_parameters(whole.model, again.model) and losses(whole) == losses(again)


class Worse:
    """Metrics by which the first evaluation is the best."""

    calls = 0

    def __call__(self, _: Any) -> dict[str, float]:
        self.calls += 1
        return {"worse": float(self.calls)}


def test_the_best_model_is_loaded_though_it_is_smaller(tmp_path: Path) -> None:
    options = {"eval_strategy": "steps", "eval_steps": 4, "load_best_model_at_end": True}
    options |= {"metric_for_best_model": "worse", "greater_is_better": False}
    trainer = trainer_in(tmp_path, callback := growing(), **options)
    trainer.compute_metrics = Worse()
    trainer.train()
    best = tmp_path / "checkpoint-4"
    assert trainer.state.best_model_checkpoint == str(best)
    assert callback.grower is not None and callback.grower.history.events[-1].step > 4
    expected = bert(1)
    ng.load_state_dict(expected, best)
    assert same_parameters(trainer.model, expected)
    trainer.evaluate()
    trainer.train()  # the optimizer has been resized, too


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trainer, Path]:
    """A training run, and where its checkpoint is now."""
    path = tmp_path_factory.mktemp("run")
    trainer = trainer_in(path / "first", growing())
    trainer.train()
    (path / "first" / "checkpoint-4").rename(path / "elsewhere")
    return trainer, path / "elsewhere"


def test_a_checkpoint_from_elsewhere_is_resumed_once_it_is_named(moved: tuple[Trainer, Path], tmp_path: Path) -> None:
    whole, checkpoint = moved
    trainer_in(tmp_path, growing(), bert(5), max_steps=4).train()  # has a checkpoint of this step, with other weights
    with pytest.raises(ValueError, match=r"set GrowerCallback\.resume_from to its directory"):
        trainer_in(tmp_path, growing()).train(resume_from_checkpoint=str(checkpoint))
    resized = bert()
    ng.load_state_dict(resized, checkpoint)
    with pytest.raises(ValueError, match="resumes at step 4, but no checkpoint with the model's weights is inside"):
        trainer_in(tmp_path, growing(), resized).train(resume_from_checkpoint=str(checkpoint))
    callback = growing()
    callback.resume_from = checkpoint
    again = trainer_in(tmp_path, callback)
    again.train(resume_from_checkpoint=str(checkpoint))
    assert same_parameters(whole.model, again.model)
    callback.resume_from = tmp_path / "none"
    with pytest.raises(FileNotFoundError, match="none is not a directory"):
        again.train(resume_from_checkpoint=str(checkpoint))


def test_a_model_from_a_function_is_resumed_if_the_function_resizes_it(
    moved: tuple[Trainer, Path], tmp_path: Path
) -> None:
    whole, checkpoint = moved

    def make() -> nn.Module:
        with torch.random.fork_rng():  # the Trainer has set the seed
            model = bert()
        ng.load_state_dict(model, checkpoint)
        return model

    callback = growing()
    callback.resume_from = checkpoint
    args = whole.args
    again = Trainer(args=args, model_init=make, train_dataset=Sentences(), callbacks=[callback])
    again.train(resume_from_checkpoint=str(checkpoint))
    assert same_parameters(whole.model, again.model)


def test_a_checkpoint_without_a_grower_begins_growth(tmp_path: Path) -> None:
    trainer_in(tmp_path, TrainerCallback(), max_steps=4).train()
    callback = growing()
    with pytest.warns(UserWarning, match="checkpoint-4 was saved without a GrowerCallback: growth starts anew"):
        trainer_in(tmp_path, callback).train(resume_from_checkpoint=True)
    assert callback.grower is not None and callback.grower.steps == 4 and callback.grower.history.events


def test_checkpoints_have_the_sizes_and_load_anywhere(moved: tuple[Trainer, Path]) -> None:
    _, checkpoint = moved
    growth = torch.load(checkpoint / "neurogenesis.pt", weights_only=True)
    assert growth["steps"] == 4 and "sizes" not in growth  # which are in the other file
    sizes = json.loads((checkpoint / "neurogenesis.json").read_text())["widths"]
    model = from_pretrained(BertForSequenceClassification, checkpoint)
    name = "bert.encoder.layer.1.intermediate.dense"
    assert sizes[name] == model.get_submodule(name).out_features > 12
    other = bert(1)
    assert ng.load_state_dict(other, checkpoint) and same_parameters(model, other)


def test_a_checkpoint_in_several_files_is_resumed(moved: tuple[Trainer, Path], tmp_path: Path) -> None:
    whole, source = moved
    checkpoint = tmp_path / "checkpoint-4"
    shutil.copytree(source, checkpoint)
    (checkpoint / "model.safetensors").unlink()
    from_pretrained(BertForSequenceClassification, source).save_pretrained(checkpoint, max_shard_size="3KB")
    assert len(list(checkpoint.glob("model-*.safetensors"))) > 2
    again = trainer_in(tmp_path, growing())
    again.train(resume_from_checkpoint=str(checkpoint))
    assert same_parameters(whole.model, again.model)


def test_the_config_of_a_checkpoint_follows_widths_that_grow_together(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path, callback := growing(include=[MLPS], tie=[MLPS]), max_steps=4)
    trainer.train()
    assert callback.grower is not None and callback.grower.history.events
    loaded = BertForSequenceClassification.from_pretrained(tmp_path / "checkpoint-4")
    assert same_parameters(trainer.model, loaded)
    assert loaded.config.intermediate_size == trainer.model.config.intermediate_size > 12


class Recorder(TrainerCallback):
    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def on_log(self, *_: Any, logs: dict[str, Any] | None = None, **__: Any) -> None:
        self.seen.append(dict(logs or {}))


def test_sizes_and_parameters_are_logged(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path, callback := growing(), max_steps=4)
    trainer.add_callback(recorder := Recorder())
    trainer.train()
    assert callback.grower is not None
    for last in (trainer.state.log_history[-2], recorder.seen[-2]):  # the last is a summary
        assert {name: last[f"width/{name}"] for name in callback.grower.widths} == callback.grower.widths
        assert last["parameters"] == sum(parameter.numel() for parameter in trainer.model.parameters())


def hooks(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def test_nothing_stays_in_the_passes_of_a_model_after_training(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path, growing(), max_steps=2, save_strategy="no")
    before = hooks(trainer.model)
    trainer.train()
    assert hooks(trainer.model) == before
    copied = pickle.loads(pickle.dumps(copy.deepcopy(trainer.model)))
    copied.load_state_dict(trainer.model.state_dict())
    with pytest.raises(RuntimeError, match="size mismatch"):  # copies are not resized
        copied.load_state_dict(bert().state_dict())


class Pictures(torch.utils.data.Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(index)
        return {"pixel_values": torch.randn(3, 8, 8, generator=generator), "labels": index % 2}


def test_models_that_are_saved_under_older_names_are_resumed(tmp_path: Path) -> None:
    """The Trainer alone would load none of their weights."""

    def start() -> Trainer:
        torch.manual_seed(0)
        model = ViTForImageClassification(ViTConfig(image_size=8, patch_size=4, **NARROW))
        trainer = trainer_in(tmp_path, GrowerCallback("north-random", max_width=20, buffer=16), model)
        trainer.train_dataset = Pictures()
        return trainer

    whole, again = start(), start()
    whole.train()
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert same_parameters(whole.model, again.model)
    assert sum(map(torch.numel, again.model.parameters())) > sum(map(torch.numel, start().model.parameters()))


def test_wrong_arguments_are_refused_when_the_callback_is_created() -> None:
    with pytest.raises(TypeError, match="bufer"):
        GrowerCallback("need", bufer=3)
    with pytest.raises(ValueError, match="norht"):
        GrowerCallback("norht-select")


def test_a_checkpoint_of_another_architecture_is_refused(moved: tuple[Trainer, Path], tmp_path: Path) -> None:
    _, checkpoint = moved
    callback = growing()
    callback.resume_from = checkpoint
    trainer = trainer_in(tmp_path, callback, bert(vocab_size=21))
    with pytest.raises(ValueError, match=r"does not fit the model: bert\.embeddings\.word_embeddings\.weight"):
        trainer.train(resume_from_checkpoint=str(checkpoint))


# --- Accelerate ------------------------------------------------------------------------------------------


def prepared(before: bool, strategy: str | ng.Strategy = "north-random", **options: Any) -> tuple[Any, ...]:
    """An accelerator and what it has prepared, and a grower that was created before or after that."""
    AcceleratorState._reset_state(True)
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, **options)
    model = mlp(6, 4, 4, 3)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.9)
    data = TensorDataset(torch.randn(320, 6, generator=torch.Generator().manual_seed(0)))
    grower = ng.Grower(model, optimizer, strategy, max_width=20, buffer=64) if before else None
    wrapped, wrapper, loader, scheduler = accelerator.prepare(model, optimizer, DataLoader(data, 32), scheduler)
    grower = grower or ng.Grower(wrapped, wrapper, strategy, max_width=20, buffer=64)
    assert grower.optimizers == [optimizer] and grower.model is accelerator.unwrap_model(wrapped)
    return accelerator, wrapped, wrapper, loader, scheduler, grower


def run(parts: tuple[Any, ...], numbers: range = range(10)) -> list[float]:
    accelerator, model, optimizer, loader, scheduler, grower = parts
    losses = []
    for number, (x,) in enumerate(loader):
        if number in numbers:
            with accelerator.accumulate(model):
                loss = (model(x) - x[:, :3].sin()).square().mean()
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                grower.step()
            losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize("strategy", ["north-select", "need", "north-integrated"])
def test_a_grower_made_before_prepare_is_the_same_as_one_made_after(strategy: str, precision: str) -> None:
    found = []
    for before in (True, False):
        parts = prepared(before, strategy, mixed_precision=precision)
        found.append((run(parts), parts[-1].widths, parts[-1].steps))
    assert found[0] == found[1]
    assert found[0][2] == 10 and (strategy == "need" or found[0][1]["0"] > 4)


@pytest.mark.parametrize("before", [True, False])
def test_accumulated_batches_are_one_step_without_warnings(before: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parts = prepared(before, "north-random", gradient_accumulation_steps=2)
        run(parts)
    assert parts[-1].steps == 5


def test_accumulated_batches_give_their_gradients_to_the_step() -> None:
    pairs: list[int] = []

    def count(layer: ng.Layer) -> int:
        pairs.append(len(layer.record.pairs))
        return 0

    parts = prepared(False, ng.Strategy(count), gradient_accumulation_steps=2)
    run(parts, range(4))
    assert pairs == [2] * 4  # of two layers at two steps


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("safe", [True, False])
def test_a_loaded_state_goes_on_as_if_it_had_not_stopped(before: bool, safe: bool, tmp_path: Path) -> None:
    whole = prepared(before)
    expected = run(whole)
    first = prepared(before)
    register_for_checkpointing(first[0], first[-1])
    run(first, range(5))
    first[0].save_state(str(tmp_path), safe_serialization=safe)
    assert first[-1].history.events
    growth = torch.load(tmp_path / "custom_checkpoint_0.pkl", weights_only=True)
    assert growth["steps"] == 5 and "sizes" not in growth  # which are in a file of their own
    second = prepared(before)
    register_for_checkpointing(second[0], second[-1])
    second[0].load_state(str(tmp_path))
    assert second[-1].widths == first[-1].widths
    assert run(second, range(5, 10)) == expected[5:]
    assert second[-1].widths == whole[-1].widths and same_parameters(second[1], whole[1])


def test_of_several_models_the_one_that_grows_is_resized(tmp_path: Path) -> None:
    def start() -> tuple[Any, ...]:
        AcceleratorState._reset_state(True)
        accelerator = Accelerator(cpu=True)
        _, model = (accelerator.prepare(mlp(6, size, 3)) for size in (5, 4))
        optimizer = accelerator.prepare(torch.optim.Adam(model.parameters()))
        grower = ng.Grower(model, optimizer, "north-random", max_width=9, buffer=64)
        register_for_checkpointing(accelerator, grower)
        return accelerator, model, optimizer, grower

    accelerator, model, optimizer, grower = start()
    for _ in range(3):
        accelerator.backward(model(torch.randn(64, 6)).square().mean())
        optimizer.step()
        grower.step()
    accelerator.save_state(str(tmp_path))
    again = start()
    again[0].load_state(str(tmp_path))
    assert same_parameters(again[1], model) and again[-1].widths["0"] > 4


def test_a_state_that_does_not_fit_is_never_loaded_silently(tmp_path: Path) -> None:
    first = prepared(False)
    first[0].register_for_checkpointing(first[-1])
    run(first)
    first[0].save_state(str(tmp_path))
    second = prepared(False)
    second[0].register_for_checkpointing(second[-1])
    with pytest.raises(RuntimeError, match="size mismatch"):
        second[0].load_state(str(tmp_path))
    third = prepared(False)
    register_for_checkpointing(third[0], third[-1])
    with pytest.raises(FileNotFoundError, match="not saved with this grower registered"):
        third[0].load_state(str(tmp_path))
    fourth = prepared(False)
    register_for_checkpointing(fourth[0], ng.Grower(model := mlp(6, 4, 3), torch.optim.Adam(model.parameters())))
    with pytest.raises(ValueError, match="has not prepared the grower's model"):
        fourth[0].save_state(str(tmp_path / "other"))


def test_surgery_by_hand_takes_a_prepared_optimizer() -> None:
    _, model, optimizer, *_ = prepared(False)
    model(torch.randn(8, 6)).sum().backward()
    optimizer.step()
    ng.grow(model, "0", 3, optimizer=optimizer, example=torch.randn(2, 6))
    ng.resize(model, {"2": 9}, optimizer=[optimizer])
    ng.shrink(model, "0", [1], optimizer=optimizer)
    for parameter in model.parameters():
        assert optimizer.state[parameter]["exp_avg"].shape == parameter.shape


def test_a_grower_that_cannot_be_made_leaves_no_hooks() -> None:
    *_, grower = parts = prepared(False)
    grower.detach()
    _, model, optimizer, *_ = parts
    for options in ({"example": torch.randn(2, 5)}, {"strategy": "none"}, {"buffer": 0}, {"max_parameters": 1}):
        with pytest.raises((ValueError, RuntimeError)):
            ng.Grower(model, optimizer, **options)
    assert hooks(model) == 0
    assert not optimizer.optimizer._optimizer_step_post_hooks


# --- what a sample is ------------------------------------------------------------------------------------


def step_on(model: nn.Module, optimizer: torch.optim.Optimizer, grower: ng.Grower, **inputs: Tensor) -> None:
    optimizer.zero_grad()
    model(**inputs).loss.backward()
    optimizer.step()
    grower.step()


def test_positions_of_sequences_are_samples() -> None:
    model = bert(max_position_embeddings=128)
    optimizer = torch.optim.Adam(model.parameters())
    grower = ng.Grower(model, optimizer, "north-random", buffer=512, max_width=16, every=1)
    mlps, pooler = "bert.encoder.layer.0.intermediate.dense", "bert.pooler.dense"
    for number, length in enumerate((128, 128, 100)):
        tokens = torch.randint(20, (16, length))
        step_on(model, optimizer, grower, labels=tokens[:, 0] % 2, input_ids=tokens)
        measurement = grower.buffer.measurement()
        assert measurement.full(mlps) and not measurement.full(pooler)  # one row per sequence
        held = -(-512 // length)
        assert measurement.items(mlps) == held
        seen = measurement.activations(mlps)
        assert seen is not None and seen.columns == held * length
        assert len(grower.buffer.calls) == number + 1  # the pooler needs them all
    grower = ng.Grower(model, optimizer, "north-random", buffer=512, exclude=["*pooler*"])
    for _ in range(3):
        step_on(model, optimizer, grower, input_ids=(tokens := torch.randint(20, (16, 128))), labels=tokens[:, 0] % 2)
    assert len(grower.buffer.calls) == 1


def test_a_wide_layer_is_measured_on_twice_as_many_positions_as_neurons() -> None:
    model = bert(intermediate_size=40)
    optimizer = torch.optim.Adam(model.parameters())
    grower = ng.Grower(model, optimizer, "north-random", buffer=16, max_width=40, include=[MLPS])
    for _ in range(4):
        step_on(model, optimizer, grower, input_ids=(tokens := torch.randint(20, (4, 12))), labels=tokens[:, 0] % 2)
    assert grower.buffer.measurement().items("bert.encoder.layer.0.intermediate.dense") == 7  # of 12 tokens, for 80
    assert len(grower.buffer.calls) == 2


@pytest.mark.parametrize("shape", [(10, 16), (10, 4, 4), (10, 1, 4, 4)])
def test_items_that_are_flattened_are_one_sample_each(shape: tuple[int, ...]) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, 3))
    optimizer = torch.optim.Adam(model.parameters())
    grower = ng.Grower(model, optimizer, "north-random", buffer=32)
    for _ in range(5):
        model(torch.randn(shape)).square().mean().backward()
        optimizer.step()
        grower.step()
    assert len(grower.buffer.calls) == 4 and grower.buffer.measurement().items("1") == 32


# --- saving and loading ----------------------------------------------------------------------------------

Family = tuple[Callable[[], Any], dict[str, Tensor], list[str], str]
FAMILIES: dict[str, Family] = {
    "GPT-2": (gpt2, {"input_ids": TOKENS}, ["*.mlp.c_fc"], "n_inner"),
    "BERT": (bert, {"input_ids": TOKENS}, [MLPS], "intermediate_size"),
    "DistilBERT": (
        lambda: DistilBertModel(DistilBertConfig(vocab_size=20, dim=8, hidden_dim=12, n_heads=2, n_layers=2)),
        {"input_ids": TOKENS},
        ["*.ffn.lin1"],
        "hidden_dim",
    ),
    "T5": (
        lambda: T5ForConditionalGeneration(
            T5Config(vocab_size=20, d_model=8, d_ff=12, d_kv=4, num_layers=2, num_heads=2, decoder_start_token_id=0)
        ),
        {"input_ids": TOKENS, "labels": TOKENS},
        ["*.DenseReluDense.wi"],
        "d_ff",
    ),
    "Llama": (
        lambda: LlamaForCausalLM(LlamaConfig(vocab_size=20, **NARROW)),
        {"input_ids": TOKENS},
        ["*.mlp.gate_proj"],
        "intermediate_size",
    ),
    "OPT": (
        lambda: OPTForCausalLM(
            OPTConfig(
                vocab_size=20,
                hidden_size=8,
                ffn_dim=12,
                num_attention_heads=2,
                num_hidden_layers=2,
                max_position_embeddings=16,
                word_embed_proj_dim=8,
            )
        ),
        {"input_ids": TOKENS},
        ["*.fc1"],
        "ffn_dim",
    ),
    "ViT": (
        lambda: ViTModel(ViTConfig(image_size=8, patch_size=4, **NARROW)),
        {"pixel_values": torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))},
        ["*.mlp.fc1"],
        "intermediate_size",
    ),
}


def outputs(model: nn.Module, example: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        found: Tensor = model.eval()(**example)[1 if "labels" in example else 0]
    return found


@pytest.mark.parametrize("name", FAMILIES)
def test_the_config_follows_widths_that_grow_together(name: str, tmp_path: Path) -> None:
    make, example, patterns, field = FAMILIES[name]
    model = make()
    found = ng.widths(model, example, tie=[patterns])
    (tied,) = [width for width in found.growable if len(width.producers) >= 2 and width.size in (12, 32)]
    before = torch.get_rng_state()
    ng.grow(model, tied, 5, generator=torch.Generator().manual_seed(0))
    assert save_pretrained(model, tmp_path)
    assert torch.equal(torch.get_rng_state(), before)
    assert getattr(model.config, field) == tied.size
    loaded = type(model).from_pretrained(tmp_path)
    assert torch.equal(outputs(loaded, example), outputs(model, example))


@pytest.mark.parametrize("name", FAMILIES)
def test_what_no_config_can_say_is_loaded_with_its_sizes(name: str, tmp_path: Path) -> None:
    make, example, _, field = FAMILIES[name]
    model = make()
    config = copy.deepcopy(model.config)
    for number, width in enumerate(ng.widths(model, example).growable):
        ng.grow(model, width, width.size if width.copied else 2 + number)
    with pytest.warns(UserWarning, match=f"the from_pretrained of {type(model).__name__} cannot load this, as "):
        assert not save_pretrained(model, tmp_path)
    assert getattr(model.config, field) == getattr(config, field)
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        type(model).from_pretrained(tmp_path)
    loaded = from_pretrained(type(model), tmp_path)
    assert torch.equal(outputs(loaded, example), outputs(model, example))


def test_a_config_in_a_config_follows(tmp_path: Path) -> None:
    from transformers import CLIPConfig, CLIPModel, CLIPTextConfig, CLIPVisionConfig

    text = CLIPTextConfig(vocab_size=20, max_position_embeddings=8, projection_dim=8, eos_token_id=1, **NARROW)
    vision = CLIPVisionConfig(image_size=8, patch_size=4, projection_dim=8, **NARROW)
    model = CLIPModel(CLIPConfig(text_config=text.to_dict(), vision_config=vision.to_dict(), projection_dim=8))
    example = {"input_ids": TOKENS, "pixel_values": torch.randn(2, 3, 8, 8)}
    found = ng.widths(model, example, tie=["text_model.*.fc1", "vision_model.*.fc1"])
    sizes = {width.name: width.size + number for number, width in enumerate(found.growable, 3) if "fc1" in width.name}
    ng.resize(model, sizes)
    assert save_pretrained(model, tmp_path)
    assert model.config.text_config.intermediate_size != model.config.vision_config.intermediate_size
    assert same_parameters(CLIPModel.from_pretrained(tmp_path), model)


def test_precision_ties_and_generation_settings_are_kept(tmp_path: Path) -> None:
    model = gpt2().to(torch.bfloat16)
    model.generation_config.max_new_tokens = 3
    ng.grow(model, "transformer.h.0.mlp.c_fc", 3, example={"input_ids": TOKENS})
    with pytest.warns(UserWarning, match="GPT2Config has one size for layers that differ here"):
        save_pretrained(model, tmp_path)
    loaded = from_pretrained(GPT2LMHeadModel, tmp_path)
    assert loaded.dtype == torch.bfloat16 and loaded.generation_config.max_new_tokens == 3
    assert loaded.lm_head.weight is loaded.transformer.wte.weight and not loaded.training
    assert torch.equal(loaded.generate(TOKENS, do_sample=False), model.eval().generate(TOKENS, do_sample=False))


def test_what_is_not_a_saved_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"has no config\.json"):
        from_pretrained(BertForSequenceClassification, tmp_path)
    save_pretrained(bert(), tmp_path)
    with pytest.raises(TypeError, match="Linear is not the class of a model"):
        from_pretrained(nn.Linear, tmp_path)
    assert update_config(bert())


def test_weights_without_sizes_are_named_with_the_way_to_load_them(tmp_path: Path) -> None:
    model = gpt2()
    ng.grow(model, "transformer.h.0.mlp.c_fc", 3, example={"input_ids": TOKENS})
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"sizes of widths were not saved with it: .*load_state_dict"):
        from_pretrained(GPT2LMHeadModel, tmp_path)
    other = gpt2()
    ng.load_state_dict(other, tmp_path, example={"input_ids": TOKENS})
    assert same_parameters(other, model)


# --- the example -----------------------------------------------------------------------------------------


def test_the_example_runs_and_grows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "huggingface_trainer.py"))
    callback = example["main"](60, tmp_path)
    widths = callback.grower.widths
    assert min(size for name, size in widths.items() if "mlp" in name) >= 8 and len(callback.grower.history.events) > 0
    assert "the config describes the grown model:" in capsys.readouterr().out
