"""A loopback Hub for tests in this process, and repositories to put on it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ntool.lib.checkpoint.source import open_checkpoint
from ntool.lib.checkpoint.tensor import Checkpoint

from .header_files import entry, index, shard, write
from .loopback_hub import LoopbackHub

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"
TOKEN = "hf_" + "sesame" * 5
TIMEOUT = 0.4
"""Seconds without a byte, in place of ten."""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    """A Hub that the settings of this process point to, with an empty cache and no token."""
    from huggingface_hub import constants

    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_OIDC_RESOURCE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with LoopbackHub() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.address())
        template = server.address() + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "home" / "hub"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "home" / "token"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", TIMEOUT)
        yield server


def model(folder: Path) -> Path:
    """A sound checkpoint of two shards."""
    folder.mkdir(parents=True)
    shard(folder / ONE, "b", "a")
    shard(folder / TWO, "c")
    index(folder / INDEX, {"b": ONE, "a": ONE, "c": TWO}, total_size=48)
    (folder / "config.json").write_text(json.dumps({"model_type": "test", "hidden_size": 2}))
    return folder


def hole(path: Path, nbytes: int) -> Path:
    """A sound file of one tensor, its payload a hole."""
    write(path, {"w": entry("U8", [nbytes], 0, nbytes)})
    with open(path, "ab") as f:
        f.truncate(f.tell() + nbytes)
    return path


def told(checkpoint: Checkpoint) -> list[tuple[str, str, str | None, str | None, str]]:
    return [(p.code, p.severity, p.file, p.name, p.message) for p in checkpoint.problems]


def require_same(remote: Checkpoint, folder: Path) -> None:
    """The same result as of the folder on disk."""
    local = open_checkpoint(str(folder))
    assert remote.tensors == local.tensors
    assert list(remote.tensors) == list(local.tensors)
    assert (remote.files, remote.metadata) == (local.files, local.metadata)
    assert (remote.config, remote.config_hash) == (local.config, local.config_hash)
    assert (remote.index, remote.index_hash) == (local.index, local.index_hash)
    assert (remote.missing, remote.orphans) == (local.missing, local.orphans)
    assert told(remote) == told(local)
