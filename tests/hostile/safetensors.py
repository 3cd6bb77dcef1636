"""Headers of safetensors files."""

from __future__ import annotations

import struct
from typing import Any

from ..checkpoint.header_files import entry, pack
from ..checkpoint.onnx_models import tiny
from .making import READERS, Path, case

F32_4 = entry("F32", [4], 0, 16)


def st(name: str, verdict: str, raw: bytes, words: str | None = None, **expect: Any) -> None:
    def build(folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(raw)

    case(
        name,
        verdict,
        build,
        kind="safetensors",
        main="model.safetensors",
        commands=READERS,
        words=words,
        **expect,
    )


def _row(**fields: Any) -> bytes:
    return pack({"a": {**F32_4, **fields}}, 16)


def _text(text: str, payload: int = 16) -> bytes:
    return pack(text.encode(), payload)


_A = '"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}'
st("st-ok-nothing", "accept", pack({}), tensors=0)
st("st-ok-empty-dim", "accept", pack({"a": entry("F32", [0, 7], 0, 0)}), tensors=1, bytes=0)
st(
    "st-ok-keys-in-another-order",
    "accept",
    pack({"b": entry("F32", [1], 4, 8), "a": entry("F32", [1], 0, 4)}, 8),
    params=2,
)
st("st-ok-padded-8", "accept", pack({"a": F32_4}, 16, b"   "), tensors=1)
st("st-ok-metadata", "accept", pack({"__metadata__": {"format": "pt"}, "a": F32_4}, 16), params=4)
st("st-ok-f4-even-rows", "accept", pack({"a": entry("F4", [3, 2], 0, 3)}, 3), params=6, bytes=3)
st("st-ok-name-bidi", "accept", pack({"a\u202eb\u0007\x9b": F32_4}, 16), tensors=1)
st("st-ok-name-long", "accept", pack({"a" * 9000: F32_4}, 16), tensors=1)
st("st-bad-seven-bytes", "reject", b"\x10\0\0\0\0\0\0")
st("st-bad-length-zero", "reject", bytes(8))
st("st-bad-length-one", "reject", struct.pack("<Q", 1) + b"{" + bytes(16))
st("st-bad-length-2pow63", "reject", struct.pack("<Q", 1 << 63) + b"{}")
st("st-bad-length-2pow64", "reject", struct.pack("<Q", 2**64 - 1) + b"{}")
st("st-bad-length-of-file", "reject", struct.pack("<Q", 10) + b"{}")
st("st-bad-length-big-endian", "reject", struct.pack(">Q", 2) + b"{}")
st("st-bad-tail", "reject", pack({"a": F32_4}, 17))
st("st-bad-tail-of-nothing", "reject", pack({}, 1))
st("st-bad-hole", "reject", pack({"a": F32_4, "b": entry("F32", [1], 20, 24)}, 24))
st("st-bad-hole-in-front", "reject", pack({"a": entry("F32", [4], 4, 20)}, 20))
st("st-bad-overlap", "reject", pack({"a": F32_4, "b": entry("F32", [4], 12, 28)}, 28))
st("st-bad-alias", "reject", pack({"a": F32_4, "b": F32_4}, 16))
st("st-bad-reversed", "reject", pack({"a": entry("F32", [4], 16, 0)}, 16))
for label, value in {
    "negative": [-4],
    "float": [4.0],
    "text": ["4"],
    "null": [None],
    "nested": [[4]],
    "object": {"0": 4},
    "number": 4,
    "none": None,
    "false": [4, False],
    "exponent": [4e0],
    "2pow64": [2**64],
    "product": [2**32, 2**32],
    "product-back": [2**63, 2, 0, -1],
}.items():
    st(f"st-bad-shape-{label}", "reject", _row(shape=value))
for label, value in {
    "negative": [-16, 0],
    "float": [0.0, 16.0],
    "one": [16],
    "three": [0, 8, 16],
    "bool": [False, 16],
    "text": ["0", "16"],
    "null": None,
    "2pow63": [0, 2**63],
    "both-2pow64": [2**64, 2**64 + 16],
    "beyond": [0, 20],
    "short": [0, 12],
}.items():
    st(f"st-bad-offsets-{label}", "reject", _row(data_offsets=value))
for label, value in {
    "unknown": "F7",
    "lower": "f32",
    "null": None,
    "number": 32,
    "list": ["F32"],
    "empty": "",
    "nul": "F32\0",
}.items():
    st(f"st-bad-dtype-{label}", "reject", _row(dtype=value))
st("st-bad-field-more", "reject", _row(stride=[1]))
for label in ("dtype", "shape", "data_offsets"):
    without = {k: v for k, v in F32_4.items() if k != label}
    st(f"st-bad-without-{label}", "reject", pack({"a": without}, 16))
for label, value in {"number": 1, "list": [], "text": "x"}.items():
    st(f"st-bad-entry-{label}", "reject", pack({"a": value}, 16))
    st(f"st-bad-metadata-{label}", "reject", pack({"__metadata__": value, "a": F32_4}, 16))
st("st-bad-metadata-value", "reject", pack({"__metadata__": {"n": 1}, "a": F32_4}, 16))
st("st-bad-metadata-deep", "reject", pack({"__metadata__": {"n": {"m": "x"}}, "a": F32_4}, 16))
st("st-bad-dup-name", "reject", _text(f"{{{_A},{_A}}}"), "twice|duplicate")
st(
    "st-bad-dup-field",
    "reject",
    _text('{"a":{"dtype":"F32","dtype":"F32","shape":[4],"data_offsets":[0,16]}}'),
    "twice|duplicate",
)
st("st-bad-dup-escaped", "reject", _text(f"{{{_A},{_A.replace('a', chr(92) + 'u0061', 1)}}}"))
st("st-bad-dup-metadata", "reject", _text(f'{{"__metadata__":{{}},"__metadata__":{{}},{_A}}}'))
st("st-bad-nan", "reject", _text('{"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,16]}}'))
st(
    "st-bad-infinity",
    "reject",
    _text('{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,Infinity]}}'),
)
st(
    "st-bad-digits",
    "reject",
    _text(f'{{"a":{{"dtype":"F32","shape":[{"4" * 5000}],"data_offsets":[0,16]}}}}'),
)
st("st-bad-deep", "reject", _text("[" * 100_000))
st("st-bad-deep-object", "reject", _text('{"a":' * 50_000))
st("st-bad-list", "reject", _text("[]"))
st("st-bad-space-first", "reject", _text(f" {{{_A}}}"))
st("st-bad-utf16", "reject", pack(f"{{{_A}}}".encode("utf-16-le"), 16))
st("st-bad-tab-padding", "reject", pack({"a": F32_4}, 16, b"\t\t"))
st("st-bad-padding-text", "reject", pack({"a": F32_4}, 16, b"  x"))
st("st-bad-two-objects", "reject", pack({"a": F32_4}, 16, b"{}"))
st("st-bad-comment", "reject", _text(f"{{/**/{_A}}}"))
st("st-bad-comma", "reject", _text(f"{{{_A},}}"))
st("st-bad-quote", "reject", _text(f"{{{_A}}}".replace('"', "'")))
st("st-bad-control", "reject", _text('{"a\n":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}'))
st(
    "st-bad-surrogate",
    "reject",
    _text('{"\\ud800":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}'),
)
st(
    "st-bad-overlong",
    "reject",
    pack(b'{"\xc0\xaf":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}', 16),
)
st(
    "st-bad-surrogate-bytes",
    "reject",
    pack(b'{"\xed\xa0\x80":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}', 16),
)
st("st-bad-f4-three", "reject", pack({"a": entry("F4", [3], 0, 2)}, 2))
st("st-bad-pickle", "reject", b"\x80\x02}q\x00." + bytes(64), "pickle|torch|not a safetensors")
st(
    "st-bad-lfs",
    "reject",
    b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
    "LFS|pointer",
)
st("st-bad-html", "reject", b"<!DOCTYPE html><html><body>404</body></html>" + bytes(16), "HTML")
st("st-bad-json-alone", "reject", b'{"a": 1}            ')
st("st-bad-gzip", "reject", b"\x1f\x8b\x08\0" + bytes(40))
st("st-bad-numpy", "reject", b"\x93NUMPY\x01\0" + bytes(64))
st("st-bad-onnx-inside", "reject", tiny().SerializeToString())
st("st-bad-hdf5", "reject", b"\x89HDF\r\n\x1a\n" + bytes(64))
