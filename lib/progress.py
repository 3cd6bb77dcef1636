"""How far a long step is. It is told to whoever listens, by default to nobody.

What takes long opens a step and updates it; whoever runs it (`cli/console.py`, or the process of
the checks) decides what becomes of that. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Protocol, TypeVar

BYTES = "B"
T = TypeVar("T")


class Bar(Protocol):
    """A step that is under way."""

    def update(self, n: int = 1) -> object:
        """`n` more are done; from any thread."""

    def label(self, text: str) -> object:
        """What is being worked on now."""


class NoBar:
    """Tells nothing."""

    def update(self, n: int = 1) -> None:
        """`n` more are done."""

    def label(self, text: str) -> None:
        """What is being worked on now."""

    def close(self) -> None:
        """It is over."""


Listener = Callable[[int | None, str, str], AbstractContextManager[Bar]]
"""(total or None, what is done, unit) -> the step, which ends with the block."""


@contextmanager
def nobody(total: int | None, what: str, unit: str) -> Iterator[Bar]:
    """A step that nobody is told of."""
    yield NoBar()


_listener: ContextVar[Listener] = ContextVar("listener", default=nobody)


def listen(listener: Listener) -> None:
    """From now on tell this one, in this thread and those that take over its context."""
    _listener.set(listener)


def step(total: int | None, what: str, unit: str = BYTES) -> AbstractContextManager[Bar]:
    """A step that may take more than a second; a context manager whose block it is.

    Args:
        total: what there is to do, None where that is not known.
        what: in a word or two.
        unit: `B` for bytes, else the name of what is counted; "" where nothing is.
    """
    return _listener.get()(total, what, unit)


def tracked(
    items: Iterable[T],
    total: int | None,
    what: str,
    unit: str,
    size: Callable[[T], int] | None = None,
) -> Iterator[T]:
    """The items of a step, each done when the next one is asked for.

    Args:
        size: how much an item is, in the unit of `total`; 1 by default.
    """
    with step(total, what, unit) as bar:
        for item in items:
            yield item
            bar.update(1 if size is None else size(item))
