"""The GGUF reader: what it keeps of a sound file, what it refuses, and what it tells.

Q49 of the notes on Qwen4-Exp: bounded, and each fault by its name.
"""

from __future__ import annotations

import json
import math
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from ntool.lib.checkpoint import gguf_cursor, gguf_header, gguf_values
from ntool.lib.checkpoint.gguf_header import gguf_header_of, read_gguf
from ntool.lib.checkpoint.tensor import Tensor

from .gguf_files import (
    ARCH,
    ARRAY,
    BIG,
    BOOL,
    F32,
    LITTLE,
    STRING,
    U8,
    U32,
    U64,
    A,
    T,
    found,
    read,
)
from .header_files import InMemory

M = LITTLE


def test_sound_file_and_what_is_kept() -> None:
    pairs = [
        ARCH,
        M.pair("x.count", U32, 7),
        M.pair("x.nan", F32, math.nan),
        M.pair("x.big", U64, 2**64 - 1),
        M.pair("x.on", BOOL, 1),
        M.pair("x.list", ARRAY, (U32, range(20))),
        M.pair("x.bools", ARRAY, (BOOL, [1, 0])),
        M.pair("x.reals", ARRAY, (F32, [1.5, math.inf])),
        M.pair("x.words", ARRAY, (STRING, [f"w{i}" for i in range(20)])),
        M.pair("x.nested", ARRAY, (ARRAY, [(STRING, ["p", "q"]), (U8, [])])),
        M.pair("x.none", ARRAY, (STRING, [])),
    ]
    raw = M.file(pairs, [T("t", (4, 3)), T("q", (64, 2), 8, 2 * 2 * 34), T("s", (1,), 30, 2)])
    got = read(raw)
    base = got.data_offset
    assert base is not None and base % 32 == 0 and got.problems == []
    assert got.tensors == [
        Tensor("t", "F32", (3, 4), "f.gguf", base, 48),
        Tensor("q", "GGUF:Q8_0", (2, 64), "f.gguf", base + 64, 136),
        Tensor("s", "BF16", (1,), "f.gguf", base + 224, 2),
    ]
    nested = {"type": "ARRAY", "length": 2, "head": [
        {"type": "STRING", "length": 2, "head": ["p", "q"]},
        {"type": "UINT8", "length": 0, "head": []},
    ]}  # fmt: skip
    assert got.metadata == {
        "general.architecture": "llama",
        "x.count": 7,
        "x.nan": None,
        "x.big": 2**64 - 1,
        "x.on": True,
        "x.list": {"type": "UINT32", "length": 20, "head": list(range(8))},
        "x.bools": {"type": "BOOL", "length": 2, "head": [True, False]},
        "x.reals": {"type": "FLOAT32", "length": 2, "head": [1.5, None]},
        "x.words": {"type": "STRING", "length": 20, "head": [f"w{i}" for i in range(8)]},
        "x.nested": nested,
        "x.none": {"type": "STRING", "length": 0, "head": []},
    }
    assert got.values["x.list"] == list(range(20))
    assert got.values["x.words"] == gguf_values.Length(20)
    full = read(raw, full=True).metadata
    assert full["x.list"] == list(range(20)) and full["x.words"][-1] == "w19"
    assert full["x.nested"] == [["p", "q"], []] and full["x.reals"] == [1.5, None]
    assert json.loads(json.dumps(full, allow_nan=False)) == full


@pytest.mark.parametrize("version", [2, 3])
def test_big_endian_is_read_and_told(version: int) -> None:
    pairs = [BIG.pair("a.b", ARRAY, (STRING, ["x" * 200, "\u00e9"])), BIG.pair("a.c", U32, 1)]
    got = read(BIG.file(pairs, [T("t", (4, 3))], version=version), full=True)
    assert [(p.code, p.severity) for p in got.problems] == [("big-endian", "info")]
    assert got.big_endian and got.version == version
    assert got.metadata == {"a.b": ["x" * 200, "\u00e9"], "a.c": 1}
    assert [(t.name, t.shape, t.nbytes) for t in got.tensors] == [("t", (3, 4), 48)]


def test_bytes_read_are_counted_and_far_fewer_than_the_payload(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    raw = M.file([ARCH], [T("t", (1 << 31,), 0, 0)])
    with open(path, "wb") as f:
        f.write(raw)
        f.truncate(len(raw) + (4 << 31))
    got = read_gguf(str(path), "m.gguf")
    assert got.problems == [] and got.tensors[0].nbytes == 4 << 31
    assert got.bytes_read == gguf_cursor.BLOCK


def test_header_longer_than_a_block_is_read_to_its_end_only() -> None:
    words = [f"token {i}" for i in range(60_000)]
    pairs = [M.pair("words", ARRAY, (STRING, words)), M.pair("last", U32, 5)]
    file = InMemory(M.file(pairs, [T("t", (1 << 20,))]))
    got = gguf_header_of(nullcontext(file), "f")
    assert got.problems == [] and got.metadata["last"] == 5 and len(got.tensors) == 1
    assert got.data_offset is not None
    assert (
        got.data_offset <= got.bytes_read == file.bytes_read < 1.5 * got.data_offset + (256 << 10)
    )


def cut_name(raw: bytes) -> bytes:
    return raw[: raw.index(b"general.arch") + 5]


B = T("b", (4,))
DEEP: Any = (U8, [1])
for _ in range(8):
    DEEP = (ARRAY, [DEEP])
FAULTS: list[tuple[str, bytes, list[str], list[str], str]] = [
    # id, file, codes of errors, names of sound tensors, words of the first message
    ("empty", b"", ["truncated"], [], "an empty file"),
    ("half of the magic", b"GG", ["truncated"], [], "not a GGUF file"),
    ("magic alone", b"GGUF", ["truncated"], [], "the first 24 bytes"),
    ("reversed magic", b"FUGG" + bytes(40), ["not-gguf"], [], "big-endian"),
    ("web page", b"<!DOCTYPE html>" + bytes(40), ["not-gguf"], [], "HTML"),
    ("other bytes", b"\1\2\3\4" + bytes(40), ["not-gguf"], [], "01 02 03 04"),
    ("version 0", M.file(version=0), ["bad-version"], [], "found 0"),
    ("version 1", M.file(version=1), ["bad-version"], [], "found 1 "),
    ("version 1, big-endian", BIG.file(version=1), ["bad-version"], [], "found 1 "),
    ("version 4", M.file(version=4), ["bad-version"], [], "found 4, expected 2 or 3"),
    ("version 2^32-1", M.file(version=2**32 - 1), ["bad-version"], [], "4294967295"),
    ("counts cut", M.file([ARCH])[:20], ["truncated"], [], "found 20 bytes, expected at least 24"),
    ("key cut", cut_name(M.file([ARCH])), ["truncated"], [], "key 1 of 1"),
    ("last value cut", M.file([ARCH])[:62], ["truncated"], [], "value of 'general.architecture'"),
    ("pairs 2^60", M.file([ARCH], pair_count=2**60), ["bad-header", "bad-key"], [],
     "found 1152921504606846976, expected at most"),
    ("tensors 2^60", M.file([ARCH], [A], tensor_count=2**60), ["truncated"], [], "1152921504606"),
    ("record cut", M.file([ARCH], [A, B])[:130], ["truncated"], [], "record of tensor 2 of 2"),
    ("empty key", M.file([M.pair("", U8, 1)], [A]), ["bad-key"], ["a"], "0 bytes, expected 1"),
    ("long key", M.file([M.pair("k" * 65536, U8, 1)], [A]), ["bad-key"], ["a"], "65536"),
    ("key of letters", M.file([M.pair("clé", U8, 1)], [A]), ["bad-key"], ["a"], "ASCII"),
    ("key with a space", M.file([M.pair("a b", U8, 1)], [A]), ["bad-key"], ["a"], "spaces"),
    ("key not UTF-8", M.file([M.pair(b"\xff", U8, 1)], [A]), ["bad-key"], ["a"], "ff"),
    ("key twice", M.file([ARCH, ARCH], [A]), ["duplicate-key"], ["a"], "general.architecture"),
    ("type of value 13", M.file([M.pair("k", U32, 1)[:9] + b"\x0d" + bytes(7)], [A]),
     ["bad-value"], [], "found 13"),
    ("bool 2", M.file([M.pair("k", BOOL, 2)], [A]), ["bad-value"], ["a"], "found 2, expected 0"),
    ("bools 0 to 3", M.file([M.pair("k", ARRAY, (BOOL, [0, 1, 2, 3]))], [A]),
     ["bad-value"], ["a"], "2 elements are neither"),
    ("string not UTF-8", M.file([M.pair("k", STRING, b"a\xffb")], [A]), ["bad-string"], ["a"], "k"),
    ("strings not UTF-8", M.file([M.pair("k", ARRAY, (STRING, [b"ok", b"\xc3", b"\xa9"]))], [A]),
     ["bad-string"], ["a"], "string 1, from 0, is not UTF-8"),
    # the length 169 (0xa9) would complete the character that 0xc3 begins
    ("end completed by a length",
     M.file([M.pair("k", ARRAY, (STRING, [b"a\xc3", b"x" * 0xA9]))], [A]),
     ["bad-string"], ["a"], "string 0, from 0, is not UTF-8"),
    ("string of 2^63", M.file([M.string("k") + M.number("I", 8) + M.number("Q", 2**63)], [A]),
     ["truncated"], [], "value of 'k'"),
    ("array of 2^60", M.file([M.string("k") + M.number("I", 9, 4) + M.number("Q", 2**60)], [A]),
     ["truncated"], [], "value of 'k'"),
    ("strings 2^60", M.file([M.string("k") + M.number("I", 9, 8) + M.number("Q", 2**60)], [A]),
     ["truncated"], [], "value of 'k'"),
    ("a string of 2^64-1 among others",
     M.file([M.string("k") + M.number("I", 9, 8) + M.number("Q", 2, 2**64 - 1)], [A]),
     ["truncated"], [], "value of 'k'"),
    ("arrays 2^60", M.file([M.string("k") + M.number("I", 9, 9) + M.number("Q", 2**60)], [A]),
     ["truncated"], [], "value of 'k'"),
    ("elements of type 99", M.file([M.string("k") + M.number("I", 9, 99) + M.number("Q", 1)], [A]),
     ["bad-value"], [], "found 99"),
    ("arrays nine deep", M.file([M.pair("k", ARRAY, DEEP)], [A]), ["bad-value"], [], "deeper"),
    ("alignment 0", M.file([M.pair("general.alignment", U32, 0)], [A]),
     ["bad-alignment"], ["a"], "found 0"),
    ("alignment 24", M.file([M.pair("general.alignment", U32, 24)], [A], alignment=24),
     ["bad-alignment"], ["a"], "found 24"),
    ("alignment 4", M.file([M.pair("general.alignment", U32, 4)], [A], alignment=4),
     ["bad-alignment"], ["a"], "found 4"),
    ("alignment 2^17", M.file([M.pair("general.alignment", U32, 1 << 17)], [A], alignment=1 << 17),
     ["bad-alignment"], ["a"], "131072"),
    ("alignment as UINT64", M.file([M.pair("general.alignment", U64, 32)], [A]),
     ["bad-alignment"], ["a"], "type UINT64"),
    ("empty name", M.file([], [T("", (4,)), B]), ["bad-name"], ["b"], "no bytes"),
    ("name not UTF-8", M.file([], [T(b"\xfe", (4,)), B]), ["bad-name"], ["b"], "UTF-8"),
    ("zero byte in a name", M.file([], [T("a\0x", (4,)), B]), ["bad-name"], ["b"], "zero byte"),
    ("name twice", M.file([], [A, A, B]), ["duplicate-tensor"], ["b"], "two records"),
    ("no dimension", M.file([], [T("a", ()), B]), ["bad-shape"], ["b"], "found 0, expected 1 to 4"),
    ("nine dimensions", M.file([], [T("a", (1,) * 9), B]), ["bad-shape"], ["b"], "found 9"),
    ("2^31 dimensions", M.file([], [A, B]).replace(M.number("I", 1) + M.number("Q", 4),
     M.number("I", 2**31) + M.number("Q", 4), 1), ["bad-shape", "bad-header"], [], "2147483648"),
    ("dimension 0", M.file([], [T("a", (4, 0)), B]), ["bad-shape"], ["b"], "found 0"),
    ("dimension 2^63", M.file([], [T("a", (2**63,), 0, 16), B]), ["overflow"], ["b"], "9223372036"),
    ("elements 2^64", M.file([], [T("a", (2**62 + 1, 4), 0, 16), B]), ["overflow"], ["b"], "shape"),
    ("bytes 2^64", M.file([], [T("a", (2**62,), 0, 16), B]), ["overflow"], ["b"], "bytes of F32"),
    ("half a block", M.file([], [T("a", (48,), 8, 51), B]), ["bad-shape"], ["b"], "multiple of 32"),
    ("type 4", M.file([], [T("a", (32,), 4, 20), B]), ["unknown-dtype"], ["b"], "Q4_2, removed"),
    ("type 33", M.file([], [T("a", (32,), 33), B]), ["unknown-dtype"], ["b"], "Q4_0_8_8"),
    ("type 250", M.file([], [T("a", (32,), 250), B]), ["unknown-dtype"], ["b"], "found 250"),
    ("offset 8", M.file([], [T("a", (4,), offset=8), B]), ["bad-offset"], ["b"], "multiple of 32"),
    ("offset 2^63", M.file([], [A, B]).replace(M.number("Q", 32), M.number("Q", 2**63)),
     ["bad-offset"], ["a"], "9223372036854775808"),
    ("offsets fall", M.file([], [T("a", (4,), offset=32), T("b", (4,), offset=0)], extra=32),
     ["bad-offset"], ["b", "a"], "expected more than 32, that of 'a'"),
    ("same bytes", M.file([], [A, T("b", (4,), offset=0), T("c", (4,), offset=32)]),
     ["overlap"], ["c"], "overlaps 'a'"),
    ("overlap", M.file([], [T("a", (16,)), T("b", (4,), offset=32), T("c", (4,), offset=64)]),
     ["overlap"], ["c"], "begins at 32, expected 64"),
    ("payload cut", M.file([], [A, B])[:-17], ["truncated"], ["a"], "short by 1 bytes"),
    ("payload absent", M.file([], [A, B])[:-64], ["truncated"], [], "cut or absent: 2"),
    ("far beyond the file", M.file([], [A, T("b", (1 << 40,), 0, 16)]), ["truncated"], ["a"],
     "expected 4398046511136"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("raw", "codes", "sound", "words"), [f[1:] for f in FAULTS], ids=[f[0] for f in FAULTS]
)
def test_faults(raw: bytes, codes: list[str], sound: list[str], words: str) -> None:
    got = read(raw)
    assert found(got) == codes
    assert [t.name for t in got.tensors] == sound
    assert words in next(p.message for p in got.problems if p.severity == "error")
    assert not set(got.unsound) & set(sound)


def test_every_fault_is_told_not_the_first() -> None:
    pairs = [ARCH, M.pair("a b", U8, 1), ARCH, M.pair("k", BOOL, 3), M.pair("s", STRING, b"\xff")]
    tensors = [T("u", (32,), 250), T("z", (0,)), T("ok", (4,)), A, T("no", (4,), offset=1000)]
    got = read(M.file(pairs, tensors))
    assert found(got) == [
        "bad-key", "duplicate-key", "bad-value", "bad-string",
        "unknown-dtype", "bad-shape", "bad-offset",
    ]  # fmt: skip
    assert set(got.unsound) == {"u", "z", "no"}


def test_warnings_leave_all_tensors() -> None:
    long = read(M.file([], [T("n" * 65, (4,)), T("m" * 70, (4,)), A]))
    assert found(long, "warning") == ["long-name"] and len(long.tensors) == 3
    assert "like 1 other names: found 70" in long.problems[0].message
    assert read(M.file([], [T("n" * 64, (4,))])).problems == []
    hole = read(M.file([], [A, T("b", (4,), offset=96)]))
    assert found(hole, "warning") == ["hole"] and len(hole.tensors) == 2
    assert "64 bytes" in hole.problems[0].message
    tail = read(M.file([], [A], extra=1))
    assert found(tail, "warning") == ["trailing-bytes"] and len(tail.tensors) == 1
    assert read(M.file([], [A], padded=False)).problems == []
    assert read(M.file([ARCH])).problems == []


def test_names_and_strings_that_could_reach_a_terminal_stay_text() -> None:
    got = read(M.file([M.pair("k", STRING, b"\x1b[31m\xff")], [T("\x1b]0;x", (4,))]))
    assert got.metadata["k"] == "\x1b[31m\\xff"
    assert [t.name for t in got.tensors] == ["\x1b]0;x"]  # records escape it
    json.dumps(got.metadata, ensure_ascii=False).encode()


def test_long_text_is_shown_whole_with_full_only() -> None:
    raw = M.file([M.pair("k", STRING, "x" * 70_000)])
    assert read(raw).metadata["k"] == {"type": "STRING", "length": 70_000, "head": "x" * 1000}
    assert read(raw, full=True).metadata["k"] == "x" * 70_000


def test_caps_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = M.file([ARCH, M.pair("k", ARRAY, (ARRAY, [(U8, [])] * 5))], [A, B])
    assert found(read(raw, max_header=100)) == ["header-too-large"]
    assert "--max-header" in read(raw, max_header=100).problems[0].message
    for name, codes in (("MAX_PAIRS", "bad-header"), ("MAX_ARRAYS", "bad-value")):
        with monkeypatch.context() as m:
            m.setattr(gguf_values, name, 1)
            assert found(read(raw)) == [codes]
    monkeypatch.setattr(gguf_header, "MAX_TENSORS", 1)
    assert found(read(raw)) == ["bad-header"]
    monkeypatch.setattr(gguf_values, "MAX_FULL", 10)
    assert read(raw, full=True).metadata["k"]["length"] == 5


def test_file_that_shrinks_while_it_is_read() -> None:
    class Shrinking(InMemory):
        def unchanged(self) -> bool:
            return False

    file = Shrinking(M.file([M.pair("k", STRING, "x" * 200_000)]))
    file.raw = file.raw[:100_000]
    codes = found(gguf_header_of(nullcontext(file), "f"))
    assert codes == ["truncated", "changed-while-reading"]


def test_vocabulary_is_skipped_quickly() -> None:
    raw = M.file([M.pair("k", ARRAY, (STRING, [f"tok\u00e9{i}" for i in range(100_000)]))], [A])
    started = time.process_time()
    assert read(raw).problems == []
    assert time.process_time() - started < 0.3  # 0.02 here; the gguf package takes seconds
