"""The `DistributedDataParallel` wrappers of models, whose reducers must follow when parameters are resized."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.utils import _sync_module_states, _verify_param_shape_across_processes
from torch.nn.parallel import DistributedDataParallel

from .kept import kept_of


def remember_wrapper(model: nn.Module, wrapper: DistributedDataParallel) -> None:
    """Rebuild the reducer of this wrapper from now on whenever the model is resized."""
    if wrapper.mixed_precision is not None:
        raise ValueError(
            "DistributedDataParallel with mixed_precision= keeps copies of parameters, which cannot be resized: use "
            "torch.autocast instead"
        )
    kept_of(model).wrappers.add(wrapper)


def wrappers_of(model: nn.Module) -> list[DistributedDataParallel]:
    """The known wrappers of a model."""
    return list(kept_of(model).wrappers)


def active_wrapper(model: nn.Module) -> DistributedDataParallel | None:
    """The wrapper whose forward is running this model, or a model that contains it."""
    if not dist.is_available() or not dist.is_initialized():
        return None
    wrapper: DistributedDataParallel | None = DistributedDataParallel._get_active_ddp_module()  # type: ignore[no-untyped-call]
    if wrapper is None or wrapper in kept_of(model).wrappers:
        return wrapper
    if all(module is not model for module in wrapper.module.modules()):
        return None
    remember_wrapper(model, wrapper)
    return wrapper


def is_redirected(module: nn.Module) -> bool:
    """Whether this call of a LightningModule is one of its training_step, through DistributedDataParallel."""
    return getattr(vars(module).get("forward"), "__qualname__", "").startswith("_ForwardRedirection.")


def rebuild_reducers(model: nn.Module) -> None:
    """Make wrappers average the gradients of resized parameters, and give all processes the values of the first.

    A reducer holds buffers of the old sizes, and hooks on gradients that parameters no longer get. It is built again as
    in the constructor of the wrapper.
    """
    for each in wrappers_of(model):
        wrapper: Any = each
        wrapper.reducer = None  # frees it, with its hooks
        parameters, sparse = wrapper._build_params_for_reducer()
        _verify_param_shape_across_processes(wrapper.process_group, parameters)
        _sync_module_states(
            wrapper.module, wrapper.process_group, wrapper.broadcast_bucket_size, 0, wrapper.parameters_to_ignore
        )
        names = wrapper._build_debug_param_to_name_mapping(parameters)
        wrapper._ddp_init_helper(parameters, sparse, names, wrapper.static_graph)
        if wrapper.static_graph:
            wrapper._static_graph_delay_allreduce_enqueued = False  # the next pass is the first of the new reducer
            wrapper.reducer._set_static_graph()
            wrapper.logger._set_static_graph()
        for hook, state in wrapper._comm_hooks:
            dist._register_comm_hook(wrapper.reducer, state, hook)  # type: ignore[attr-defined]
