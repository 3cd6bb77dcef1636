"""GGUF files and sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..checkpoint.gguf_files import ARCH, ARRAY, BOOL, F32, LITTLE, STRING, U8, U32, U64, A, T
from ..checkpoint.header_files import pack
from .making import READERS, Build, case
from .safetensors import F32_4


def gg(name: str, verdict: str, raw: bytes, words: str | None = None, **expect: Any) -> None:
    def build(folder: Path) -> None:
        (folder / "m.gguf").write_bytes(raw)

    case(name, verdict, build, kind="gguf", main="m.gguf", commands=READERS, words=words, **expect)


def _gguf(*pairs: bytes, tensors: Any = (A,), **more: Any) -> bytes:
    return LITTLE.file((ARCH, *pairs), tensors, **more)


SOUND = _gguf()
gg("gg-ok-two", "accept", _gguf(tensors=(A, T("b", (2, 3)))), params=10)
gg("gg-ok-v2", "accept", _gguf(version=2), tensors=1)
gg(
    "gg-ok-align-64",
    "accept",
    _gguf(LITTLE.pair("general.alignment", U32, 64), alignment=64),
    tensors=1,
)
gg("gg-ok-empty-array", "accept", _gguf(LITTLE.pair("x.y", ARRAY, (STRING, []))), tensors=1)
gg("gg-ok-four-dims", "accept", _gguf(tensors=(T("a", (2, 2, 2, 2)),)), params=16)
gg("gg-bad-magic", "reject", b"GGUX" + SOUND[4:])
gg("gg-bad-ggml-magic", "reject", b"lmgg" + SOUND[4:])
gg("gg-bad-version-0", "reject", _gguf(version=0))
gg("gg-bad-version-1", "reject", _gguf(version=1))
gg("gg-bad-version-4", "reject", _gguf(version=4))
gg("gg-bad-version-2pow31", "reject", _gguf(version=2**31))
for label, cut in {
    "magic": 3,
    "version": 6,
    "counts": 20,
    "key": 30,
    "payload": len(SOUND) - 20,
}.items():
    gg(f"gg-bad-cut-{label}", "reject", SOUND[:cut])
gg("gg-bad-empty", "reject", b"")
for label, count in {"2pow32": 2**32, "2pow63": 2**63, "2pow64": 2**64 - 1, "one-more": 2}.items():
    gg(f"gg-bad-tensor-count-{label}", "reject", _gguf(tensor_count=count))
    gg(f"gg-bad-pair-count-{label}", "reject", _gguf(pair_count=count))
gg(
    "gg-bad-string-2pow63",
    "reject",
    _gguf(LITTLE.string("x.y") + LITTLE.number("I", STRING) + LITTLE.number("Q", 2**63)),
)
gg("gg-bad-key-2pow40", "reject", _gguf(LITTLE.number("Q", 2**40) + b"x"))
gg("gg-bad-key-empty", "warn_or_reject", _gguf(LITTLE.pair("", U32, 1)))
gg("gg-bad-key-utf8", "reject", _gguf(LITTLE.pair(b"x.\xff", U32, 1)))
gg(
    "gg-bad-array-2pow60",
    "reject",
    _gguf(LITTLE.string("x.y") + LITTLE.number("I", ARRAY, U8) + LITTLE.number("Q", 2**60)),
)
gg(
    "gg-bad-array-of-arrays-2pow60",
    "reject",
    _gguf(LITTLE.string("x.y") + LITTLE.number("I", ARRAY, ARRAY) + LITTLE.number("Q", 2**60)),
)
gg("gg-bad-value-type", "reject", _gguf(LITTLE.string("x.y") + LITTLE.number("I", 13, 0)))
gg("gg-bad-array-type", "reject", _gguf(LITTLE.string("x.y") + LITTLE.number("I", ARRAY, 99, 0)))
gg("gg-bad-bool-2", "warn_or_reject", _gguf(LITTLE.pair("x.y", BOOL, 2)))
gg("gg-bad-bool-array", "warn_or_reject", _gguf(LITTLE.pair("x.y", ARRAY, (BOOL, [0, 1, 7]))))
gg("gg-bad-string-utf8", "warn_or_reject", _gguf(LITTLE.pair("x.y", STRING, b"\xff\xfe")))
gg("gg-bad-dup-arch", "reject", _gguf(ARCH), "duplicate")
gg("gg-bad-dup-tensor", "reject", _gguf(tensors=(A, A)), "duplicate")
for label, pair in {
    "0": (U32, 0),
    "1": (U32, 1),
    "48": (U32, 48),
    "u64": (U64, 32),
    "text": (STRING, "32"),
    "2pow31": (U32, 2**31),
    "float": (F32, 32.0),
    "4": (U32, 4),
}.items():
    gg(
        f"gg-bad-align-{label}",
        "warn_or_reject" if label in ("u64", "4", "1") else "reject",
        _gguf(LITTLE.pair("general.alignment", *pair)),
    )
for label, dims in {
    "zero": (0,),
    "2pow63": (2**63,),
    "2pow64": (2**64 - 1,),
    "five": (1,) * 5,
    "nine": (1,) * 9,
    "product": (2**32, 2**32, 4),
}.items():
    gg(
        f"gg-bad-dims-{label}",
        "either" if label == "zero" else "reject",
        _gguf(tensors=(T("a", dims, 0, 16),)),
    )
gg("gg-bad-dims-none", "either", _gguf(tensors=(T("a", (), 0, 4),)))
gg("gg-bad-block", "reject", _gguf(tensors=(T("a", (33,), 8, 64),)))
gg("gg-bad-type-removed", "reject", _gguf(tensors=(T("a", (32,), 4, 64),)))
gg("gg-bad-type-2pow31", "reject", _gguf(tensors=(T("a", (32,), 2**31, 64),)))
for label, offset in {"unaligned": 4, "overlap": 0, "beyond": 4096, "2pow64": 2**64 - 32}.items():
    record = LITTLE.record(T("b", (4,)), 32)
    gg(
        f"gg-bad-second-offset-{label}",
        "reject",
        _gguf(tensors=(A, T("b", (4,)))).replace(record, LITTLE.record(T("b", (4,)), offset)),
    )
gg("gg-bad-name-empty", "warn_or_reject", _gguf(tensors=(T("", (4,)),)))
gg("gg-bad-name-utf8", "reject", _gguf(tensors=(T(b"\xff", (4,)),)))
gg("gg-bad-name-2pow63", "reject", LITTLE.file((ARCH,), tensor_count=1) + LITTLE.number("Q", 2**63))
gg("gg-bad-tail", "warn_or_reject", SOUND + bytes(64))
gg("gg-bad-safetensors-inside", "reject", pack({"a": F32_4}, 16))


def _split(numbers: tuple[tuple[int, int, int], ...]) -> Build:
    """Files of a split set: (number in the name, split.no, split.count)."""

    def build(folder: Path) -> None:
        for place, no, count in numbers:
            pairs = (LITTLE.pair("split.no", 2, no), LITTLE.pair("split.count", 2, count))
            more = (*pairs, LITTLE.pair("split.tensors.count", 5, 2))
            raw = _gguf(*more, tensors=(T(f"t{place}", (4,)),))
            (folder / f"m-{place:05d}-of-00002.gguf").write_bytes(raw)

    return build


for label, parts in {
    "ok": ((1, 0, 2), (2, 1, 2)),
    "bad-count": ((1, 0, 2), (2, 1, 3)),
    "bad-twice": ((1, 0, 2), (2, 0, 2)),
    "bad-first-gone": ((2, 1, 2),),
}.items():
    case(
        f"gg-split-{label}",
        "accept" if label == "ok" else "reject",
        _split(parts),
        kind="gguf",
        main=".",
        commands=READERS,
    )
