"""Where a run is trained: device, versions, commit."""

from __future__ import annotations

import platform
import subprocess
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import neurogenesis as ng

from .errors import UsageError
from .record import Environment

if TYPE_CHECKING:
    import torch


def select_device(name: str) -> torch.device:
    """The device of this name; UsageError if it is not available."""
    import torch

    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UsageError(f"--device {name}: {str(error).splitlines()[0]}") from None
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = False  # selects algorithms by timing them, so they differ between runs
        torch.backends.cudnn.deterministic = True
    return device


def current_environment(device: torch.device, digest: str | None = None) -> Environment:
    """The environment of this process, and the digest of its data."""
    import torch

    return Environment(
        neurogenesis=version("torch-neurogenesis"),
        commit=commit(),
        torch=torch.__version__,
        python=platform.python_version(),
        platform=platform.platform(),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        threads=torch.get_num_threads(),
        data=digest,
        started=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )


def commit() -> str | None:
    """The commit of the library's source, with a + if files were changed; None outside of a repository."""
    directory = Path(ng.__file__).parent

    def git(*arguments: str) -> str:
        command = ["git", *arguments]
        return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")  # fails if it is installed inside another repository
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "-uno", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
