import pytest
import torch
from hypothesis import settings

import tests.torchvision_shim  # noqa: F401  before anything imports torchvision

# The same examples in every run; `make test-long` looks for new ones.
settings.register_profile("reproducible", deadline=None, derandomize=True)
settings.load_profile("reproducible")


@pytest.fixture(autouse=True)
def reproducible() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
