"""Training by the Trainer resumes after classes or a vocabulary grew in it, as if it had not stopped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import neurogenesis as ng

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from neurogenesis.integrations.huggingface import GrowerCallback

TOKENS = torch.randint(20, (64, 6), generator=torch.Generator().manual_seed(1))
NARROW = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 12}


class Enlarging(TrainerCallback):  # type: ignore[misc]
    """Grows an interface by hand in the third step of training."""

    def __init__(self, interface: str):
        self.interface = interface

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        ng.ages.resume(kwargs["optimizer"])  # a GrowerCallback does it, too

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 3:
            example = {"input_ids": TOKENS[:2]}
            ng.grow(kwargs["model"], self.interface, 2, optimizer=kwargs["optimizer"], example=example)


def bert() -> Any:
    torch.manual_seed(0)
    return BertForSequenceClassification(BertConfig(vocab_size=20, max_position_embeddings=16, **NARROW))


def gpt2(tied: bool) -> Any:
    torch.manual_seed(0)
    sizes = {"vocab_size": 20, "n_positions": 16, "n_embd": 8, "n_layer": 2, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, tie_word_embeddings=tied))


# The class of the model, its labels, and the name of the interface.
INTERFACES: dict[str, tuple[Callable[[], Any], Tensor, str]] = {
    "classes": (bert, TOKENS[:, 0] % 2, "output of classifier"),
    "a vocabulary with tied weights": (lambda: gpt2(True), TOKENS, "vocabulary"),
    "a vocabulary": (lambda: gpt2(False), TOKENS, "vocabulary"),
}


def losses(trainer: Trainer) -> list[float]:
    return [each["loss"] for each in trainer.state.log_history if "loss" in each]


@pytest.mark.parametrize("growing", [True, False])
@pytest.mark.parametrize("name", INTERFACES)
def test_training_resumes_after_an_interface_grew_in_it(name: str, growing: bool, tmp_path: Path) -> None:
    make, labels, interface = INTERFACES[name]
    data = [{"input_ids": text, "labels": label} for text, label in zip(TOKENS, labels, strict=True)]

    def start(model: Any) -> Trainer:
        hidden = GrowerCallback("north-random", max_width="3x", buffer=32, every=2)  # grows other widths meanwhile
        options: dict[str, Any] = {"max_steps": 8, "save_steps": 4, "logging_steps": 1, "learning_rate": 1e-2}
        arguments = TrainingArguments(str(tmp_path), **options, report_to="none", disable_tqdm=True, use_cpu=True)
        return Trainer(model, arguments, train_dataset=data, callbacks=[Enlarging(interface), *[hidden] * growing])

    whole = start(make())
    whole.train()
    checkpoint = tmp_path / "checkpoint-4"
    # A fresh model of the class, or with the config of the checkpoint, if there are no sizes beside it.
    again = start(make() if growing else type(whole.model).from_pretrained(checkpoint))
    again.train(resume_from_checkpoint=str(checkpoint))
    assert losses(whole) == losses(again)
    for (own, first), (other, second) in zip(
        whole.model.state_dict().items(), again.model.state_dict().items(), strict=True
    ):
        assert own == other and torch.equal(first, second), own
    for field in ("vocab_size", "num_labels"):
        assert getattr(again.model.config, field) == getattr(whole.model.config, field)
    assert max(whole.model.config.vocab_size - 20, whole.model.config.num_labels - 2) == 2
    states = [list(trainer.optimizer.state.values()) for trainer in (whole, again)]
    for first, second in zip(*states, strict=True):
        assert all(torch.equal(first[key], second[key]) for key in ("step", "exp_avg", "exp_avg_sq"))
