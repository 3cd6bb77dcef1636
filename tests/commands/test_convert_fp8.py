from __future__ import annotations

import hashlib
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from ..conftest import DATA, run_ntool
from ..fp8 import fp8_files

FP8 = DATA / "qwen4-exp" / "text-fp8"
META = json.loads((FP8 / "golden" / "meta.json").read_text())


def sha256(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


@pytest.mark.parametrize(
    "to, dtype, golden",
    [("f32", "F32", "sha256_exact_f32"), ("bf16", "BF16", "sha256_product_rounded_bf16")],
)
def test_reference_checkpoint(to: str, dtype: str, golden: str, tmp_path: Path) -> None:
    """Every dequantised tensor of the golden, both ways; all else byte for byte."""
    out = tmp_path / "out"
    done = run_ntool("convert-fp8", FP8, "-o", out, "--to", to, "--shard-size", "500KB", "-j", 2)
    assert (done.code, done.err) == (0, "")
    source, made = fp8_files.everything(FP8), fp8_files.everything(out)
    for name, digest in META[golden].items():
        assert made[name][0] == dtype
        assert sha256(made[name][1]) == digest
    assert len(META[golden]) == 64 and len(META["sha256_codes"]) == 64
    for name, (stored, array) in source.items():
        if stored == "F8_E4M3":
            assert made[name][0] == dtype
        elif "_scale" in name:
            assert name not in made
        else:
            assert made[name][0] == stored and made[name][1].tobytes() == array.tobytes()
    [summary] = done.of("summary")
    assert summary["counts"] == {"converted": 76, "copied": 176, "scale-consumed": 61}


def test_the_result_is_a_dense_checkpoint(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_ntool("convert-fp8", FP8, "-o", out, "--to", "bf16", "--shard-size", "1MB")
    config = json.loads((out / "config.json").read_text())
    assert "quantization_config" not in json.dumps(config)
    assert config["text_config"]["num_experts"] == 4
    index = json.loads((out / "model.safetensors.index.json").read_text())
    found = 0
    for file in sorted(set(index["weight_map"].values())):
        with safe_open(out / file, "numpy") as f:
            for name in f.keys():  # noqa: SIM118
                assert index["weight_map"][name] == file and "_scale" not in name
                part = f.get_slice(name)
                size = {"BF16": 2, "I64": 8}[part.get_dtype()]
                found += int(np.prod(part.get_shape())) * size
    assert index["metadata"]["total_size"] == found
    report = json.loads((out / "weight-loading-report.json").read_text())
    assert len(report["tensors"]) == 313
    assert {r["action"] for r in report["tensors"]} == {"converted", "copied", "scale-consumed"}
    census = run_ntool("census", out)
    assert census.code == 0 and census.of("summary")[0]["quantization"] is None
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out"]


def test_e4m3fnuz_packed_and_left_over_tensors_are_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weight = ("F8_E4M3", fp8_files.codes(rng, 8, 8))
    scale = ("BF16", fp8_files.scales(rng, 1, 1))
    cases = {
        "no scale": ({"a.weight": weight}, 3, "without a scale"),
        "orphan": ({"a.weight": weight, "a.weight_scale_inv": scale, "b.weight_scale_inv": scale},
                   3, "without an FP8 weight"),
        "fp8 of no kind": ({"a.weight": weight, "a.weight_scale_inv": scale,
                            "x_scale": weight}, 5, "x_scale"),
    }  # fmt: skip
    for label, (tensors, code, words) in cases.items():
        folder = tmp_path / label
        folder.mkdir()
        fp8_files.write(folder / "model.safetensors", tensors)
        (folder / "config.json").write_text(json.dumps(fp8_files.CONFIG))
        done = run_ntool("convert-fp8", folder, "-o", tmp_path / "out")
        assert done.code == code, label
        assert words in done.err, label
        assert not (tmp_path / "out").exists()
    allowed = run_ntool(
        "convert-fp8", tmp_path / "no scale", "-o", tmp_path / "out", "--allow-unscaled", "a.*"
    )
    assert allowed.code == 0


def test_what_is_left_out_is_told_with_its_reason(tmp_path: Path) -> None:
    source = fp8_files.checkpoint(tmp_path / "in")
    out = tmp_path / "out"
    done = run_ntool(
        "convert-fp8", source, "-o", out, "--exclude", "model.layers.1.*", "--include", "model.*"
    )
    assert done.code == 0
    rows = json.loads((out / "weight-loading-report.json").read_text())["tensors"]
    left = {r["name"]: r["reason"] for r in rows if r["action"] == "excluded"}
    down = "model.layers.1.mlp.down_proj.weight"
    assert set(left) == {down, f"{down}_scale_inv", "model.layers.1.norm.weight"}
    assert "left out" in left[f"{down}_scale_inv"]
    assert not any("layers.1." in n for n in fp8_files.everything(out))
    [summary] = done.of("summary")
    assert sum(summary["counts"].values()) == len(rows) == 14


@pytest.mark.parametrize("to", ["bf16", "f16", "f32"])
def test_against_a_four_line_loop(to: str, tmp_path: Path) -> None:
    import ml_dtypes

    source = fp8_files.checkpoint(tmp_path / "in", layers=5, files=3)
    out = tmp_path / "out"
    assert run_ntool("convert-fp8", source, "-o", out, "--to", to, "--verify").code == 0
    stored, made = fp8_files.everything(source), fp8_files.everything(out)
    kinds = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32}
    for name, (dtype, array) in stored.items():
        if dtype != "F8_E4M3":
            continue
        scale = stored[f"{name}_scale_inv"][1].view(ml_dtypes.bfloat16).astype(np.float32)
        values = array.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
        for i in range(values.shape[0]):
            for j in range(values.shape[1]):
                values[i, j] *= scale[i // 128, j // 128]
        assert made[name][1].tobytes() == values.astype(kinds[to]).tobytes()


def test_dry_run_writes_nothing(tmp_path: Path) -> None:
    source = fp8_files.checkpoint(tmp_path / "in")
    done = run_ntool("convert-fp8", source, "-o", tmp_path / "out", "--dry-run")
    assert done.code == 0 and done.of("summary")[0]["dry_run"] is True
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in"]


def test_parts_by_xargs_and_merged_are_one_run(tmp_path: Path) -> None:
    source = fp8_files.checkpoint(tmp_path / "in", layers=12, files=4)
    command = [sys.executable, "-m", "ntool", "convert-fp8"]
    plain = [str(source), "--to", "bf16", "--shard-size", "40KB"]
    subprocess.run([*command, *plain, "-o", tmp_path / "one"], check=True, capture_output=True)
    split = tmp_path / "split"
    script = 'printf "%s\\n" 1/3 2/3 3/3 | xargs -P 2 -I{} "$@" --part {}'
    subprocess.run(
        ["sh", "-c", script, "x", *command, *plain, "-o", str(split)],
        check=True, capture_output=True,
    )  # fmt: skip
    assert not split.exists()
    assert run_ntool("convert-fp8", "--merge", split).code == 0
    assert fp8_files.digests(split) == fp8_files.digests(tmp_path / "one")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "one", "split"]
    again = run_ntool("convert-fp8", "--merge", split)
    assert again.code == 4 and "no conversion is under way" in again.err


def test_a_merge_without_all_parts_is_refused(tmp_path: Path) -> None:
    source = fp8_files.checkpoint(tmp_path / "in", layers=12)
    out = tmp_path / "out"
    options = ["convert-fp8", source, "-o", out, "--shard-size", "40KB"]
    assert run_ntool(*options, "--part", "1/2").code == 0
    done = run_ntool("convert-fp8", "--merge", out)
    assert done.code == 2 and "not finished" in done.err and not out.exists()
    other = run_ntool(*options, "--to", "f32", "--part", "2/2")
    assert other.code == 2 and "another conversion" in other.err
    assert run_ntool(*options, "--part", "2/2").code == 0
    assert run_ntool("convert-fp8", "--merge", out).code == 0
    assert run_ntool("convert-fp8", "--merge", tmp_path / "no").code == 4


@pytest.mark.parametrize("part", ["0/2", "3/2", "1", "a/b", "1/2/3", "-1/2", "١/٢"])
def test_parts_that_are_none(part: str, tmp_path: Path) -> None:
    done = run_ntool("convert-fp8", tmp_path, "-o", tmp_path / "o", "--part", part)
    assert done.code == 2 and "--part" in done.err


def test_output_and_input(tmp_path: Path) -> None:
    source = fp8_files.checkpoint(tmp_path / "in")
    before = fp8_files.digests(source)
    for out in (source, source / "sub", tmp_path):
        done = run_ntool("convert-fp8", source, "-o", out)
        assert done.code == 2, out
    out = tmp_path / "out"
    assert run_ntool("convert-fp8", source, "-o", out).code == 0
    refused = run_ntool("convert-fp8", source, "-o", out, "--to", "f32")
    assert refused.code == 2 and "--force" in refused.err
    assert run_ntool("convert-fp8", source, "-o", out, "--to", "f32", "--force").code == 0
    assert {d for d, _ in fp8_files.everything(out).values()} == {"F32", "BF16", "I64"}
    assert fp8_files.digests(source) == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    kept = run_ntool("convert-fp8", source, "-o", tmp_path / "mine", "--force")
    assert kept.code == 2 and (tmp_path / "mine" / "thesis.txt").exists()


def test_a_changed_output_is_found(tmp_path: Path) -> None:
    """--verify with --resume looks at what stands there already."""
    source = fp8_files.checkpoint(tmp_path / "in")
    out = tmp_path / "out"
    options = ["convert-fp8", source, "-o", out, "--resume", "--verify"]
    assert run_ntool(*options).code == 0
    assert run_ntool(*options).code == 0
    path = out / "model.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-5] ^= 1
    path.write_bytes(raw)
    done = run_ntool(*options)
    assert done.code == 1
    [problem] = done.of("problem")
    assert problem["code"] == "differs" and "from byte" in problem["message"]
    path.write_bytes(raw[:-1])
    done = run_ntool(*options)
    assert done.code == 2 and "not what is to be written" in done.err


@pytest.mark.skipif(shutil.which("unshare") is None, reason="no unshare to make a small disk with")
def test_a_full_disk(tmp_path: Path) -> None:
    """A file system of 300 KB: the free-space check refuses, and where it was wrong, so does the
    disk; the old output stays, no temporary is left."""
    source = fp8_files.checkpoint(tmp_path / "in", layers=6)
    disk = tmp_path / "disk"
    disk.mkdir()
    lie = "import shutil, collections; U = collections.namedtuple('U', 'free'); "
    lie += "shutil.disk_usage = lambda p: U(10**15); "
    start = "import sys; from ntool.guard import run; sys.exit(run(sys.argv[1:]))"
    script = f"""
    mount -t tmpfs -o size=300k none {disk} || exit 77
    mkdir {disk}/out && echo '{{}}' > {disk}/out/weight-loading-report.json || exit 78
    "$0" -c "{start}" convert-fp8 {source} -o {disk}/out --force >/dev/null; echo $?
    "$0" -c "{lie}{start}" convert-fp8 {source} -o {disk}/out --force >/dev/null; echo $?
    ls -A {disk} {disk}/out
    """
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, sys.executable], capture_output=True, text=True
    )
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("mounting is not allowed here")
    assert done.stdout.split() == [
        "6",
        "6",
        f"{disk}:",
        "out",
        f"{disk}/out:",
        "weight-loading-report.json",
    ]
    assert "not enough disk space" in done.stderr and "No space left" in done.stderr


KILLED = """
import os, random, signal, sys, time, json
from pathlib import Path
sys.path.insert(0, sys.argv[4])
from tests.fp8.fp8_files import digests
import numpy, ntool.lib.fp8.conversion, ntool.lib.numeric.dequantize, ntool.lib.conversion.run
from ntool.app import application
from ntool.guard import run
source, out, count = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
application()
options = ["convert-fp8", source, "-o", str(out), "--shard-size", "20KB", "--to", "bf16"]

def convert(*more):
    child = os.fork()
    if child:
        return child
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os._exit(run([*options, *more]))

def ended(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def clear():
    import shutil
    for path in out.parent.iterdir():
        if path != Path(source):
            shutil.rmtree(path)

started = time.monotonic()
assert ended(convert()) == 0
whole, seconds = digests(out), time.monotonic() - started
assert sum(n.endswith(".safetensors") for n in whole) >= 20
clear()
rng = random.Random(5)
met = {"before": 0, "during": 0, "after": 0}
while sum(met.values()) < count or (met["during"] < 15 and sum(met.values()) < 4 * count):
    child = convert()  # a machine that was busy when the whole run was timed needs more tries
    time.sleep(rng.uniform(0, 0.8 * seconds))
    os.kill(child, signal.SIGKILL)
    code = ended(child)
    if out.exists():
        assert digests(out) == whole
        met["after"] += 1
    else:
        met["during" if any(out.parent.glob(".*")) else "before"] += 1
        assert [p.name for p in out.parent.iterdir() if not p.name.startswith(".")] == ["in"]
    assert ended(convert("--resume")) == 0
    assert digests(out) == whole
    left = sorted(p.name for p in out.parent.iterdir() if p.name not in ("in", "out"))
    assert all(".ntool-work." in n for n in left), left  # begun and killed before its name
    clear()
print(json.dumps(met))
"""


def test_killed_at_any_moment_and_resumed(tmp_path: Path) -> None:
    """SIGKILL at 50 random moments: what appears is whole, and resuming ends in the same bytes."""
    source = fp8_files.checkpoint(tmp_path / "in", layers=24, files=4)
    done = subprocess.run(
        [sys.executable, "-c", KILLED, source, tmp_path / "out", "50",
         str(Path(__file__).parents[2])],
        capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    met = json.loads(done.stdout)
    assert met["during"] >= 15 and sum(met.values()) >= 50


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(number: signal.Signals, tmp_path: Path) -> None:
    """In the middle of a conversion: nothing of it stays."""
    rng = np.random.default_rng(1)
    source = tmp_path / "in"
    source.mkdir()
    tensors = {}
    for i in range(30):
        tensors[f"l.{i}.weight"] = ("F8_E4M3", fp8_files.codes(rng, 1024, 1024))
        tensors[f"l.{i}.weight_scale_inv"] = ("BF16", fp8_files.scales(rng, 8, 8))
    fp8_files.write(source / "model.safetensors", tensors)
    (source / "config.json").write_text(json.dumps(fp8_files.CONFIG))
    process = subprocess.Popen(
        [sys.executable, "-m", "ntool", "convert-fp8", str(source), "-o", str(tmp_path / "out"),
         "--shard-size", "2MB", "--to", "f32"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    work = tmp_path / ".out.ntool-work"
    for _ in range(2000):
        if work.exists() and len(list((work / "data").glob("*.safetensors"))) > 2:
            break
        time.sleep(0.005)
    process.send_signal(number)
    assert process.wait(30) == (130 if number == signal.SIGINT else 143)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in"]
