"""tokenizer.json: the same ids as vocab.json and merges.txt give, and files that are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ntool.lib.errors import InputError, SourceNotFound, Unsupported
from ntool.lib.text import tokenizer
from ntool.lib.text.tokenizer_json import load_any, load_json

TINY = Path(__file__).parents[1] / "data/neo-chat/dense-conv/checkpoint"
TEXTS = (
    "what color is the circle?",
    "<|im_start|>user\nhi<|im_end|>\n",
    "  two  spaces\n\n\ttab é 中文 🙂",
    "it's I'LL 1234",
    "",
)


@pytest.fixture(scope="module")
def content() -> dict[str, Any]:
    """The tiny tokenizer as one file."""
    return json.loads(tokenizer.load(TINY)._backend.to_str())


def written(folder: Path, content: object) -> Path:
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


def test_one_file_gives_the_ids_of_three(content, tmp_path: Path) -> None:
    one, three = load_json(written(tmp_path, content)), tokenizer.load(TINY)
    assert one is not None
    assert (one.size, one.added, one.missing_bytes) == (
        three.size,
        three.added,
        three.missing_bytes,
    )
    for text in TEXTS:
        ids = three.encode(text)
        assert one.encode(text) == ids
        assert one.decode(ids, skip_special=False) == three.decode(ids, skip_special=False)
        assert [one.token(i) for i in ids] == [three.token(i) for i in ids]


def test_a_pattern_that_never_ends_is_one_error(content, tmp_path: Path, capfd) -> None:
    """The library panics, and lists where on standard error by itself."""
    hostile = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated",
               "invert": False}  # fmt: skip
    found = load_json(written(tmp_path, {**content, "pre_tokenizer": hostile}))
    assert found is not None
    with pytest.raises(InputError, match="the tokenizer fails on this text"):
        found.encode("a" * 40 + "!")
    assert capfd.readouterr().err == ""
    assert found.encode("!")


def test_cutting_and_padding_are_switched_off(content, tmp_path: Path) -> None:
    cut = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    pad = {
        "strategy": {"Fixed": 50},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "!",
    }
    found = load_json(written(tmp_path, {**content, "truncation": cut, "padding": pad}))
    assert found is not None
    assert found.encode(TEXTS[0]) == tokenizer.load(TINY).encode(TEXTS[0])


def test_the_one_file_comes_first(content, tmp_path: Path) -> None:
    assert load_json(TINY) is None
    assert load_any(TINY).encode("x") == tokenizer.load(TINY).encode("x")
    written(tmp_path, content)
    (tmp_path / "vocab.json").write_text("broken")
    assert load_any(tmp_path).size == tokenizer.load(TINY).size
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.json").unlink()
    with pytest.raises(SourceNotFound, match=r"vocab\.json"):
        load_any(tmp_path)


Change = Callable[[dict[str, Any]], None]
WRONG: dict[str, tuple[Change, type[Exception], str]] = {
    "another model": (
        lambda c: c["model"].update(type="WordPiece"), Unsupported, "found WordPiece and ByteLevel"
    ),
    "no model": (lambda c: c.pop("model"), InputError, "vocab"),
    "no decoder": (lambda c: c.update(decoder=None), Unsupported, "BPE and none"),
    "one id twice": (
        lambda c: c["model"]["vocab"].update(zzz=0), InputError, "two tokens have one id"
    ),
    "odd id": (lambda c: c["model"]["vocab"].update(zzz=-1), InputError, "found -1"),
    "true as id": (lambda c: c["model"]["vocab"].update(zzz=True), InputError, "found True"),
    "surrogate": (lambda c: c["model"]["vocab"].update({"\ud800": 9999}), InputError, "surrogate"),
    "merges of nothing": (
        lambda c: c["model"]["merges"].append(["not", "there"]), InputError, "not a tokenizer"
    ),
    "added twice": (
        lambda c: c["added_tokens"].append(dict(c["added_tokens"][0])), InputError, "there twice"
    ),
    "added on a word": (
        lambda c: c["added_tokens"].append({**c["added_tokens"][0], "id": 1, "content": "zzz"}),
        InputError,
        "there twice",
    ),
    "added with a hole": (
        lambda c: c["added_tokens"].append({**c["added_tokens"][0], "id": 5000, "content": "zzz"}),
        InputError,
        "found id 5000",
    ),
    "added without id": (
        lambda c: c["added_tokens"].append({"content": "zzz"}), InputError, "id, content and spec"
    ),
    "dropout": (lambda c: c["model"].update(dropout=0.1), Unsupported, "dropout: found 0.1"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_files_that_are_refused(content, tmp_path: Path, name: str) -> None:
    change, error, words = WRONG[name]
    changed = json.loads(json.dumps(content))
    change(changed)
    with pytest.raises(error, match=words) as e:
        load_json(written(tmp_path, changed))
    assert "tokenizer.json" in str(e.value)


def test_a_key_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"model": {}, "model": {}}')
    with pytest.raises(InputError, match=r"tokenizer\.json"):
        load_json(tmp_path)


@pytest.mark.parametrize("dropout", [None, 0, 0.0])
def test_without_dropout(content, tmp_path: Path, dropout: object) -> None:
    changed = {**content, "model": {**content["model"], "dropout": dropout}}
    found = load_json(written(tmp_path, changed))
    assert found is not None and found.encode(TEXTS[0]) == tokenizer.load(TINY).encode(TEXTS[0])
