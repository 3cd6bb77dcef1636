"""golden.values: outputs of the published implementation, of prompts and of pictures."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from package_faults import findings, fits_schema, poke
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from safetensors.numpy import load_file, save_file

from ntool.lib.checkpoint.source import open_checkpoint
from ntool.lib.package import export
from ntool.lib.package.checks import golden_values as module
from ntool.lib.package.checks.run import load
from ntool.lib.package.checks.subject import Finding, Subject
from ntool.lib.package.golden_feeds import Ports, real_elements
from ntool.lib.package.golden_file import open_goldens

DATA = Path(__file__).parents[2] / "data"
QWEN, NEO = DATA / "qwen4-exp", DATA / "neo-chat"
Run = Callable[..., Any]
"""The `ntool` fixture."""
MADE: dict[tuple[str, str], Path] = {}


@pytest.fixture
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The package of a checkpoint, made once. Read only."""

    def get(source: Path | str, dtype: str = "f32", *components: str) -> Path:
        key = (str(source), dtype + " ".join(components))
        if key not in MADE:
            MADE[key] = tmp_path_factory.mktemp("golden") / "pkg"
            plan = export.plan(open_checkpoint(str(source)), components, dtype=dtype)
            export.write(plan, MADE[key])
        return MADE[key]

    return get


def rows(ntool: Run, package: Path, *options: object, code: int = 0) -> list[dict[str, Any]]:
    """Records of golden.values; each is what the schema says."""
    done = ntool("verify-package", package, "--check", "golden.v*", "--device", "cpu", *options,
                 code=code)  # fmt: skip
    found = done.of("check")
    for row in found:
        fits_schema(row)
    assert {r["id"] for r in found} == {"golden.values"}
    return found


def names(found: list[dict[str, Any]]) -> set[str]:
    """First words of messages, which are outputs."""
    return {r["message"].split(":")[0] for r in found}


# -- ports ----------------------------------------------------------------------------------------


def test_a_prompt_with_pictures(ntool: Run, made: Callable[..., Path]) -> None:
    """One file of the published implementation is about three components; it names no state to
    start from, and the ids of the embedding are those of the decoder too."""
    golden = QWEN / "image-text/golden/prefill.safetensors"
    found = rows(ntool, made(QWEN / "image-text"), "--golden", golden)
    assert all(r["ok"] for r in found)
    said = {r["component"]: names([x for x in found if x["component"] == r["component"]])
            for r in found}  # fmt: skip
    assert said["vision_encoder"] == {"image_features"} and said["embedding"] == {"inputs_embeds"}
    outputs = {n for n in load_file(golden) if n.startswith("present")}
    assert said["decoder"] == outputs | {"logits"} and len(outputs) > 10
    (warning,) = [r for r in found if r.get("severity") == "warning"]
    assert "mm_token_type_ids" in warning["message"]
    logits = next(r for r in found if r["message"].startswith("logits"))
    assert logits["expected"] == {"rtol": 1e-3, "atol": 1e-3}
    assert 0 < logits["actual"]["max_abs"] < 1e-4 and logits["actual"]["pearson"] > 0.999999


def test_left_padding_is_not_compared(ntool: Run, made: Callable[..., Path]) -> None:
    golden = QWEN / "text/golden/leftpad_prefill.safetensors"
    found = rows(ntool, made(QWEN / "text"), "--golden", golden)
    assert all(r["ok"] for r in found)
    given = load_file(golden)
    real = int(given["attention_mask"].sum())
    logits = next(r for r in found if r["message"].startswith("logits"))
    assert logits["actual"]["of"] == real * given["logits"].shape[2] < given["logits"].size
    key = next(r for r in found if r["message"].startswith("present.3.key"))
    _, heads, _, width = given["present.3.key"].shape
    assert key["actual"]["of"] == real * heads * width
    state = next(r for r in found if r["message"].startswith("present.0.recurrent_state"))
    assert state["actual"]["of"] == given["present.0.recurrent_state"].size


def test_which_elements_are_real() -> None:
    feeds = {"attention_mask": np.array([[0, 1, 1], [1, 1, 1]])}
    ports = Ports(
        {"attention_mask": ("int64", ["b", "total"]), "ids": ("int64", ["b", "new"])},
        {"kv": ("float32", ["b", 2, "total", 4]), "logits": ("float32", ["b", "new", 9]),
         "places": ("int64", [4, "b", "total"]), "state": ("float32", ["b", 7])},
    )  # fmt: skip
    kv = real_elements("kv", (2, 2, 3, 4), ports, feeds)
    assert kv is not None and kv[:, 0, :, 0].tolist() == [[False, True, True], [True] * 3]
    last = real_elements("logits", (2, 2, 9), ports, feeds)
    assert last is not None and last.all() and last.shape == (2, 2, 1)
    places = real_elements("places", (4, 2, 3), ports, feeds)
    assert places is not None and places.shape == (1, 2, 3) and not places[0, 0, 0]
    assert real_elements("state", (2, 7), ports, feeds) is None
    assert real_elements("kv", (2, 2, 3, 4), ports, {"attention_mask": np.ones((2, 3))}) is None


def half(tmp_path: Path, dtype: str) -> Path:
    """Golden of a run in one dtype, by names of ports, its prompt put in."""
    found = load_file(QWEN / f"text-half/golden/{dtype}.safetensors")
    inputs = load_file(QWEN / "text-half/golden/inputs.safetensors")
    arrays = {k.removeprefix("prefill."): v for k, v in found.items() if k.startswith("prefill.")}
    file = tmp_path / f"{dtype}.safetensors"
    places = np.broadcast_to(np.arange(14), (4, 1, 14))  # of a prompt without padding
    save_file({**inputs, "position_ids": places.copy(), **arrays}, file)
    return file


def test_tolerance_is_that_of_the_type(
    ntool: Run, made: Callable[..., Path], tmp_path: Path
) -> None:
    """A float16 package has its own golden within 1e-2; the one in float32 is 2.4 times as far."""
    package = made(QWEN / "text-half", "f16")
    found = rows(ntool, package, "--golden", half(tmp_path, "fp16"))
    assert len(found) > 10 and all(r["ok"] for r in found)
    floats = [r for r in found if "rtol" in r["expected"]]
    assert {r["expected"]["rtol"] for r in floats} == {1e-2}
    context = [r for r in found if "ple_context" in r["message"]]
    assert context and all(r["expected"] == {"equal": True} for r in context)
    found = rows(ntool, package, "--golden", half(tmp_path, "fp32"), code=1)
    worst = max(r["actual"]["worst"] or 0 for r in found if r["ok"] is False)
    assert 2 < worst < 3


def test_a_prompt_of_the_other_family(
    ntool: Run, made: Callable[..., Path], tmp_path: Path
) -> None:
    """The number of logits says how many the decoder is to keep."""
    given = load_file(NEO / "dense-conv/goldens/text_prefill.safetensors")
    renamed = {"position_indexes": "position_ids"}
    arrays = {renamed.get(k, k.replace("kv.", "present.")): v for k, v in given.items()}
    for name in ("attention_mask_allowed", "hidden_last"):
        del arrays[name]
    file = tmp_path / "g.safetensors"
    save_file(arrays, file)
    package = made(NEO / "dense-conv/checkpoint", "f32", "embedding", "decoder")
    found = rows(ntool, package, "--golden", file)
    assert [r["message"] for r in found if not r["ok"] or "severity" in r] == []
    assert {r["component"] for r in found} == {"embedding", "decoder"}
    assert len(found) == 2 + 2 * 3 and "logits" in names(found)
    # of one component alone, by an option or in the file
    found = rows(ntool, package, "--golden", f"decoder={file}")
    assert {r["component"] for r in found} == {"decoder"}
    save_file(arrays, file, {"component": "embedding"})
    found = rows(ntool, package, "--golden", file)
    kept = [r for r in found if "severity" not in r]
    assert [r["component"] for r in kept] == ["embedding"]


def embedding_golden(tmp_path: Path, **more: np.ndarray | None) -> Path:
    ids = np.array([[5, 6, 7]])
    file = tmp_path / "e.safetensors"
    embeds = np.zeros((1, 3, 160), np.float32)
    arrays = {"input_ids": ids, "inputs_embeds": embeds, **more}
    save_file({k: v for k, v in arrays.items() if v is not None}, file)
    return file


@pytest.mark.parametrize(
    ("more", "reason", "words"),
    [
        ({}, "value", "480 of 480 values differ"),
        ({"inputs_embeds": np.zeros((1, 3, 161), np.float32)}, "shape", "inputs_embeds: shape"),
        ({"input_ids": np.array([5.5])}, "golden", "tensor 'input_ids': found F64 [1]"),
        ({"input_ids": None}, "nothing-to-compare", "no component has its inputs"),
        (
            {
                "input_ids": np.zeros((1, 0), np.int64),
                "inputs_embeds": np.zeros((1, 0, 160), np.float32),
            },
            "nothing-to-compare",
            "outputs of no elements",
        ),
        ({"input_ids": np.array([[5, 6, 70_000]])}, "run", "cannot run"),
        ({"present.0.kye": np.zeros(3)}, "no-port", "'present.0.kye': no such port"),
        ({"past_0": np.zeros(3)}, "no-port", "'past_0': no such port"),
        ({"image_features": np.zeros((1, 7), np.float32)}, "golden", "'image_features'"),
    ],
)
def test_findings(
    more: dict[str, np.ndarray | None], reason: str, words: str, ntool: Run, good_package: Path,
    tmp_path: Path,
) -> None:  # fmt: skip
    file = embedding_golden(tmp_path, **more)
    found = rows(ntool, good_package, "--golden", f"embedding={file}", code=1)
    assert any(r.get("reason") == reason and words in r["message"] for r in found), found
    assert all(r["message"].count(str(file)) <= 1 for r in found)


def test_feeds_are_cast_where_nothing_is_lost(
    ntool: Run, good_package: Path, tmp_path: Path
) -> None:
    weights = load_file(good_package / "embedding/model.safetensors")
    (rows_of,) = weights.values()
    ids = np.array([[5, 6, 7]], np.int32)
    file = tmp_path / "e.safetensors"
    save_file({"input_ids": ids, "inputs_embeds": rows_of[ids].astype(np.float64)}, file)
    (found,) = rows(ntool, good_package, "--golden", file)
    assert found["ok"] and found["message"].startswith("inputs_embeds: equal, 480 values")


def test_graphs_without_package_json(ntool: Run, tmp_path: Path) -> None:
    folder = tmp_path / "graphs/twice"
    folder.mkdir(parents=True)
    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 2]) for n in "xy"]
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["y"])], "g", value[:1], value[1:]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, folder / "model.onnx")
    x = np.array([[1, 2], [3, 4]], np.float32)
    file = tmp_path / "g.safetensors"
    for y, code in ((2 * x, 0), (3 * x, 1)):
        save_file({"x": x, "y": y}, file)
        (found,) = rows(ntool, tmp_path / "graphs", "--golden", file, code=code)
        assert found["ok"] is (code == 0) and found["component"] == "twice/model.onnx"
    named = f"twice/model.onnx={file}"
    rows(ntool, tmp_path / "graphs", "--golden", named, code=1)


# -- prompts and pictures -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def of_prompt(tmp_path_factory: pytest.TempPathFactory, good_package: Path) -> dict[str, Path]:
    """A prefix file and a picture of the good package."""
    from ntool import guard

    folder = tmp_path_factory.mktemp("prompt")
    prompt = ("--prompt", "a red circle", "--device", "cpu", "-q")
    for command in (
        ("run-prefill", good_package, *prompt, "--task", "text-to-image", "-o", folder / "p.st"),
        ("sample-image", good_package, *prompt, "--steps", 2, "-o", folder / "p.png"),
        ("sample-image", good_package, *prompt, "--steps", 2, "-o", folder / "system.png",
         "--system", "Draw."),
    ):  # fmt: skip
        assert guard.run([str(a) for a in command]) == 0
    return {"prefix": folder / "p.st", "picture": folder / "p.png", "system": folder / "system.png"}


@pytest.fixture(scope="module")
def judged(good_package: Path) -> Callable[[Path], list[Finding]]:
    """What the check says of golden files of the good package, whose sessions are made once."""
    subject = Subject(str(good_package))
    for part in subject.parts:
        assert load(subject, part) == []

    def judge(path: Path) -> list[Finding]:
        subject.options.goldens = open_goldens([str(path)], [])
        return module.values(subject)

    return judge


def test_a_prefix_file(ntool: Run, good_package: Path, of_prompt: dict[str, Path]) -> None:
    found = rows(ntool, good_package, "--golden", of_prompt["prefix"])
    assert all(r["ok"] for r in found) and {r["component"] for r in found} == {"decoder"}
    assert names(found) == {
        "logits",
        *(f"past.{i}.{k}" for i in range(5) for k in ("key", "value")),
    }
    assert all(": equal, " in r["message"] for r in found)  # the same session on the same machine


def test_a_prefix_file_of_rows(ntool: Run, made: Callable[..., Path], tmp_path: Path) -> None:
    package, file = made(QWEN / "text"), tmp_path / "p.st"
    ids = tmp_path / "ids.json"
    ids.write_text("5,6,7,8\n9,10\n")
    options = ("--tokens", f"@{ids}", "--all-logits", "-o", file, "--device", "cpu")
    ntool("run-prefill", package, *options)
    found = rows(ntool, package, "--golden", file)
    assert all(r["ok"] for r in found) and {"logits", "past.position_ids"} <= names(found)


def test_a_prefix_file_that_differs(
    of_prompt: dict[str, Path], judged: Callable[[Path], list[Finding]], tmp_path: Path
) -> None:
    arrays = load_file(of_prompt["prefix"])
    arrays["token_ids"][0, 3] += 1
    changed = tmp_path / "p.st"
    save_file(arrays, changed)
    assert {f.ok for f in judged(changed)} == {False}
    del arrays["past.0.key"]
    save_file({**arrays, "past.9.key": arrays["past.1.key"]}, changed)
    said = {f.message.split(": ", 1)[1]: f.reason for f in judged(changed)}
    assert said["'past.9.key': no such state"] == "no-port"
    assert said["'past.0.key' is missing"] == "golden"
    for name, value in (
        ("token_ids", np.array([[1, 99_999]])),
        ("token_ids", arrays["token_ids"][0]),
        ("position_ids", arrays["position_ids"][:2]),
        ("logits", arrays["logits"][0]),
    ):
        save_file({**arrays, name: value}, changed)
        (found,) = judged(changed)
        assert found.ok is False and found.reason == "golden"


def test_a_picture(
    of_prompt: dict[str, Path], judged: Callable[[Path], list[Finding]], tmp_path: Path
) -> None:
    (found,) = judged(of_prompt["picture"])
    assert found.ok and found.message.endswith("picture: equal")
    assert found.expected == {"psnr": 40.0} and found.actual["psnr"] is None
    text = Image.open(of_prompt["picture"]).text["ntool"]

    def other(**changes: Any) -> Path:
        info = PngInfo()
        info.add_text("ntool", json.dumps({**json.loads(text), **changes}))
        Image.open(of_prompt["picture"]).save(tmp_path / "o.png", pnginfo=info)
        return tmp_path / "o.png"

    (found,) = judged(other(seed=json.loads(text)["seed"] + 1))
    assert found.ok is False and found.reason == "value" and 0 < found.actual["psnr"] < 40
    for changes in (
        {"width": 64}, {"task": "image-edit"}, {"seed": "1"}, {"steps": 10**9}, {"cfg": None},
        {"cfg_interval": [0]}, {"rng": "dice"}, {"prompt": ""}, {"width": True}, {"prompt": 5},
        {"query_tokens": 5}, {"cfg_norm": "odd"},
    ):  # fmt: skip
        (found,) = judged(other(**changes))
        assert found.reason == "golden", (changes, found)
    (found,) = judged(of_prompt["system"])
    assert "system text" in found.message


def test_a_package_that_lacks_what_it_takes(
    ntool: Run, made: Callable[..., Path], of_prompt: dict[str, Path]
) -> None:
    package = made("demo:shapes", "f32", "embedding")
    for what in ("prefix", "picture"):
        (found,) = rows(ntool, package, "--golden", of_prompt[what], code=1)
        assert "package lacks component" in found["message"]
    text = made(QWEN / "text")
    (found,) = rows(ntool, text, "--golden", of_prompt["picture"], code=1)
    assert "family qwen4_exp" in found["message"]


def test_a_changed_weight_and_nothing_else(
    good_package: Path, tmp_path: Path, of_prompt: dict[str, Path]
) -> None:
    """No other check sees a weight that is a little off."""
    copied = tmp_path / "pkg"
    shutil.copytree(good_package, copied)
    poke(copied, "embedding", "language_model.model.embed_tokens.weight", lambda w: w.__imul__(1.1))
    goldens = open_goldens([str(of_prompt["prefix"])], ["decoder"])
    found = findings(copied, goldens=goldens)
    assert {i for i, f in found if f.ok is False} == {"golden.values"}


# -- files that are none, and options ------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("nope.safetensors", 4, "no such file"),
        ("decoder=nope", 4, "no such file"),
        ("nobody=e.safetensors", 4, "component 'nobody'"),
        ("cut.safetensors", 3, "cut.safetensors"),
        ("empty.safetensors", 3, "no tensors"),
        ("plain.png", 3, "without a recipe"),
        ("cut.png", 3, "truncated PNG"),
        ("text.txt", 3, "text.txt"),
        ("folder", 3, "directory"),
        ("seen.st", 5, "with pictures"),
        ("narrow.st", 5, "tensor 'input_ids': found U16"),
        ("other.st", 4, "component: found nobody"),
        ("decoder=plain.png", 2, "without COMPONENT="),
        ("decoder=", 2, "--golden 'decoder=': found no file, expected [COMPONENT=]FILE"),
        ("", 2, "--golden '': found no file"),
        ("=", 2, "--golden '=': found no component"),
        ("=text.txt", 2, "--golden '=text.txt': found no component"),
        ("decodr=text.txt", 4, "hint: did you mean 'decoder'?"),
        ("cut.safetensor", 4, "hint: did you mean 'cut.safetensors'?"),
        ("words.st", 3, "metadata"),
    ],
)
def test_refused_before_the_first_check(
    name: str, code: int, words: str, ntool: Run, good_package: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    file = embedding_golden(tmp_path)
    data = file.read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(data[:-7])
    save_file({}, tmp_path / "empty.safetensors")
    Image.new("RGB", (32, 32)).save(tmp_path / "plain.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "plain.png").read_bytes()[:50])
    (tmp_path / "text.txt").write_text("{}")
    (tmp_path / "folder").mkdir()
    arrays = {"token_ids": np.array([[1]]), "logits": np.zeros((1, 1, 2), np.float32)}
    save_file(arrays, tmp_path / "seen.st", {"ntool": json.dumps({"sizes": [[32, 32]]})})
    save_file({"x": np.zeros(2)}, tmp_path / "other.st", {"component": "nobody"})
    save_file({"input_ids": np.zeros((1, 3), np.uint16)}, tmp_path / "narrow.st")
    save_file({"x": np.zeros(2)}, tmp_path / "words.st", {"ntool": "[]"})
    monkeypatch.chdir(tmp_path)
    done = ntool("verify-package", good_package, "--golden", name, code=code)
    assert words in done.err and len(done.err.splitlines()) <= 2
    assert [r["kind"] for r in done.records] == ["begin", "error"]


@pytest.mark.parametrize(
    "options",
    [
        ("--check", "golden.values"),
        ("--golden", "FILE", "--no-run"),
        ("--golden", "FILE", "--check", "layout.*"),
        ("--golden", "FILE", "--skip", "golden.*"),
    ],
    ids=" ".join,
)
def test_wrong_use(
    options: tuple[str, ...], ntool: Run, good_package: Path, tmp_path: Path
) -> None:
    file = str(embedding_golden(tmp_path))
    given = [file if o == "FILE" else o for o in options]
    ntool("verify-package", good_package, *given, code=2)


def test_a_file_whose_name_has_an_equals_sign(
    ntool: Run, good_package: Path, tmp_path: Path
) -> None:
    file = embedding_golden(tmp_path).rename(tmp_path / "a=b.safetensors")
    found = rows(ntool, good_package, "--golden", file, code=1)
    assert found[0]["reason"] == "value"


def test_everything_runs_in_two_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who moves sessions elsewhere has two functions to change."""
    import inspect

    source = inspect.getsource(module)
    assert source.count("sessions(subject)") == 2
