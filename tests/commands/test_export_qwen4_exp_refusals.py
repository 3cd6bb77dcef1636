"""What export-component refuses of a Qwen4-Exp checkpoint, in which words, leaving no package.

Numbers like Q40 are those of docs/qwen4-exp.md.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from ntool.lib.families.qwen4_exp.export import Qwen4Exp
from ntool.lib.graph.builder import Graph
from ntool.lib.package import export

from ..conftest import Ended
from ..fp8.checkpoints import Stored, read, write

CASES = Path(__file__).parents[1] / "data" / "qwen4-exp"
LAYERS = "model.language_model.layers"
EXPERT = f"{LAYERS}.0.mlp.experts.3.up_proj"
OTHER = f"{LAYERS}.1.mlp.experts.0.down_proj"
TABLE = f"{LAYERS}.1.ple.ple_embedding"
SHARDS = f"{TABLE}.ngram_embedding"
INDEX = "model.safetensors.index.json"

Files = dict[str, dict[str, Stored]]
Run = Callable[..., Ended]


def zeros(*shape: int, dtype: str = "BF16") -> Stored:
    return dtype, np.zeros(shape, {"BF16": ml_dtypes.bfloat16, "F32": np.float32}[dtype])


def home(files: Files, name: str) -> dict[str, Stored]:
    """The file of a tensor."""
    return next(tensors for tensors in files.values() if name in tensors)


def changed(tmp_path: Path, case: str, change: Callable[[Files, dict[str, Any]], None]) -> Path:
    """A copy of a checkpoint whose tensors or config are changed; the index fits them."""
    files = read(CASES / case)
    config = json.loads((CASES / case / "config.json").read_text())
    change(files, config)
    return write(tmp_path / "checkpoint", files, config)


def refused(ntool: Run, source: Path, *options: str, code: int, out: Path | None = None) -> str:
    """The message of a refused export, of which nothing is left."""
    target = out or source.parent / "pkg"
    ended = ntool("export-component", source, "-o", target, *options, code=code)
    assert not target.exists()
    assert not [p for p in target.parent.iterdir() if p.name.startswith(f".{target.name}")]
    return ended.err.partition("export-component: ")[2]


Case = tuple[str, str, Callable[[Files, dict[str, Any]], Any], int, list[str]]


def drop(name: str) -> Callable[[Files, dict[str, Any]], Any]:
    return lambda files, config: home(files, name).pop(name)


def put(name: str, like: str, stored: Stored) -> Callable[[Files, dict[str, Any]], Any]:
    return lambda files, config: home(files, like).update({name: stored})


def entry(name: str, at: int, value: int) -> Callable[[Files, dict[str, Any]], None]:
    """One number of a hash buffer."""

    def change(files: Files, config: dict[str, Any]) -> None:
        dtype, array = home(files, name)[name]
        array = array.copy()
        array[at] = value
        home(files, name)[name] = (dtype, array)

    return change


def one_bit(files: Files, config: dict[str, Any]) -> None:
    name = f"{SHARDS}.weight_scale"
    array = np.array([0x3950], np.uint16).view(ml_dtypes.bfloat16)
    home(files, name)[name] = ("BF16", array)


def mixed_shards(files: Files, config: dict[str, Any]) -> None:
    name = f"{SHARDS}.shard_3.weight"
    home(files, name)[name] = zeros(*home(files, name)[name][1].shape)


def setting(*path: Any) -> Callable[[Files, dict[str, Any]], None]:
    """A value of the config: keys, then the value."""

    def change(files: Files, config: dict[str, Any]) -> None:
        *keys, last, value = path
        for key in keys:
            config = config[key]
        config[last] = value

    return change


def listed_expert(files: Files, config: dict[str, Any]) -> None:
    config["quantization_config"]["modules_to_not_convert"].append(EXPERT)


BUFFER = f"{TABLE}.ngram_heads_vocab_sizes"
OF_FP8: dict[str, Case] = {
    "scale dropped": (
        "text-fp8", "Q40", drop(f"{EXPERT}.weight_scale_inv"), 4, [f"{EXPERT}.weight_scale_inv"],
    ),
    "grid of one column": (
        "text-fp8", "Q40", put(f"{EXPERT}.weight_scale_inv", f"{EXPERT}.weight_scale_inv",
                               zeros(2, 1)), 3, [f"{EXPERT}", "[2, 1]", "[2, 2]"],
    ),
    "grid of three rows": (
        "text-fp8", "Q40", put(f"{EXPERT}.weight_scale_inv", f"{EXPERT}.weight_scale_inv",
                               zeros(3, 2)), 3, [f"{EXPERT}", "[3, 2]", "[2, 2]"],
    ),
    "scale of another type": (
        "text-fp8", "Q40", put(f"{EXPERT}.weight_scale_inv", f"{EXPERT}.weight_scale_inv",
                               zeros(2, 2, dtype="F32")), 3, [f"{EXPERT}", "F32", "BF16"],
    ),
    "orphan scale": (
        "text-fp8", "Q40", put("mtp_like.weight_scale_inv", f"{EXPERT}.weight", zeros(2, 2)), 3,
        ["mtp_like.weight_scale_inv"],
    ),
    "one bit of the scalar": (
        "text-fp8", "Q40", one_bit, 3, ["weight_scale", "0x3950", "0x3951"],
    ),
    "no scalar": (
        "text-fp8", "Q40", drop(f"{SHARDS}.weight_scale"), 4, [f"{SHARDS}.weight_scale"],
    ),
    "shard 7 dropped": (
        "text-fp8", "Q40", drop(f"{SHARDS}.shard_7.weight"), 4, [f"{SHARDS}.shard_7.weight"],
    ),
    "shard 16 added": (
        "text-fp8", "Q40", lambda files, config: home(files, f"{SHARDS}.shard_0.weight").update(
            {f"{SHARDS}.shard_16.weight": home(files, f"{SHARDS}.shard_0.weight")[
                f"{SHARDS}.shard_0.weight"]}), 3, [f"{SHARDS}.shard_16.weight"],
    ),
    "a shard that is dense": ("text-fp8", "Q40", mixed_shards, 3, [f"{SHARDS}.shard_3.weight"]),
    "another block": (
        "text-fp8", "Q40", setting("quantization_config", "weight_block_size", [64, 64]), 3,
        ["64", "128"],
    ),
    "an expert among the names that stay": ("text-fp8", "Q40", listed_expert, 3, [EXPERT]),
    "another quantisation": (
        "text-fp8", "Q44", setting("quantization_config", {"quant_method": "nvfp4"}), 5,
        ["nvfp4", "fp8"],
    ),
    "codes of another kind": (
        "text-fp8", "Q40", setting("quantization_config", "fmt", "e5m2"), 5,
        ["fmt", "'e5m2'", "'e4m3'"],
    ),
    "a list as quantisation": (
        "text-fp8", "Q40", setting("quantization_config", [1]), 3,
        ["quantization_config: found [1], expected an object"],
    ),
}  # fmt: skip
OF_ALL: dict[str, Case] = {
    "sizes of heads": ("image-text", "Q8", entry(BUFFER, 1, 12345), 3, [BUFFER, "12345"]),
    "multipliers": (
        "image-text", "Q9", entry(f"{TABLE}.layer_multipliers", 0, 7), 3,
        [f"{TABLE}.layer_multipliers", "7"],
    ),
    "unknown tensor": (
        "image-text", "Q8", put(f"{LAYERS}.0.foo.weight", f"{LAYERS}.0.linear_attn.A_log",
                                zeros(2)), 3, [f"{LAYERS}.0.foo.weight"],
    ),
    "missing tensor": (
        "image-text", "Q8", drop(f"{LAYERS}.0.linear_attn.A_log"), 4,
        [f"{LAYERS}.0.linear_attn.A_log"],
    ),
    "wrong shape": (
        "image-text", "Q8", put(f"{LAYERS}.0.linear_attn.A_log", f"{LAYERS}.0.linear_attn.A_log",
                                zeros(5)), 3, [f"{LAYERS}.0.linear_attn.A_log", "[5]", "[4]"],
    ),
    "a vision tensor is missing": (
        "image-text", "Q8", drop("model.visual.merger.norm.weight"), 4,
        ["model.visual.merger.norm.weight"],
    ),
    "deepstack": (
        "image-text", "Q4", setting("vision_config", "deepstack_visual_indexes", [1]), 5,
        ["deepstack_visual_indexes"],
    ),
    "patches of 14": (
        "image-text", "Q4", setting("vision_config", "patch_size", 14), 5, ["patch_size", "14"],
    ),
    "dedicated embeddings of MTP": (
        "image-text", "Q3", setting("text_config", "mtp_use_dedicated_embeddings", True), 5,
        ["mtp_use_dedicated_embeddings", "cache"],
    ),
    "video is an image": (
        "image-text", "Q5", lambda files, config: config.update(
            video_token_id=config["image_token_id"]), 3, ["video_token_id"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", [*OF_FP8, *OF_ALL])
def test_a_checkpoint_that_is_not_sound(name: str, tmp_path: Path, ntool: Run) -> None:
    """Q3, Q4, Q5, Q8, Q9, Q40, Q44: each refusal names what it is about."""
    case, _, change, code, words = {**OF_FP8, **OF_ALL}[name]
    source = changed(tmp_path, case, change)
    options = ["--text-only"] if case == "text-fp8" else []
    message = refused(ntool, source, *options, code=code)
    assert [w for w in words if w not in message] == [], message


def test_odd_scales_are_told(tmp_path: Path, ntool: Run) -> None:
    """Scales of 0 and below are sound numbers that no writer means."""

    def change(files: Files, config: dict[str, Any]) -> None:
        for name, value in ((f"{EXPERT}.weight_scale_inv", 0), (f"{OTHER}.weight_scale_inv", -1)):
            dtype, array = home(files, name)[name]
            array = array.copy()
            array[0, 0] = value
            home(files, name)[name] = (dtype, array)
        config["quantization_config"] |= {"activation_scheme": "static", "fmt": "e4m3"}

    source = changed(tmp_path, "text-fp8", change)
    out = tmp_path / "pkg"
    done = ntool("export-component", source, "-o", out, "--text-only")
    told = {p["code"]: p for p in done.of("problem")}
    assert told.keys() == {"bad-scale", "zero-scale"}
    assert {p["severity"] for p in told.values()} == {"warning"}
    assert told["bad-scale"]["name"] == f"{OTHER}.weight_scale_inv"
    assert "found -1.0, expected a positive number" in told["bad-scale"]["message"]
    assert "1 scales are or hold 0" in told["zero-scale"]["message"]
    assert "warning: " in done.err and OTHER in done.err
    report = json.loads((out / "weight-loading-report.json").read_text())
    assert report["activation_scheme"] == {"found": "static", "used": False}


def test_a_tensor_in_two_files(tmp_path: Path, ntool: Run) -> None:
    """Q8."""

    def twice(files: Files, config: dict[str, Any]) -> None:
        first, second = list(files)[:2]
        name = next(iter(files[first]))
        files[second][name] = files[first][name]

    source = changed(tmp_path, "text", twice)
    name = next(iter(read(source)["model-00001-of-00003.safetensors"]))
    assert name in refused(ntool, source, code=3)


def test_an_index_that_names_what_no_file_has(tmp_path: Path, ntool: Run) -> None:
    """Q8."""
    source = changed(tmp_path, "text", lambda files, config: None)
    index = json.loads((source / INDEX).read_text())
    index["weight_map"]["model.layers.0.made_up.weight"] = "model-00001-of-00003.safetensors"
    (source / INDEX).write_text(json.dumps(index))
    assert "model.layers.0.made_up.weight" in refused(ntool, source, code=4)


def test_a_tensor_that_the_index_does_not_name(tmp_path: Path, ntool: Run) -> None:
    """Q8."""
    source = changed(tmp_path, "text", lambda files, config: None)
    index = json.loads((source / INDEX).read_text())
    name = next(iter(index["weight_map"]))
    del index["weight_map"][name]
    (source / INDEX).write_text(json.dumps(index))
    assert name in refused(ntool, source, code=3)


def test_header_errors_come_before_payloads_that_are_cut_off(tmp_path: Path, ntool: Run) -> None:
    """Q6: files end behind their headers, and what is told is the name and the shape."""
    like = f"{LAYERS}.0.linear_attn.A_log"
    source = changed(tmp_path, "image-text", put(like, like, zeros(5)))
    for path in source.glob("*.safetensors"):
        raw = path.read_bytes()
        path.write_bytes(raw[: 8 + int.from_bytes(raw[:8], "little")])
    assert like in refused(ntool, source, code=3)


def test_hash_buffers_may_be_absent(tmp_path: Path, ntool: Run) -> None:
    """Q9: they follow from the config."""

    def without(files: Files, config: dict[str, Any]) -> None:
        for tensors in files.values():
            for name in [
                n for n in tensors if n.startswith(f"{TABLE}.") and "embedding.sh" not in n
            ]:
                del tensors[name]

    source = changed(tmp_path, "image-text", without)
    ntool("export-component", source, "-o", tmp_path / "pkg", "--text-only")
    report = json.loads((tmp_path / "pkg" / "weight-loading-report.json").read_text())
    assert "bound" not in report["counts"]


def test_fp8_with_pictures_names_the_way_out(tmp_path: Path, ntool: Run) -> None:
    """Q44."""
    message = refused(ntool, CASES / "text-fp8", code=5, out=tmp_path / "pkg")
    assert "--text-only" in message


@pytest.mark.parametrize("component", [(), ("vision_encoder",)])
def test_bfloat16_vision_for_any_runtime(
    component: tuple[str, ...], tmp_path: Path, ntool: Run
) -> None:
    """Q26: with its reason and the ways out, alone too; the text model of the same checkpoint may
    be bfloat16."""
    options = ("--dtype", "bf16", "--ep", "onnx-standard")
    source, out = CASES / "image-text", tmp_path / "pkg"
    ended = ntool("export-component", source, *component, "-o", out, *options, code=5)
    (error,) = ended.of("error")
    assert error["message"].startswith("vision_encoder") and not out.exists()
    words = ["0.0405", "1e-2", "f32 or f16", "--text-only"]
    assert [w for w in words if w not in error["message"]] == []
    ntool("export-component", source, "-o", out, *options, "--text-only")


def test_pictures_for_any_runtime_in_float16(tmp_path: Path, ntool: Run) -> None:
    """Q26 is about bfloat16 alone; Q24: all three components have no other operators."""
    out = tmp_path / "pkg"
    options = ("--dtype", "f16", "--ep", "onnx-standard")
    ntool("export-component", CASES / "image-text", "-o", out, *options)
    for name in ("vision_encoder", "embedding", "decoder"):
        assert {o.domain for o in onnx.load(out / name / "model.onnx").opset_import} == {""}


# -- operators ------------------------------------------------------------------------------------


@pytest.mark.parametrize("provider", ["default", "onnx-standard"])
@pytest.mark.parametrize("inside", [False, True])
def test_an_operator_that_is_not_standard(
    provider: str, inside: bool, tmp_path: Path, ntool: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Q25: also in a subgraph; component, path, domain and operator are named."""
    build = Qwen4Exp.build

    def patched(self: Qwen4Exp, component: str, *rest: Any) -> Graph:
        g = build(self, component, *rest)
        if component == "decoder":
            where = g.at("odd")
            mask = g.values["attention_mask"]
            if inside:
                then, other = where.body("then"), where.body("other")
                then.output("a", then.op("Odd", mask, domain="com.example", shape=mask.shape))
                other.output("b", other.Identity(mask))
                where.If(g.constant(np.True_), then_branch=then, else_branch=other)
            else:
                where.op("Odd", mask, domain="com.example", shape=mask.shape)
        return g

    monkeypatch.setattr(Qwen4Exp, "build", patched)
    options = ("--ep", provider)
    message = refused(ntool, CASES / "text", *options, code=5, out=tmp_path / "pkg")
    assert message.startswith("decoder: ") and "com.example::Odd" in message
    assert "odd.If" in message if inside else "odd.Odd" in message


@pytest.mark.parametrize("provider", ["cpu", "cuda"])
def test_other_providers_have_the_fused_operator(provider: str, tmp_path: Path, ntool: Run) -> None:
    """Q24: one node a layer, whose domain the model imports; FP8 codes have none."""
    ntool("export-component", CASES / "text", "-o", tmp_path / "a", "--ep", provider)
    model = onnx.load(tmp_path / "a" / "decoder" / "model.onnx", load_external_data=False)
    fused = [n for n in model.graph.node if n.domain == "com.microsoft"]
    assert [n.op_type for n in fused] == ["MoE"] * 8
    assert {o.domain: o.version for o in model.opset_import}["com.microsoft"] == 1
    options = ("--text-only", "--ep", provider)
    ntool("export-component", CASES / "text-fp8", "-o", tmp_path / "b", *options)
    model = onnx.load(tmp_path / "b" / "decoder" / "model.onnx", load_external_data=False)
    assert {o.domain for o in model.opset_import} == {""}


# -- options, and what failures leave -------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "options", "code", "words"),
    [
        ("text", ("--shard-size", "6GB"), 2, ["5000000000"]),
        ("text", ("--max-shard-size", "5GiB"), 2, ["5000000000"]),
        ("text", ("--dequantize",), 2, ["--dequantize", "no FP8"]),
        ("text", ("--scale-reading", "bf16"), 2, ["--scale-reading", "no FP8"]),
        ("text", ("--external-data", "raw"), 2, ["--external-data", "safetensors"]),
        ("text", ("--dtype", "f8"), 2, ["f8"]),
        ("image-text", ("vision_encoder", "--text-only"), 4, ["vision_encoder", "decoder"]),
        ("text", ("embedding",), 4, ["embedding", "decoder"]),
        ("image-text", ("mtp",), 5, ["mtp", "cache interface"]),
        ("image-text", ("video",), 5, ["video", "not supported"]),
    ],
)
def test_options_that_do_not_fit(
    case: str, options: tuple[str, ...], code: int, words: list[str], tmp_path: Path, ntool: Run
) -> None:
    """Q37, Q38, Q57."""
    message = refused(ntool, CASES / case, *options, code=code, out=tmp_path / "pkg")
    assert [w for w in words if w not in message] == [], message


@pytest.mark.parametrize("what", ["write_file", "graph_bytes", "assets"])
def test_a_failure_while_writing_leaves_nothing(
    what: str, tmp_path: Path, ntool: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Q39: after the data of the first components, in a graph, before the assets."""
    original, calls = getattr(export, what), []

    def fails(*given: Any, **more: Any) -> Any:
        calls.append(given)
        if len(calls) == (1 if what == "assets" else 3):
            raise OSError(28, "No space left on device")
        return original(*given, **more)

    monkeypatch.setattr(export, what, fails)
    ntool("export-component", CASES / "image-text", "-o", tmp_path / "pkg", code=6)
    assert calls and list(tmp_path.iterdir()) == []


def test_scales_whose_values_cannot_be(tmp_path: Path, ntool: Run) -> None:
    """Q39, Q40: found before anything is written."""

    def infinite(files: Files, config: dict[str, Any]) -> None:
        name = f"{EXPERT}.weight_scale_inv"
        array = np.full((2, 2), np.inf, ml_dtypes.bfloat16)
        home(files, name)[name] = ("BF16", array)

    source = changed(tmp_path, "text-fp8", infinite)
    assert f"{EXPERT}.weight_scale_inv" in refused(ntool, source, "--text-only", code=3)


def test_a_stored_head_that_is_not_the_embedding(tmp_path: Path, ntool: Run) -> None:
    """A tied head may be stored; then it equals the embedding."""

    def tied(files: Files, config: dict[str, Any]) -> None:
        config["tie_word_embeddings"] = True

    source = changed(tmp_path, "text", tied)
    assert "lm_head.weight" in refused(ntool, source, code=3)
    shutil.rmtree(source)

    def equal(files: Files, config: dict[str, Any]) -> None:
        config["tie_word_embeddings"] = True
        name = "model.embed_tokens.weight"
        home(files, "lm_head.weight")["lm_head.weight"] = home(files, name)[name]

    source = changed(tmp_path, "text", equal)
    ntool("export-component", source, "-o", tmp_path / "pkg")
    report = json.loads((tmp_path / "pkg" / "weight-loading-report.json").read_text())
    (row,) = [r for r in report["tensors"] if r["name"] == "lm_head.weight"]
    assert row["action"] == "excluded" and "tie_word_embeddings" in row["reason"]
