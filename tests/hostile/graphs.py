"""Graphs and their external data."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onnx import ModelProto, TensorProto, helper

from ..checkpoint.header_files import pack
from ..checkpoint.onnx_models import LOCATIONS, NUMBERS, RULES, adding, branch, nested, tiny, weight
from .gguf_files import SOUND
from .making import COMMIT, GRAPHS, Build, case
from .safetensors import F32_4


def ox(
    name: str,
    verdict: str,
    build: Build,
    words: str | None = None,
    main: str = "model.onnx",
    commands: list[str] = GRAPHS,
    **expect: Any,
) -> None:
    case(name, verdict, build, kind="onnx", main=main, commands=commands, words=words, **expect)


def _graph(raw: bytes) -> Build:
    def build(folder: Path) -> None:
        (folder / "model.onnx").write_bytes(raw)

    return build


def _changed(change: Callable[[ModelProto], None]) -> Build:
    model = tiny()
    change(model)
    return _graph(model.SerializeToString())


def _external(where: str = "initializer", size: int = 16, **external: str) -> Build:
    """A model with a weight of 16 bytes in w.bin, which has `size`; outside.bin lies above."""

    def build(folder: Path) -> None:
        (folder / "pkg").mkdir()
        raw = adding(weight(**external), where=where).SerializeToString()
        (folder / "pkg" / "model.onnx").write_bytes(raw)
        (folder / "pkg" / "w.bin").write_bytes(bytes(size))
        (folder / "outside.bin").write_bytes(bytes(16))

    return build


def _external_twice(key: str) -> Build:
    def build(folder: Path) -> None:
        _external(location="w.bin")(folder)
        tensor = weight(location="w.bin", offset="0", length="16")
        tensor.external_data.add(key=key, value="16" if key == "length" else "0")
        raw = adding(tensor).SerializeToString()
        (folder / "pkg" / "model.onnx").write_bytes(raw)

    return build


def ext(name: str, verdict: str, build: Build, words: str | None = None, **more: Any) -> None:
    ox(name, verdict, build, words, main="pkg/model.onnx", **more)


for change, _, _ in RULES:
    ox(f"ox-bad-{change.__name__}", "reject", _changed(change))
for number, (location, reason) in enumerate(LOCATIONS.items()):
    for where in ("initializer", "constant", "branch"):
        ext(
            f"ox-bad-location-{reason}-{number}-{where}",
            "reject",
            _external(where, location=location),
        )
for number, ((offset, length), reason) in enumerate(NUMBERS.items()):
    fields = {"location": "w.bin", "offset": offset}
    if length is not None:
        fields["length"] = length
    for where in ("initializer", "constant") if number % 4 == 0 else ("branch",):
        ext(f"ox-bad-{reason}-{number}-{where}", "reject", _external(where, **fields))
ext("ox-bad-key-offset-twice", "reject", _external_twice("offset"))
ext("ox-bad-key-length-twice", "reject", _external_twice("length"))
ext("ox-bad-basepath", "either", _external(location="w.bin", basepath=".."))
ext(
    "ox-bad-checksum",
    "reject",
    _external(location="w.bin", checksum="0" * 40),
    commands=["verify-package"],
)
ext(
    "ox-ok-checksum",
    "accept",
    _external(location="w.bin", checksum=hashlib.sha1(bytes(16)).hexdigest()),
)
ext("ox-ok-offset-zero", "accept", _external(location="w.bin", offset="0", length="16"))
ext("ox-ok-leading-zeros", "either", _external(location="w.bin", offset="000", length="0016"))
ext("ox-bad-short-file", "reject", _external(size=15, location="w.bin"))
ext("ox-bad-empty-data", "reject", _external(size=0, location="w.bin"))
ext(
    "ox-warn-tail",
    "accept_warn",
    _external(size=64, location="w.bin", length="16"),
    commands=["verify-package"],
    orphan_bytes=48,
)


def _linked(target: str, kind: str = "file") -> Build:
    """w.bin is a link, a hard link, a pipe, a folder."""

    def build(folder: Path) -> None:
        _external(location="w.bin")(folder)
        data = folder / "pkg" / "w.bin"
        data.unlink()
        if kind == "hard":
            os.link(folder / "outside.bin", data)
        elif kind == "pipe":
            os.mkfifo(data)
        elif kind == "folder":
            data.mkdir()
        else:
            data.symlink_to(target)

    return build


ext("ox-bad-link-out", "reject", _linked("../outside.bin"))
ext("ox-bad-link-device", "reject", _linked("/dev/zero"))
ext("ox-bad-link-proc", "reject", _linked("/proc/self/environ"))
ext("ox-bad-link-loop", "reject", _linked("w.bin"))
ext("ox-bad-link-nowhere", "reject", _linked("gone.bin"))
ext("ox-bad-link-to-graph", "reject", _linked("model.onnx"))
ext("ox-bad-pipe", "reject", _linked("", "pipe"))
ext("ox-bad-folder", "reject", _linked("", "folder"))
ext("ox-warn-hard-link", "accept_warn", _linked("", "hard"), commands=["verify-package"])
ext("ox-bad-own-graph", "reject", _external(location="model.onnx"))
_MODEL = tiny().SerializeToString()
ox("ox-ok-model", "accept", _graph(_MODEL))
for label, raw in {
    "empty": b"",
    "zeros": bytes(64),
    "magic": b"ONNX" + _MODEL,
    "first-half": _MODEL[: len(_MODEL) // 2],
    "one-less": _MODEL[:-1],
    "tail": _MODEL + b"\0\0",
    "nested-200": nested(200),
    "no-graph": b"\x08\x0a",
    "pickle": b"\x80\x04\x95" + bytes(64),
    "zip": b"PK\x03\x04" + bytes(64),
    "html": b"<html></html>",
    "gguf": SOUND,
    "safetensors": pack({"a": F32_4}, 16),
    "negative-ir": b"\x08" + b"\xff" * 9 + b"\x01" + _MODEL[2:],
    "text": b"ir_version: 10\n",
}.items():
    ox(f"ox-bad-bytes-{label}", "reject", _graph(raw))


def _hidden(domain: str) -> ModelProto:
    """An operator in an If in an If."""
    model = tiny()
    inner = helper.make_graph(
        [helper.make_node("Gelu", ["y"], ["g"], "hidden", domain=domain)],
        "inner",
        [],
        [helper.make_tensor_value_info("g", TensorProto.FLOAT, [2])],
    )
    node = helper.make_node("If", ["c"], ["deep"], "deep", then_branch=inner, else_branch=inner)
    branch(model).node.append(node)
    return model


ox("ox-bad-domain-deep", "reject", _graph(_hidden("com.nobody").SerializeToString()), "com.nobody")
ox(
    "ox-bad-operator-of-a-later-opset",
    "reject",
    _changed(
        lambda m: m.graph.node.append(
            helper.make_node("RotaryEmbedding", ["y", "y", "y"], ["r"], "late")
        )
    ),
    "RotaryEmbedding",
)
for label, version in {"0": 0, "minus": -1, "29": 29, "2pow40": 2**40}.items():
    model = tiny()
    model.opset_import[0].version = version
    ox(f"ox-bad-opset-{label}", "reject", _graph(model.SerializeToString()))
for label, location in {
    "other-repo": "../../../models--org--other/blobs/1",
    "out": "../../../out",
    "refs": "../../../refs/main",
}.items():

    def _cache(folder: Path, location: str = location) -> None:
        snapshot = folder / "models--org--m" / "snapshots" / COMMIT
        snapshot.mkdir(parents=True)
        for place in ("models--org--other/blobs/1", "out", "models--org--m/refs/main"):
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            (folder / place).write_bytes(bytes(16))
        raw = adding(weight(location="w.bin")).SerializeToString()
        (snapshot / "model.onnx").write_bytes(raw)
        (snapshot / "w.bin").symlink_to(location)

    ox(f"ox-bad-hf-{label}", "reject", _cache, main=f"models--org--m/snapshots/{COMMIT}/model.onnx")
