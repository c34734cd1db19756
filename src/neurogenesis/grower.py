"""`Grower`: watches a model while it trains and grows it. The one object with state."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from .buffers import Buffer
from .growth import affordable, fitted, look_back, loss_with, refill
from .history import Event, History, Observation
from .initializations import Neurons
from .layers import Layer, NotFinite
from .optimizer_state import Optimizers, as_list, check_optimizers
from .replay import Call
from .strategies import Strategy
from .strategies import strategy as as_strategy
from .structure import named_tensors, unwrapped
from .surgery import Plan, Values, grow
from .taps import Taps
from .tracing import Example
from .triggers import Decision
from .watching import MaxWidth, call_of, choose, example_of, set_maxima, watchable
from .width import Widths, remembered, widths


class Grower:
    """Grows a model while it trains.

    Call `step` after each gradient step. The model, its optimizer and the training loop stay as they are.

    Args:
        model: the model.
        optimizer: the optimizer that trains it, or all of them.
        strategy: a name of `neurogenesis.strategies`, or a `Strategy`.
        example: an input of the model; by default the first batch it is trained on.
        max_width: how wide widths may become: a number of neurons, a float times the present width, or a mapping by
            name.
        max_parameters: how many parameters the model may have.
        every: look at the model at the first gradient step and then at every so many.
        include: patterns of the widths to grow, such as ``["features.*"]``; all by default.
        exclude: patterns of widths not to grow.
        tie: groups of patterns of widths that grow together, as in `neurogenesis.widths`.
        buffer: how many of the latest samples activations are measured on; 1568, or 128 in networks with
            convolutions. Strategies that look at them begin when so many have been seen.
        seed: of everything random in growth. Torch's global random state is never used.
        ema: an averaged copy of the model, grown along.

    Example:
        >>> import torch, neurogenesis as ng
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> optimizer = torch.optim.Adam(model.parameters())
        >>> grower = ng.Grower(model, optimizer, "north-random", max_width=10, buffer=64)
        >>> for _ in range(3):
        ...     model(torch.randn(64, 4)).square().mean().backward()
        ...     optimizer.step()
        ...     events = grower.step()
        >>> grower.widths
        {'0': 10}
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizers,
        strategy: str | Strategy = "north-select",
        *,
        example: Example | None = None,
        max_width: MaxWidth = None,
        max_parameters: int | None = None,
        every: int = 1,
        include: Sequence[str] | None = None,
        exclude: Sequence[str] = (),
        tie: Sequence[str | Sequence[str]] = (),
        buffer: int | None = None,
        seed: int = 0,
        ema: nn.Module | None = None,
    ):
        self.model = unwrapped(model)
        self.optimizers = as_list(optimizer)
        if not self.optimizers:
            raise TypeError("optimizer: expected the optimizer that trains the model")
        check_optimizers(self.model, dict(self.model.named_parameters()), self.optimizers)
        self.strategy = as_strategy(strategy)
        if ema is not None and getattr(self.strategy.initialization, "changes_present_neurons", False):
            raise ValueError(
                f"{self.strategy.initialization} changes present neurons, and does not know those of the average: "
                "leave ema= out and make a new average after growth, or use another initialization"
            )
        for name, number in (("every", every), ("buffer", buffer), ("max_parameters", max_parameters)):
            if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 1):
                raise ValueError(f"{name}: expected a positive integer, not {number!r}")
        present = sum(parameter.numel() for parameter in self.model.parameters())
        if max_parameters is not None and max_parameters < present:
            raise ValueError(f"max_parameters={max_parameters}, but the model has {present} parameters already")
        self.max_width, self.max_parameters, self.every = max_width, max_parameters, every
        self.include = ["*"] if include is None else _patterns(include, "include")
        self.exclude = _patterns(exclude, "exclude")
        self.tie = tie
        self.ema = ema
        self.history = History()
        self.steps = 0  # gradient steps seen
        convolutional = any(isinstance(module, _ConvNd) for module in self.model.modules())
        self.convolutional = convolutional
        self.buffer = buffer or (128 if convolutional else 1568)
        self.generator = torch.Generator().manual_seed(seed)
        self._layers: list[Layer] | None = None
        self._known: Widths | None = None
        self._first: Call | None = None  # what the model was first called with
        self._stepped = False
        self._untrained: dict[str, Tensor] | None = None  # the parameters, until the buffers are full
        self._warned: set[str] = set()
        self._few: set[str] = set()
        self._taps = Taps(self.model, self.buffer, self._attach)
        self._handles = [each.register_step_post_hook(self._optimizer_stepped) for each in self.optimizers]
        if example is not None:
            try:
                self._taps.begin(call_of(example))
            except BaseException:
                self.detach()
                raise

    # --- the beginning -----------------------------------------------------------------------------------

    def _attach(self, call: Call) -> None:
        """Find the widths, and watch those that can grow."""
        known = remembered(self.model)
        if known is None or self.tie or known.differs_from(self.model):
            known = widths(self.model, example_of(self.model, call), tie=self.tie)
        self._known = known
        chosen = choose(known, self.include, self.exclude)
        layers = watchable(self.model, self.strategy, chosen, call, self.convolutional)
        set_maxima(layers, known, self.max_width)
        start = getattr(self.strategy.trigger, "start", None)
        for layer in layers:
            layer.calls = self._taps.calls
            if "activations" in self.strategy.needs:
                whole = getattr(self.strategy.trigger, "metric", None) == "orthogonality" and self.convolutional
                layer.buffer = Buffer(self.buffer, whole)
            if start is not None:
                start(layer)
        self._layers = layers
        self._first = call
        needs = self.strategy.needs
        if "activations" in needs:
            self._untrained = {name: own.detach().clone() for name, own in self.model.named_parameters()}
        self._taps.watch(layers, "activations" in needs, "gradients" in needs)

    # --- every step --------------------------------------------------------------------------------------

    @property
    def widths(self) -> dict[str, int]:
        """The present size of each width that is watched."""
        return {layer.name: layer.size for layer in self._layers or ()}

    @property
    def layers(self) -> list[Layer]:
        """What triggers and initializations see."""
        return list(self._layers or ())

    def step(self, closure: Callable[[], Any] | None = None) -> list[Event]:
        """Look at the model after a gradient step and grow what is due.

        Args:
            closure: runs the model and returns the loss; needed by 'nest' on convolutions.

        Returns:
            What grew; often nothing.
        """
        with torch.no_grad():
            return self._step(closure)

    def _step(self, closure: Callable[[], Any] | None) -> list[Event]:
        if self._layers is None:
            self._warn(
                "the model has not been run in training mode, with gradients, yet: nothing is known of it. Call "
                "model.train(), or pass example="
            )
            return []
        taps = self._taps
        stepped, passes, backwards = self._stepped, taps.passes, taps.backwards
        self._stepped, taps.passes, taps.backwards = False, 0, 0
        events: list[Event] = []
        if not stepped:
            self._warn("no optimizer step since the last step of the grower: nothing is looked at until there is one")
        elif passes == 0:
            self._warn(
                "the model has not been run in training mode, with gradients, since the last step: its activations "
                "are not known"
            )
        elif backwards == 0 and taps.backward_visible:
            self._warn("the optimizer was stepped without a backward pass through the model")
        else:
            self.steps += 1
            if (self.steps - 1) % self.every == 0:
                events = self._look(closure)
        for layer in self._layers:
            layer.pairs.clear()
            layer.gradient_norms.clear()
            if layer.buffer is not None:
                layer.buffer.settle()
        self._thin_out()
        return events

    def _thin_out(self) -> None:
        """Do not record what will have left the buffer before it is looked at."""
        calls = self._taps.calls
        after_the_next = -(self.steps) % self.every  # steps between the next one and the one looked at
        self._taps.wanted = not calls or after_the_next * calls[-1].samples < self.buffer

    def _look(self, closure: Callable[[], Any] | None) -> list[Event]:
        assert self._layers is not None
        for layer in self._layers:
            if layer.buffer is not None and layer.buffer.drop_nonfinite():
                self._start_over(NotFinite(f"activations of {layer.name}"), layer)
                return []
            if layer.pairs and layer.drop_stale():
                self._warn("inputs were overwritten, or widths resized, before the step: its gradients are not used")
        refill(self.model, [layer for layer in self._layers if not layer.up_to_date], self._taps.calls)
        self._look_back()
        self._check_samples()
        needs_loss = getattr(self.strategy.initialization, "needs_loss", None)
        due: list[tuple[Layer, Decision, int]] = []
        for layer in self._layers:
            if layer.full:
                continue
            if needs_loss is not None and closure is None and needs_loss(layer):
                raise TypeError(
                    f"{layer.name}: this strategy must evaluate the loss again: call grower.step(closure) with a "
                    "function that runs the model and returns its loss"
                )
            layer.step = self.steps
            try:
                decision = self.strategy.trigger(layer)
            except NotFinite as error:
                self._start_over(error, layer)
                return []
            decision = decision if isinstance(decision, Decision) else Decision(_whole(decision, layer))
            self.history.observe(
                Observation(self.steps, layer.name, layer.size, decision.metric, decision.threshold, decision.count)
            )
            count = decision.count if layer.maximum is None else min(decision.count, layer.maximum - layer.size)
            if count > 0:
                due.append((layer, decision, count))
        for layer in self._layers:
            layer.untrained = None
        return self._grow(due, closure) if due else []

    def _look_back(self) -> None:
        """As soon as buffers are full, run their samples through the untrained network, for baselines."""
        watched = [layer for layer in self._layers or () if layer.buffer is not None and not layer.full]
        if self._untrained is None or (watched and not any(layer.ready for layer in watched)):
            return
        tensors, self._untrained = self._untrained, None
        if self.steps == 1:
            return  # what the buffers hold is of the untrained network
        if any(tensors[name].shape != own.shape for name, own in self.model.named_parameters()):
            return  # grown by hand meanwhile
        look_back(self.model, [layer for layer in watched if layer.ready], self._taps.calls, tensors)

    def _start_over(self, error: NotFinite, layer: Layer) -> None:
        self._warn(f"{error} are not finite: no growth at such steps", key=layer.name)
        self._taps.calls.clear()  # whatever went wrong came with one of these
        for each in self._layers or ():
            if each.buffer is not None:
                each.buffer.clear()

    def _check_samples(self) -> None:
        """Say once which widths have more neurons than samples: their rank is at most the number of these."""
        few = {
            layer.name: f"{layer.name} ({layer.size} on {layer.buffer.columns})"
            for layer in self._layers or ()
            if layer.buffer is not None and layer.buffer.full and layer.buffer.columns < layer.size
        }
        if news := [text for name, text in few.items() if name not in self._few]:
            self._few |= few.keys()
            warnings.warn(
                "widths with more neurons than samples to measure them on, which bounds their rank: "
                f"{', '.join(news)}; use larger batches or a larger buffer",
                stacklevel=4,
            )

    def _grow(self, due: Sequence[tuple[Layer, Decision, int]], closure: Callable[[], Any] | None) -> list[Event]:
        """Initialize all, on the model as it was in the training pass, then grow one after the other."""
        started = time.perf_counter()
        calls = self._taps.calls
        calls[:] = [call for call in calls if call.intact]
        if not calls and "activations" in self.strategy.needs:
            self._warn("the model's inputs were overwritten before the step: no growth at such steps")
            return []
        self._taps.muted = True
        try:
            news: list[tuple[Layer, Decision, Neurons]] = []
            for layer, decision, count in due:
                also = [(other, own.count) for other, _, own in news]
                count = affordable(self.model, self.max_parameters, layer, count, also)
                if count == 0:
                    continue
                layer.seed = int(torch.randint(2**31, (1,), generator=self.generator))
                layer.loss_with = None if closure is None else loss_with(self.model, layer, closure, self.generator)
                try:
                    neurons = self.strategy.initialization(layer, count, self.generator)  # type: ignore[operator]
                except NotFinite as error:
                    self._start_over(error, layer)
                    return []
                if neurons.why_fewer is not None:
                    self._warn(f"{layer.name}: {neurons.why_fewer}", key=f"{layer.name} fewer")
                if neurons.count:
                    news.append((layer, decision, neurons))
            events = self._apply(news, time.perf_counter() - started)
            sizes = {event.width: event.before for event in events}
            stale = [layer for layer, _, _ in news if layer.full or not layer.extend_buffer(sizes[layer.name])]
            refill(self.model, stale, calls)
            return events
        finally:
            self._taps.muted = False

    def _apply(self, news: Sequence[tuple[Layer, Decision, Neurons]], before: float) -> list[Event]:
        events: list[Event] = []
        done: list[Plan] = []
        for layer, decision, neurons in news:
            started, size = time.perf_counter(), layer.size
            values = {key: fitted(key, value, done) for key, value in neurons.values.items()}

            def given(*_: Any, values: Values = values) -> Values:
                return values

            plan = grow(
                self.model,
                layer.width,
                neurons.count,
                initialization=given,
                optimizer=self.optimizers,
                ema=self.ema,
                generator=self.generator,
            )
            done.append(plan)
            seconds = time.perf_counter() - started + before / len(news)
            event = Event(self.steps, layer.name, size, layer.size, decision.metric, decision.threshold, seconds)
            self.history.events.append(event)
            events.append(event)
        models = [self.model] if self.ema is None else [self.model, getattr(self.ema, "module", self.ema)]
        for tensors in [named_tensors(model) for model in models]:
            for _, _, neurons in news:
                for name, change in neurons.changes.items():
                    tensors[name].add_(fitted((name, -1), change, done).to(tensors[name]))
        return events

    # --- what is kept ------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything that growth goes on from: sizes, baselines, buffers, the random state, the history."""
        layers = {
            layer.name: {
                "initial": layer.initial,
                "memory": dict(layer.memory),
                "buffer": None if layer.buffer is None else layer.buffer.state_dict(),
            }
            for layer in self._layers or ()
        }
        return {
            "strategy": repr(self.strategy),
            "steps": self.steps,
            "layers": layers,
            "untrained": self._untrained,
            "sizes": {width.name: width.size for width in self._known.growable} if self._known else {},
            "generator": self.generator.get_state(),
            "calls": [(call.args, call.kwargs, call.autocast) for call in self._taps.calls],
            "wanted": self._taps.wanted,
            "example": None if self._first is None else (self._first.args, self._first.kwargs, self._first.autocast),
            "history": self.history.state_dict(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state.

        The model is grown to the sizes it had then. Load its own state, and the optimizer's, afterwards.
        """
        if state["strategy"] != repr(self.strategy):
            raise ValueError(f"the state is of another strategy, {state['strategy']}, not {self.strategy!r}")
        calls = [Call.made(*call) for call in state["calls"]]
        if self._layers is None and state["layers"]:
            self._taps.begin(Call.made(*state["example"]))
        mine, theirs = {layer.name for layer in self._layers or ()}, set(state["layers"])
        if mine != theirs:
            raise ValueError(
                f"the state is of other widths: it has {sorted(theirs - mine)} more and lacks {sorted(mine - theirs)}"
            )
        if self._known is not None:
            for name, size in state["sizes"].items():
                width = self._known[name]
                if size < width.size:
                    raise ValueError(f"{name} has size {width.size}, more than the saved {size}: load a smaller model")
            for name, size in state["sizes"].items():
                width = self._known[name]
                if size > width.size:
                    generator = torch.Generator().manual_seed(0)  # the values are loaded over
                    count = size - width.size
                    grow(self.model, width, count, optimizer=self.optimizers, ema=self.ema, generator=generator)
        for layer in self._layers or ():
            saved = state["layers"][layer.name]
            layer.initial = saved["initial"]
            layer.memory = dict(saved["memory"])
            if layer.buffer is not None and saved["buffer"] is not None:
                layer.buffer.load_state_dict(saved["buffer"])
        if self._known is not None:
            set_maxima(self._layers or (), self._known, self.max_width)
        self._untrained = state["untrained"]
        self.steps = state["steps"]
        self.generator.set_state(state["generator"].cpu())  # wherever the rest was loaded to
        self._taps.calls[:] = calls
        self._taps.wanted = state["wanted"]
        self.history.load_state_dict(state["history"])

    def detach(self) -> None:
        """Take every hook off the model and the optimizer. The model stays as it has grown."""
        self._taps.remove()
        for handle in self._handles:
            handle.remove()
        self._handles = []

    # --- small things ------------------------------------------------------------------------------------

    def _optimizer_stepped(self, *_: Any) -> None:
        self._stepped = self._taps.fresh = True

    def _warn(self, message: str, key: str | None = None) -> None:
        if (key or message) not in self._warned:
            self._warned.add(key or message)
            warnings.warn(message, stacklevel=4)


def _patterns(given: Sequence[str], what: str) -> list[str]:
    if isinstance(given, str):
        raise TypeError(f"{what}: expected a list of patterns, such as [{given!r}]")
    return list(given)


def _whole(count: Any, layer: Layer) -> int:
    if isinstance(count, bool) or not hasattr(count, "__index__"):
        raise TypeError(f"{layer.name}: a trigger returns a Decision or an integer, not {count!r}")
    return int(count)
