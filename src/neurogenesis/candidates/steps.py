"""Windows after a gradient step, in all processes: its passes are checked, wait, and are recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

import torch
from torch import nn

from ..passes.processes import ALONE, Processes, summed
from ..passes.records import NotFinite
from .looks import Pass, Recorded, Run, Waiting
from .together import can_be_together, recorded_together
from .windows import Window

MOST_READY = 2**18  # numbers of passes that are ready: of large passes, little time is saved


class Look(NamedTuple):
    """A look at a width after a gradient step.

    Args:
        name: the width.
        window: its window so far.
        consumers: the consumers of the width.
        passes: gives the passes since the last step, in this process, for each consumer.
        run: runs the candidates in recorded passes.
        last: whether a window ends with this look.
    """

    name: str
    window: Window
    consumers: Sequence[nn.Module]
    passes: Callable[[], Sequence[Sequence[Pass | Recorded]]]
    run: Run
    last: Callable[[Window], bool]


def windows_after(looks: Sequence[Look], processes: Processes) -> list[Window]:
    """The windows after a step, with copies of the passes that wait."""
    return [window for group in processes.at_once(looks) for window in _windows_after(group, processes)]


def _windows_after(looks: Sequence[Look], processes: Processes) -> list[Window]:
    consumers = [look.consumers for look in looks]
    before = {look.name: look.window for look in looks}
    after = after_look(before, consumers, [look.passes() for look in looks], processes)
    due = []
    for number, (look, window) in enumerate(zip(looks, after, strict=True)):
        if not window.looks:
            continue
        last = look.last(window)
        many = last or window.numbers > MOST_READY
        if processes.count == 1 and window.due(look.consumers, last=False):
            window = (window if many else window.with_copies(look.window)).put_off
        if many:
            window = ready_recorded(window, look.consumers, look.run)
        if window.waiting.looks and window.due(look.consumers, last):
            window = window.completed(look.run)
            due.append(number)
        after[number] = window
    found = record_waiting([after[number] for number in due], [consumers[number] for number in due], processes)
    for number, window in zip(due, found, strict=True):
        after[number] = window
    return [window.with_copies(old) for old, window in zip(before.values(), after, strict=True)]


def with_kept(window: Window, consumers: Sequence[nn.Module], passes: Sequence[Sequence[Recorded]]) -> Window | None:
    """A window of a single process with copies of the passes of a step, of which nothing is recorded yet.

    None if something must be, or if they are not finite.
    """
    if not all(each.finite and each.H.numel() for own in passes for each in own):
        return None
    rows = [sum(len(each.H) for each in own) for own in passes]
    items = [sum(each.items for each in own) for own in passes]
    numbers = sum(each.numbers for own in passes for each in own)
    copies = [[each.copied() for each in own] for own in passes]
    window = replace(window, waiting=window.waiting.after(copies, rows, items, numbers))
    if window.numbers > MOST_READY:
        return None
    return window.put_off if window.due(consumers, last=False) else window


def ready_recorded(window: Window, consumers: Sequence[nn.Module], run: Run) -> Window:
    """The window after what is ready in it was recorded: all groups of steps at once, or one after the other."""
    if not window.ready:
        return window
    whole = window.with_only(Waiting.of_all(window.ready)).completed(run)
    parts = [_groups(own, window.ready, place) for place, own in enumerate(whole.complete)]
    if all(map(can_be_together, consumers, parts)):
        return window.after_ready(whole.with_records(list(map(recorded_together, window.records, consumers, parts))))
    recorded = window
    for number, group in enumerate(window.ready):
        completed = group._replace(passes=tuple(own[number] for own in parts))
        (recorded,) = record_waiting([recorded.with_only(completed)], [consumers])
    return window.after_ready(recorded)


def _groups(
    steps: Sequence[tuple[Pass, ...]], groups: Sequence[Waiting], place: int
) -> list[tuple[tuple[Pass, ...], ...]]:
    """The steps at a consumer, by group."""
    given = iter(steps)
    return [tuple(islice(given, len(group.passes[place]))) for group in groups]


def after_look(
    windows: Mapping[str, Window],
    consumers: Sequence[Sequence[nn.Module]],
    passes: Sequence[Sequence[Sequence[Pass | Recorded]]],
    processes: Processes = ALONE,
) -> list[Window]:
    """Windows with the passes of a step, which wait to be recorded. Several processes communicate once.

    Consumers without passes in some process do not count, nor does the step if there are no others. `NotFinite` is
    raised in all processes if an entry of one is not finite.

    Args:
        windows: the windows, by the name of the width.
        consumers: the consumers of each window.
        passes: the passes of this process, for each window and consumer.
        processes: the processes.
    """
    own: list[int] = []
    for modules, of_window in zip(consumers, passes, strict=True):
        for module, found in zip(modules, of_window, strict=True):
            own += [bool(found), sum(each.rows(module) for each in found), sum(each.items for each in found)]
        every = [each for found in of_window for each in found]
        own += [sum(each.numbers for each in every), not all(each.finite for each in every)]
    (sums,) = processes.sums([torch.tensor(own, dtype=torch.float64)])
    totals = map(int, sums.tolist())
    result = []
    for (name, window), of_window in zip(windows.items(), passes, strict=True):
        counts = []
        for _ in of_window:
            in_all, *found_counts = next(totals) == processes.count, next(totals), next(totals)
            counts.append(found_counts if in_all else [0, 0])
        rows, items = zip(*counts, strict=True)
        numbers, problems = next(totals), next(totals)
        if problems:
            raise NotFinite(f"activations or gradients of {name}")
        waiting = window.waiting.after(of_window, rows, items, numbers)
        result.append(replace(window, waiting=waiting) if any(rows) else window)
    return result


def record_waiting(
    windows: Sequence[Window], consumers: Sequence[Sequence[nn.Module]], processes: Processes = ALONE
) -> list[Window]:
    """Windows with new fits and the gradients of the passes that were waiting.

    Several processes communicate a few times, however many windows there are.

    Args:
        windows: the windows, with candidates run in their passes.
        consumers: the consumers of each window.
        processes: the processes.
    """
    updates = {
        (number, place): record.after(consumer, window.complete[place])
        for number, window in enumerate(windows)
        for place, (record, consumer) in enumerate(zip(window.records, consumers[number], strict=True))
        if window.waiting.passes[place]
    }
    found = dict(zip(updates, summed(list(updates.values()), processes), strict=True))
    return [
        window.with_records([found.get((number, place)) for place in range(len(window.records))])
        for number, window in enumerate(windows)
    ]
