"""Grow a network while it trains, write it as ONNX, and compare the outputs of ONNX Runtime.

python examples/export.py [model.onnx]

Needs `pip install "torch-neurogenesis[export]"`.
"""

import sys

import onnxruntime
import torch
from torch import nn

import neurogenesis as ng

path = sys.argv[1] if len(sys.argv) > 1 else "model.onnx"
torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, 4, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(4 * 16, 8),
    nn.ReLU(),
    nn.Linear(8, 2),
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
grower = ng.Grower(model, optimizer, "north-select", max_width=2.0)

for _ in range(30):
    x = torch.randn(64, 1, 8, 8)
    y = (x.mean((1, 2, 3)) > 0).long()  # whether the image is bright
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    grower.step()

print("widths:", grower.widths)
grower.detach()
model.eval()
torch.onnx.export(model, (x,), path, dynamo=True, verbose=False)

session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
(result,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
print("largest difference:", f"{(torch.from_numpy(result) - model(x)).abs().max():.0e}")
