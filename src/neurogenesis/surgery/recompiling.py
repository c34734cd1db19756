"""Room for new graphs of `torch.compile` after a model is resized.

Dynamo keeps the graphs of all sizes and gives up on a function once it has `recompile_limit` graphs: from then on the
function runs eagerly. Graphs of earlier sizes are never used again, so they should not count.
"""

from __future__ import annotations

from typing import Any

import torch

_EXTRA = {"recompile_limit": 0, "accumulated_recompile_limit": 0}  # what has been added to the limits


def renew_recompile_limits() -> None:
    """Raise Dynamo's limits by the number of graphs of the function that has most of them, and by no more.

    Nothing else changes: other compiled functions keep their graphs.
    """
    used = max((len(_graphs(code)) for code in _compiled_functions()), default=0)
    config: Any = torch._dynamo.config
    for name, extra in _EXTRA.items():
        if used > extra:
            setattr(config, name, getattr(config, name) + used - extra)
            _EXTRA[name] = used


def _compiled_functions() -> list[Any]:
    seen = torch._dynamo.convert_frame.input_codes.seen
    return [code for code in (reference() for reference in seen) if code is not None]


def _graphs(code: Any) -> list[Any]:
    found: list[Any] = torch._C._dynamo.eval_frame._debug_get_cache_entry_list(code)
    return found
