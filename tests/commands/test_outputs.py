"""Outputs of run-prefill and sample-image: never an input, never twice, pipes written through."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ..conftest import run_ntool

NTOOL = [sys.executable, "-m", "ntool"]
SAMPLE = ["--prompt", "a circle", "--steps", "2", "--size", "32x32", "--cfg", "1"]


@pytest.fixture
def files(tmp_path: Path, demo_package: Path, ntool) -> Path:
    """A folder with a file of every kind that the commands read."""
    ntool("sample-image", demo_package, *SAMPLE, "-o", tmp_path / "picture.png",
          "--save-latent", tmp_path / "latent")  # fmt: skip
    for name, task in (("cond", "text-to-image"), ("uncond", "unconditional")):
        prompt = ["--prompt", "x"] if name == "cond" else []
        ntool("run-prefill", demo_package, "--task", task, *prompt, "-o", tmp_path / name)
    (tmp_path / "text").write_text("what is it?")
    (tmp_path / "ids").write_text("1,2,3")
    (tmp_path / "lines").write_text(
        json.dumps({"prompt": "x", "steps": 1, "images": ["picture.png"]})
    )
    talk = [{"role": "user", "text": "what?", "images": ["picture.png"]}]
    (tmp_path / "talk").write_text(json.dumps(talk))
    return tmp_path


PREFILL = [
    ("text", ["--prompt-file", "text"]),
    ("ids", ["--tokens", "@ids"]),
    ("talk", ["--messages", "talk"]),
    ("picture.png", ["--messages", "talk"]),
    ("picture.png", ["--prompt", "x", "--image", "picture.png"]),
]


@pytest.mark.parametrize(("name", "options"), PREFILL, ids=str)
@pytest.mark.parametrize("through", ["", "link"])
def test_a_prefix_file_is_no_input(
    files: Path, demo_package: Path, monkeypatch, ntool, name: str, options: list[str], through: str
) -> None:
    monkeypatch.chdir(files)
    before = (files / name).read_bytes()
    if through:
        (files / through).symlink_to(name)
    done = ntool("run-prefill", demo_package, *options, "-o", through or name, code=2)
    assert f"output '{through or name}' and input '{name}' are one file" in done.err
    assert (files / name).read_bytes() == before


READ = [
    ("latent", ["--prompt", "x", "--latent", "latent"]),
    ("cond", ["--prefix", "cond", "--cfg", "1"]),
    ("uncond", ["--prefix", "cond", "--prefix-unconditional", "uncond"]),
    ("lines", ["--prompts", "lines"]),
    ("picture.png", ["--prompts", "lines"]),
    ("talk", ["--messages", "talk"]),
    ("picture.png", ["--prompt", "x", "--image", "picture.png"]),
]


@pytest.mark.parametrize(("name", "options"), READ, ids=str)
@pytest.mark.parametrize("option", ["-o", "--sheet", "--trace", "--save-latent"])
def test_no_output_of_a_picture_is_an_input(
    files: Path, demo_package: Path, monkeypatch, ntool, name: str, options: list[str], option: str
) -> None:
    monkeypatch.chdir(files)
    before = (files / name).read_bytes()
    os.link(name, "hard")
    outputs = [option, "hard"] if option == "-o" else ["-o", "new.png", option, "hard"]
    done = ntool("sample-image", demo_package, *options, *outputs, code=2)
    assert f"output 'hard' and input '{name}' are one file" in done.err
    assert (files / name).read_bytes() == before and not (files / "new.png").exists()


def test_the_pictures_of_a_run_are_no_inputs(files, demo_package, monkeypatch, ntool) -> None:
    monkeypatch.chdir(files)
    shutil.copy("picture.png", "talk-3.png")
    options = ["--task", "interleave", "--prompt", "x", "--image", "talk-3.png"]
    done = ntool("run-prefill", demo_package, *options, "-o", "talk.png", code=2)
    assert "output 'talk-3.png' and input 'talk-3.png' are one file" in done.err


def test_nothing_is_written_into_the_package(demo_package: Path, tmp_path: Path, ntool) -> None:
    package = tmp_path / "package"
    shutil.copytree(demo_package, package)
    before = sorted(package.rglob("*"))
    for inside in (package / "p.png", package / "package.json", package / "decoder" / "model.onnx"):
        for outputs in (["-o", inside], ["-o", tmp_path / "p.png", "--trace", inside]):
            done = ntool("sample-image", package, *SAMPLE, *outputs, code=2)
            assert f"output '{inside}' lies in the input '{package}'" in done.err
        done = ntool("run-prefill", package, "--prompt", "x", "-o", inside, code=2)
        assert "lies in the input" in done.err
    assert sorted(package.rglob("*")) == before and not (tmp_path / "p.png").exists()


def test_nor_into_the_cached_one(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    env = {"NTOOL_CACHE": str(cache)}
    first = run_ntool("run-prefill", "demo:shapes", "--prompt", "x", env=env)
    assert first.code == 0, first.err
    (folder,) = [p for p in cache.iterdir() if p.is_dir()]
    options = ["--prompt", "x", "-o", folder / "package.json"]
    done = run_ntool("run-prefill", "demo:shapes", *options, env=env)
    assert done.code == 2 and "lies in the input" in done.err
    assert json.loads((folder / "package.json").read_text())


@pytest.mark.parametrize(
    "outputs",
    [
        ["-o", "a.png", "--trace", "t", "--save-latent", "t"],
        ["-o", "a.png", "--sheet", "a.png"],
        ["-o", "a.png", "--trace", "sub/../a.png"],
        ["-o", "a.png", "--count", "2", "--sheet", "a-1.png"],
        ["-o", "link", "--sheet", "t"],
    ],
    ids=str,
)
def test_two_outputs_are_two_files(demo_package, tmp_path, monkeypatch, ntool, outputs) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "link").symlink_to("t")
    done = ntool("sample-image", demo_package, *SAMPLE, *outputs, code=2)
    assert "are one file" in done.err
    assert sorted(os.listdir(tmp_path)) == ["link", "sub"]


def test_two_lines_have_two_files(demo_package: Path, tmp_path: Path, ntool) -> None:
    lines = tmp_path / "lines"
    row = {"prompt": "x", "steps": 1, "output": str(tmp_path / "a.png")}
    lines.write_text("\n".join(json.dumps(r) for r in (row, row)))
    options = ["--prompts", lines, "-o", tmp_path / "b.png"]
    assert "are one file" in ntool("sample-image", demo_package, *options, code=2).err
    lines.write_text(json.dumps({**row, "output": "-"}))
    assert "line 1: 'output'" in ntool("sample-image", demo_package, *options, code=3).err
    assert os.listdir(tmp_path) == ["lines"]


@pytest.mark.parametrize("option", ["-o", "--trace", "--save-latent", "--sheet"])
def test_an_output_without_a_name(demo_package: Path, tmp_path, ntool, option: str) -> None:
    outputs = ["-o", ""] if option == "-o" else ["-o", tmp_path / "p.png", option, ""]
    said = ntool("sample-image", demo_package, *SAMPLE, *outputs, code=2).err
    assert ("output" if option == "-o" else f"'{option}': found ''") in said
    ntool("run-prefill", demo_package, "--prompt", "x", "-o", "", code=2)
    assert os.listdir(tmp_path) == []


def test_standard_output_is_not_replaced(demo_package: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with open(out, "wb") as f:
        command = [*NTOOL, "sample-image", str(demo_package), *SAMPLE, "-o", str(out)]
        done = subprocess.run(command, stdout=f, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 2 and "standard output" in done.stderr


def test_pipes_take_every_output(demo_package: Path, tmp_path: Path, ntool) -> None:
    options = ["-o", "--trace", "--save-latent", "--sheet"]
    plain, piped = tmp_path / "plain", tmp_path / "piped"
    plain.mkdir()
    piped.mkdir()
    found: dict[str, bytes] = {}
    readers = []
    for name in options:
        os.mkfifo(piped / name)

        def read(name: str = name) -> None:
            found[name] = (piped / name).read_bytes()

        readers.append(threading.Thread(target=read, daemon=True))
        readers[-1].start()
    for folder in (plain, piped):
        outputs = [x for name in options for x in (name, folder / name)]
        done = ntool("sample-image", demo_package, *SAMPLE, *outputs)
    for reader in readers:
        reader.join(10)
    assert found == {name: (plain / name).read_bytes() for name in options}
    assert all(stat.S_ISFIFO(os.stat(piped / name).st_mode) for name in options)
    assert {r["nbytes"] for r in done.of("file")} == {None}


def test_process_substitution(demo_package: Path, tmp_path: Path) -> None:
    """What a shell makes of <(...) and >(...) is a pipe with a name."""
    row = json.dumps({"prompt": "a circle", "steps": 1, "size": "32x32", "cfg": 1})
    talk = json.dumps([{"role": "user", "text": "hello"}])
    script = f"""
    set -e
    "$@" run-prefill {demo_package} --prompt-file <(echo hello) -o >(cat > prefix) > a
    "$@" run-prefill {demo_package} --prompt hello > b
    "$@" run-prefill {demo_package} --messages <(echo '{talk}') > c
    "$@" run-prefill {demo_package} --tokens @<(echo 1,2) > d
    "$@" sample-image {demo_package} --prompts <(echo '{row}') -o p.png > e
    """
    done = subprocess.run(
        ["bash", "-c", script, "bash", *NTOOL],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr

    def next_token(name: str) -> int:
        rows = [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        (summary,) = [r for r in rows if r["kind"] == "summary"]
        return summary["next_token"]

    assert next_token("a") == next_token("b") == next_token("c")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "prefix").stat().st_size > 1000


def test_a_pipe_without_an_end_is_bounded(demo_package: Path) -> None:
    for option in ("run-prefill {} --prompt-file", "sample-image {} -o x.png --prompts"):
        words = f'{" ".join(NTOOL)} {option.format(demo_package)} <(yes \'{{"prompt":"x"}}\')'
        done = subprocess.run(["bash", "-c", words], capture_output=True, text=True, timeout=60)
        assert done.returncode == 3 and "over" in done.stderr, done.stderr


@pytest.mark.parametrize("option", ["--prompts", "--prompt-file", "--messages", "--tokens"])
def test_a_folder_is_no_file(demo_package: Path, tmp_path: Path, ntool, option: str) -> None:
    command = ["sample-image", demo_package, "-o", tmp_path / "p.png"]
    if option != "--prompts":
        command = ["run-prefill", demo_package]
    value = f"@{tmp_path}" if option == "--tokens" else tmp_path
    done = ntool(*command, option, value, code=3)
    assert f"{tmp_path}: found a directory, expected a regular file" in done.err


def test_a_full_device_is_named(demo_package: Path, tmp_path: Path, ntool) -> None:
    if os.geteuid() != 0:
        pytest.skip("mknod needs root")
    full = tmp_path / "full"
    os.mknod(full, 0o666 | stat.S_IFCHR, os.makedev(1, 7))
    for option in ("-o", "--trace", "--save-latent"):
        outputs = ["-o", full] if option == "-o" else ["-o", tmp_path / "p.png", option, full]
        done = ntool("sample-image", demo_package, *SAMPLE, *outputs, code=6)
        assert f"{full}: cannot write: No space left on device" in done.err
    done = ntool("run-prefill", demo_package, "--prompt", "x", "-o", full, code=6)
    assert f"{full}: cannot write: No space left on device" in done.err


def test_a_limit_on_file_size_names_the_file(demo_package: Path, tmp_path: Path) -> None:
    """EFBIG, for a prefix file and for a package."""
    for command in (
        ["run-prefill", str(demo_package), "--prompt", "x", "-o", "out"],
        ["export-component", "demo:shapes", "embedding", "-o", "pkg"],
    ):
        done = subprocess.run(
            ["bash", "-c", 'ulimit -f 8; exec "$@"', "bash", *NTOOL, *command],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 6 and "cannot write: File too large" in done.stderr, done.stderr
        name = "pkg/embedding/model.safetensors" if "pkg" in command else "out"
        assert f": {name}: cannot write" in done.stderr
        assert os.listdir(tmp_path) == []
