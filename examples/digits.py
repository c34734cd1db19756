"""Grow a small network on scikit-learn's handwritten digits while it trains."""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

import neurogenesis as ng

torch.manual_seed(0)
torch.set_num_threads(1)  # the network is tiny: one thread is faster than several
images, labels = load_digits(return_X_y=True)
split = train_test_split(images / 16, labels, test_size=0.25, random_state=0, stratify=labels)
x, x_test, y, y_test = (torch.tensor(part) for part in split)
x, x_test = x.float(), x_test.float()

model = nn.Sequential(nn.Linear(64, 2), nn.ReLU(), nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
widths = ng.widths(model, x[:1])
print(widths, end="\n\n")

print("epoch  widths   parameters  training loss  test accuracy")
for epoch in range(1, 41):
    total = 0.0
    for batch in torch.randperm(len(x)).split(64):
        loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(batch)
    if epoch % 2 == 0:
        accuracy = (model(x_test).argmax(1) == y_test).double().mean().item()
        sizes = "-".join(str(width.size) for width in widths.growable)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        print(f"{epoch:5}  {sizes:7} {parameters:11}  {total / len(x):13.4f}  {accuracy:13.1%}")
    if epoch % 4 == 0 and epoch <= 28:
        ng.grow(model, "0", 4, optimizer=optimizer)  # the loss does not jump: new neurons start unused
        ng.grow(model, "2", 2, optimizer=optimizer)
