"""Grow a network in two processes: torchrun --standalone --nproc-per-node 2 examples/distributed.py"""

from __future__ import annotations

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import neurogenesis as ng


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    digits = load_digits()
    images, labels = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    dataset = TensorDataset(images, labels)
    sampler = DistributedSampler(dataset, seed=0)
    loader = DataLoader(dataset, batch_size=32, sampler=sampler)

    network = nn.Sequential(nn.Linear(64, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 10))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    grower = ng.Grower(model, optimizer, "need", max_width=256)
    for epoch in range(5):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            grower.step()
    accuracy = (model(images).argmax(1) == labels).float().mean()
    if dist.get_rank() == 0:
        print(f"{grower.widths}, {100 * accuracy:.1f} % of the digits it was trained on")
        ng.save("distributed.pt", model, optimizer, grower)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
