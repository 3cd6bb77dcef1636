"""Vocabularies and pictures."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

from .making import PROMPTED, case

VOCABULARY = {
    "a": 0,
    "b": 1,
    "c": 2,
    "d": 3,
    "e": 4,
    "h": 5,
    "l": 6,
    "o": 7,
    "\u0120": 8,
    "he": 9,
    "ll": 10,
}
MERGES = "#version: 0.2\nh e\nl l\n"


def tk(
    name: str,
    verdict: str,
    vocabulary: bytes | dict[str, Any] = VOCABULARY,
    merges: str | bytes = MERGES,
    words: str | None = None,
) -> None:
    def build(folder: Path) -> None:
        raw = vocabulary if isinstance(vocabulary, bytes) else json.dumps(vocabulary).encode()
        (folder / "vocab.json").write_bytes(raw)
        (folder / "merges.txt").write_bytes(merges.encode() if isinstance(merges, str) else merges)

    case(name, verdict, build, kind="tokenizer", main=".", commands=PROMPTED, words=words)


_V = json.dumps(VOCABULARY)
tk("tk-ok-ascii-order", "accept", dict(reversed(VOCABULARY.items())))
tk("tk-bad-negative", "reject", {**VOCABULARY, "a": -1})
tk("tk-bad-text-id", "reject", {**VOCABULARY, "a": "0"})
tk("tk-bad-float-id", "reject", {**VOCABULARY, "a": 0.0})
tk("tk-bad-bool-id", "reject", _V.replace('"b": 1', '"b": true').encode())
tk("tk-bad-null-id", "reject", {**VOCABULARY, "a": None})
tk("tk-bad-list", "reject", b'[["a", 0], ["b":1]]')
tk("tk-bad-dup-token", "reject", _V.replace('"b": 1', '"a": 1').encode())
tk("tk-bad-cut", "reject", _V[:-9].encode())
tk("tk-bad-bigint", "reject", _V.replace("10}", "1" * 5000 + "}").encode())
tk("tk-bad-2pow64", "reject", {**VOCABULARY, "zz": 2**64})
tk("tk-bad-start", "warn_or_reject", {k: v + 1 for k, v in VOCABULARY.items()})
tk("tk-bad-merge-unknown", "reject", merges=MERGES + "x y\n")
tk("tk-bad-merge-result", "reject", merges=MERGES + "a b\n")
tk("tk-bad-merge-three", "reject", merges=MERGES + "h e l\n")
tk("tk-bad-merge-one", "reject", merges=MERGES + "he\n")
tk("tk-bad-merge-twice", "either", merges=MERGES + "h e\n")
tk("tk-bad-merge-bytes", "reject", merges=MERGES.encode() + b"\xff e\n")
tk("tk-bad-merges-empty", "either", merges="")


def pn(name: str, verdict: str, raw: bytes, words: str | None = None) -> None:
    def build(folder: Path) -> None:
        (folder / "ref.png").write_bytes(raw)

    case(name, verdict, build, kind="png", main="ref.png", commands=["sample-image"], words=words)


def chunk(kind: bytes, data: bytes, crc: int | None = None) -> bytes:
    found = zlib.crc32(kind + data) if crc is None else crc
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", found)


def png(
    width: int = 64,
    height: int = 64,
    *,
    depth: int = 8,
    colour: int = 2,
    rows: int | None = None,
    before: bytes = b"",
    after: bytes = b"",
    end: bool = True,
    crc: int | None = None,
    interlace: int = 0,
) -> bytes:
    """A picture of one colour; fields as IHDR has them."""
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}.get(colour, 3)
    line = b"\0" + b"\x55" * ((width % 5000 * channels * depth + 7) // 8)
    data = zlib.compress(line * (height if rows is None else rows))
    ihdr = chunk(
        b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlace), crc
    )
    tail = chunk(b"IEND", b"") if end else b""
    return b"\x89PNG\r\n\x1a\n" + ihdr + before + chunk(b"IDAT", data) + after + tail


pn("pn-ok-made", "accept", png())
pn("pn-ok-alpha", "accept", png(colour=6))
pn("pn-ok-gray", "accept", png(colour=0))
pn("pn-ok-gray-alpha", "accept", png(colour=4))
pn("pn-ok-rgb16", "accept", png(depth=16))
pn("pn-ok-palette", "accept", png(colour=3, before=chunk(b"PLTE", bytes(range(256)) * 3)))
pn("pn-ok-bit", "accept", png(colour=0, depth=1))
pn("pn-bad-empty", "reject", b"")
pn("pn-bad-header-alone", "reject", png()[:33])
pn("pn-bad-rows", "reject", png(rows=20))
pn("pn-bad-zero", "reject", png(0, 64))
pn("pn-bad-huge", "reject", png(2**31 - 1, 2**31 - 1, rows=1))
pn("pn-bad-wide", "reject", png(200_000, 200_000, rows=1))
pn("pn-bad-over-2pow31", "reject", png(2**31, 1, rows=1))
pn("pn-bad-depth", "reject", png(depth=3))
pn("pn-bad-colour", "reject", png(colour=5))
pn("pn-bad-crc", "reject", png(crc=1))
pn("pn-bad-idat-crc", "reject", png()[:-20] + b"\0\0\0\0" + png()[-16:])
pn("pn-bad-no-palette", "reject", png(colour=3))
pn(
    "pn-ok-text-bomb",
    "either",
    png(before=chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(50 << 20), 9))),
)
pn(
    "pn-bad-icc-bomb",
    "either",
    png(before=chunk(b"iCCP", b"k\0\0" + zlib.compress(bytes(50 << 20), 9))),
)
pn("pn-bad-chunk-2pow31", "either", png(before=struct.pack(">I", 2**31) + b"zzzz"))
pn("pn-bad-no-end", "either", png(end=False))
pn("pn-bad-zip", "reject", b"PK\x03\x04" + bytes(64))
pn("pn-bad-svg", "reject", b"<svg xmlns='http://www.w3.org/2000/svg'></svg>")
pn("pn-bad-postscript", "reject", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 64\n")
pn("pn-bad-pdf", "reject", b"%PDF-1.4\n")
