"""Lets torchvision, timm and what imports them run beside a CPU build of torch.

Registries may hold torchvision as a CUDA build, whose operators do not load then. Classification models
need none of them, but importing torchvision fails unless two are at least declared. Import this first.
"""

import torch

_library = torch.library.Library("torchvision", "FRAGMENT")  # declarations live as long as this reference
for _name in ("nms", "qnms"):
    _library.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
