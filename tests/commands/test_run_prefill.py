"""run-prefill against the goldens, and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from ntool.lib.families.neo_chat.pipeline import Pipeline
from ntool.lib.families.neo_chat.request import Request
from ntool.lib.package.package import open_package

from ..families.neo_chat.golden_cases import COMPONENT, DATA, RUN, close, load_case
from ..families.neo_chat.golden_runs import names, package

DEMO = Path(__file__).parents[1] / "data" / "demo-shapes" / "goldens"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("packages")


@pytest.mark.parametrize(("name", "run"), names("prefill") + names("prefill_image"))
def test_prefill_goldens(packages: Path, tmp_path: Path, ntool, name: str, run: str) -> None:
    case = load_case(name)
    golden, args = case.golden(run), case.runs[run]["args"]
    options = ["--query", args["query"], "--all-logits", "-o", tmp_path / "prefix"]
    if "image" in args:
        options += ["--image", case.folder / "inputs" / args["image"]]
        options += ["--min-pixels", args["min_pixels"], "--max-pixels", args["max_pixels"]]
    done = ntool("run-prefill", package(name, packages), *options)
    found = load_file(tmp_path / "prefix")
    np.testing.assert_array_equal(found["token_ids"], golden["input_ids"])
    np.testing.assert_array_equal(found["position_ids"], golden["position_indexes"])
    if "logits" in golden:
        close(found["logits"], golden["logits"], COMPONENT)
    else:
        close(found["logits"][:, -1:], golden["logits_last"], COMPONENT)
    for key, value in golden.items():
        if key.startswith("kv."):
            close(found[key.replace("kv.", "past.")], value, COMPONENT)
    told = {r["name"]: tuple(r["shape"]) for r in done.of("tensor")}
    assert told == {k: v.shape for k, v in found.items()}


@pytest.mark.parametrize(("name", "run"), names("vqa"))
def test_question_goldens(packages: Path, tmp_path: Path, ntool, name: str, run: str) -> None:
    case = load_case(name)
    golden, entry = case.golden(run), case.runs[run]
    args = entry["args"]
    picture = case.folder / "inputs" / args["image"]
    options = ["--prompt", args["question"], "--image", picture, "-o", tmp_path / "prefix"]
    done = ntool(
        "run-prefill", package(name, packages), *options, "--decode", args["max_new_tokens"]
    )
    found = load_file(tmp_path / "prefix")
    np.testing.assert_array_equal(found["token_ids"], golden["input_ids"])
    close(found["logits"][0], golden["step_logits"][:1], RUN)
    assert [t["id"] for t in done.of("token")] == golden["generated_ids"].reshape(-1).tolist()
    assert done.of("text")[0]["text"] == entry["response"]
    wanted = golden["step_logits"]
    close(step_logits(package(name, packages), args["question"], picture, len(wanted)), wanted, RUN)


def step_logits(package: Path, question: str, picture: Path, count: int) -> np.ndarray:
    """The logits that chose each greedy token, [count, V]."""
    pipeline = Pipeline(open_package(package))
    prefix = pipeline.prefill(Request("chat", prompt=question, images=(picture,)))
    # at each token the prefix still ends in front of it: its logits are those that chose it
    return np.stack([prefix.logits[0, -1] for _ in pipeline.decode(prefix, count)])


DEMO_QUESTIONS = [e for e in json.loads((DEMO / "manifest.json").read_text()) if e["kind"] == "vqa"]


@pytest.mark.parametrize("entry", DEMO_QUESTIONS, ids=lambda e: e["name"])
def test_demo_questions(demo_package: Path, ntool, entry) -> None:
    golden = load_file(DEMO / entry["file"])
    options = ["--prompt", entry["question"], "--image", DEMO / entry["image"], "--decode", 32]
    done = ntool("run-prefill", demo_package, *options)
    assert [t["id"] for t in done.of("token")] == golden["generated_ids"].reshape(-1).tolist()
    assert ntool("run-prefill", demo_package, *options, "--raw").out == entry["answer"] + "\n"
    wanted = golden["step_logits"]
    picture = DEMO / entry["image"]
    close(step_logits(demo_package, entry["question"], picture, len(wanted)), wanted, RUN)


def test_chat_without_a_picture_and_a_prompt_from_files(demo_package, tmp_path, ntool) -> None:
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("what color is the circle?\n")
    one = ntool("run-prefill", demo_package, "--prompt-file", prompt, "--decode", 4)
    two = ntool("run-prefill", demo_package, "--prompt", prompt.read_text().strip(), "--decode", 4)
    assert one.of("token") == two.of("token") and one.of("token")


def test_tokens_and_query_are_taken_as_they_are(demo_package, tmp_path, ntool) -> None:
    query = "<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n<img>"
    ntool("run-prefill", demo_package, "--query", query, "-o", tmp_path / "q")
    ntool("run-prefill", demo_package, "--task", "unconditional", "-o", tmp_path / "u")
    q, u = load_file(tmp_path / "q"), load_file(tmp_path / "u")
    ids = ",".join(map(str, q["token_ids"][0].tolist()))
    (tmp_path / "ids").write_text(ids.replace(",", "\n"))
    ntool("run-prefill", demo_package, "--tokens", ids, "-o", tmp_path / "t")
    ntool("run-prefill", demo_package, "--tokens", f"@{tmp_path / 'ids'}", "-o", tmp_path / "f")
    t, f = load_file(tmp_path / "t"), load_file(tmp_path / "f")
    for other in (u, t, f):
        assert q.keys() == other.keys()
        for key, value in q.items():
            np.testing.assert_array_equal(value, other[key])


def test_decoding_from_the_cache_equals_one_prefill_of_all(packages, tmp_path, ntool) -> None:
    pkg = package("dense-conv", packages)
    done = ntool("run-prefill", pkg, "--tokens", "1,2,3", "--decode", 5)
    ids = [1, 2, 3] + [t["id"] for t in done.of("token")]
    for n in range(3, len(ids)):
        tokens = ",".join(map(str, ids[:n]))
        again = ntool("run-prefill", pkg, "--tokens", tokens)
        assert again.of("summary")[0]["next_token"] == ids[n]


WRONG = [
    (["--prompt", "x", "--query", "y"], 2, "one of --prompt"),
    ([], 2, "one of --prompt"),
    (["--prompt", "x", "--raw"], 2, "--raw without --decode\nhint: --decode N"),
    (["--prompt", "x", "--task", "dance"], 2, "dance"),
    (["--prompt", "x", "--min-pixels", "5"], 2, "need --image"),
    (["--tokens", "1,x"], 3, "'x'"),
    (["--tokens", "1,٣"], 3, "token id"),
    (["--tokens", "1,896"], 3, "found 896, expected 0..895"),
    (["--tokens", ""], 3, "token id"),
    (["--tokens", "@nowhere"], 4, "nowhere"),
    (["--prompt-file", "nowhere"], 4, "nowhere"),
    (["--prompt", "x", "--image", "nowhere.png"], 4, "nowhere.png"),
    (["--prompt", "a <image>"], 2, "placeholders"),
    (["--prompt", "a <IMG_CONTEXT>"], 3, "<IMG_CONTEXT>"),
    (["--query", "a <IMG_CONTEXT>"], 3, "<IMG_CONTEXT>"),
    (["--prompt", "x", "--device", "tpu"], 2, "tpu"),
    (["--prompt", "x", "--device", "cpu:1"], 2, "cpu:1"),
    (["--prompt", "x", "--device", "cuda:99"], 6, "CUDA devices"),
]


@pytest.mark.parametrize(("options", "code", "words"), WRONG, ids=lambda x: str(x)[:40])
def test_wrong_use_and_wrong_input(demo_package, ntool, options, code: int, words: str) -> None:
    done = ntool("run-prefill", demo_package, *options, code=code)
    assert words in done.err, done.err


def test_a_cut_picture_is_refused(demo_package, tmp_path, ntool) -> None:
    cut = tmp_path / "cut.png"
    cut.write_bytes((DEMO / "vqa_0.png").read_bytes()[:200])
    done = ntool("run-prefill", demo_package, "--prompt", "x", "--image", cut, code=3)
    assert "cut.png" in done.err


def test_a_component_that_was_not_exported_is_named(tmp_path, ntool) -> None:
    source = DATA / "dense-conv" / "checkpoint"
    ntool("export-component", source, "embedding", "-o", tmp_path / "pkg")
    done = ntool("run-prefill", tmp_path / "pkg", "--tokens", "1", code=4)
    assert "decoder" in done.err


def test_a_package_with_other_token_ids_is_refused(demo_package, tmp_path, ntool) -> None:
    copied = tmp_path / "pkg"
    shutil.copytree(demo_package, copied)
    manifest = json.loads((copied / "package.json").read_text())
    manifest["special_tokens"]["<img>"] -= 1
    (copied / "package.json").write_text(json.dumps(manifest))
    done = ntool("run-prefill", copied, "--prompt", "x", code=3)
    assert "'<img>'" in done.err
