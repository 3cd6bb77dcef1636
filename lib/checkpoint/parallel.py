"""Several requests at a time, their results in order, with a bound on what is held."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

IN_FLIGHT = 16
"""Requests at a time; the code that makes one holds a semaphore of so many."""
AHEAD = 2 * IN_FLIGHT
"""Threads, and results that may wait for their turn: while some parse, others' requests run."""


def in_order(
    function: Callable[[T], R], items: Iterable[T], wait: Callable[[Future[R]], R]
) -> Iterator[R]:
    """`function(item)` of all items in their order, AHEAD of them at a time.

    At most so many results are held. After one that raises no other is started; those that run are
    left to themselves, in threads that do not keep the process.

    Args:
        wait: gives the result of a future, or gives up.
    """
    todo: SimpleQueue[tuple[Future[R], T] | None] = SimpleQueue()
    held: deque[Future[R]] = deque()
    threads = 0

    def work() -> None:
        while (job := todo.get()) is not None:
            settle(job[0], lambda item=job[1]: function(item))  # type: ignore[misc]

    try:
        for item in items:
            if len(held) == AHEAD:
                yield wait(held.popleft())
            held.append(Future())
            todo.put((held[-1], item))
            if threads < IN_FLIGHT:
                threads += 1
                threading.Thread(target=work, daemon=True).start()
        while held:
            yield wait(held.popleft())
    finally:
        for future in held:
            future.cancel()
        for _ in range(threads):
            todo.put(None)


def start(function: Callable[[], T]) -> Future[T]:
    """The result to come of a function that runs in a thread of its own."""
    future: Future[T] = Future()
    threading.Thread(target=settle, args=(future, function), daemon=True).start()
    return future


def settle(future: Future[T], function: Callable[[], T]) -> None:
    """Give a future its result, unless it was cancelled."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(function())
    except BaseException as e:
        future.set_exception(e)
