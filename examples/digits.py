"""Grow a small network on scikit-learn's handwritten digits while it trains.

python examples/digits.py                        # prints widths and accuracy as they grow
python examples/digits.py --figure growth.png    # draws them, beside two networks that do not grow
"""

import argparse

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

import neurogenesis as ng

EPOCHS = 24


def train(size: int, strategy: str, verbose: bool = False) -> list[dict[str, float]]:
    """Train a network of two hidden layers that a strategy grows, up to 30 neurons each."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the network is tiny: one thread is faster than several
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images / 16, labels, test_size=0.25, random_state=0, stratify=labels)
    x, x_test, y, y_test = (torch.tensor(part) for part in parts)
    x, x_test = x.float(), x_test.float()

    model = nn.Sequential(nn.Linear(64, size), nn.ReLU(), nn.Linear(size, size), nn.ReLU(), nn.Linear(size, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    grower = ng.Grower(model, optimizer, strategy, max_width=30, every=22, buffer=512)
    if verbose:
        print("epoch  widths  parameters  training loss  test accuracy")

    records = []
    for epoch in range(1, EPOCHS + 1):
        total = 0.0
        for batch in torch.randperm(len(x)).split(64):
            loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            grower.step()  # the loss does not jump: new neurons start unused
            total += loss.item() * len(batch)
        accuracy = (model(x_test).argmax(1) == y_test).double().mean().item()
        first, second = grower.widths.values()
        records.append({"epoch": epoch, "accuracy": accuracy, "first": first, "second": second})
        if verbose and epoch % 2 == 0:
            parameters = sum(parameter.numel() for parameter in model.parameters())
            shown = f"{first}-{second}"
            print(f"{epoch:5}  {shown:6}  {parameters:10}  {total / len(x):13.4f}  {accuracy:13.1%}")
    if verbose:
        print("\nwhat grew, when and why (metric against threshold):")
        print("\n".join(map(str, list(grower.history)[:8])), f"\n... {len(grower.history)} in all")
    return records


def draw(path: str) -> None:
    import matplotlib.pyplot as plt

    runs = {
        "grown from 2-2 by NORTH-Select": ("tab:green", 2.4, train(2, "north-select")),
        "30-30 from the start": ("0.45", 1.2, train(30, "static")),
        "2-2 all the time": ("0.75", 1.2, train(2, "static")),
    }
    figure, (top, bottom) = plt.subplots(2, sharex=True, figsize=(7, 4.6), height_ratios=(2, 1), layout="constrained")
    for label, (color, width, records) in runs.items():
        epochs = [record["epoch"] for record in records]
        accuracy = [100 * record["accuracy"] for record in records]
        top.plot(epochs, accuracy, color=color, linewidth=width, label=label)
    grown = runs["grown from 2-2 by NORTH-Select"][2]
    for key, style in (("first", "-"), ("second", "--")):
        sizes = [record[key] for record in grown]
        bottom.step([r["epoch"] for r in grown], sizes, style, where="post", color="tab:green", label=f"{key} layer")
    top.set_ylabel("test accuracy (%)")
    top.set_ylim(0, 100)
    bottom.set_ylabel("neurons")
    bottom.set_xlabel("epoch")
    bottom.set_ylim(0)
    bottom.set_xlim(1, EPOCHS)
    for axis in (top, bottom):
        axis.legend(frameon=False, loc="center right" if axis is top else "lower right")
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    figure.savefig(path, dpi=160)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figure", help="draw to this file instead of printing")
    arguments = parser.parse_args()
    if arguments.figure:
        draw(arguments.figure)
    else:
        train(2, "north-select", verbose=True)
