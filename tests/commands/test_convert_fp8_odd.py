"""What a break-in test found in convert-fp8, each as a test."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ..conftest import run_ntool
from ..fp8 import fp8_files

BLOCKS = fp8_files.CONFIG
PLAIN = {"quantization_config": {"quant_method": "fp8"}}


def made(
    folder: Path, config: Any = PLAIN, /, file: str = "model.safetensors", **tensors: Any
) -> Path:
    folder.mkdir(exist_ok=True)
    fp8_files.write(folder / file, {n.replace("__", "."): t for n, t in tensors.items()})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def fp8(byte: int, *shape: int) -> tuple[str, np.ndarray]:
    return "F8_E4M3", np.full(shape, byte, np.uint8)


def f32(*values: float, shape: tuple[int, ...] | None = None) -> tuple[str, np.ndarray]:
    array = np.asarray(values, "<f4")
    return "F32", array.reshape(shape if shape is not None else ())


def test_blocks_of_a_bank_are_those_of_the_config(tmp_path: Path) -> None:
    """A grid [E, 2, 1] is two rows of blocks where the config has blocks of that number."""
    bank = ("F8_E4M3", fp8_files.codes(np.random.default_rng(0), 2, 200, 64))
    scales = np.arange(1, 5, dtype="<f4").reshape(2, 2, 1)
    source = made(
        tmp_path / "in", BLOCKS, l__down_proj=bank, l__down_proj_scale_inv=("F32", scales)
    )
    assert run_ntool("convert-fp8", source, "-o", tmp_path / "out", "--to", "f32").code == 0
    _, values = fp8_files.everything(tmp_path / "out")["l.down_proj"]
    rows = np.repeat(scales, 128, axis=1)[:, :200]
    assert np.array_equal(values, bank[1].view(ml_dtypes.float8_e4m3fn).astype("f4") * rows)


@pytest.mark.parametrize("taken", ["a.weight_scale_inv", "a.weight_scale"])
@pytest.mark.parametrize("scale", ["block", "per-tensor"])
def test_a_name_that_is_taken(taken: str, scale: str, tmp_path: Path) -> None:
    ones = ("F32", np.ones((8, 8), "<f4"))
    source = made(tmp_path / "in", {}, **{"a__weight": ones, taken.replace(".", "__"): f32(1)})
    done = run_ntool("convert-fp8", source, "-o", tmp_path / "out", "--to", "fp8", "--scale", scale)
    assert done.code == 5 and taken in done.err
    assert not (tmp_path / "out").exists()


def shard(folder: Path, number: int, byte: int) -> None:
    name = f"w{number}.weight"
    tensors = {name: fp8(byte, 8, 8), f"{name}_scale": f32(1)}
    fp8_files.write(folder / f"model-0000{number}-of-00002.safetensors", tensors)


def source_of(folder: Path, byte: int) -> Path:
    folder.mkdir(exist_ok=True)
    for number in (1, 2):
        shard(folder, number, byte)
    (folder / "config.json").write_text(json.dumps(PLAIN))
    return folder


def test_a_shard_replaced_before_its_turn_is_noticed(tmp_path: Path) -> None:
    """Its header was read at the start; by the time its bytes are, it is another file."""
    script = """
import os, sys, time
from ntool.lib.fp8 import conversion
from ntool.guard import run
plan = conversion.plan
def replaced(*arguments):
    made = plan(*arguments)
    path = sys.argv[1] + "/model-00002-of-00002.safetensors"
    raw = open(path, "rb").read()
    open(path + ".new", "wb").write(raw.replace(bytes([0x38]) * 64, bytes([0x40]) * 64))
    os.replace(path + ".new", path)
    return made
conversion.plan = replaced
sys.exit(run(["convert-fp8", sys.argv[1], "-o", sys.argv[2]]))
"""
    source = source_of(tmp_path / "in", 0x38)
    time.sleep(0.02)
    done = subprocess.run(
        [sys.executable, "-c", script, source, tmp_path / "out"], capture_output=True, text=True
    )
    assert done.returncode == 3 and "changed since its header was read" in done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in"]


def test_parts_of_two_sources_are_not_mixed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ["convert-fp8", tmp_path / "in", "-o", out, "--shard-size", "1"]
    source_of(tmp_path / "in", 0x38)
    assert run_ntool(*options, "--part", "1/2").code == 0
    time.sleep(0.02)
    source_of(tmp_path / "in", 0x40)
    for more in (["--resume"], ["--part", "2/2"]):
        done = run_ntool(*options, *more)
        assert done.code == 2 and "another conversion" in done.err
    assert not out.exists()
    assert run_ntool(*options, "--force").code == 0


def test_a_finished_output_is_resumed_only_if_it_is_this_one(tmp_path: Path) -> None:
    source, out = source_of(tmp_path / "in", 0x38), tmp_path / "out"
    options = ["convert-fp8", source, "-o", out, "--resume", "--shard-size", "1"]
    assert run_ntool(*options).code == 0
    assert run_ntool(*options).code == 0
    other = run_ntool(*options, "--to", "f32")
    assert other.code == 2 and "exists" in other.err
    config = (out / "config.json").read_text()
    (out / "config.json").write_text("{")
    assert run_ntool(*options, "--verify").code == 2
    (out / "config.json").write_text(config)
    (out / "model.safetensors.index.json").unlink()
    assert run_ntool(*options, "--verify").code == 2


def test_a_finished_output_of_an_older_source(tmp_path: Path) -> None:
    source, out = source_of(tmp_path / "in", 0x38), tmp_path / "out"
    options = ["convert-fp8", source, "-o", out, "--resume"]
    assert run_ntool(*options).code == 0
    time.sleep(0.02)
    source_of(tmp_path / "in", 0x40)
    done = run_ntool(*options)
    assert done.code == 2 and "newer" in done.err


@pytest.mark.parametrize(
    "tensors, config",
    [
        ({"q__qweight": ("I32", np.ones((4, 4), "<i4"))}, {"quant_method": "gptq"}),
        ({"q__qweight": ("I32", np.ones((4, 4), "<i4"))}, None),
        (
            {"q__weight_packed": ("I32", np.ones((4, 4), "<i4"))},
            {"quant_method": "compressed-tensors"},
        ),
        ({"q__weight": ("U8", np.ones((4, 4), "u1"))}, {"quant_method": "bitsandbytes"}),
        ({"l__gate_up_proj_blocks": ("U8", np.ones((4, 4), "u1"))}, None),
    ],
)  # fmt: skip
def test_other_quantisations_are_not_called_dense(
    tensors: Any, config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(fp8_files.NUMPY, "I32", "<i4")
    monkeypatch.setitem(fp8_files.NUMPY, "U8", "u1")
    source = made(tmp_path / "in", {"quantization_config": config} if config else {}, **tensors)
    done = run_ntool("convert-fp8", source, "-o", tmp_path / "out")
    assert done.code == 5 and not (tmp_path / "out").exists()
    assert "quant_method" in done.err or "another quantisation" in done.err


def test_a_config_two_levels_down(tmp_path: Path) -> None:
    inner = {"quantization_config": BLOCKS["quantization_config"], "hidden_size": 8}
    config = {"quantization_config": {}, "thinker_config": {"text_config": inner}}
    tensors = {
        "a__weight": fp8(0x38, 200, 130),
        "a__weight_scale_inv": ("F32", np.ones((2, 2), "<f4")),
    }
    source = made(tmp_path / "in", config, **tensors)
    assert run_ntool("convert-fp8", source, "-o", tmp_path / "out").code == 0
    text = (tmp_path / "out" / "config.json").read_text()
    assert "quantization_config" not in text and "hidden_size" in text
    assert (
        run_ntool("convert-fp8", tmp_path / "out", "-o", tmp_path / "back", "--to", "fp8").code == 0
    )
    assert (tmp_path / "back" / "config.json").read_text().count("quantization_config") == 1


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (0, 3), (2, 3, 0), (5,), (1, 1, 1, 1)])
def test_odd_ranks_and_empty_tensors(shape: tuple[int, ...], tmp_path: Path) -> None:
    source = made(tmp_path / "in", PLAIN, a__bias=fp8(0x38, *shape), a__bias_scale=f32(2))
    out = tmp_path / "out"
    assert run_ntool("convert-fp8", source, "-o", out, "--to", "f32", "--verify").code == 0
    _, array = fp8_files.everything(out)["a.bias"]
    assert array.shape == shape and (array == 2).all()


@pytest.mark.parametrize("more", [[], ["--scale", "per-tensor"]])
def test_empty_matrices_stay_as_they_are(more: list[str], tmp_path: Path) -> None:
    empty, full = ("BF16", np.zeros((8, 0), "<u2")), ("F32", np.ones((8, 8), "<f4"))
    source = made(tmp_path / "in", {}, a__weight=empty, b__weight=full)
    done = run_ntool("convert-fp8", source, "-o", tmp_path / "out", "--to", "fp8", *more)
    assert done.code == 0 and fp8_files.everything(tmp_path / "out")["a.weight"][0] == "BF16"


def test_a_long_vector_takes_no_more_memory_than_a_band(tmp_path: Path) -> None:
    """One row of 64 million codes with one scale."""
    source = tmp_path / "in"
    source.mkdir()
    n = 64_000_000
    header = {
        "a.weight": {"dtype": "F8_E4M3", "shape": [n], "data_offsets": [0, n]},
        "a.weight_scale": {"dtype": "F32", "shape": [], "data_offsets": [n, n + 4]},
    }
    text = json.dumps(header).encode()
    with open(source / "model.safetensors", "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        f.seek(n, 1)
        f.write(np.float32(1).tobytes())
    audited = str(Path(__file__).parents[1] / "audited.py")
    done = subprocess.run(
        [sys.executable, audited, str(tmp_path), "convert-fp8", str(source), "-o",
         str(tmp_path / "out")], capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0
    assert json.loads(done.stderr.splitlines()[-1])["rss"] < 100e6


def test_texts_that_are_none_in_a_config(tmp_path: Path) -> None:
    source = made(tmp_path / "in", PLAIN, a__weight=fp8(0x38, 4, 4), a__weight_scale=f32(1))
    (source / "config.json").write_text('{"x": "\\ud800", "quantization_config": {}}')
    assert run_ntool("convert-fp8", source, "-o", tmp_path / "out").code == 0
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == {"x": "\ud800"}


@pytest.mark.parametrize("kind", ["dangling", "outside", "pipe"])
def test_files_beside_are_judged_before_the_work(kind: str, tmp_path: Path) -> None:
    source = made(tmp_path / "in", PLAIN, a__weight=fp8(0x38, 4, 4), a__weight_scale=f32(1))
    path = source / "tokenizer.json"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("nowhere" if kind == "dangling" else "/etc/hostname")
    for more in (["--dry-run"], []):
        done = run_ntool("convert-fp8", source, "-o", tmp_path / "out", *more)
        assert done.code == 3 and "tokenizer.json" in done.err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in"]


@pytest.mark.parametrize("options", [["--include", "nope"], ["--exclude", "*"], ["--include", "["]])
def test_nothing_left_to_write(options: list[str], tmp_path: Path) -> None:
    source = made(tmp_path / "in", PLAIN, a__weight=fp8(0x38, 4, 4), a__weight_scale=f32(1))
    done = run_ntool("convert-fp8", source, "-o", tmp_path / "out", *options)
    assert done.code == 4 and "--include" in done.err and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "shape, grid, config",
    [
        ((2, 2, 130, 128), (2, 2, 2, 1), BLOCKS),
        ((2, 3, 4, 5), (2, 3, 4), PLAIN),
        ((3, 1, 5), (3, 2, 1), PLAIN),
    ],
)
def test_forms_that_are_not_converted_are_refused_by_census_too(
    shape: Any, grid: Any, config: Any, tmp_path: Path
) -> None:
    scales = ("F32", np.ones(grid, "<f4"))
    source = made(tmp_path / "in", config, a__weight=fp8(0x38, *shape), a__weight_scale=scales)
    assert run_ntool("census", source).code == 1
    for more in (["--dry-run"], []):
        done = run_ntool("convert-fp8", source, "-o", tmp_path / "out", *more)
        assert done.code == 3 and "a.weight" in done.err


def test_a_part_is_verified_not_the_old_output(tmp_path: Path) -> None:
    source, out = source_of(tmp_path / "in", 0x38), tmp_path / "out"
    options = ["convert-fp8", source, "-o", out, "--shard-size", "1"]
    assert run_ntool(*options).code == 0
    time.sleep(0.02)
    source_of(tmp_path / "in", 0x40)
    assert run_ntool(*options, "--force", "--verify", "--part", "1/2").code == 0


def test_messages_name_the_file(tmp_path: Path) -> None:
    source = made(tmp_path / "in", PLAIN, a__weight=fp8(0x7E, 4, 4), a__weight_scale=f32(1e6))
    done = run_ntool("convert-fp8", source, "-o", tmp_path / "out", "--to", "f16")
    assert done.code == 3 and "model.safetensors: tensor 'a.weight'" in done.err
    dense = made(tmp_path / "dense", {}, a__weight=("F32", np.full((4, 4), np.inf, "<f4")))
    done = run_ntool("convert-fp8", dense, "-o", tmp_path / "out", "--to", "fp8")
    assert done.code == 3 and "model.safetensors: tensor 'a.weight'" in done.err


def test_a_damaged_work_folder(tmp_path: Path) -> None:
    source, out = source_of(tmp_path / "in", 0x38), tmp_path / "out"
    options = ["convert-fp8", source, "-o", out, "--shard-size", "1"]
    work = tmp_path / ".out.ntool-work"
    for state in ("{}", '{"schema":"ntool-conversion/1"}', "[", '{"schema":1}', ""):
        assert run_ntool(*options, "--part", "1/2", "--force").code == 0
        (work / "state.json").write_text(state)
        done = run_ntool("convert-fp8", "--merge", out)
        assert done.code == 3 and "not the state of a conversion" in done.err
    assert run_ntool(*options, "--part", "1/2", "--force").code == 0
    for note in (work / "done").iterdir():
        note.write_text("")
    assert run_ntool(*options, "--resume").code == 0  # made again
    assert len(fp8_files.everything(out)) == 2


def test_several_at_once_into_one_output(tmp_path: Path) -> None:
    """One wins; the others say that another is at work, or that it is done."""
    source, out = source_of(tmp_path / "in", 0x38), tmp_path / "out"
    command = ["convert-fp8", source, "-o", out, "--resume"]
    for _ in range(3):
        with ThreadPoolExecutor(3) as pool:
            ended = list(pool.map(lambda _: run_ntool(*command), range(3)))
        codes = sorted(e.code for e in ended)
        assert codes[0] == 0 and set(codes) <= {0, 2}, [e.err for e in ended]
        assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "out"]
        assert len(fp8_files.everything(out)) == 2
        shutil.rmtree(out)


@pytest.mark.parametrize(
    "options, words",
    [
        (["--verify"], "--resume --verify"),
        (["--dry-run"], "no other option"),
        (["--resume"], "no other option"),
        (["--part", "1/2"], "no other option"),
    ],
)
def test_merge_ignores_nothing(options: list[str], words: str, tmp_path: Path) -> None:
    source, out = source_of(tmp_path / "in", 0x38), tmp_path / "out"
    plain = ["convert-fp8", source, "-o", out, "--shard-size", "1"]
    for part in ("1/2", "2/2"):
        assert run_ntool(*plain, "--part", part).code == 0
    done = run_ntool("convert-fp8", "--merge", out, *options)
    assert done.code == 2 and words in done.err and not out.exists()
    other = run_ntool("convert-experts", "--merge", out)
    assert other.code == 2 and "of another command" in other.err and not out.exists()
    assert run_ntool("convert-fp8", "--merge", out).code == 0


@pytest.mark.parametrize(
    "to, options",
    [
        ("fp8", ["--lowering", "tiles"]),
        ("fp8", ["--allow-unscaled", "x"]),
        ("bf16", ["--block", "64,64"]),
        ("f32", ["--scale", "per-tensor"]),
        ("f32", ["--scale-reading", "bf16"]),
        ("fp8", ["--block", "64,64", "--scale", "per-tensor"]),
    ],
)
def test_options_that_would_be_ignored(to: str, options: list[str], tmp_path: Path) -> None:
    source = source_of(tmp_path / "in", 0x38)
    done = run_ntool("convert-fp8", source, "-o", tmp_path / "out", "--to", to, *options)
    assert done.code == 2 and options[0] in done.err


def test_a_dense_checkpoint_is_copied_with_a_warning(tmp_path: Path) -> None:
    source = made(tmp_path / "in", {}, a__weight=("F32", np.ones((2, 2), "<f4")))
    done = run_ntool("convert-fp8", source, "-o", tmp_path / "out")
    assert done.code == 0 and "no FP8 weight" in done.err
    assert [p["code"] for p in done.of("problem")] == ["no-fp8"]


def test_a_difference_is_not_called_verified(tmp_path: Path) -> None:
    source, out = source_of(tmp_path / "in", 0x38), tmp_path / "out"
    options = ["convert-fp8", source, "-o", out, "--resume", "--verify"]
    assert run_ntool(*options).of("summary")[0]["verified"] is True
    path = out / "model.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    done = run_ntool(*options)
    assert done.code == 1 and done.of("summary")[0]["verified"] is False


def test_another_conversion_is_told_by_its_options(tmp_path: Path) -> None:
    source, out = source_of(tmp_path / "in", 0x38), tmp_path / "out"
    options = ["convert-fp8", source, "-o", out, "--part", "1/2"]
    assert run_ntool(*options, "--shard-size", "1").code == 0
    done = run_ntool(*options, "--shard-size", "1", "--to", "f32")
    assert done.code == 2 and "to: BF16, not F32" in done.err
    done = run_ntool(*options)
    assert done.code == 2 and "shards: 2, not 1" in done.err
