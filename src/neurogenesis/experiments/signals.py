"""Ctrl-C and SIGTERM: a run saves its state before it stops."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Interrupted(Exception):
    """A run was stopped by a signal after its state was saved."""


@contextmanager
def collect_signals() -> Iterator[list[int]]:
    """Collect the first SIGINT or SIGTERM in a list instead of stopping; a second signal has its usual effect."""
    received: list[int] = []
    before = {number: handler for number in _STOPPING if (handler := signal.getsignal(number)) is not signal.SIG_IGN}

    def collect(number: int, frame: Any) -> None:
        received.append(number)
        for each, handler in before.items():
            signal.signal(each, handler)

    with _handled_by(collect, *before):
        yield received


@contextmanager
def delay_ctrl_c() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM have their effect only at the end of the block.

    For imports, as some packages swallow KeyboardInterrupt, and for what must not be left halfway.
    """
    received: list[int] = []
    with _handled_by(lambda number, _: received.append(number), *_STOPPING):
        yield
    if received:
        signal.raise_signal(received[0])


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    with _handled_by(interrupt, signal.SIGTERM):
        yield


_STOPPING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def _handled_by(handler: Callable[[int, Any], Any], *numbers: int) -> Iterator[None]:
    """Handle signals in the block, if it is in the main thread: Python allows it there alone."""
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number in numbers} if main else {}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
