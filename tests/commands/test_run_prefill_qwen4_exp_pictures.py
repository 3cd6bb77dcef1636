"""Pictures in prompts of Qwen4-Exp packages: where they stand, and how many tokens they become."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

from ntool.lib.text.tokenizer import byte_symbols

CHECKPOINT = Path(__file__).parents[1] / "data" / "qwen4-exp" / "image-text"
START, IM_END, VISION_START, VISION_END, PICTURE = 6, 7, 99, 100, 101
SPECIAL = {
    START: "<|im_start|>",
    IM_END: "<|im_end|>",
    VISION_START: "<|vision_start|>",
    VISION_END: "<|vision_end|>",
    PICTURE: "<|image_pad|>",
    102: "<|video_pad|>",
}
LETTERS = "abcdefghijklmnopqrstuvwxyz\n :<>|_"
TEMPLATE = """\
{%- for m in messages -%}
{{ m.role[0] }}:
{%- if m.content is string -%}{{ m.content }}
{%- else -%}
{%- for part in m.content -%}
{%- if part.type == 'image' -%}<|vision_start|><|image_pad|><|vision_end|>
{%- else -%}{{ part.text }}{%- endif -%}
{%- endfor -%}
{%- endif -%}<|im_end|>
{%- endfor -%}
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model of text and pictures, with a tokenizer of its 128 tokens."""
    from ..conftest import run_ntool

    source = tmp_path_factory.mktemp("checkpoint") / "model"
    shutil.copytree(CHECKPOINT, source)
    free = iter(i for i in range(128) if i not in SPECIAL)
    vocab = {byte_symbols()[ord(c)]: next(free) for c in LETTERS}
    vocab |= {f"x{i}": i for i in free} | {text: i for i, text in SPECIAL.items()}
    (source / "vocab.json").write_text(json.dumps(vocab))
    (source / "merges.txt").write_text("#version: 0.2\n")
    added = {str(i): {"content": text, "special": True} for i, text in SPECIAL.items()}
    config = {"added_tokens_decoder": added, "chat_template": TEMPLATE}
    (source / "tokenizer_config.json").write_text(json.dumps(config))
    done = run_ntool("export-component", source, "-o", source.parent / "pkg")
    assert done.code == 0, done.err
    return source.parent / "pkg"


@pytest.fixture(scope="module")
def ids(package: Path) -> Any:
    """Ids of a text; `#4` is a picture of 4 tokens with the tokens around it."""
    vocab = json.loads((package / "tokenizer" / "vocab.json").read_text())
    symbols = byte_symbols()

    def made(*parts: str | int) -> list[int]:
        found: list[int] = []
        for part in parts:
            if isinstance(part, int):
                found += [VISION_START, *[PICTURE] * part, VISION_END]
            else:
                found += [vocab[symbols[ord(c)]] for c in part]
        return found

    return made


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Pictures of 4, 8 and 6 tokens."""
    folder, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(5)
    for name, (h, w) in {"a": (64, 64), "b": (64, 128), "c": (96, 64)}.items():
        Image.fromarray(rng.integers(0, 256, (h, w, 3), np.uint8)).save(folder / f"{name}.png")
    return [folder / f"{name}.png" for name in "abc"]


def prefilled(ntool: Any, folder: Path, package: Path, *options: object) -> dict[str, np.ndarray]:
    ntool("run-prefill", package, "-o", folder / "out", *options)
    return load_file(folder / "out")


def test_a_picture_stands_in_front_of_the_text(package, ids, images, tmp_path, ntool) -> None:
    options = ["--prompt", "what is it", "--image", images[0], "--image", images[1]]
    found = prefilled(ntool, tmp_path, package, *options)
    wanted = [*ids("u:", 4, 8, "what is it"), IM_END]
    assert found["token_ids"].tolist() == [wanted]
    again = prefilled(
        ntool, tmp_path, package, "--tokens", ",".join(map(str, wanted)), *options[2:]
    )
    for name, value in found.items():
        np.testing.assert_array_equal(value, again[name])
    # the features are those of the pictures: others give other logits
    swapped = ["--image", images[2], "--image", images[1]]
    other = prefilled(ntool, tmp_path, package, "--prompt", "what is it", *swapped)
    assert other["token_ids"].tolist() == [[*ids("u:", 6, 8, "what is it"), IM_END]]
    turned = tmp_path / "turned.png"
    Image.open(images[0]).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(turned)
    options[3] = turned
    other = prefilled(ntool, tmp_path, package, *options)
    assert other["token_ids"].tolist() == [wanted]
    assert np.abs(other["logits"] - found["logits"]).max() > 1e-3


def test_a_placeholder_says_where(package, ids, images, tmp_path, ntool) -> None:
    mark = "<|vision_start|><|image_pad|><|vision_end|>"
    options = ["--image", images[0], "--image", images[1]]
    found = prefilled(ntool, tmp_path, package, "--prompt", f"x{mark}y{mark}", *options)
    assert found["token_ids"].tolist() == [[*ids("u:x", 4, "y", 8), IM_END]]
    # of two pictures one has a place: the other one stands in front, and so is the first
    found = prefilled(ntool, tmp_path, package, "--prompt", f"x{mark}y", *options)
    assert found["token_ids"].tolist() == [[*ids("u:", 4, "x", 8, "y"), IM_END]]
    done = ntool("run-prefill", package, "--prompt", mark, code=2)
    assert "<|image_pad|> placeholders: found 1, expected 0" in done.err


def test_rows_with_pictures(package, ids, images, tmp_path, ntool) -> None:
    mark = "<|vision_start|><|image_pad|><|vision_end|>"
    rows = ["--prompt", f"one{mark}", "--prompt", "two", "--prompt", f"{mark}three"]
    options = ["--image", images[0], "--image", images[1]]
    found = prefilled(ntool, tmp_path, package, *rows, *options)
    wanted = [ids("u:one", 4), ids("u:two"), ids("u:", 8, "three")]
    for row, mask, one in zip(found["token_ids"], found["attention_mask"], wanted, strict=True):
        assert row[mask != 0].tolist() == [*one, IM_END]
    alone = prefilled(ntool, tmp_path, package, *rows[4:], *options[2:])
    np.testing.assert_allclose(found["logits"][2], alone["logits"][0], rtol=1e-4, atol=1e-4)
    done = ntool("run-prefill", package, "--prompt", "a", "--prompt", "b", *options, code=2)
    assert "found 0, expected 2" in done.err


def test_finished_text_with_a_placeholder_or_all_tokens(
    package, ids, images, tmp_path, ntool
) -> None:
    options = ["--image", images[0]]
    short = "a<|vision_start|><|image_pad|><|vision_end|>"
    full = short.replace("<|image_pad|>", "<|image_pad|>" * 4)
    for query in (short, full):
        found = prefilled(ntool, tmp_path, package, "--query", query, *options)
        assert found["token_ids"].tolist() == [ids("a", 4)]
    query = short.replace("<|image_pad|>", "<|image_pad|>" * 3)
    done = ntool("run-prefill", package, "--query", query, *options, code=3)
    assert "found 3, expected 4" in done.err
    done = ntool("run-prefill", package, "--query", "<|video_pad|>", code=5)
    assert "video is not supported" in done.err


def test_limits_of_the_area(package, ids, images, tmp_path, ntool) -> None:
    options = ["--prompt", "x", "--image", images[0]]
    for limits, tokens in (
        ([], 4),
        (["--min-pixels", 96 * 96], 9),
        (["--min-pixels", 1, "--max-pixels", 32 * 32], 1),
    ):
        found = prefilled(ntool, tmp_path, package, *options, *limits)
        assert found["token_ids"].tolist() == [[*ids("u:", tokens, "x"), IM_END]]
    done = ntool("run-prefill", package, *options, "--min-pixels", 10**6, code=2)
    assert "--min-pixels" in done.err
    done = ntool("run-prefill", package, *options, "--min-pixels", 9, "--max-pixels", 8, code=2)
    assert "--max-pixels 8" in done.err


def test_conversations_with_pictures(package, ids, images, tmp_path, ntool) -> None:
    for path in images:
        shutil.copy(path, tmp_path)
    talk = tmp_path / "talk.json"
    talk.write_text(
        json.dumps(
            [
                {"role": "user", "text": "one", "images": ["a.png"]},
                {"role": "assistant", "content": "yes"},
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "two"},
                        {"type": "image"},
                        {"type": "image", "image": "c.png"},
                    ],
                },
            ]
        )
    )
    found = prefilled(ntool, tmp_path, package, "--messages", talk, "--image", images[1])
    wanted = [*ids("u:", 4, "one"), IM_END, *ids("a:yes"), IM_END, *ids("u:two", 8, 6), IM_END]
    assert found["token_ids"].tolist() == [wanted]
    done = ntool("run-prefill", package, "--messages", talk, code=2)
    assert "pictures without a path: found 1, expected 0" in done.err
    done = ntool("run-prefill", package, "--messages", talk, "--image", "nowhere.png", code=4)
    assert "nowhere.png" in done.err


def test_plain_turns_where_there_is_no_template(package, ids, images, tmp_path, ntool) -> None:
    copied = tmp_path / "pkg"
    shutil.copytree(package, copied)
    config = copied / "tokenizer" / "tokenizer_config.json"
    values = json.loads(config.read_text())
    del values["chat_template"]
    config.write_text(json.dumps(values))
    found = prefilled(ntool, tmp_path, copied, "--prompt", "x", "--image", images[0])
    turn = [START, *ids("user\n", 4, "x"), IM_END, *ids("\n"), START, *ids("assistant\n")]
    assert found["token_ids"].tolist() == [turn]


def test_the_token_of_videos_ends_a_decode(package, tmp_path, ntool, monkeypatch) -> None:
    """The graph would refuse it too, with less to say."""
    from ntool.lib.families.qwen4_exp.pipeline import Pipeline

    run = Pipeline.run

    def chosen(self: Any, *args: Any, **options: Any) -> Any:
        prefix = run(self, *args, **options)
        prefix.logits = np.eye(128, dtype=np.float32)[[[102]]]
        return prefix

    monkeypatch.setattr(Pipeline, "run", chosen)
    done = ntool("run-prefill", package, "--tokens", "1,2", "--decode", 3, code=5)
    assert [t["id"] for t in done.of("token")] == [102]
    assert "decode: token 0: token id 102 is that of a video" in done.err


MARK = "<|image_pad|>"
WHERE: dict[str, tuple[list[Any], int, list[Any]]] = {
    # messages, pictures of --image, and the text with a number for the tokens of each picture
    "text": ([{"role": "user", "text": f"x{MARK}y", "images": ["a.png"]}], 0, ["u:x", 4, "y"]),
    "one of two": (
        [{"role": "user", "text": f"x{MARK}y", "images": ["a.png", "b.png"]}],
        0,
        ["u:", (4,), "x", 8, "y"],
    ),
    "content": ([{"role": "user", "content": f"x{MARK}"}], 1, ["u:x", 4]),
    "text of a list": (
        [{"role": "user", "content": [{"type": "text", "text": f"x{MARK}y"}]}],
        1,
        ["u:x", 4, "y"],
    ),
    "two of one": (
        [{"role": "user", "text": f"{MARK}x{MARK}", "images": ["b.png"]}],
        1,
        ["u:", 8, "x", 4],
    ),
    "earlier turn": (
        [
            {"role": "user", "content": f"x{MARK}"},
            {"role": "assistant", "content": "yes"},
            {"role": "user", "text": f"z{MARK}", "images": ["c.png"]},
        ],
        1,
        ["u:x", 4, "E", "a:yes", "E", "u:z", 6],
    ),
}


@pytest.mark.parametrize("name", WHERE)
def test_placeholders_in_conversations(name, package, ids, images, tmp_path, ntool) -> None:
    """A placeholder in a text takes the message's own pictures first, then those of --image."""
    messages, count, parts = WHERE[name]
    for path in images:
        shutil.copy(path, tmp_path)
    (tmp_path / "talk.json").write_text(json.dumps(messages))
    given = [o for path in images[:count] for o in ("--image", path)]
    found = prefilled(ntool, tmp_path, package, "--messages", tmp_path / "talk.json", *given)
    wanted: list[int] = []
    for part in parts:
        if part == "E":
            wanted.append(IM_END)
        elif isinstance(part, int):  # the bare placeholder, as the text has it
            wanted += [PICTURE] * part
        else:  # of a picture in front the template writes the tokens around it
            wanted += ids(*part if isinstance(part, tuple) else [part])
    assert found["token_ids"].tolist() == [[*wanted, IM_END]]


def test_placeholders_and_pictures_of_a_conversation_differ(
    package, images, tmp_path, ntool
) -> None:
    talk = tmp_path / "talk.json"
    for text, count in ((f"x{MARK}", 0), (f"x{MARK}{MARK}", 1), ("x", 1)):
        talk.write_text(json.dumps([{"role": "user", "content": text}]))
        given = ["--image", images[0]] * count
        done = ntool("run-prefill", package, "--messages", talk, *given, code=2)
        wanted = f"pictures without a path: found {text.count(MARK)}, expected {count} of --image"
        assert wanted in done.err


def test_a_turned_picture(package, tmp_path, ntool) -> None:
    """EXIF orientation 6: what is stored as 64 x 128 is 128 high."""
    exif = Image.Exif()
    exif[0x0112] = 6
    rng = np.random.default_rng(5)
    picture = Image.fromarray(rng.integers(0, 256, (64, 128, 3), np.uint8))
    picture.save(tmp_path / "a.png", exif=exif)
    picture.transpose(Image.Transpose.ROTATE_270).save(tmp_path / "b.png")
    a, b = (
        prefilled(ntool, tmp_path, package, "--prompt", "x", "--image", tmp_path / name)
        for name in ("a.png", "b.png")
    )
    np.testing.assert_array_equal(a["position_ids"], b["position_ids"])
    np.testing.assert_array_equal(a["logits"], b["logits"])


def test_a_picture_that_is_too_long_is_named(package, tmp_path, ntool) -> None:
    Image.new("L", (201, 1)).save(tmp_path / "long.png")
    done = ntool("run-prefill", package, "--prompt", "x", "--image", tmp_path / "long.png", code=3)
    assert "long.png: picture aspect ratio: found 201 (201x1), expected at most 200" in done.err
