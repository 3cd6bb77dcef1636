"""Indexes, the paths in them, links and Hub caches."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from ..checkpoint.header_files import index, shard
from .making import COMMIT, READERS, Build, case

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"


def ix(
    name: str,
    verdict: str,
    build: Build,
    words: str | None = None,
    main: str = ".",
    commands: list[str] = READERS,
    **expect: Any,
) -> None:
    case(name, verdict, build, kind="index", main=main, commands=commands, words=words, **expect)


def _two(folder: Path) -> None:
    shard(folder / ONE, "a")
    shard(folder / TWO, "b")


def _mapped(value: Any) -> Build:
    """Two shards, and an index that says that b is in `value`."""

    def build(folder: Path) -> None:
        _two(folder)
        index(folder / INDEX, {"a": ONE, "b": value})

    return build


def _index_text(text: bytes) -> Build:
    def build(folder: Path) -> None:
        _two(folder)
        (folder / INDEX).write_bytes(text)

    return build


for label, value in {
    "parent": "../x.safetensors",
    "dot": f"./{TWO}",
    "inner-parent": f"sub/../{TWO}",
    "empty": "",
    "backslash": f"sub\\{TWO}",
    "nul": f"{TWO}\0",
    "drive": f"C:{TWO}",
    "unc": "//host/x",
    "newline": f"{TWO}\n",
    "double-slash": f"sub//{TWO}",
    "surrogate": "\ud800.safetensors",
    "url": f"https://example.org/{TWO}",
    "list": [TWO],
    "number": 2,
    "null": None,
    "bool": True,
}.items():
    ix(f"ix-bad-path-{label}", "reject", _mapped(value))
ix("ix-bad-gone", "reject", _mapped("model-00009-of-00009.safetensors"), "00009")
ix("ix-bad-other-suffix", "reject", _mapped("config.json"))
ix(
    "ix-bad-dup-key",
    "reject",
    _index_text(f'{{"weight_map":{{"a":"{ONE}","b":"{TWO}","b":"{ONE}"}}}}'.encode()),
    "twice|duplicate",
)
ix("ix-bad-map-list", "reject", _index_text(b'{"weight_map":[]}'))
ix("ix-bad-map-null", "reject", _index_text(b'{"metadata":{},"weight_map":null}'))
ix("ix-bad-list", "reject", _index_text(b"[]"))
ix("ix-bad-cut", "reject", _index_text(b'{"weight_map":{"a":'))
ix("ix-bad-empty", "reject", _index_text(b""))
ix(
    "ix-bad-bom",
    "reject",
    _index_text(b"\xef\xbb\xbf" + json.dumps({"weight_map": {"a": ONE, "b": TWO}}).encode()),
)
ix(
    "ix-bad-utf16",
    "reject",
    _index_text(json.dumps({"weight_map": {"a": ONE, "b": TWO}}).encode("utf-16")),
)
ix("ix-bad-deep", "reject", _index_text(b'{"weight_map":' * 100_000))
ix(
    "ix-bad-nan",
    "reject",
    _index_text(
        f'{{"metadata":{{"total_size":NaN}},"weight_map":{{"a":"{ONE}","b":"{TWO}"}}}}'.encode()
    ),
)
ix(
    "ix-odd-total-size",
    "accept_warn",
    _index_text(
        json.dumps({"metadata": {"total_size": 33}, "weight_map": {"a": ONE, "b": TWO}}).encode()
    ),
    commands=["census"],
)


def _link_to(target: str) -> Build:
    def build(folder: Path) -> None:
        (folder / "repo").mkdir()
        _mapped(TWO)(folder / "repo")
        shutil.move(folder / "repo" / TWO, folder / "secret.safetensors")
        (folder / "repo" / TWO).symlink_to(target)

    return build


ix("ix-bad-link-out", "reject", _link_to("../secret.safetensors"), main="repo")
ix("ix-bad-link-loop", "reject", _link_to(TWO), main="repo")
ix("ix-bad-link-nowhere", "reject", _link_to("nothing"), main="repo")
ix("ix-bad-link-device", "reject", _link_to("/dev/zero"), main="repo")


def _pipe(folder: Path) -> None:
    _mapped(TWO)(folder)
    (folder / TWO).unlink()
    os.mkfifo(folder / TWO)


ix("ix-bad-pipe", "reject", _pipe)


def _folder_link(folder: Path) -> None:
    (folder / "repo").mkdir()
    shard(folder / "repo" / ONE, "a")
    (folder / "outside").mkdir()
    shard(folder / "outside" / TWO, "b")
    (folder / "repo" / "sub").symlink_to("../outside")
    index(folder / "repo" / INDEX, {"a": ONE, "b": f"sub/{TWO}"})


ix("ix-bad-link-parent", "reject", _folder_link, main="repo")


def _index_is_a_link(folder: Path) -> None:
    (folder / "repo").mkdir()
    _mapped(TWO)(folder / "repo")
    shutil.move(folder / "repo" / INDEX, folder / "index.json")
    (folder / "repo" / INDEX).symlink_to("../index.json")


ix("ix-bad-index-link-out", "reject", _index_is_a_link, main="repo")


def _cached(links: dict[str, str]) -> Build:
    """A snapshot of a Hub cache: two blobs, and files that are links."""

    def build(folder: Path) -> None:
        blobs = folder / "models--org--m" / "blobs"
        snapshot = folder / "models--org--m" / "snapshots" / COMMIT
        blobs.mkdir(parents=True)
        snapshot.mkdir(parents=True)
        (folder / "models--org--other" / "blobs").mkdir(parents=True)
        for place in (blobs / "1", folder / "models--org--other" / "blobs" / "1", folder / "out"):
            shard(place, "a")
        for name, target in links.items():
            (snapshot / name).symlink_to(target)

    return build


_SNAPSHOT = f"models--org--m/snapshots/{COMMIT}"
ix("ix-ok-hf", "accept", _cached({"model.safetensors": "../../blobs/1"}), main=_SNAPSHOT, tensors=1)
ix(
    "ix-bad-hf-other-repo",
    "reject",
    _cached({"model.safetensors": "../../../models--org--other/blobs/1"}),
    main=_SNAPSHOT,
)
ix("ix-bad-hf-out", "reject", _cached({"model.safetensors": "../../../out"}), main=_SNAPSHOT)
