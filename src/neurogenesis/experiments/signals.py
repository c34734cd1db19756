"""Ctrl-C and SIGTERM: a run saves its state before it stops."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Interrupted(Exception):
    """A run was stopped by a signal after its state was saved."""


@contextmanager
def collect_signals() -> Iterator[list[int]]:
    """Collect the first SIGINT or SIGTERM in a list instead of stopping; a second signal has its usual effect."""
    received: list[int] = []
    if not _in_main_thread():
        yield received
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handlers = {number: handler for number, handler in handlers.items() if handler is not signal.SIG_IGN}

    def restore() -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)

    def collect(number: int, frame: Any) -> None:
        received.append(number)
        restore()

    for number in handlers:
        signal.signal(number, collect)
    try:
        yield received
    finally:
        restore()


@contextmanager
def delay_ctrl_c() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM have their effect only at the end of the block.

    For imports, as some packages swallow KeyboardInterrupt, and for what must not be left halfway.
    """
    if not _in_main_thread():
        yield
        return
    received: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in handlers:
        signal.signal(number, lambda number, _: received.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if received:
        signal.raise_signal(received[0])


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM."""
    if not _in_main_thread():
        yield
        return

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    handler = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)


def _in_main_thread() -> bool:
    """Python allows signal handlers in the main thread only."""
    return threading.current_thread() is threading.main_thread()
