import pytest
import torch

import tests.torchvision_shim  # noqa: F401  before anything imports torchvision


@pytest.fixture(autouse=True)
def reproducible() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
