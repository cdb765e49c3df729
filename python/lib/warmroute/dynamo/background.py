"""Tasks that repeat on a thread of their own."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable

# Longest wait for a task at the end of the interpreter.
_LAST_WAIT = 1.0
_log = logging.getLogger(__name__)
_running: weakref.WeakSet[RepeatedTask] = weakref.WeakSet()


class RepeatedTask:
    """Calls ``task`` every ``interval`` seconds, until it returns False or ``end`` is called."""

    def __init__(self, name: str, interval: float, task: Callable[[], bool]) -> None:
        self._interval = interval
        self._task = task
        self._process = os.getpid()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        _running.add(self)
        self._thread.start()

    def _run(self) -> None:
        due = time.monotonic() + self._interval
        while not self._ended.wait(max(0.0, due - time.monotonic())):
            # As if the last call had taken no time, but without calls that were missed.
            due = max(due + self._interval, time.monotonic())
            try:
                if not self._task():
                    return
            except Exception:
                _log.exception("the task %s failed and is repeated", self._thread.name)

    def end(self) -> None:
        """Lets the task end. A call that runs ends by itself."""
        self._ended.set()

    def is_of_this_process(self) -> bool:
        return self._process == os.getpid()

    def join(self) -> None:
        self._thread.join(_LAST_WAIT)


@atexit.register
def _end_all() -> None:
    # A forked process has none of the threads.
    tasks = [task for task in _running if task.is_of_this_process()]
    for task in tasks:
        task.end()
    for task in tasks:
        task.join()
