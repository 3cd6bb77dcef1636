"""Editing, thinking and interleaving against the goldens of the published implementation."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file, save_file

from ntool.lib.families.neo_chat import prompts
from ntool.lib.runtime.session import Bound, Session
from ntool.lib.sampling import device_step, guidance
from ntool.lib.sampling.image import to_uint8

from ..families.neo_chat.golden_cases import COMPONENT, RUN, Case, close, load_case
from ..families.neo_chat.golden_runs import (
    check_picture,
    drawn,
    golden_noise,
    names,
    package,
    sampler_options,
)

DEMO = Path(__file__).parents[1] / "data" / "demo-shapes" / "goldens"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("packages")


def references(case: Case, args: dict) -> list[object]:
    """--image options and pixel limits of a golden's arguments."""
    options: list[object] = []
    for name in args["images"]:
        options += ["--image", case.folder / "inputs" / name]
    if "min_pixels" in args:
        options += ["--min-pixels", args["min_pixels"], "--max-pixels", args["max_pixels"]]
    return options


@pytest.mark.parametrize(("name", "run"), names("edit"))
def test_edit_goldens(packages: Path, tmp_path: Path, ntool, name: str, run: str) -> None:
    case = load_case(name)
    golden, entry = case.golden(run), case.runs[run]
    args = entry["args"]
    options = ["--prompt", args["prompt"], "--img-cfg", args["img_cfg_scale"]]
    options += [*references(case, args), "--latent", golden_noise(case, entry)]
    pkg = package(name, packages)
    trace, picture = drawn(ntool, pkg, tmp_path, *options, *sampler_options(args))
    np.testing.assert_allclose(trace["t"], golden["timesteps"], rtol=0, atol=1.2e-7)
    if "z_steps" in golden:
        close(trace["z"][1:-1], golden["z_steps"], RUN)
    close(trace["z"][-1:], golden["z_final"], RUN)
    check_picture(picture, golden.get("image_uint8", to_uint8(golden["z_final"])))


@pytest.mark.parametrize("name", ["dense-conv", "dense-mlp", "moe-mlp"])
def test_edit_prefixes(packages: Path, tmp_path: Path, ntool, name: str) -> None:
    """Ids, positions, features and caches of the three prefixes; the same picture from their
    files."""
    case = load_case(name)
    golden, entry = case.golden("edit_4_dual"), case.runs["edit_4_dual"]
    args, pkg = entry["args"], package(name, packages)
    requests = {
        "cond": ["--task", "image-edit", "--prompt", args["prompt"], *references(case, args)],
        "img_cond": ["--task", "images-only", *references(case, args)],
        "uncond": ["--task", "unconditional"],
    }
    for branch, options in requests.items():
        ntool("run-prefill", pkg, *options, "-o", tmp_path / branch)
        found = load_file(tmp_path / branch)
        np.testing.assert_array_equal(found["token_ids"], golden[f"input_ids_{branch}"])
        if branch == "cond":
            np.testing.assert_array_equal(found["position_ids"], golden["position_indexes_cond"])
            for key, value in golden.items():
                if key.startswith("kv_cond_last8."):
                    past = found[key.replace("kv_cond_last8.", "past.")]
                    close(past[:, :, -8:], value, COMPONENT)
    sampler = [*sampler_options(args), "--img-cfg", args["img_cfg_scale"]]
    sampler += ["--latent", golden_noise(case, entry)]
    files = ["--prefix", tmp_path / "cond", "--prefix-images-only", tmp_path / "img_cond"]
    files += ["--prefix-unconditional", tmp_path / "uncond"]
    ntool("sample-image", pkg, *files, *sampler, "-o", tmp_path / "a.png")
    prompt = ["--prompt", args["prompt"], *references(case, args)]
    ntool("sample-image", pkg, *prompt, *sampler, "-o", tmp_path / "b.png")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    done = ntool("sample-image", pkg, *files[:2], *sampler, "-o", tmp_path / "c.png", code=2)
    assert "--prefix-images-only" in done.err


THINK = [(c, r) for c, r in names("t2i") if load_case(c).runs[r]["args"].get("think_mode")]


@pytest.mark.parametrize(("name", "run"), THINK)
def test_think_goldens(packages: Path, tmp_path: Path, ntool, name: str, run: str) -> None:
    case = load_case(name)
    golden, entry = case.golden(run), case.runs[run]
    args, pkg = entry["args"], package(name, packages)
    prompt = ["--prompt", args["prompt"], "--think"]
    done = ntool("run-prefill", pkg, "--task", "text-to-image", *prompt, "-o", tmp_path / "cond")
    assert done.of("text")[0]["text"] == entry["think_text"]
    found = load_file(tmp_path / "cond")
    S = golden["input_ids_cond"].shape[1]
    ids = found["token_ids"][0]
    np.testing.assert_array_equal(ids[:S], golden["input_ids_cond"][0])
    picked = golden["picked_ids"].tolist()
    assert ids[S : S + len(picked)].tolist() == picked
    assert len(ids) - S == int(golden["think_and_append_len"][0])
    for key, value in golden.items():
        if key.startswith("kv_cond_tail."):
            past = found[key.replace("kv_cond_tail.", "past.")]
            close(past[:, :, S:], value, RUN)
    options = [*prompt, "--latent", golden_noise(case, entry), *sampler_options(args)]
    trace, picture = drawn(ntool, pkg, tmp_path, *options)
    close(trace["z"][1].reshape(golden["z_after_step0"].shape), golden["z_after_step0"], RUN)
    close(trace["z"][-1:], golden["z_final"], RUN)
    check_picture(picture, golden["image_uint8"])


@pytest.mark.parametrize(("name", "run"), names("interleave"))
def test_interleave_goldens(packages, tmp_path, ntool, monkeypatch, name: str, run: str) -> None:
    case = load_case(name)
    golden, entry = case.golden(run), case.runs[run]
    args = entry["args"]
    seen: dict[str, list] = {"features": [], "lengths": [], "logits": []}
    plain = Session.run

    def watched(self, feeds, outputs=None, **options):
        found = plain(self, feeds, outputs, **options)
        if self.path.parent.name == "vision_encoder":
            seen["features"].append(found["image_features"])
        if self.path.parent.name == "decoder":
            seen["lengths"].append(feeds["position_ids"].shape[1])
            seen["logits"].append(found["logits"][0, -1])
        return found

    monkeypatch.setattr(Session, "run", watched)
    save_file({"noise": golden["noise"]}, tmp_path / "noise")
    options = ["--task", "interleave", "--prompt", args["prompt"]]
    options += ["--system", args["system_message"], "--size", f"{args['width']}x{args['height']}"]
    options += ["--steps", args["num_steps"], "--cfg", args["cfg_scale"]]
    options += ["--img-cfg", args["img_cfg_scale"], "--cfg-norm", args["cfg_norm"]]
    options += ["--shift", args["timestep_shift"], "--decode", args["max_new_tokens"]]
    options += ["--latent", tmp_path / "noise", "-o", tmp_path / "story.png"]
    done = ntool("run-prefill", package(name, packages), *options)
    assert [t["id"] for t in done.of("token")] == golden["picked_ids"].tolist()
    assert done.of("text")[0]["text"] == entry["text"]
    assert [Path(f["path"]).name for f in done.of("file")] == ["story-0.png"]
    close(np.concatenate(seen["features"]), golden["reencoded_features"], RUN)
    # the decoder ran as often and on as many tokens as the published implementation's
    assert seen["lengths"] == golden["und_forward_lengths"].tolist()
    head = case.w["language_model.lm_head.weight"]
    close(np.stack(seen["logits"]), golden["und_forward_last_hidden"] @ head.T, RUN)
    with Image.open(tmp_path / "story-0.png") as image:
        check_picture(np.asarray(image), golden["image_uint8"][0])
    kinds = [r["kind"] for r in done.records if r["kind"] in ("token", "step", "file", "text")]
    assert kinds.index("file") > kinds.index("step") > kinds.index("token")
    assert kinds[-1] == "text"


EDITS = [e for e in json.loads((DEMO / "manifest.json").read_text()) if e["kind"] == "edit"]
LONG_RUN = 2e-4
"""As in test_sample_image: twenty guided steps of five layers."""


@pytest.mark.parametrize("entry", EDITS, ids=lambda e: e["name"])
def test_demo_edits(demo_package: Path, tmp_path: Path, ntool, entry) -> None:
    golden = load_file(DEMO / entry["file"])
    args = {**entry["args"], "cfg_scale": entry["cfg_scale"]}
    options = ["--prompt", entry["prompt"], "--image", DEMO / entry["source"]]
    options += ["--img-cfg", entry["img_cfg_scale"], "--latent", DEMO / entry["file"]]
    trace, picture = drawn(ntool, demo_package, tmp_path, *options, *sampler_options(args))
    close(trace["z"][-1:], golden["z_final"], LONG_RUN)
    with Image.open(DEMO / entry["png"]) as png:
        off = np.abs(picture.astype(int) - np.asarray(png).astype(int))
    assert off.max() <= 1 and (off > 0).mean() < 0.002  # rounding ties


SCALES = [
    ("text-to-image", 4, 1, (0.25, 0.5), {0: 1, 1: 2, 2: 2, 3: 1}),
    ("text-to-image", 1, 1, (0, 1), {0: 1, 1: 1, 2: 1, 3: 1}),
    ("text-to-image", 0.5, 1, (0, 1), {0: 1, 1: 1, 2: 1, 3: 1}),
    ("image-edit", 1, 1, (0, 1), {0: 1, 1: 1, 2: 1, 3: 1}),
    ("image-edit", 4, 1, (0.25, 0.75), {0: 1, 1: 1, 2: 2, 3: 1}),
    ("image-edit", 4, 1, (0, 0.5), {0: 2, 1: 2, 2: 2, 3: 2}),
    ("image-edit", 2, 2, (0.25, 0.75), {0: 1, 1: 1, 2: 2, 3: 1}),
    ("image-edit", 4, 2, (0.25, 0.75), {0: 1, 1: 1, 2: 3, 3: 1}),
    ("image-edit", 1, 2, (0.25, 0.75), {0: 1, 1: 1, 2: 3, 3: 1}),
]
"""Task, cfg, img-cfg, interval, and how often each of four steps at t = 0, .25, .5, .75
denoises."""


@pytest.mark.parametrize(("task", "cfg", "img_cfg", "interval", "runs"), SCALES)
def test_runs_of_a_step(
    packages, tmp_path, ntool, monkeypatch, task, cfg, img_cfg, interval, runs
) -> None:
    """Each step embeds the picture once and denoises once a branch that it needs; so do
    prefixes."""
    case = load_case("dense-conv")
    counts = {
        "image_gen_embedding": [],
        "image_gen_denoiser": [],
        "decoder": [],
        "vision_encoder": [],
    }
    plain, feed, bound = Session.run, Bound.feed, Bound.run
    fed = {}

    def watched(self, feeds, outputs=None, **options):
        part = self.path.parent.name
        if part in counts:
            counts[part].append(None)
        return plain(self, feeds, outputs, **options)

    def watched_feed(self, name, value):
        if name == "timestep":
            fed[self] = float(value[0])
        feed(self, name, value)

    def watched_bound(self):
        counts[self._session.path.parent.name].append(fed.get(self))
        bound(self)

    monkeypatch.setattr(Session, "run", watched)
    monkeypatch.setattr(Bound, "feed", watched_feed)
    monkeypatch.setattr(Bound, "run", watched_bound)
    options = ["--prompt", "a boat", "--size", "64x32", "--steps", 4, "--shift", 1]
    options += [
        "--cfg",
        cfg,
        "--img-cfg",
        img_cfg,
        "--cfg-interval",
        f"{interval[0]},{interval[1]}",
    ]
    if task == "image-edit":
        options += ["--image", case.folder / "inputs" / "img_edit_0.png"]
        options += ["--min-pixels", 1024, "--max-pixels", 4096]
    ntool("sample-image", package("dense-conv", packages), *options, "-o", tmp_path / "p.png")
    assert counts["image_gen_embedding"] == [0, 0.25, 0.5, 0.75]
    assert len(counts["image_gen_denoiser"]) == sum(runs.values())
    g = guidance.Guidance(task, cfg=cfg, img_cfg=img_cfg, interval=interval)
    assert len(counts["decoder"]) == len(guidance.branches(g))
    assert len(counts["vision_encoder"]) == (task == "image-edit")


@pytest.mark.parametrize("run", ["t2i_b_cfg4_shift3", "edit_4_dual", "edit_norm_channel"])
def test_pictures_that_stay_on_the_device(packages, tmp_path, ntool, monkeypatch, run) -> None:
    """The path of GPUs (latent, predictions and caches as device values), on CPU."""
    monkeypatch.setattr(device_step, "used_on", lambda device: True)
    case = load_case("dense-conv")
    golden, entry = case.golden(run), case.runs[run]
    args = entry["args"]
    options = ["--prompt", args["prompt"], "--latent", golden_noise(case, entry)]
    if "images" in args:
        options += [*references(case, args), "--img-cfg", args["img_cfg_scale"]]
    pkg = package("dense-conv", packages)
    trace, _ = drawn(ntool, pkg, tmp_path, *options, *sampler_options(args))
    close(trace["z"][-1:], golden["z_final"], RUN)


def test_an_edit_has_the_shape_of_its_first_picture(demo_package, tmp_path, ntool) -> None:
    Image.new("RGB", (300, 100), "red").save(tmp_path / "wide.png")
    options = ["--image", tmp_path / "wide.png", "--prompt", "make it blue", "--steps", 1]
    ntool("sample-image", demo_package, *options, "-o", tmp_path / "p.png")
    with Image.open(tmp_path / "p.png") as image:
        assert image.size == (192, 64)  # at most 128 x 128 pixels, at 3 : 1


def test_two_pictures_are_numbered_in_the_prompt(demo_package, tmp_path, ntool) -> None:
    two = ["--image", DEMO / "edit_0_source.png", "--image", DEMO / "edit_1_source.png"]
    ntool("run-prefill", demo_package, "--task", "image-edit", "--prompt", "mix", *two,
          "-o", tmp_path / "p")  # fmt: skip
    ids = load_file(tmp_path / "p")["token_ids"][0]
    assert ids.size > 2 * 256
    done = ntool("run-prefill", demo_package, "--task", "image-edit", "--prompt",
                 "<image> <image> <image>", *two, code=2)  # fmt: skip
    assert "placeholders" in done.err


def test_messages_are_the_turns_of_a_conversation(demo_package, tmp_path, ntool) -> None:
    talk = [
        {"role": "system", "text": "be brief"},
        {"role": "user", "text": "what color is the circle?", "images": ["a.png"]},
        {"role": "assistant", "text": "red"},
        {"role": "user", "text": "how big is it?"},
    ]
    (tmp_path / "a.png").write_bytes((DEMO / "vqa_0.png").read_bytes())
    (tmp_path / "talk.json").write_text(json.dumps(talk))
    ntool("run-prefill", demo_package, "--messages", tmp_path / "talk.json", "-o", tmp_path / "p")
    query = prompts.chat(
        "how big is it?",
        history=[("<image>\nwhat color is the circle?", "red")],
        system="be brief",
    )
    expanded = prompts.expand(query, [64])
    picture = ["--image", DEMO / "vqa_0.png"]
    ntool("run-prefill", demo_package, "--query", expanded, *picture, "-o", tmp_path / "q")
    p, q = load_file(tmp_path / "p"), load_file(tmp_path / "q")
    for key, value in p.items():
        np.testing.assert_array_equal(value, q[key])


BAD_TALK = [
    ({}, "a JSON list"),
    ([], "a JSON list"),
    ([{"role": "user"}], "message 0: text"),
    ([{"role": "robot", "text": "x"}], "message 0: role"),
    ([{"role": "assistant", "text": "x"}], "roles"),
    ([{"role": "user", "text": "x"}, {"role": "assistant", "text": "y"}], "user last"),
    ([{"role": "user", "text": "x", "mood": 1}], "message 0"),
    ([{"role": "user", "text": "x", "images": "a.png"}], "message 0: images"),
]


@pytest.mark.parametrize(("talk", "words"), BAD_TALK)
def test_bad_messages_are_named(demo_package, tmp_path, ntool, talk, words: str) -> None:
    (tmp_path / "talk.json").write_text(json.dumps(talk))
    done = ntool("run-prefill", demo_package, "--messages", tmp_path / "talk.json", code=3)
    assert words in done.err, done.err


WRONG = [
    (["--prompt", "x", "--task", "image-edit"], 2, "without a picture"),
    (["--prompt", "x", "--task", "chat", "--think"], 2, "--think with task chat"),
    (["--prompt", "x", "--task", "interleave"], 2, "-o OUT.png"),
    (["--prompt", "x", "--steps", "3"], 2, "--steps with task chat"),
    (["--prompt", "x", "--task", "unconditional"], 2, "takes no prompt"),
    (["--prompt", "x", "--min-pixels", "9", "--max-pixels", "8", "--image", "a.png"], 2, "found 9"),
    (["--query", "x", "--system", "y"], 2, "taken as they are"),
]


@pytest.mark.parametrize(("options", "code", "words"), WRONG, ids=lambda x: str(x)[:40])
def test_wrong_use_of_prefill(demo_package, ntool, options, code: int, words: str) -> None:
    done = ntool("run-prefill", demo_package, *options, code=code)
    assert words in done.err, done.err


def test_sizes_that_do_not_fit_name_the_nearest_and_fit_takes_it(demo_package, tmp_path, ntool):
    options = ["--prompt", "x", "--steps", 1, "--size", "100x70", "-o", tmp_path / "p.png"]
    done = ntool("sample-image", demo_package, *options, code=2)
    assert "--size: found 100x70" in done.err
    assert "96x64" in done.err and "--fit" in done.err
    ntool("sample-image", demo_package, *options, "--fit")
    with Image.open(tmp_path / "p.png") as image:
        assert image.size == (96, 64)


def test_torch_noise_is_the_published_seed(packages, tmp_path, ntool) -> None:
    """The golden noise of seed 5 is what `--rng torch-cpu --seed 5` draws."""
    golden = load_case("dense-conv").golden("interleave")
    options = ["--prompt", "x", "--size", "64x64", "--steps", 1, "--rng", "torch-cpu", "--seed", 5]
    options += ["--save-latent", tmp_path / "noise", "-o", tmp_path / "p.png"]
    ntool("sample-image", package("dense-conv", packages), *options)
    np.testing.assert_array_equal(load_file(tmp_path / "noise")["noise"], golden["noise"])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[]", "found [], expected a JSON list of one or more"),
        ("null", "found null"),
        ("[5]", "message 0: found 5"),
        ('[{"role": "user", "text": "x", "image": 1}]', "message 0: found image"),
        ('[{"role": "system", "text": "x"}]', "found system alone"),
    ],
)
def test_messages_that_are_no_conversation(
    packages, tmp_path, ntool, content: str, words: str
) -> None:
    path = tmp_path / "messages.json"
    path.write_text(content)
    done = ntool("run-prefill", package("dense-conv", packages), "--messages", path, code=3)
    assert words in done.err


def test_a_sheet_goes_to_a_file(packages, tmp_path, ntool) -> None:
    out = tmp_path / "a.png"
    options = ["--prompt", "a boat", "-o", out, "--sheet", "-"]
    done = ntool("sample-image", package("dense-conv", packages), *options, code=2)
    assert "--sheet -" in done.err and not out.exists()


def test_a_prefix_of_pictures_does_not_go_with_text_to_image(packages, tmp_path, ntool) -> None:
    pkg = package("dense-conv", packages)
    cond, other = tmp_path / "cond.safetensors", tmp_path / "other.safetensors"
    ntool("run-prefill", pkg, "--task", "text-to-image", "--prompt", "a boat", "-o", cond)
    ntool("run-prefill", pkg, "--task", "unconditional", "-o", other)
    given = ["--prefix", cond, "--prefix-images-only", other, "--size", "64x32", "--steps", 1]
    done = ntool("sample-image", pkg, *given, "--cfg", 1, "-o", tmp_path / "a.png", code=2)
    assert "--prefix-images-only" in done.err
