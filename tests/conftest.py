import os
import signal
from typing import Any

# ruff: noqa: E402
# Before torch is loaded, and for processes that tests start: one thread, or as many as are asked for, and threads that
# wait leave the processor to others. On a busy machine, spinning makes small operations a hundred times slower.
THREADS = int(os.environ.setdefault("OMP_NUM_THREADS", "1"))
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest
import torch
from hypothesis import HealthCheck, settings

import tests.torchvision_shim  # noqa: F401  before anything imports torchvision

# The same examples in every run; `make test-long` looks for new ones.
settings.register_profile("reproducible", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("reproducible")

# The same terminal in every place, for the tests and the commands that they call.
os.environ.update(COLUMNS="80", TERM="xterm")
for _name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
    os.environ.pop(_name, None)

# Shells let what they run in the background ignore Ctrl-C, and so would every process that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


# Files whose tests share processes that take long to start: with --dist loadgroup, one worker runs all tests of each.
# (Marks for that, of pytest-xdist 3.8, have no effect on pytest 9.2.)
TOGETHER = ("tests/integrations/test_distributed.py", "tests/experiments/test_ray.py")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getoption("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::")[0]
            return file if file in TOGETHER else nodeid

    return Scheduling(config, log)


@pytest.fixture(autouse=True)
def reproducible() -> None:
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
