"""package.json and processor.json of wrong types, through the commands that run a package."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ntool.lib.errors import InputError
from ntool.lib.package.package import inside, open_package
from ntool.lib.package.schema import require

# (path, value, words of the message)
WRONG: list[tuple[tuple[Any, ...], Any, str]] = [
    (("special_tokens",), True, "$.special_tokens: found true, expected object"),
    (("special_tokens", "<img>"), "x", "<img>"),
    (("special_tokens", "\ud800"), 1, "lone surrogate"),
    (("tokenizer",), 5, "$.tokenizer: found 5, expected string"),
    (("tokenizer",), "a\0b", "$.tokenizer: path holds a control character"),
    (("tokenizer",), "../x", "$.tokenizer: path has the segment '..'"),
    (("tokenizer",), "/etc", "$.tokenizer: path is absolute"),
    (("tokenizer",), "\ud800", "lone surrogate"),
    (("vocab_size",), "x", '$.vocab_size: found "x", expected integer'),
    (("vocab_size",), True, "$.vocab_size: found true"),
    (("vocab_size",), 2**70, "$.vocab_size"),
    (("workflow",), None, "$.workflow: found null, expected object"),
    (("workflow",), -1, "$.workflow: found -1"),
    (("workflow", "noise_scale"), -1, "$.workflow.noise_scale: found -1"),
    (("workflow", "noise_scale", "scale"), -1, "$.workflow.noise_scale.scale: found -1"),
    (("workflow", "noise_scale", "max"), 0, "$.workflow.noise_scale.max: found 0"),
    (("workflow", "noise_scale", "base_tokens"), 0, "$.workflow.noise_scale.base_tokens"),
    (("workflow", "noise_scale", "mode"), 3, "$.workflow.noise_scale.mode: found 3"),
    (("workflow", "positions", "token_pixels"), 0, "token_pixels: found 0, expected >= 1"),
    (("workflow", "positions", "token_pixels"), True, "token_pixels: found true"),
    (("cache", 0, "shape", 0), True, "$.cache[0].shape[0]: found true"),
    (("cache", 0, "shape", 1), 2**62, "$.cache[0].shape[1]"),
    (("cache", 0, "dtype"), "bool", '$.cache[0].dtype: found "bool"'),
    (("cache", 0, "input"), 3, "$.cache[0].input: found 3"),
    (("cache",), {}, "$.cache: found {}"),
    (("components",), [], "$.components: found []"),
    (("components", "decoder"), 3, "$.components.decoder: found 3"),
    (("components", "decoder", "graph"), "a/../b", "$.components.decoder.graph: path has"),
    (("components", "decoder", "data"), ["\\x"], "$.components.decoder.data: path holds"),
    (("components", "decoder", "data"), "x", "$.components.decoder.data"),
    (("defaults",), [], "$.defaults: found []"),
    (("defaults", "text-to-image"), 3, "text-to-image"),
    (("defaults", "text-to-image", "width"), "x", "width: found"),
    (("defaults", "text-to-image", "steps"), 0, "steps: found 0"),
    (("defaults", "text-to-image", "steps"), 10**9, "steps: found"),
    (("defaults", "text-to-image", "cfg"), None, "cfg: found null"),
    (("defaults", "text-to-image", "cfg_interval"), [0, "x"], "cfg_interval[1]"),
    (("defaults", "text-to-image", "cfg_norm"), 5, "cfg_norm"),
    (("defaults", "text-to-image", "shift"), 1e308, "shift"),
    (("defaults", "text-to-image", "t_eps"), 0, "t_eps"),
    (("defaults", "chat", "max_new_tokens"), 1.0, "max_new_tokens"),
    (("processor",), None, "$.processor: found null"),
    (("variant",), "x", "$.variant"),
    (("source",), {}, "$.source"),
    (("family",), 5, "$.family"),
]


@pytest.fixture(scope="module")
def copied(demo_package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("copied") / "pkg"
    shutil.copytree(demo_package, folder)
    return folder


def put(holder: Any, path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value


@pytest.mark.parametrize(("path", "value", "words"), WRONG, ids=lambda x: str(x)[:50])
def test_wrong_types(demo_package, copied, tmp_path, ntool, path, value, words: str) -> None:
    manifest = json.loads((demo_package / "package.json").read_text())
    put(manifest, path, value)
    (copied / "package.json").write_text(json.dumps(manifest))
    drawing = ["sample-image", copied, "--prompt", "x", "-o", tmp_path / "p.png", "-q"]
    for command in (["run-prefill", copied, "--prompt", "x", "-q"], drawing):
        done = ntool(*command, code=3)
        assert "package.json: " in done.err and words in done.err, done.err
        assert done.err.count("\n") == 1 and not (tmp_path / "p.png").exists()


ODD: list[Any] = [None, True, 0, -1, 2**63, 1.5, 1e300, "", "x", "a\0b", "\ud800", [], [None], {}]


def test_every_field_with_odd_values(demo_package, copied) -> None:
    """open_package refuses with an InputError or leaves a package that the schema allows."""
    sound = (demo_package / "package.json").read_text()
    paths: list[tuple[Any, ...]] = []

    def walk(value: Any, at: tuple[Any, ...]) -> None:
        items = value.items() if isinstance(value, dict) else enumerate(value[:1])
        for key, inner in items:
            paths.append((*at, key))
            if isinstance(inner, dict | list) and "edges" not in at:
                walk(inner, (*at, key))

    walk(json.loads(sound), ())
    paths = [p for p in paths if p[0] != "components" or "decoder" in p]
    for n, path in enumerate(paths):
        manifest = json.loads(sound)
        put(manifest, path, ODD[n % len(ODD)])  # one of the odd values each; all over the fields
        (copied / "package.json").write_text(json.dumps(manifest))
        try:
            open_package(copied)
        except InputError as e:
            assert e.message.startswith(f"{copied}/package.json: "), e.message
        except Exception as e:
            assert path == ("schema",), (path, e)


PROCESSOR = [
    ("patch_size", "x", '$.patch_size: found "x", expected integer'),
    ("patch_size", 0, "$.patch_size: found 0"),
    ("merge_size", None, "$.merge_size: found null"),
    ("mean", [1], "$.mean"),
]


@pytest.mark.parametrize(("key", "value", "words"), PROCESSOR)
def test_processor(demo_package, tmp_path, ntool, data, key, value, words: str) -> None:
    pkg = tmp_path / "pkg"
    shutil.copytree(demo_package, pkg)
    processor = json.loads((pkg / "processor.json").read_text())
    processor[key] = value
    (pkg / "processor.json").write_text(json.dumps(processor))
    picture = data / "demo-shapes" / "goldens" / "vqa_0.png"
    done = ntool("run-prefill", pkg, "--prompt", "x", "--image", picture, code=3)
    assert "processor.json: " in done.err and words in done.err, done.err


def test_numbers_beyond_float64(demo_package, copied) -> None:
    text = (demo_package / "package.json").read_text().replace('"cfg": 2.0', '"cfg": 1e999')
    assert "1e999" in text
    (copied / "package.json").write_text(text)
    with pytest.raises(InputError, match="1e999, beyond float64"):
        open_package(copied)


@pytest.mark.parametrize(
    "path",
    [None, 5, "", "/a", "a//b", "a/./b", "../a", "a\\b", "C:a", "a:b", "a\nb", "a\0", "\ud800"],
)
def test_paths_that_leave_or_are_none(path: Any) -> None:
    with pytest.raises(InputError, match="w: path "):
        inside(path, "w")


def test_what_the_schema_says_in_our_words() -> None:
    with pytest.raises(InputError, match=r"w: \$\.shift: found 0, expected >= 0\.001"):
        require({"shift": 0}, "w", "sampler_values")
    with pytest.raises(InputError, match=r"w: \$\.cfg_norm: found \"x\", expected \"none\" or"):
        require({"cfg_norm": "x"}, "w", "sampler_values")
    with pytest.raises(InputError, match=r"w: \$: 'cfg' is a required property"):
        require({}, "w", "sampler_defaults")


@pytest.mark.parametrize(
    ("here", "there", "words"),
    [
        ("vision_encoder", "embedding", "inputs of embedding"),
        ("decoder", "image_gen_embedding", "inputs of image_gen_embedding"),
        ("image_gen_embedding", "image_gen_denoiser", "expected inputs_embeds"),
    ],
)
def test_a_component_in_the_place_of_another_is_named(
    ntool, demo_package: Path, tmp_path: Path, here: str, there: str, words: str
) -> None:
    copied = tmp_path / "pkg"
    shutil.copytree(demo_package, copied)
    shutil.copytree(copied / here, copied / there, dirs_exist_ok=True)
    done = ntool("sample-image", copied, "--prompt", "a boat", "-o", tmp_path / "out.png", code=3)
    assert words in done.err and not (tmp_path / "out.png").exists()


@pytest.mark.parametrize(
    ("field", "value"),
    [("mean", [9, 9, 9]), ("std", [1, 1, 1]), ("rescale", 1.0), ("row_order", "row, column")],
)
def test_a_processor_that_is_not_the_familys_is_refused(
    ntool, demo_package: Path, data: Path, tmp_path: Path, field: str, value: Any
) -> None:
    copied = tmp_path / "pkg"
    shutil.copytree(demo_package, copied)
    path = copied / "processor.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
    picture = data / "neo-chat" / "common" / "exact.png"
    done = ntool("run-prefill", copied, "--prompt", "what?", "--image", picture, code=5)
    assert f"processor.json: {field}" in done.err
