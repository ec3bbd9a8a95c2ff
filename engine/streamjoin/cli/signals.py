"""Ctrl-C and SIGTERM, which ask a command to end."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def on_signals(answer: Callable[[], object], *, once: bool = False) -> Iterator[None]:
    """Answer them as long as this lasts, where they can be heard: in the main thread. ``once``: the second one has its usual effect."""
    signals = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.getsignal(number) for number in signals}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def answered(number: int, frame: object) -> None:
        if once:
            restore()
        answer()

    for number in signals:
        signal.signal(number, answered)
    try:
        yield
    finally:
        restore()
