"""The entries of a safetensors header in the form in which the library writes it, taken out of its
text as columns.

Such a text has no space, its entries are in the order of offsets, and names are printable ASCII
without escapes:

    {"__metadata__":{...},"NAME":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},...}

Cutting it at its brackets takes half as long as `json.loads`, which makes a dict and two lists for
each tensor. Every other text is for the general parser, and so is every text with anything wrong in
it: here each character is accounted for, or the answer is None.
"""

from __future__ import annotations

import json
import re
from itertools import accumulate, repeat
from operator import itemgetter

from .strict_json import MAX_INTEGER
from .tensor import BITS, Tensor

METADATA = "__metadata__"
PLAIN = bytes(c for c in range(32, 127) if c not in b'"\\')
"""Characters that a JSON string holds as they are, and that a terminal shows."""
_DIGITS = b"0123456789"
_LEAST = len('"":{"dtype":"F4","shape":[],"data_offsets":[0,0]}')
_OFFSETS = ',"data_offsets":['
_START = f'{{"{METADATA}":'
MAX_AXES = 64
"""Axes of a shape that is looked at here: the product of more could be a number of any length."""
_SIZE = "(?:0|[1-9][0-9]{0,18})"
_KIND = re.compile(
    rf'"dtype":"([A-Z0-9_]+)","shape":\[((?:{_SIZE}(?:,{_SIZE}){{0,{MAX_AXES - 1}}})?)'
)
_pairs = json.JSONDecoder(object_pairs_hook=list).raw_decode
_DTYPE, _SHAPE, _NBYTES = map(itemgetter, (0, 1, 2))
Kind = tuple[str, tuple[int, ...], int]
"""Dtype, shape, and bytes of such a tensor."""
_DTYPES = {dtype: dtype for dtype in BITS}
"""The names as one object each: a text has a copy for each tensor."""


class _Kinds(dict[str, Kind]):
    """What the text of dtype and shape says, for each text once.

    Raises:
        ValueError: not exactly of that form, or no such tensor can be.
    """

    def __missing__(self, text: str) -> Kind:
        match = _KIND.fullmatch(text)
        if match is None or match[1] not in BITS:
            raise ValueError(text)
        shape = tuple(map(int, match[2].split(","))) if match[2] else ()
        bits = BITS[match[1]]
        for d in shape:
            bits *= d
        if bits % 8 or max(shape, default=0) > MAX_INTEGER:
            raise ValueError(text)
        kind = self[text] = _DTYPES[match[1]], shape, bits // 8
        return kind


def columns(
    raw: bytes, file: str, payload: int, nbytes: int
) -> tuple[list[Tensor], dict[str, str]] | None:
    """Tensors in offset order, and metadata; None unless the whole header has this form and is
    sound, names being different and payloads covering the file.

    Args:
        raw: the JSON without its padding.
        file: name for the tensors.
        payload: position in the file where payloads begin.
        nbytes: size of the file.
    """
    # a tab is put in below, so there must be none before
    sound = raw.startswith(b"{") and raw.endswith(b"]}}") and raw.isascii()
    if not sound or b"\t" in raw:
        return None
    text = raw.decode("ascii")
    try:
        metadata, start = _metadata(text)
        # brackets in names would cost more memory than the general parser does
        count = text.count("{", start)
        if text.count("]", start) != 2 * count or count * _LEAST > len(text):
            return None
        # for each tensor: `},"NAME":` and a tab, `"dtype":"F32","shape":[2,3`,
        # `,"data_offsets":[0,24`. The tab tells the opening bracket from the closing ones
        pieces = ("}," + text[start:-1]).replace("{", "\t]").split("]")
        del text
        if pieces.pop() != "}" or len(pieces) % 3:
            return None
        names = _names(pieces[0::3])
        kinds = list(map(_Kinds().__getitem__, pieces[1::3]))
        offsets = _offsets(pieces[2::3])
    except (ValueError, RecursionError):
        return None
    del pieces
    if len(set(names)) != len(names) or METADATA in names:
        return None
    sizes = list(map(_NBYTES, kinds))
    ends = list(accumulate(sizes))
    if offsets[0] != 0 or offsets[1::2] != ends or offsets[2::2] != ends[:-1]:
        return None
    if payload + ends[-1] != nbytes:
        return None
    places = accumulate(sizes, initial=payload)
    nothing = repeat(None)
    rows = zip(
        names, map(_DTYPE, kinds), map(_SHAPE, kinds), repeat(file), places, sizes, nothing, nothing
    )
    # what Tensor(...) does, without a call of Python's for each
    return list(map(tuple.__new__, repeat(Tensor), rows)), metadata


def _metadata(text: str) -> tuple[dict[str, str], int]:
    """The strings of `__metadata__`, where it comes first, and the position of what follows its
    comma; without it, an empty dict and the position behind the first bracket.

    Raises:
        ValueError: not JSON, no object, a key that comes twice, a value that is no string, or an
            escape by number, which may be half of a character; or no comma follows.
    """
    if not text.startswith(_START):
        return {}, 1
    at = len(_START)
    pairs, end = _pairs(text, at)
    if text[at] != "{" or text[end : end + 1] != "," or "\\u" in text[at:end]:
        raise ValueError(METADATA)
    metadata = dict(pairs)
    if len(metadata) != len(pairs) or not set(map(type, metadata.values())) <= {str}:
        raise ValueError(METADATA)
    return metadata, end + 1


def _names(pieces: list[str]) -> list[str]:
    """NAME of each `},"NAME":` and a tab.

    Raises:
        ValueError: a piece has another form.
    """
    # a line feed parts them: it is in no piece if as many as there are seams are used up as seams
    text = "\n".join(pieces)
    names = text[3:-3].split('":\t\n},"')
    odd = text.encode().translate(None, PLAIN)
    if len(names) != len(pieces) or odd != b'"' + b'"\t\n"' * (len(names) - 1) + b'"\t':
        raise ValueError(text[:100])
    if not text.startswith('},"') or not text.endswith('":\t'):
        raise ValueError(text[:100])
    return names


def _offsets(pieces: list[str]) -> list[int]:
    """Begin and end of each `,"data_offsets":[BEGIN,END`, one after the other.

    Raises:
        ValueError: a piece has another form.
    """
    text = "\n".join(pieces)
    if not text.startswith(_OFFSETS):
        raise ValueError(text[:100])
    text = text[len(_OFFSETS) :].replace("\n" + _OFFSETS, ";")
    if text.encode().translate(None, _DIGITS) != b",;" * (len(pieces) - 1) + b",":
        raise ValueError(text[:100])
    numbers: list[int] = json.loads(f"[{text.replace(';', ',')}]")
    return numbers
