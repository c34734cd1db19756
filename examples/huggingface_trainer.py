"""A small language model learns the mean of two numbers, and grows while the Trainer of Transformers trains it.

It starts with 8 neurons in each feed-forward layer; `need` adds as many as it has a use for. Run it from anywhere:

    pip install 'torch-neurogenesis[huggingface]'
    python examples/huggingface_trainer.py
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch.utils.data import Dataset, random_split
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from neurogenesis.integrations.huggingface import GrowerCallback, from_pretrained, save_pretrained

NUMBERS = 31


class Means(Dataset[dict[str, torch.Tensor]]):
    """All pairs of numbers and their mean, rounded down, as the tokens a, b, c; only c is to be predicted."""

    def __len__(self) -> int:
        return NUMBERS**2

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        a, b = divmod(index, NUMBERS)
        tokens = torch.tensor([a, b, (a + b) // 2])
        return {"input_ids": tokens, "labels": torch.tensor([-100, -100, int(tokens[2])])}


def main(steps: int, directory: Path) -> GrowerCallback:
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=NUMBERS,
            hidden_size=32,
            intermediate_size=8,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=4,
        )
    )
    train, test = random_split(Means(), [0.9, 0.1], torch.Generator().manual_seed(0))
    callback = GrowerCallback("need", max_width=256)
    arguments = TrainingArguments(
        str(directory),
        max_steps=steps,
        per_device_train_batch_size=128,
        learning_rate=1e-2,
        weight_decay=0.1,
        logging_steps=max(1, steps // 10),
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(model, arguments, train_dataset=train, eval_dataset=test, callbacks=[callback])
    trainer.train()
    assert callback.grower is not None
    print("widths:", callback.grower.widths)
    print("loss on pairs it has not seen:", round(trainer.evaluate()["eval_loss"], 3))

    described = save_pretrained(model, directory / "grown")
    print("the config describes the grown model:", described)
    again = from_pretrained(LlamaForCausalLM, directory / "grown")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    return callback


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400)
    with TemporaryDirectory() as temporary:
        main(parser.parse_args().steps, Path(temporary))
