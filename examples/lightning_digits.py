"""Grow a classifier of handwritten digits under a Lightning Trainer, test the best checkpoint, and train on.

Run it with `python examples/lightning_digits.py`; it takes a few seconds. It needs lightning and scikit-learn.
"""

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset, random_split

from neurogenesis.integrations.lightning import GrowerCallback, resize_to_checkpoint


class Classifier(L.LightningModule):
    on_load_checkpoint = resize_to_checkpoint  # so that load_from_checkpoint finds room for what has grown

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 10))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        images, labels = batch
        return cross_entropy(self.net(images), labels)

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        images, labels = batch
        self.log("accuracy", (self.net(images).argmax(1) == labels).float().mean())

    test_step = validation_step

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def loaders() -> tuple[DataLoader[tuple[Tensor, ...]], DataLoader[tuple[Tensor, ...]]]:
    digits = load_digits()
    images, labels = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    training, held_out = random_split(TensorDataset(images, labels), [0.8, 0.2])
    return DataLoader(training, batch_size=128, shuffle=True), DataLoader(held_out, batch_size=512)


def trainer(epochs: int, *callbacks: L.Callback) -> L.Trainer:
    logger = CSVLogger("logs")  # or any other: the sizes of widths are among the metrics
    shown = {"enable_progress_bar": False, "enable_model_summary": False}
    return L.Trainer(max_epochs=epochs, callbacks=list(callbacks), logger=logger, log_every_n_steps=10, **shown)


def main() -> None:
    L.seed_everything(1)
    training, held_out = loaders()
    model, growth = Classifier(), GrowerCallback("need", max_width=256)
    saving = ModelCheckpoint("checkpoints", monitor="accuracy", mode="max", save_last=True)
    first = trainer(5, growth, saving)
    first.fit(model, training, held_out)
    print("grown to:", growth.grower.widths)

    (metrics,) = first.test(model, held_out, ckpt_path="best", verbose=False)  # perhaps smaller than the last
    best = Classifier.load_from_checkpoint(saving.best_model_path)
    print(f"the best: {metrics['accuracy']:.3f} with {best.net[0].out_features} and {best.net[2].out_features} neurons")

    resumed, growth = Classifier(), GrowerCallback("need", max_width=256)
    trainer(8, growth, saving).fit(resumed, training, held_out, ckpt_path="checkpoints/last.ckpt", weights_only=True)
    print("goes on:", growth.grower.widths)


if __name__ == "__main__":
    main()
