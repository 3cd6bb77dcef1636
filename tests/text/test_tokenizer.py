"""Tokenizers against recorded ids, and odd vocabularies."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from pathlib import Path

import pytest

from ntool.lib.errors import InputError, SourceNotFound, Unsupported
from ntool.lib.text import tokenizer

DATA = Path(__file__).parents[1] / "data"
TINY = DATA / "neo-chat/dense-conv/checkpoint"
HOSTILE = DATA / "hostile-tokenizer"


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    folder = tmp_path_factory.mktemp("real-tokenizer")
    for packed in (DATA / "neo-chat/real-tokenizer").glob("*.gz"):
        (folder / packed.stem).write_bytes(gzip.decompress(packed.read_bytes()))
    return (
        folder,
        tokenizer.load(folder),
        json.loads((folder / "tokenizer_goldens.json").read_text("utf-8")),
    )


def small(tmp_path, vocab=None, merges="#version: 0.2\nh e\nl l\n", config=None, mirror=None):
    vocab = vocab or {c: i for i, c in enumerate([*"abcdehlo", "\u0120", "he", "ll"])}
    (tmp_path / "vocab.json").write_text(vocab if isinstance(vocab, str) else json.dumps(vocab))
    (tmp_path / "merges.txt").write_bytes(merges if isinstance(merges, bytes) else merges.encode())
    if config is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    if mirror is not None:
        (tmp_path / "added_tokens.json").write_text(json.dumps(mirror))
    return tmp_path


def token(content, special=True, **flags):
    return {"content": content, "special": special, **flags}


def test_real_tokenizer_every_id_and_decode(real):
    _, t, golden = real
    assert t.size == golden["len"] == 151936
    assert not t.missing_bytes
    assert len(golden["cases"]) >= 28
    for case in golden["cases"]:
        assert t.encode(case["text"]) == case["ids"], case["text"]
        assert t.decode(case["ids"], skip_special=False) == case["decoded"]
        assert t.decode(case["ids"]) == case["decoded_skip_special"]
    for name, i in golden["special_ids"].items():
        assert t.id(name) == i
    assert t.encode("\n\n<img>") == golden["append_ids"]


def test_think_tokens_survive_and_picture_tokens_vanish(real):
    _, t, _ = real
    ids = t.encode("<think>\na</think><img><IMG_CONTEXT></img><|im_end|>")
    assert t.decode(ids) == "<think>\na</think>"


def test_real_added_tokens_fill_the_end(real):
    _, t, _ = real
    assert [a.id for a in t.added] == list(range(151643, 151936))
    assert t.added[-1].content == "<FAKE_PAD_253>"


def goldens_with_ids():
    from safetensors.numpy import load_file

    manifest = json.loads((TINY.parent / "goldens/manifest.json").read_text("utf-8"))
    for run in manifest:
        names = {
            "prefill": ["input_ids"],
            "prefill_image": ["input_ids"],
            "t2i": ["input_ids_cond", "input_ids_uncond"],
            "edit": ["input_ids_cond", "input_ids_img_cond", "input_ids_uncond"],
            "interleave": ["input_ids_cond", "input_ids_tu", "input_ids_iu"],
        }.get(run["kind"], [])
        queries = [run["args"]["query"]] if "query" in run["args"] else run.get("queries", [])
        tensors = load_file(TINY.parent / "goldens" / run["file"])
        for name, query in zip(names, queries, strict=False):
            if name in tensors:
                yield run["name"], name, query, tensors[name].reshape(-1).tolist()


def test_tiny_tokenizer_on_every_recorded_query():
    t = tokenizer.load(TINY)
    assert t.size == 768
    seen = 0
    for run, name, query, ids in goldens_with_ids():
        assert t.encode(query) == ids, (run, name)
        seen += 1
    assert seen >= 12


def test_tiny_decode_of_generated_text():
    from safetensors.numpy import load_file

    t = tokenizer.load(TINY)
    goldens = TINY.parent / "goldens"
    runs = {r["name"]: r for r in json.loads((goldens / "manifest.json").read_text("utf-8"))}
    ids = load_file(goldens / "vqa.safetensors")["generated_ids"].reshape(-1).tolist()
    assert t.decode(ids).strip() == runs["vqa"]["response"]
    picked = load_file(goldens / "t2i_think.safetensors")["picked_ids"].reshape(-1).tolist()
    assert t.decode(picked, skip_special=False) == runs["t2i_think"]["think_text"]


def test_nfc_is_applied(real):
    _, t, _ = real
    assert t.encode("e\u0301") == t.encode("\u00e9") != t.encode("e")


def test_text_that_is_not_text(real):
    _, t, _ = real
    with pytest.raises(InputError, match="lone surrogate at character 1"):
        t.encode("a\ud800")
    assert t.encode("") == []
    for bad in (-1, t.size):
        with pytest.raises(InputError, match=str(bad)):
            t.decode([bad])
        assert t.word(bad) is None
    assert t.word(t.size - 1) == t.decode([t.size - 1], skip_special=False)
    with pytest.raises(SourceNotFound, match="<nope>"):
        t.id("<nope>")


def test_only_vocab_and_merges():
    t = tokenizer.load(HOSTILE / "tk-ok-vocab-merges")
    assert t.size == 11 and t.added == ()
    assert t.encode("hello") == [9, 10, 7]
    assert t.decode([9, 10, 7]) == "hello"


def test_a_byte_the_vocabulary_lacks_is_refused_not_dropped():
    t = tokenizer.load(HOSTILE / "tk-ok-vocab-merges")
    with pytest.raises(InputError, match="0x78"):
        t.encode("hex")


def test_missing_bytes_inside_added_tokens_do_not_matter(tmp_path):
    config = {"added_tokens_decoder": {"11": token("<xyz>")}}
    t = tokenizer.load(small(tmp_path, config=config))
    assert t.encode("he<xyz>ll") == [9, 11, 10]
    with pytest.raises(InputError, match="0x78"):
        t.encode("he<xyz>x")


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("tk-bad-dup-id", "id 0 belongs to both 'a' and 'zz'"),
        ("tk-id-hole", "hole: found no id 11, next is 100000"),
    ],
)
def test_hostile_vocabularies(case, words):
    with pytest.raises(InputError, match=words) as caught:
        tokenizer.load(HOSTILE / case)
    assert "\n" not in caught.value.message


def test_crlf_and_bom_merges_give_the_same_tokens():
    odd = tokenizer.load(HOSTILE / "tk-crlf")
    plain = tokenizer.load(HOSTILE / "tk-ok-vocab-merges")
    for text in ("hello", "hell lo", "ehllo "):
        assert odd.encode(text) == plain.encode(text)


def test_a_merge_of_hashes_is_not_a_comment(tmp_path):
    vocab = {"#": 0, "a": 1, "##": 2}
    t = tokenizer.load(small(tmp_path, vocab, "#version: 0.2\n# #\n"))
    assert t.encode("##") == [2]
    t = tokenizer.load(small(tmp_path, vocab, "# #\n"))
    assert t.encode("##") == [2]


@pytest.mark.parametrize(
    ("vocab", "merges", "words"),
    [
        ('{"a": 0, "a": 1}', "", "duplicate key 'a'"),
        ('{"a": 0, "b": 0}', "", "id 0 belongs to both"),
        ('{"a": "0"}', "", "found '0'"),
        ('{"a": true}', "", "found True"),
        ('{"a": 0.0}', "", "found 0.0"),
        ('{"a": -1}', "", "found -1"),
        ('{"a": 0, "b": 2147483648}', "", "2147483648"),
        ('{"a": NaN}', "", "NaN is not a JSON number"),
        ('{"a": ' + "9" * 5000 + "}", "", "5000 digits"),
        ('["a"]', "", "found list, expected a JSON object"),
        ("{}", "", "no tokens"),
        ('{"a": 0', "", "not JSON"),
        ("[" * 100000, "", "nested deeper than 64 levels"),
        ('{"\\ud800": 0}', "", "lone surrogate"),
        ('{"a": 0, "b": 2}', "", "hole: found no id 1, next is 2"),
        ('{"a": 0, "b": 1}', "a b\n", "'ab' is not in vocab.json"),
        ('{"a": 0, "b": 1}', "a c\n", "'c' is not in vocab.json"),
        ('{"a": 0, "aa": 1}', "a a\na a\n", "line 2: merge 'a a' appears twice"),
        ('{"a": 0, "aa": 1}', "a a a\n", "expected two parts"),
        ('{"a": 0, "aa": 1}', "a a\n#version: 0.2\n", "line 2: '#version:' is not in vocab"),
        ('{"a": 0, "aa": 1}', "aa\n", "expected two parts"),
        ('{"a": 0, "aa": 1}', "a  a\n", "expected two parts"),
        ('{"a": 0, "aa": 1}', b"a a\n\xff\n", "not UTF-8 at byte 4"),
    ],
)
def test_malformed_vocab_and_merges(tmp_path, vocab, merges, words):
    with pytest.raises(InputError, match=words.replace("[", r"\[")) as caught:
        tokenizer.load(small(tmp_path, vocab, merges))
    assert "\n" not in caught.value.message
    assert (
        "vocab.json" in caught.value.message
        or "merges.txt" in caught.value.message
        or ("hole" in words)
    )


def test_json_with_bom_or_not_utf8(tmp_path):
    small(tmp_path)
    (tmp_path / "vocab.json").write_bytes(b'\xef\xbb\xbf{"a": 0}')
    with pytest.raises(InputError, match="byte order mark"):
        tokenizer.load(tmp_path)
    (tmp_path / "vocab.json").write_bytes(b'{"\xff": 0}')
    with pytest.raises(InputError, match="byte 0xff at position 2"):
        tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("config", "mirror", "words"),
    [
        ({"added_tokens_decoder": {"12": token("<x>")}}, None, "hole"),
        ({"added_tokens_decoder": {"10": token("<x>")}}, None, "belongs to both 'll' and '<x>'"),
        ({"added_tokens_decoder": {"11": token("ll")}}, None, "'ll' has id 11 here and 10"),
        (
            {"added_tokens_decoder": {"11": token("<x>"), "12": token("<x>")}},
            None,
            "'<x>' has ids 11 and 12",
        ),
        ({"added_tokens_decoder": {"011": token("<x>")}}, None, "decimal id"),
        ({"added_tokens_decoder": {"\u0661": token("<x>")}}, None, "decimal id"),
        ({"added_tokens_decoder": {"11": "<x>"}}, None, "found str"),
        ({"added_tokens_decoder": {"11": token(5)}}, None, "content: found 5"),
        ({"added_tokens_decoder": {"11": token("")}}, None, "content: found ''"),
        ({"added_tokens_decoder": {"11": token("<x>", special=1)}}, None, "special: found 1"),
        ({"added_tokens_decoder": []}, None, "found list"),
        ({"added_tokens_decoder": {"11": token("<x>")}}, {"<y>": 11}, "differs"),
        ({"added_tokens_decoder": {"11": token("<x>")}}, {"<x>": 12}, "'<x>'"),
        (None, {"<x>": 11}, "special are not known|special is not known|which of these"),
    ],
)
def test_added_tokens_that_contradict(tmp_path, config, mirror, words):
    with pytest.raises(InputError, match=words):
        tokenizer.load(small(tmp_path, config=config, mirror=mirror))


@pytest.mark.parametrize(
    "config",
    [
        {"tokenizer_class": "LlamaTokenizer"},
        {"add_prefix_space": True},
        {"add_bos_token": True},
        {"split_special_tokens": True},
        {"added_tokens_decoder": {"11": token("<x>", lstrip=True)}},
    ],
)
def test_options_that_are_not_implemented(tmp_path, config):
    with pytest.raises(Unsupported, match=r"tokenizer_config\.json"):
        tokenizer.load(small(tmp_path, config=config))


def test_added_token_that_the_vocabulary_also_has(tmp_path):
    config = {"added_tokens_decoder": {"10": token("ll", special=False), "11": token("<x>")}}
    t = tokenizer.load(small(tmp_path, config=config))
    assert t.size == 12 and t.encode("ll<x>") == [10, 11]


def test_missing_files_and_files_that_are_not_files(tmp_path):
    with pytest.raises(SourceNotFound, match=r"vocab\.json"):
        tokenizer.load(tmp_path)
    small(tmp_path)
    os.unlink(tmp_path / "merges.txt")
    with pytest.raises(SourceNotFound, match=r"merges\.txt"):
        tokenizer.load(tmp_path)
    os.mkfifo(tmp_path / "merges.txt")
    with pytest.raises(InputError, match="expected a regular file"):
        tokenizer.load(tmp_path)


def test_size_cap(tmp_path, monkeypatch):
    shutil.copytree(HOSTILE / "tk-ok-vocab-merges", tmp_path / "t")
    monkeypatch.setattr(tokenizer, "MAX_BYTES", 10)
    with pytest.raises(InputError, match="expected <= 10"):
        tokenizer.load(tmp_path / "t")


def test_byte_symbols_are_distinct_and_printable():
    symbols = tokenizer.byte_symbols()
    assert len(set(symbols)) == 256
    assert symbols[ord(" ")] == "\u0120" and symbols[ord("\n")] == "\u010a"
    assert all(s.isprintable() and not s.isspace() for s in symbols)
