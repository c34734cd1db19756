"""Whether gradients are being accumulated, so that the step of a wrapped optimizer has done nothing."""

from __future__ import annotations

import sys


def accumulating() -> bool:
    """Whether Accelerate, if it is in use, is between two gradient steps.

    All its accelerators share this state, so a `Grower` knows it whether it was created before or after `prepare`.
    """
    module = sys.modules.get("accelerate.state")
    if module is None or not module.GradientState._shared_state:
        return False
    return not module.GradientState().sync_gradients
