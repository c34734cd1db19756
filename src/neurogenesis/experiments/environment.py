"""Where a run takes place: what else than its settings a result may depend on."""

from __future__ import annotations

import platform
import subprocess
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import neurogenesis as ng

from .errors import Mistake


def device_of(name: str) -> torch.device:
    """The device of a name; refused if it is not there."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise Mistake(f"--device {name}: {str(error).splitlines()[0]}") from None
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = False  # which picks algorithms by their time, so not the same ones each run
        torch.backends.cudnn.deterministic = True
    return device


def environment(device: torch.device) -> dict[str, Any]:
    """Versions, device, threads and commit: what else a result may depend on."""
    return {
        "neurogenesis": version("torch-neurogenesis"),
        "commit": commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        "threads": torch.get_num_threads(),
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def commit() -> str | None:
    """The commit of the library's source, with a + if files differ from it; None outside of a repository."""
    place = Path(ng.__file__).parent

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=place, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")  # else it is installed within somebody's repository
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "-uno", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
