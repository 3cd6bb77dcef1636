"""The entries of an index in the form in which every tool writes it, taken out of its text.

`"weight_map": {"NAME": "FILE", ...}` holds strings alone, so its text falls into names, files and
two separators at each quote; that takes half as long as `json.loads` with a search for keys that
come twice. The separators are all alike, whatever white space they have. Texts with escapes,
anything but printable ASCII, or anything wrong are for the general parser: here each character is
accounted for, or the answer is None.
"""

from __future__ import annotations

import re
from itertools import islice
from operator import lt
from typing import Any, NamedTuple

from . import strict_json
from .header_text import PLAIN

_KEY = '"weight_map"'
_HEAD = re.compile(rf"{_KEY}[ \t\n\r]*:[ \t\n\r]*\{{")
_WHITE = " \t\n\r"
_CHUNK = 1 << 18
"""Characters that are taken apart at once, so that the pieces stay in the processor's cache."""


class Entries(NamedTuple):
    """A `weight_map` in columns.

    Attributes:
        names: of tensors, all different, in the order of the text.
        files: of each, one object for each different name.
        rest: the whole object, with `weight_map` empty.
    """

    names: list[str]
    files: list[str]
    rest: dict[str, Any]


def entries(text: str) -> Entries | None:
    """The entries of an index; None unless nothing is wrong and the form is the usual one.

    Args:
        text: as `strict_json.decode` returned it.
    """
    head = _HEAD.search(text)
    if head is None or not text.isascii():
        return None
    start, end = head.end(), text.find("}", head.end())
    if end < 0:
        return None
    around = text[:start] + text[end:]
    if around.count(_KEY) != 1:
        return None
    rest, faults = strict_json.parse(around)
    if faults or type(rest) is not dict or rest.get("weight_map") != {}:
        return None
    names: list[str] = []
    files: list[str] = []
    known: dict[str, str] = {}
    while start < end:
        cut = text.find('",', min(start + _CHUNK, end), end)
        cut = end if cut < 0 else cut + 2
        found = _pairs(text[start:cut], last=cut == end)
        if found is None:
            return None
        names += found[0]
        files += map(known.setdefault, found[1], found[1])
        start = cut
    ascending = all(map(lt, names, islice(names, 1, None)))
    if not names or not (ascending or len(set(names)) == len(names)):
        return None
    return Entries(names, files, rest)


def _pairs(text: str, last: bool) -> tuple[list[str], list[str]] | None:
    """Names and files of `"NAME": "FILE", ...`, with a comma at the end unless it is the last."""
    pieces = text.split('"')
    count, left = divmod(len(pieces), 4)
    names, files = pieces[1::4], pieces[3::4]
    colons, commas = pieces[2::4], pieces[4::4]
    if left != 1 or not count or pieces[0].strip(_WHITE):
        return None
    if colons[0].strip(_WHITE) != ":" or colons.count(colons[0]) != count:
        return None
    if commas.pop().strip(_WHITE) != ("" if last else ","):
        return None
    if commas and (commas[0].strip(_WHITE) != "," or commas.count(commas[0]) != count - 1):
        return None
    for texts in (names, dict.fromkeys(files)):
        odd = "\n".join(texts).encode().translate(None, PLAIN)
        if odd != b"\n" * (len(texts) - 1):
            return None
    return names, files
