"""Records of the training passes between two gradient steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from ..layer import Layer
from ..passes.buffers import Buffer
from ..passes.processes import ALONE, Processes
from ..passes.replay import ModelCall
from ..passes.samples import Samples
from ..passes.taps import Taps
from ..structure.examples import tensors_in
from ..structure.wrappers import active_wrapper, wrappers_of
from .compute import Compute
from .settings import Settings

APART = "there are several processes, but the model is not wrapped in DistributedDataParallel: each grows its own"
NOT_RUN = (
    "the model has not run in training mode with gradients yet, so its widths are not known: call model.train() before "
    "training, and the model itself rather than its parts or its forward()"
)


@dataclass
class SinceStep:
    """Events since the last call of `Grower.step`."""

    stepped: bool = False  # whether an optimizer has stepped
    forward: int = 0  # training passes
    backward: int = 0  # backward passes that reached the model's outputs
    backward_visible: bool = False  # whether the outputs of the latest pass show a backward pass
    synchronized: bool = True  # whether the gradients of the latest pass are averaged over processes

    @property
    def plain(self) -> bool:
        """Whether this was a gradient step, as far as is known without a look at it."""
        return self.stepped and self.forward > 0

    @property
    def problem(self) -> str | None:
        """Why this was no gradient step that can be looked at; None if it was."""
        if not self.stepped:
            return (
                "no optimizer step since the last call of grower.step(): call it after optimizer.step(), and if you "
                "have replaced the optimizer, tell the grower: grower.optimizers = optimizer"
            )
        if self.forward == 0:
            return (
                "the model has not run in training mode with gradients since the last step, so it cannot be measured: "
                "call model.train() before training"
            )
        if self.backward == 0 and self.backward_visible:
            return "optimizer.step() was called without a backward pass through the model: no growth at this step"
        if not self.synchronized:
            return (
                "the latest pass before optimizer.step() ran inside no_sync(), so gradients were not averaged over "
                "processes: no growth at such steps"
            )
        return None


class Recorder:
    """Records training passes: their inputs, their samples, and the inputs and gradients of widths.

    Args:
        model: the model.
        settings: say whether to keep the inputs of every pass, and whether to count samples.
        buffer: gets the inputs.
        samples: counts the samples.
    """

    def __init__(self, model: nn.Module, settings: Settings, buffer: Buffer, samples: Samples):
        self.model, self.buffer, self.samples = model, buffer, samples
        self.counts_samples, self.keep_inputs = settings.counts_samples, settings.keep_inputs
        self.taps = Taps(model)
        self.since, self.compute = SinceStep(), Compute()
        self.processes: Processes = ALONE
        self._call: ModelCall | None = None  # the latest pass that was recorded
        self._unseen = False  # whether the optimizer has stepped since the last call of `Grower.step`

    @property
    def call(self) -> ModelCall | None:
        """The latest pass that was recorded."""
        return self._call

    def call_of(self, args: Any, kwargs: Any) -> ModelCall:
        """The arguments of a pass that begins, copied if the model or the caller is known to overwrite them."""
        latest = self.buffer.latest or self._call
        if latest is not None and not latest.intact:
            self.buffer.inputs_overwritten = True
        call = ModelCall.of(args, kwargs)
        return call.copied() if self.buffer.inputs_overwritten else call

    def begin_pass(self, call: ModelCall) -> None:
        """Record a training pass that begins."""
        self._call = call
        self.compute.add(call.args, call.kwargs)
        if self.counts_samples:
            self.samples.add(call)
        if self.keep_inputs:
            self.buffer.add(call)
        self.taps.begin_pass(call, copies=self.buffer.inputs_overwritten)
        self._count_pass()

    def end_pass(self, output: Any) -> None:
        """The pass has ended."""
        self.taps.end_pass()
        if self._call is not None and not self._call.intact:
            self.buffer.inputs_overwritten = True  # by the model itself
        # The hook takes time, and whether there was a backward pass matters only if the step is looked at.
        outputs = [tensor for tensor in tensors_in(output) if tensor.requires_grad] if self.taps.wanted else []
        self.since.backward_visible = bool(outputs)
        for tensor in outputs:
            tensor.register_hook(self._on_backward)  # type: ignore[no-untyped-call]

    def count_pass(self, args: Any, kwargs: Any) -> None:
        """Count a pass of which nothing is recorded but its samples, as long as these are not known."""
        self.since.backward_visible, self.since.synchronized = False, True
        self.compute.add(args, kwargs)
        self._count_pass()
        if self.counts_samples and not self.samples.known:
            self.samples.add(ModelCall.of(args, kwargs))

    def add_compiled_pass(self, inputs: Sequence[Tensor]) -> None:
        """Record a pass that runs compiled; arguments other than tensors are those of the last eager pass."""
        self._count_pass()
        self.compute.add(inputs, {})
        self.since.backward_visible = False
        like = self._call
        if self.keep_inputs and like is not None and len(like.tensors) == len(inputs):
            copies = [tensor.clone() for tensor in inputs]  # the graph may reuse their memory
            self.buffer.add(like.with_tensors(copies))

    def join_processes(self, shared: Mapping[str, Any]) -> Processes | None:
        """Record as one of the processes of the `DistributedDataParallel` that runs the model; None if that is known.

        Raises an error in all of them if one does not take part, or if they differ in what is `shared`.
        """
        wrapper = active_wrapper(self.model)
        if wrapper is None:
            return None
        self.since.synchronized = wrapper.require_backward_grad_sync
        found = Processes(wrapper.process_group)
        if found.count == 1 or found == self.processes:
            return None
        found.meet(
            "a Grower watches the model in process {here}, but none has seen a training pass in process {others}: "
            "create it in every process"
        )
        shapes = [(name, tuple(own.shape)) for name, own in self.model.named_parameters()]
        found.check_same({**shared, "shapes of parameters": shapes})
        self.processes = found
        self.buffer.join(found)
        self.taps.join(found)
        self.samples.join(found)
        return found

    def optimizer_stepped(self) -> None:
        """An optimizer has stepped."""
        self.since.stepped = self._unseen = True
        self.taps.optimizer_stepped()

    def watch(self, layers: Sequence[Layer], norms: bool) -> None:
        """Record the inputs and gradients of layers, and the norms of their weights' gradients if asked for."""
        self.taps.watch([each for layer in layers if layer.records_gradients for each in layer.records], norms=norms)

    def begin_step(self, samples: Any = None) -> None:
        """`Grower.step` is called, perhaps with the numbers of the samples in the latest passes."""
        self._unseen = False
        if samples is not None and self.counts_samples and self.since.forward:
            self.samples.identify(samples)

    def end_step(self) -> None:
        """A gradient step at which nothing was looked at has ended."""
        self.since = SinceStep()
        self.samples.end_step()

    def take(self) -> SinceStep:
        """Events since the last step; counting begins again."""
        taken, self.since = self.since, SinceStep()
        return taken

    def start_step(self) -> None:
        """Forget what has happened since the last step."""
        self.taps.clear()
        self.since, self._unseen = SinceStep(), False

    def clear(self) -> None:
        """Clear what was recorded of the passes since the last step."""
        self.taps.clear()
        self.samples.end_step()

    def start_again(self) -> None:
        """Forget all widths and inputs."""
        self.taps.clear()
        self.taps.watch(())
        self.taps.want(frozenset())
        self._call = None
        self.buffer.forget_widths()

    def remove(self) -> None:
        self.taps.remove()
        self.buffer.clear()
        self._call = None

    def _count_pass(self) -> None:
        self.since.forward += 1
        if self._unseen:
            self._unseen = False
            self.processes.miss()

    def _on_backward(self, gradient: Tensor) -> None:
        self.since.backward += 1


def apart(model: nn.Module) -> bool:
    """Whether there are several processes, but the model trains in each of them alone."""
    several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    return several and not wrappers_of(model)
