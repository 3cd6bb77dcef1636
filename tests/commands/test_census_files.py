"""What `census` writes beside its records never replaces what it read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..checkpoint.gguf_files import ARCH, LITTLE, A
from ..checkpoint.header_files import index, shard
from ..checkpoint.onnx_models import tiny
from ..conftest import run_ntool

INDEX = "model.safetensors.index.json"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two checkpoints, `a` with an index, and files that options name."""
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        (tmp_path / name).mkdir()
        shard(tmp_path / name / "m.safetensors", "w")
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / "generation_config.json").write_text("{}")
    index(tmp_path / "a" / INDEX, {"w": "m.safetensors"})
    index(tmp_path / "b" / INDEX, {"w": "m.safetensors"})
    (tmp_path / "expect.json").write_text('{"tensors": 1}')
    (tmp_path / "groups.json").write_text('[{"name": "x", "pattern": "w"}]')
    return tmp_path


READ = [
    *("a/m.safetensors", "a/config.json", "a/generation_config.json"),
    *("b/m.safetensors", "b/config.json", f"b/{INDEX}", "expect.json", "groups.json"),
]


@pytest.mark.parametrize("option", ["--plot", "--repair-index"])
@pytest.mark.parametrize("name", [*READ, f"a/{INDEX}"])
@pytest.mark.parametrize("through", ["", "hard"])
def test_no_output_is_an_input(here: Path, option: str, name: str, through: str, ntool) -> None:
    if (option, name) == ("--repair-index", f"a/{INDEX}"):
        return  # the one that it is for
    if through:
        os.link(name, through)
    before = (here / name).read_bytes()
    more = ["--against", "./b", "--expect", "expect.json", "--groups", "groups.json"]
    done = ntool("census", "./a", *more, option, through or name, "--force", code=2)
    assert f"output '{through or name}' and input" in done.err
    assert (here / name).read_bytes() == before


@pytest.mark.parametrize("source", ["./a", "a/m.safetensors", f"a/{INDEX}"])
def test_new_names_and_the_index_itself(here: Path, source: str, ntool) -> None:
    ntool("census", source, "--plot", "a/sizes.png")
    ntool("census", source, "--plot", "a/sizes.png", "--force")
    assert (here / "a/sizes.png").read_bytes().startswith(b"\x89PNG")
    if source != "a/m.safetensors":
        ntool("census", source, "--repair-index", f"a/{INDEX}", "--force")
        ntool("census", source, "--repair-index", "a/new.json")
        assert json.loads((here / "a/new.json").read_text())["weight_map"] == {"w": "m.safetensors"}


def test_the_file_on_standard_input(here: Path) -> None:
    stream = here / "stream.jsonl"
    stream.write_text(run_ntool("inspect-headers", "./a").out)
    before = stream.read_bytes()
    for more in (["-"], ["./a", "--against", "-"]):
        command = [sys.executable, "-m", "ntool", "census", *more, "--plot", str(stream), "--force"]
        with open(stream) as f:
            done = subprocess.run(command, stdin=f, capture_output=True, text=True)
        assert done.returncode == 2 and "standard input" in done.stderr
        assert stream.read_bytes() == before


@pytest.mark.parametrize("option", ["--plot", "--repair-index"])
def test_odd_outputs(here: Path, option: str, ntool) -> None:
    for path in ("p.png/", "a/", "a"):
        done = ntool("census", "./a", option, path, code=2)
        assert "folder" in done.err and done.of("group") == []
    done = ntool("census", "./a", option, "/dev/null")
    assert done.of("file")[0]["nbytes"] is None
    (here / "link").symlink_to("nowhere/x.png")
    assert "a link to" in ntool("census", "./a", option, "link", "--force", code=4).err
    (here / "near").symlink_to("x.png")
    assert "leads nowhere" in ntool("census", "./a", option, "near", code=2).err
    ntool("census", "./a", option, "near", "--force")
    assert (here / "x.png").stat().st_size and (here / "near").is_symlink()


def test_standard_output_under_another_name(here: Path) -> None:
    done = run_ntool("census", "./a", "--plot", "/dev/stdout", "--force")
    assert done.code == 2 and "standard output" in done.err


def test_standard_input_is_read_once(here: Path, ntool) -> None:
    for more in (["--groups", "-"], ["--expect", "-"], ["--against", "-"]):
        assert "standard input" in ntool("census", "-", *more, code=2).err
    both = ["--expect", "-", "--groups", "-"]
    assert "standard input" in ntool("census", "./a", *both, code=2).err


def test_an_index_is_for_safetensors_files(here: Path, ntool) -> None:
    (here / "m.gguf").write_bytes(LITTLE.file([ARCH], [A]))
    (here / "m.onnx").write_bytes(tiny().SerializeToString())
    for name in ("m.gguf", "m.onnx"):
        done = ntool("census", name, "--repair-index", "new.json", code=5)
        assert "--repair-index" in done.err and not (here / "new.json").exists()


def test_names_that_are_not_utf_8(here: Path, ntool) -> None:
    os.rename("b/m.safetensors", b"b/\xe9.safetensors")
    os.unlink(f"b/{INDEX}")
    done = ntool("census", "./b", "--repair-index", "new.json", code=3)
    assert "not UTF-8" in done.err and not (here / "new.json").exists()
    ntool("census", "./b", "--by", "file", "--plot", "p.png")
    os.rename("b", b"\xe9")
    ntool("census", os.fsdecode(b"\xe9"), "--plot", "q.png")
    stream = run_ntool("inspect-headers", "./a").out.replace('"F32"', '"\\ud800$"')
    (here / "s").write_text(stream)
    assert run_ntool("census", "-", "--plot", "r.png", stdin=stream).code == 0
