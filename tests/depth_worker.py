"""What two processes do in the test of distributed depth; run by torchrun."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import neurogenesis as ng
from tests.stacks import Language


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())  # each has its own batches
    model = Language(2)
    wrapped, optimizer = DistributedDataParallel(model), torch.optim.AdamW(model.parameters(), 0.01)
    grower = ng.Grower(model, optimizer, "static", depth=ng.Deepening(4, at=2))
    for _ in range(5):
        optimizer.zero_grad()
        wrapped(torch.randint(11, (4, 6))).square().mean().backward()
        optimizer.step()
        grower.step()
    own = torch.cat([each.detach().flatten() for each in model.parameters()])
    both = [torch.empty_like(own) for _ in range(2)]
    dist.all_gather(both, own)
    if dist.get_rank() == 0:
        moved = bool(model.blocks[1].mlp[2].weight.any())
        results = {"equal": torch.equal(*both), "blocks": len(model.blocks), "moved": moved}
        torch.save(results, Path.cwd() / "results.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
