"""sample-image against the goldens, from prompts and from prefix files, and what it refuses."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file, save_file

from ntool.lib.families.neo_chat import preview
from ntool.lib.sampling.image import read_png_recipe, to_uint8

from ..conftest import run_ntool
from ..families.neo_chat.golden_cases import RUN, close, load_case
from ..families.neo_chat.golden_runs import (
    check_picture,
    drawn,
    golden_noise,
    names,
    package,
    sampler_options,
)

DEMO = Path(__file__).parents[1] / "data" / "demo-shapes" / "goldens"
PROMPT = "a large red circle on a white background"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("packages")


T2I = [(c, r) for c, r in names("t2i") if not load_case(c).runs[r]["args"].get("think_mode")]


@pytest.mark.parametrize(("name", "run"), T2I)
def test_text_to_image_goldens(packages: Path, tmp_path: Path, ntool, name: str, run: str) -> None:
    case = load_case(name)
    golden, entry = case.golden(run), case.runs[run]
    args = entry["args"]
    pkg = package(name, packages, tuple(args["config_overrides"].items()))
    options = ["--prompt", args["prompt"], "--latent", golden_noise(case, entry)]
    trace, picture = drawn(ntool, pkg, tmp_path, *options, *sampler_options(args))
    np.testing.assert_allclose(trace["t"], golden["timesteps"], rtol=0, atol=1.2e-7)
    recipe = read_png_recipe(tmp_path / "out.png")
    assert recipe is not None
    assert np.float32(recipe["noise_scale"]) == golden["noise_scale"][0]
    if "z_steps" in golden:
        close(trace["z"][1:-1], golden["z_steps"], RUN)
    if "z_after_step0" in golden:
        close(trace["z"][1:2].reshape(golden["z_after_step0"].shape), golden["z_after_step0"], RUN)
    close(trace["z"][-1:], golden["z_final"], RUN)
    wanted = golden["image_uint8"] if "image_uint8" in golden else to_uint8(golden["z_final"])
    check_picture(picture, wanted)


DEMO_PICTURES = [e for e in json.loads((DEMO / "manifest.json").read_text()) if e["kind"] == "t2i"]
# Twenty steps of five layers with guidance 4 on values up to 4: every step multiplies a rounding
# difference by up to 7. 4e-5 was measured.
LONG_RUN = 2e-4


@pytest.mark.parametrize("entry", DEMO_PICTURES, ids=lambda e: e["name"])
def test_demo_goldens(demo_package: Path, tmp_path: Path, ntool, entry) -> None:
    golden = load_file(DEMO / entry["file"])
    args = {**entry["args"], "cfg_scale": entry["cfg_scale"]}
    options = ["--prompt", entry["prompt"], "--latent", DEMO / entry["file"]]
    trace, picture = drawn(ntool, demo_package, tmp_path, *options, *sampler_options(args))
    for steps in (1, 10):
        close(trace["z"][steps : steps + 1], golden[f"z_after_{steps}_steps"], LONG_RUN)
    close(trace["z"][-1:], golden["z_final"], LONG_RUN)
    # The bytes of `image_uint8` in these files are in CHW order under an HWC shape; the PNG beside
    # each is the same picture in its right order.
    with Image.open(DEMO / entry["png"]) as png:
        wanted = np.asarray(png)
    np.testing.assert_array_equal(
        golden["image_uint8"].reshape(3, 128, 128).transpose(1, 2, 0), wanted
    )
    off = np.abs(picture.astype(int) - wanted.astype(int))
    assert off.max() <= 1 and (off > 0).mean() < 0.002  # rounding ties


def test_prefix_files_and_the_short_form_give_the_same_bytes(
    demo_package, tmp_path, ntool, monkeypatch
) -> None:
    monkeypatch.setenv("NTOOL_CACHE", str(tmp_path / "cache"))
    cond, uncond = tmp_path / "cond", tmp_path / "uncond"
    prompt = ["--task", "text-to-image", "--prompt", PROMPT]
    ntool("run-prefill", demo_package, *prompt, "-o", cond)
    ntool("run-prefill", demo_package, "--task", "unconditional", "-o", uncond)
    prefixes = ["--prefix", cond, "--prefix-unconditional", uncond]
    ntool("sample-image", demo_package, *prefixes, "-o", tmp_path / "a.png")
    done = ntool("sample-image", "demo:shapes", "--prompt", PROMPT, "-o", tmp_path / "b.png")
    assert "exporting demo:shapes once" in done.err
    again = ntool("sample-image", "demo:shapes", "--prompt", PROMPT, "-o", tmp_path / "c.png")
    assert "exporting" not in again.err
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "c.png").read_bytes()
    steps = done.of("step")
    assert [s["index"] for s in steps] == list(range(20))
    assert steps[0]["t"] == 0 and steps[-1]["t_next"] == 1
    assert done.of("file")[0]["nbytes"] == (tmp_path / "b.png").stat().st_size


def test_standard_output_takes_the_picture_alone(demo_package, tmp_path, ntool) -> None:
    import subprocess
    import sys

    options = ["--prompt", PROMPT, "--threads", "1"]  # the order of a sum depends on their number
    ntool("sample-image", demo_package, *options, "-o", tmp_path / "a.png")
    command = [sys.executable, "-m", "ntool", "sample-image", str(demo_package)]
    done = subprocess.run([*command, *options, "-o", "-"], capture_output=True, check=True)
    assert done.stdout == (tmp_path / "a.png").read_bytes()


def test_the_latent_of_a_run_can_be_saved_and_given_back(demo_package, tmp_path, ntool) -> None:
    a, b, c = (tmp_path / f"{n}.png" for n in "abc")
    save = ["--save-latent", tmp_path / "noise", "--trace", tmp_path / "trace"]
    ntool("sample-image", demo_package, "--prompt", PROMPT, "--seed", 7, "-o", a, *save)
    ntool("sample-image", demo_package, "--prompt", PROMPT, "--latent", tmp_path / "noise", "-o", b)
    z = load_file(tmp_path / "trace")["z"][:1]
    save_file({"z": z}, tmp_path / "z")
    ntool("sample-image", demo_package, "--prompt", PROMPT, "--latent", tmp_path / "z", "-o", c)
    pictures = [np.asarray(Image.open(p)) for p in (a, b, c)]
    np.testing.assert_array_equal(pictures[0], pictures[1])
    np.testing.assert_array_equal(pictures[0], pictures[2])
    recipe = read_png_recipe(a)
    assert recipe is not None and recipe["seed"] == 7 and recipe["rng"] == "portable"
    given = read_png_recipe(c)
    assert given is not None and "seed" not in given and given["latent"] == "z"


def test_the_recipe_holds_what_decides_the_picture_and_no_path(
    demo_package, tmp_path, ntool
) -> None:
    out = tmp_path / "a.png"
    ntool("sample-image", demo_package, "--prompt", PROMPT, "--steps", 3, "--cfg", 1.5, "-o", out)
    recipe = read_png_recipe(out)
    assert recipe is not None
    wanted = {"prompt": PROMPT, "steps": 3, "cfg": 1.5, "shift": 3.0, "t_eps": 0.02, "seed": 42}
    assert wanted.items() <= recipe.items()
    assert recipe["width"] == recipe["height"] == 128 and recipe["noise_scale"] == 2.0
    assert str(tmp_path) not in json.dumps(recipe)
    ntool("sample-image", demo_package, "--prompt", PROMPT, "--no-metadata", "-o", out)
    assert read_png_recipe(out) is None


def test_many_pictures_in_one_run(demo_package, tmp_path, ntool) -> None:
    lines = [
        {"prompt": PROMPT, "seed": 3},
        {
            "prompt": "a large blue cross on a yellow background",
            "output": str(tmp_path / "own.png"),
        },
        {"prompt": PROMPT, "seed": 3, "size": "64x96", "steps": 2, "cfg": 1},
    ]
    done = ntool(
        "sample-image", demo_package, "--prompts", write_lines(tmp_path, lines),
        "-o", tmp_path / "p.png", "--sheet", tmp_path / "sheet.png",
    )  # fmt: skip
    paths = [Path(f["path"]).name for f in done.of("file")]
    assert paths == ["p-0.png", "own.png", "p-2.png", "sheet.png"]
    with Image.open(tmp_path / "p-2.png") as picture:
        assert picture.size == (64, 96)
    ntool("sample-image", demo_package, "--prompt", PROMPT, "--seed", 2, "--count", 2,
          "-o", tmp_path / "c.png")  # fmt: skip
    assert (tmp_path / "c-1.png").read_bytes() == (tmp_path / "p-0.png").read_bytes()


def write_lines(tmp_path: Path, rows: list[dict]) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


BAD_LINES = [
    ({"prompt": "x", "colour": "red"}, "line 1: field: found colour"),
    ({"prompt": 3}, "line 1: 'prompt'"),
    ({"seed": 3}, "'prompt' is missing"),
    ({"prompt": "x", "seed": -1}, "'seed'"),
    ({"prompt": "x", "seed": True}, "'seed'"),
]


@pytest.mark.parametrize(("row", "words"), BAD_LINES)
def test_bad_prompt_lines_are_named(demo_package, tmp_path, ntool, row, words: str) -> None:
    lines = write_lines(tmp_path, [row])
    done = ntool("sample-image", demo_package, "--prompts", lines, "-o", tmp_path / "p.png", code=3)
    assert words in done.err and not list(tmp_path.glob("*.png"))


def test_a_value_that_is_not_finite_stops_without_a_picture(demo_package, tmp_path, ntool) -> None:
    """Weights near the end of float32's range: the head overflows in the first step."""
    package = tmp_path / "pkg"
    shutil.copytree(demo_package, package)
    report = json.loads((package / "weight-loading-report.json").read_text())
    (row,) = [t for t in report["tensors"] if t["name"].endswith("model.norm_mot_gen.weight")]
    (target,) = row["targets"]
    with open(package / target["file"], "r+b") as f:
        f.seek(target["offset"])
        f.write(np.full(target["nbytes"] // 4, 3e38, np.float32).tobytes())
    out = tmp_path / "p.png"
    done = ntool("sample-image", package, "--prompt", PROMPT, "-o", out, code=3)
    assert "step 0: tensor x0 of branch cond" in done.err and "NaN or infinite" in done.err
    assert not out.exists()


def test_a_latent_file_that_is_not_finite_is_named(demo_package, tmp_path, ntool) -> None:
    z = np.zeros((1, 3, 64, 64), np.float32)
    z[0, 0, 5, 5] = np.inf
    save_file({"z": z}, tmp_path / "z")
    options = ["--prompt", PROMPT, "--latent", tmp_path / "z", "-o", tmp_path / "p.png"]
    done = ntool("sample-image", demo_package, *options, code=3)
    assert f"{tmp_path / 'z'}: tensor 'z'" in done.err and "1 of 12288" in done.err
    assert not (tmp_path / "p.png").exists()


WRONG = [
    (["--prompt", "x", "--size", "100x64"], 2, "100"),
    (["--prompt", "x", "--size", "big"], 2, "WIDTHxHEIGHT"),
    (["--prompt", "x", "--steps", "0"], 2, "steps"),
    (["--prompt", "x", "--cfg", "nan"], 2, "cfg"),
    (["--prompt", "x", "--cfg-norm", "loud"], 2, "loud"),
    (["--prompt", "x", "--cfg-interval", "1"], 2, "LO,HI"),
    (["--prompt", "x", "--shift", "0"], 2, "shift"),
    (["--prompt", "x", "--t-eps", "0"], 2, "t-eps"),
    (["--prompt", "x", "--rng", "dice"], 2, "dice"),
    (["--prompt", "x", "--prefix", "y"], 2, "one of --prompt"),
    ([], 2, "one of --prompt"),
    (["--prompt", "x", "--prefix-unconditional", "y"], 2, "go with --prefix"),
    (["--prefix", "nowhere", "--cfg", "1"], 4, "nowhere"),
    (["--prompt", "x", "--latent", "nowhere"], 4, "nowhere"),
    (["--prompts", "nowhere"], 4, "nowhere"),
]


@pytest.mark.parametrize(("options", "code", "words"), WRONG, ids=lambda x: str(x)[:40])
def test_wrong_use(demo_package, tmp_path, ntool, options, code: int, words: str) -> None:
    out = tmp_path / "p.png"
    done = ntool("sample-image", demo_package, *options, "-o", out, code=code)
    assert words in done.err, done.err
    assert not out.exists()


def test_guidance_needs_the_unconditional_prefix(demo_package, tmp_path, ntool) -> None:
    a = tmp_path / "a"
    ntool("run-prefill", demo_package, "--task", "text-to-image", "--prompt", "x", "-o", a)
    done = ntool("sample-image", demo_package, "--prefix", a, "-o", tmp_path / "p.png", code=2)
    assert "--cfg 2 needs --prefix-unconditional" in done.err


def test_prefixes_are_checked_against_the_package(demo_package, packages, tmp_path, ntool) -> None:
    a = tmp_path / "a"
    ntool("run-prefill", demo_package, "--task", "text-to-image", "--prompt", "x", "-o", a)
    other = package("dense-conv", packages)
    options = ["--cfg", 1, "-o", tmp_path / "p.png"]
    assert "made with package" in ntool("sample-image", other, "--prefix", a, *options, code=3).err
    both = ["--prefix", a, "--prefix-unconditional", a, "-o", tmp_path / "p.png"]
    assert "task" in ntool("sample-image", demo_package, *both, code=3).err
    a.write_bytes(a.read_bytes()[:-8])
    done = ntool("sample-image", demo_package, "--prefix", a, *options, code=3)
    assert "short" in done.err or "end" in done.err, done.err
    noise = np.zeros((1, 3, 32, 32), np.float32)
    save_file({"noise": noise, "z": noise}, tmp_path / "both")
    latent = ["--prompt", "x", "--latent", tmp_path / "both"]
    assert "one of" in ntool("sample-image", demo_package, *latent, *options, code=3).err
    save_file({"noise": noise}, tmp_path / "one")
    latent = ["--prompt", "x", "--latent", tmp_path / "one", "--size", "64x64"]
    assert "32x32" in ntool("sample-image", demo_package, *latent, *options, code=2).err


def test_piped_prompts(demo_package, tmp_path) -> None:
    line = json.dumps({"prompt": PROMPT, "steps": 2})
    done = run_ntool(
        "sample-image", demo_package, "--prompts", "-", "-o", tmp_path / "p.png", stdin=line
    )
    assert done.code == 0, done.err
    assert (tmp_path / "p.png").exists()


NOISE = np.ones((1, 3, 64, 32), np.float32)
LATENTS = [
    ("noise", NOISE[:, :, :0], "found F32 [1, 3, 0, 32]"),
    ("noise", NOISE[:, :, :33], "picture size: found 32x33, expected multiples of 32"),
    ("z", NOISE[:, :, :, :16], "picture size: found 16x64"),
    ("noise", NOISE * np.float32(1.1e4), "unit variance"),
    ("noise", NOISE * np.float32(-1e30), "unit variance"),
    ("noise", NOISE * np.float32(np.nan), "NaN or infinite"),
    ("z", NOISE * np.float32(np.inf), "NaN or infinite"),
    ("z", NOISE.astype(np.float16), "found F16"),
    ("z", NOISE[0], "found F32 [3, 64, 32]"),
    ("z", np.concatenate([NOISE, NOISE]), "found [2, 3, 64, 32]"),
]


@pytest.mark.parametrize(("name", "value", "words"), LATENTS, ids=lambda x: str(x)[:30])
def test_odd_latent_files(demo_package, tmp_path, ntool, name, value, words: str) -> None:
    save_file({name: np.ascontiguousarray(value)}, tmp_path / "latent")
    options = ["--prompt", "x", "--latent", tmp_path / "latent", "-o", tmp_path / "p.png"]
    done = ntool("sample-image", demo_package, *options, code=3)
    assert f"latent: tensor '{name}'" in done.err and words in done.err, done.err
    assert not done.of("step") if done.out else True
    draw = ["--task", "interleave", "--prompt", "x", "--latent", tmp_path / "latent"]
    if len(value) == 1:
        done = ntool("run-prefill", demo_package, *draw, "-o", tmp_path / "p.png", code=3)
        assert f"latent: tensor '{name}'" in done.err and words in done.err, done.err


def test_z_beyond_float32_is_refused_without_a_warning(demo_package, tmp_path) -> None:
    save_file({"z": NOISE * np.float32(3e38)}, tmp_path / "z")
    options = ["--prompt", "x", "--latent", tmp_path / "z", "-o", tmp_path / "p.png", "-q"]
    done = run_ntool("sample-image", demo_package, *options)
    assert done.code == 3 and done.err.count("\n") <= 2, done.err


def test_previews_are_the_prediction_of_the_step(demo_package: Path, tmp_path: Path, ntool) -> None:
    out, shown, trace = tmp_path / "p.png", tmp_path / "shown.png", tmp_path / "t.safetensors"
    options = ["--prompt", PROMPT, "--cfg", 1, "--steps", 6, "--trace", trace, "--preview", shown]
    done = ntool("sample-image", demo_package, *options, "-o", out, "--preview-every", 4)
    assert [f["role"] for f in done.of("file")] == ["picture", "preview", "trace"]
    a = load_file(trace)
    # without guidance v = (x0 - z) / max(1 - t, t_eps); the last step's is shown at the end
    x0 = a["z"][-2] + a["v"][-1] * max(1 - a["t"][-2], np.float32(0.02))
    off = np.abs(np.asarray(Image.open(shown)).astype(int) - to_uint8(x0[None]).astype(int))
    assert off.max() <= 1
    assert read_png_recipe(shown) is None  # it is no result


def test_when_previews_are_written(demo_package: Path, tmp_path: Path, ntool, monkeypatch) -> None:
    steps: list[int] = []
    write = preview.write_png

    def watched(path, picture):
        assert picture.shape == (128, 128, 3)
        steps.append(len(steps))
        write(path, picture)

    monkeypatch.setattr(preview, "write_png", watched)
    options = ["--prompt", PROMPT, "-o", tmp_path / "p.png", "--preview", tmp_path / "v.png"]
    for asked, count, written in (([], 12, 3), (["--preview-every", 3], 9, 3)):
        steps.clear()
        ntool("sample-image", demo_package, *options, "--steps", count, *asked)
        assert len(steps) == written


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--preview-every", 3], "--preview-every without --preview"),
        (["--preview", "-"], "--preview -"),
        (["--preview", "same.png"], "same.png"),
        (["--preview", "v.png", "--preview-every", 0], "--preview-every"),
        (["--preview", "folder/"], "expected the name of a file"),
        (["--sheet", "folder/"], "expected the name of a file"),
        (["--trace", ""], "expected the name of a file"),
    ],
)
def test_previews_that_cannot_be(
    demo_package: Path, tmp_path: Path, ntool, monkeypatch, options: list[object], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    base = ["sample-image", demo_package, "--prompt", PROMPT, "-o", "same.png"]
    assert words in ntool(*base, *options, code=2).err
    assert not list(tmp_path.glob("*.png"))


def test_a_viewer_that_is_closed_costs_no_picture(
    demo_package: Path, tmp_path: Path, ntool, monkeypatch
) -> None:
    def gone(path, picture):
        calls.append(path)
        raise BrokenPipeError

    calls: list[Path] = []
    monkeypatch.setattr(preview, "write_png", gone)
    os.mkfifo(tmp_path / "pipe")
    options = ["--prompt", PROMPT, "--steps", 4, "--preview-every", 1, "--count", 2]
    done = ntool(
        "sample-image", demo_package, *options, "-o", tmp_path / "p.png", "--preview",
        tmp_path / "pipe",
    )  # fmt: skip
    assert len(calls) == 1 and "its reader has gone" in done.err
    assert sorted(p.name for p in tmp_path.glob("*.png")) == ["p-0.png", "p-1.png"]
