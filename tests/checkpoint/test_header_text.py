"""Headers and indexes taken out of their text, held against the parsers that look at each value.

What the quick readers accept must be what the thorough ones find without a fault, for every text
that is one edit away from a sound one.
"""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ntool.lib.checkpoint import header_entries, header_text, index_text, strict_json
from ntool.lib.checkpoint.header import Header
from ntool.lib.checkpoint.header_text import MAX_AXES

PAYLOAD = 1000
ROWS = {
    "a.0.w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b}1.s": {"dtype": "BF16", "shape": [], "data_offsets": [24, 26]},
    "c:,": {"dtype": "F4", "shape": [0, 7], "data_offsets": [26, 26]},
    "d": {"dtype": "F4", "shape": [2], "data_offsets": [26, 27]},
}
INSERTED = [
    "\t",
    "\n",
    " ",
    '"',
    "\\",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "0",
    "1",
    "-",
    ".",
    "\x7f",
    "é",
]
INSERTED += ["\0", '\\u0041"', '":{', "]},", '"a.0.w":', ',"data_offsets":[', "00", "e0", "null"]


def compact(rows: dict[str, Any]) -> str:
    return json.dumps(rows, separators=(",", ":"))


HEADERS = {
    "plain": compact(ROWS),
    "metadata": compact({"__metadata__": {"format": "pt", "k{": 'x"]'}, **ROWS}),
    "no keys": compact({"__metadata__": {}, **ROWS}),
}


def edits(text: str) -> Iterator[str]:
    """Texts that are one edit away."""
    for i in range(len(text) + 1):
        yield text[:i] + text[i + 1 :]
        yield text[:i] + text[i : i + 2][::-1] + text[i + 2 :]
        for piece in INSERTED:
            yield text[:i] + piece + text[i:]
            yield text[:i] + piece + text[i + 1 :]


def swaps(text: str) -> Iterator[str]:
    """Texts in which two brackets have changed places: their numbers stay right."""
    places = [i for i, c in enumerate(text) if c in "{}[]"]
    for n, i in enumerate(places):
        for j in places[n + 1 :]:
            yield text[:i] + text[j] + text[i + 1 : j] + text[i] + text[j + 1 :]


def thorough(raw: bytes) -> tuple[Any, Any] | None:
    """What the thorough pass finds; None where it finds a fault."""
    header = Header("f", nbytes=PAYLOAD + 27)
    header_entries.fill_with_findings(header, raw, PAYLOAD)
    return None if header.problems else (header.tensors, header.metadata)


@pytest.mark.parametrize("text", HEADERS.values(), ids=HEADERS)
@pytest.mark.parametrize("change", [edits, swaps])
def test_edited_headers(text: str, change: Callable[[str], Iterator[str]]) -> None:
    raw = text.encode("ascii")
    found = header_text.columns(raw, "f", PAYLOAD, PAYLOAD + 27)
    assert found is not None and found == thorough(raw)
    taken = 0
    for edited in change(text):
        raw = edited.encode("utf-8", "surrogatepass")
        found = header_text.columns(raw, "f", PAYLOAD, PAYLOAD + 27)
        if found is not None:
            taken += 1
            assert found == thorough(raw), edited
    # names and metadata may change; it is not that everything is declined
    assert taken > 20 or change is swaps


def test_pieces_that_change_places() -> None:
    """Two of the pieces that brackets make of a text, exchanged or joined."""
    text = HEADERS["plain"]
    pieces = text.split("]")
    for i in range(len(pieces)):
        for j in range(i):
            moved = list(pieces)
            moved[i], moved[j] = moved[j], moved[i]
            joined = list(pieces)
            joined[j] += joined.pop(i)
            for edited in ("]".join(moved), "]".join(joined), "]".join([*joined, ""])):
                raw = edited.encode()
                found = header_text.columns(raw, "f", PAYLOAD, PAYLOAD + 27)
                assert found is None or found == thorough(raw), edited


@pytest.mark.parametrize(
    "entry, nbytes",
    [
        ({"dtype": "U8", "shape": [1] * MAX_AXES, "data_offsets": [0, 1]}, 1),
        ({"dtype": "U8", "shape": [1] * (MAX_AXES + 1), "data_offsets": [0, 1]}, None),
        ({"dtype": "U8", "shape": [2**63 - 1, 0], "data_offsets": [0, 0]}, 0),
        ({"dtype": "U8", "shape": [2**63, 0], "data_offsets": [0, 0]}, None),
        ({"dtype": "F4", "shape": [3], "data_offsets": [0, 1]}, None),
        ({"dtype": "F5", "shape": [1], "data_offsets": [0, 1]}, None),
    ],
)
def test_limits(entry: dict[str, Any], nbytes: int | None) -> None:
    raw = compact({"a": entry}).encode()
    found = header_text.columns(raw, "f", 10, 10 + entry["data_offsets"][1])
    assert (found and found[0][0].nbytes) == nbytes


def test_shapes_of_very_many_axes_take_no_time() -> None:
    """The product of 60,000 sizes is a number of a million digits, made digit by digit."""
    shape = [2**62] * 60_000
    header = Header("f", nbytes=18)
    raw = compact({"a": {"dtype": "U8", "shape": shape, "data_offsets": [0, 8]}}).encode()
    assert not header_entries.fill_sound(header, raw, 10)
    header_entries.fill_with_findings(header, raw, 10)
    assert [p.code for p in header.problems][:1] == ["overflow"]


MAP = {"a.0": "x.safetensors", "b:{,": "y.safetensors", "c": "x.safetensors"}
INDEXES = {
    "indented": json.dumps({"metadata": {"total_size": 7}, "weight_map": MAP}, indent=2),
    "compact": json.dumps({"weight_map": MAP, "metadata": {"a": [1]}}, separators=(",", ":")),
    "not sorted": json.dumps({"weight_map": dict(reversed(MAP.items()))}),
}


@pytest.mark.parametrize("text", INDEXES.values(), ids=INDEXES)
@pytest.mark.parametrize("chunk", [1 << 18, 20])
def test_edited_indexes(text: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_text, "_CHUNK", chunk)
    found = index_text.entries(text)
    assert found is not None
    assert dict(zip(found.names, found.files, strict=True)) == json.loads(text)["weight_map"]
    taken = 0
    for edited in (*edits(text), *swaps(text), text + text):
        found = index_text.entries(edited)
        if found is None:
            continue
        taken += 1
        value, faults = strict_json.parse(edited)
        assert not faults, edited
        assert list(zip(found.names, found.files, strict=True)) == [*value["weight_map"].items()]
        assert found.rest == {**value, "weight_map": {}}
    assert taken > 20


@pytest.mark.parametrize(
    "text",
    [
        '{"a": {"weight_map": {"x": "y"}}, "weight_map": {}}',
        '{"weight_map": {}, "a": {"weight_map": {"x": "y"}}}',
        '{"a": {"weight_map": {"x": "y"}}}',
        '{"weight_map": {"x": "y"}, "weight_map": {}}',
        '{"weight_map": {"x": "y", "x": "y"}}',
        '{"weight_map": {"b": "y", "a": "y", "b": "y"}}',
        '{"weight_map": {"x": "\\u0041"}}',
        '{"weight_map": {"x": "y"}}}',
        '[{"weight_map": {"x": "y"}}]',
        '{"weight_map": {}}',
    ],
)
def test_other_indexes_are_for_the_general_parser(text: str) -> None:
    assert index_text.entries(text) is None


@pytest.mark.parametrize("piece", ["ab]", "ab{", "{]]"])
def test_brackets_in_a_name_take_no_memory(piece: str) -> None:
    """A name that is all brackets would be cut into more pieces than the file has bytes for."""
    name = piece * 300_000
    text = json.dumps(
        {name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, separators=(",", ":")
    )
    tracemalloc.start()
    try:
        assert header_text.columns(text.encode(), "f", PAYLOAD, PAYLOAD + 4) is None
        assert tracemalloc.get_traced_memory()[1] < 3 * len(text)
    finally:
        tracemalloc.stop()
