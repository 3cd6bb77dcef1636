"""What a mistyped word may have been meant to be: hints of the form `did you mean 'x'?`.

Standard library only, and loaded by what has failed already.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase

MANY = 2000
"""Words that are compared letter by letter; of more, those that begin or end alike are."""
MAX_ENTRIES = 10_000
"""Names of a folder that are looked at."""
MAX_WORD = 300
SHORT = 3
"""Letters of the shortest word in which one slip is looked for."""
ALIKE = 0.75
"""Least likeness, 0 to 1: half a word that is right by chance is no suggestion."""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The one of `known` that is spelled most like `word`, or None where none is close."""
    if not word or len(word) > MAX_WORD:
        return None
    words = [k for k in known if k != word]
    folded = word.casefold()
    for k in words:
        if k.casefold() == folded:
            return k
    if len(word) >= SHORT:
        for k in words:
            if abs(len(k) - len(word)) <= 1 and _one_slip(word, k):
                return k
    if len(words) > MANY:
        # one slip leaves the beginning or the end of a long name as it is
        part = max(len(word) // 2 - 1, 1)
        head, tail = word[:part], word[-part:]
        words = [k for k in words if k.startswith(head) or k.endswith(tail)]
        words.sort(key=lambda k: abs(len(k) - len(word)))
        del words[MANY:]
    from difflib import get_close_matches

    found = get_close_matches(word, words, 1, ALIKE)
    return found[0] if found else None


def _one_slip(a: str, b: str) -> bool:
    """Whether a letter more, less or other, or two neighbours swapped, make one of the other."""
    if len(a) > len(b):
        a, b = b, a
    at = next((i for i, c in enumerate(a) if c != b[i]), len(a))
    if len(a) < len(b):
        return a[at:] == b[at + 1 :]
    swapped = a[at : at + 2] == b[at : at + 2][::-1] and a[at + 2 :] == b[at + 2 :]
    return a[at + 1 :] == b[at + 1 :] or swapped


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """A hint with the nearest of `known`, or None where none is close."""
    found = nearest(word, known)
    return None if found is None else f"did you mean '{found}'?"


def unmatched(
    options: Mapping[str, Iterable[str] | None], names: Callable[[], Collection[str]]
) -> Iterator[str]:
    """A line for each pattern that matches no tensor.

    Args:
        options: patterns, by the option that they were given with.
        names: of all tensors; asked for only if there are patterns.
    """
    every: Collection[str] | None = None
    for option, patterns in options.items():
        for pattern in patterns or ():
            every = names() if every is None else every
            if any(fnmatchcase(name, pattern) for name in every):
                continue
            plain = not set(pattern) & set("*?[")
            hint = did_you_mean(pattern, every) if plain else None
            yield f"{option} '{pattern}' matches no tensor" + (f"; {hint}" if hint else "")


def near_path(path: str) -> str | None:
    """A hint with the path that a path which is not there may have been meant to be.

    The first part that is not there is compared with its neighbours; what stands behind it has to
    be there then.
    """
    folder, missing, rest = path.rstrip("/"), "", ""
    while folder and not os.path.lexists(folder):
        rest = os.path.join(missing, rest) if missing else rest
        folder, missing = os.path.split(folder)
    if not missing:
        return None
    try:
        with os.scandir(folder or ".") as entries:
            names = [e.name for e, _ in zip(entries, range(MAX_ENTRIES), strict=False)]
    except (OSError, ValueError):
        return None
    hidden = missing.startswith(".")
    found = nearest(missing, sorted(n for n in names if n.startswith(".") == hidden))
    if found is None:
        return None
    meant = os.path.join(folder, found, rest).rstrip("/")
    return f"did you mean '{meant}'?" if os.path.lexists(meant) else None
