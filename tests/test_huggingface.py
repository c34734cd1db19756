"""Networks grow in the Trainer of Transformers and under Accelerate as in any loop, and their checkpoints fit."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
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
    ViTModel,
)

from neurogenesis.integrations.accelerate import register_for_checkpointing
from neurogenesis.integrations.huggingface import GrowerCallback, from_pretrained, save_pretrained, update_config


@pytest.fixture(autouse=True)
def fresh_accelerate() -> Iterator[None]:
    yield
    AcceleratorState._reset_state(True)
    GradientState._reset_state()


SMALL = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}
MLPS = "*.intermediate.dense"


def bert(seed: int = 0, **changes: Any) -> BertForSequenceClassification:
    torch.manual_seed(seed)
    return BertForSequenceClassification(BertConfig(**{**SMALL, "max_position_embeddings": 16, **changes}))


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
    def start(path: Path) -> tuple[Trainer, GrowerCallback]:
        callback = GrowerCallback(strategy, max_width=30, buffer=32)
        return trainer_in(path, callback, max_steps=12), callback

    whole, callback = start(tmp_path)
    whole.train()
    assert callback.grower is not None and len(callback.grower.history.events) > 0
    again, resumed = start(tmp_path)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert same_parameters(whole.model, again.model)
    assert losses(whole) == losses(again)
    assert resumed.grower is not None and resumed.grower.widths == callback.grower.widths
    events = [(event.step, event.width, event.after) for event in callback.grower.history]
    assert [(event.step, event.width, event.after) for event in resumed.grower.history] == events
