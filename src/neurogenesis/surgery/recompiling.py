"""Raise the limits of `torch.compile` after a model is resized, so that there is room for new graphs.

Dynamo keeps the graphs of all sizes and gives up on a function once it has `recompile_limit` graphs: from then on the
function runs eagerly. Graphs of earlier sizes are never used again, so they should not count.
"""

from __future__ import annotations

from typing import Any

import torch

_ROOM = 8  # graphs that every size of a model may have, as many as Dynamo grants a function by default


def renew_recompile_limits() -> None:
    """Raise Dynamo's limits above the number of graphs in use; compiled functions keep their graphs."""
    used = max((len(_graphs(code)) for code in _compiled_functions()), default=0)
    config: Any = torch._dynamo.config
    for name in ("recompile_limit", "accumulated_recompile_limit"):
        if used:
            setattr(config, name, max(getattr(config, name), used + _ROOM))


def _compiled_functions() -> list[Any]:
    seen = torch._dynamo.convert_frame.input_codes.seen
    return [code for code in (reference() for reference in seen) if code is not None]


def _graphs(code: Any) -> list[Any]:
    found: list[Any] = torch._C._dynamo.eval_frame._debug_get_cache_entry_list(code)
    return found
