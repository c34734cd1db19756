"""Blocks are added under Lightning, the Trainer of Transformers and DistributedDataParallel, and training resumes."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import neurogenesis as ng
from tests.integrations.test_distributed import torchrun
from tests.stacks import Language

TEXT = torch.randint(11, (12, 6), generator=torch.Generator().manual_seed(0))


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    a, b = one.state_dict(), other.state_dict()
    return list(a) == list(b) and all(torch.equal(a[name], b[name]) for name in a)


def test_two_processes_deepen_alike(tmp_path: Path) -> None:
    ran = torchrun(tmp_path, "-m", "tests.depth_worker")
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert torch.load(tmp_path / "results.pt") == {"equal": True, "blocks": 4, "moved": True}


def test_lightning_deepens_and_resumes(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")
    from neurogenesis.integrations.lightning import GrowerCallback

    class Module(lightning.LightningModule):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.net = Language(2)

        def training_step(self, batch: Tensor, number: int) -> Tensor:
            logits = self.net(batch)
            return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten())

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.net.parameters(), 0.01)

    def fit(module: Any, epochs: int, path: str | None = None) -> None:
        callback = GrowerCallback("static", depth=ng.Deepening((3, 5), at=(2, 5)))
        saved = lightning.pytorch.callbacks.ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1)
        trainer = lightning.Trainer(
            max_epochs=epochs, callbacks=[callback, saved], logger=False, accelerator="cpu",
            enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(module, torch.utils.data.DataLoader(TEXT, 4), ckpt_path=path)

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole, resumed = Module(), Module()
        fit(whole, 3)
        assert len(whole.net.blocks) == 5
        fit(resumed, 3, str(tmp_path / "epoch=0.ckpt"))
    assert same(whole, resumed)


def test_the_trainer_of_transformers_deepens_and_resumes(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from neurogenesis.integrations.huggingface import GrowerCallback
    from tests.integrations.test_depth_huggingface import llama

    data = [{"input_ids": each, "labels": each} for each in TEXT]

    def fit(path: str | None = None) -> Any:
        arguments = transformers.TrainingArguments(
            str(tmp_path), max_steps=6, save_steps=3, learning_rate=1e-2, report_to="none", disable_tqdm=True,
            use_cpu=True, per_device_train_batch_size=4,
        )  # fmt: skip
        callback = GrowerCallback("static", depth=ng.Deepening((3, 5), at=(2, 5)))
        model = llama(2)
        transformers.Trainer(model, arguments, train_dataset=data, callbacks=[callback]).train(path)
        return model

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = fit()
        assert len(whole.model.layers) == 5 == whole.config.num_hidden_layers
        resumed = fit(str(tmp_path / "checkpoint-3"))
    assert same(whole, resumed)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("when", ["scheduled", "needed"])
def test_accelerate_deepens_and_resumes(tmp_path: Path, when: Any, parts: int) -> None:
    accelerate = pytest.importorskip("accelerate")
    from accelerate.state import AcceleratorState, GradientState

    from neurogenesis.integrations.accelerate import register_for_checkpointing

    depth = ng.Deepening((3, 5), at=(2, 5)) if when == "scheduled" else ng.Deepening(5, when=when)

    def fit(steps: range, load: bool = False) -> tuple[torch.nn.Module, ng.Grower]:
        AcceleratorState._reset_state(True)
        GradientState._reset_state()
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=parts)
        torch.manual_seed(0)
        model = Language(2)
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        wrapped, stepper, schedule = accelerator.prepare(model, optimizer, schedule)
        grower = ng.Grower(wrapped, stepper, "static", depth=depth)
        register_for_checkpointing(accelerator, grower)
        if load:
            accelerator.load_state(str(tmp_path))
        for step in steps:
            for part in TEXT.roll(step, 0).chunk(parts):
                with accelerator.accumulate(wrapped):
                    logits = wrapped(part)
                    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), part[:, 1:].flatten())
                    accelerator.backward(loss)
                    stepper.step()
                    schedule.step()
                    stepper.zero_grad()
                    grower.step()
            if step == 3 and not load:
                accelerator.save_state(str(tmp_path))
        return model, grower

    whole, first = fit(range(12))
    resumed, second = fit(range(4, 12), load=True)
    assert first.steps == second.steps == 12
    assert when == "needed" or len(whole.blocks) == 5  # type: ignore[arg-type]
    assert same(whole, resumed) and str(first.history) == str(second.history)
    assert first.history.observations == second.history.observations
