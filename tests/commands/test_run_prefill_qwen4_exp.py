"""run-prefill of Qwen4-Exp packages: batches, stop tokens, templates, what is refused.

Most of it runs a decoder of a few sums (families/qwen4_exp/fake_package.py).
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from ntool.lib.families.qwen4_exp.pipeline import Pipeline
from ntool.lib.families.qwen4_exp.request import Request
from ntool.lib.package.package import open_package

from ..families.qwen4_exp import fake_package as fake
from ..families.qwen4_exp.fake_package import END, START, V, greedy

ROWS = ([40, 2, 30], [9], [7, 7, 8, 1])
TOKENS = ";".join(",".join(map(str, row)) for row in ROWS)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake.write(tmp_path_factory.mktemp("fake") / "pkg")


def picked(done: Any, row: int | None = None) -> list[int]:
    """Ids of the token records of a row, whose indices count from 0."""
    found = [t for t in done.of("token") if t.get("row") == row]
    assert [t["index"] for t in found] == list(range(len(found)))
    return [t["id"] for t in found]


def turn(text: str) -> list[int]:
    """Ids of a question in plain ChatML."""
    said = f"user\n{text}".encode(), b"\n", b"assistant\n"
    return [START, *said[0], END, *said[1], START, *said[2]]


def test_rows_of_a_batch_are_as_if_they_were_alone(package, tmp_path, ntool) -> None:
    done = ntool("run-prefill", package, "--tokens", TOKENS, "--decode", 6)
    (tmp_path / "ids").write_text("\n".join(" ".join(map(str, row)) for row in ROWS))
    again = ntool("run-prefill", package, "--tokens", f"@{tmp_path / 'ids'}", "--decode", 6)
    for b, row in enumerate(ROWS):
        wanted = greedy(row, 6, [END])
        assert picked(done, b) == picked(again, b) == wanted
        alone = ntool("run-prefill", package, "--tokens", ",".join(map(str, row)), "--decode", 6)
        assert picked(alone) == wanted
    told = [(s["row"], s["tokens"], s["next_token"]) for s in done.of("summary")]
    assert told == [(b, len(row), greedy(row, 1)[0]) for b, row in enumerate(ROWS)]


@pytest.mark.parametrize("pad", [None, 0, 123])
def test_padding_is_on_the_left_and_masked(package, tmp_path, ntool, pad: int | None) -> None:
    options = [] if pad is None else ["--pad", pad]
    ntool("run-prefill", package, "--tokens", TOKENS, "-o", tmp_path / "out", *options)
    found = load_file(tmp_path / "out")
    p = END if pad is None else pad
    wanted = [[p, 40, 2, 30], [p, p, p, 9], [7, 7, 8, 1]]
    np.testing.assert_array_equal(found["token_ids"], wanted)
    mask = np.array([[0, 1, 1, 1], [0, 0, 0, 1], [1, 1, 1, 1]])
    np.testing.assert_array_equal(found["attention_mask"], mask)
    places = np.broadcast_to(np.maximum(mask.cumsum(1) - 1, 0), (4, 3, 4))
    np.testing.assert_array_equal(found["position_ids"], places)
    np.testing.assert_array_equal(found["past.position_ids"], places)


def test_the_file_holds_the_state_after_the_prompt(package, tmp_path, ntool) -> None:
    out = tmp_path / "out"
    done = ntool("run-prefill", package, "--tokens", "40,2,30", "--decode", 3, "-o", out)
    found = load_file(out)
    names = {"past.position_ids", "past.0.key", "past.0.ple_context", "past.3.recurrent_state"}
    assert found.keys() == {"logits", "token_ids", "position_ids", "attention_mask", *names}
    assert (
        found["logits"].shape == (1, 1, V) and found["logits"].argmax() == greedy([40, 2, 30], 1)[0]
    )
    np.testing.assert_array_equal(found["past.0.key"].reshape(-1), [40, 2, 30])
    np.testing.assert_array_equal(found["past.0.ple_context"], [[2, 30]])
    np.testing.assert_array_equal(found["past.3.recurrent_state"].reshape(-1), [72])
    told = {r["name"]: (tuple(r["shape"]), r["nbytes"]) for r in done.of("tensor")}
    assert told == {k: (v.shape, v.nbytes) for k, v in found.items()}
    with safe_open(out, "np") as f:
        words = json.loads(f.metadata()["ntool"])
    assert (words["task"], words["text_length"], words["template"]) == ("chat", 3, None)
    assert len(words["package"]) == 64
    ntool("run-prefill", package, "--tokens", "40,2,30", "--all-logits", "-o", out)
    assert load_file(out)["logits"].shape == (1, 3, V)


def test_a_row_ends_with_its_stop_token(tmp_path, ntool) -> None:
    rows = [[40, 2, 30], [9]]
    free = [greedy(row, 8) for row in rows]
    stop = free[0][2]
    assert stop not in free[1]
    pkg = fake.write(tmp_path / "pkg", stop=[V - 1, stop])
    done = ntool("run-prefill", pkg, "--tokens", "40,2,30;9", "--decode", 8)
    assert picked(done, 0) == free[0][:3]
    assert picked(done, 1) == free[1]
    done = ntool("run-prefill", pkg, "--tokens", "40,2,30", "--decode", 8)
    assert picked(done) == free[0][:3]


def test_a_row_that_has_ended_is_fed_its_stop_token(tmp_path) -> None:
    rows = ((40, 2, 30), (9,))
    free = [greedy(row, 5) for row in rows]
    pkg = fake.write(tmp_path / "pkg", stop=[free[0][0]])
    pipeline = Pipeline(open_package(pkg))
    prefix = pipeline.prefill(Request(ids=rows))
    found = list(pipeline.decode(prefix, 5))
    assert [a for a, _ in found] == [free[0][0], None, None, None, None]
    assert [b for _, b in found] == free[1]
    assert prefix.ids[:, 3:].tolist() == [[free[0][0]] * 4, free[1][:4]]
    assert prefix.mask.tolist() == [[1] * 7, [0, 0, *[1] * 5]]


def test_nothing_is_decoded_unless_asked_for(package, ntool) -> None:
    for options in ([], ["--decode", 0]):
        done = ntool("run-prefill", package, "--tokens", "1", *options)
        assert [r["kind"] for r in done.records] == ["begin", "summary", "end"]


def test_prompts_without_a_template_are_plain_turns(package, tmp_path, ntool) -> None:
    done = ntool("run-prefill", package, "--prompt", "hé", "--decode", 4, "-o", tmp_path / "out")
    ids = turn("hé")
    assert load_file(tmp_path / "out")["token_ids"].tolist() == [ids]
    assert picked(done) == greedy(ids, 4, [END])
    two = ntool("run-prefill", package, "--prompt", "hé", "--prompt", "longer", "--decode", 4)
    assert picked(two, 0) == picked(done)
    assert picked(two, 1) == greedy(turn("longer"), 4, [END])
    ntool("run-prefill", package, "--prompt", "x", "--system", "S", "-o", tmp_path / "out")
    head = [START, *b"system\nS", END, *b"\n"]
    assert load_file(tmp_path / "out")["token_ids"].tolist() == [head + turn("x")]


def test_finished_text_is_taken_as_it_is(package, tmp_path, ntool) -> None:
    ntool("run-prefill", package, "--query", "<|im_start|>a", "-o", tmp_path / "out")
    assert load_file(tmp_path / "out")["token_ids"].tolist() == [[START, 97]]


def test_text_of_tokens(tmp_path, ntool) -> None:
    """Ids that the tokenizer lacks have no text."""
    row = next([i] for i in range(V) if greedy([i], 1)[0] >= fake.SIZE)
    pkg = fake.write(tmp_path / "pkg")
    done = ntool("run-prefill", pkg, "--tokens", row[0], "--decode", 1)
    assert done.of("token")[0]["text"] is None and not done.of("text")
    row = next([i] for i in range(V) if 97 <= greedy([i], 1)[0] < 123)
    done = ntool("run-prefill", pkg, "--tokens", row[0], "--decode", 1)
    letter = chr(greedy(row, 1)[0])
    assert (done.of("token")[0]["text"], done.of("text")[0]["text"]) == (letter, letter)
    raw = ntool("run-prefill", pkg, "--tokens", row[0], "--decode", 1, "--raw")
    assert raw.out == letter + "\n"


TEMPLATE = (
    "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}"
    "{% if add_generation_prompt %}a{% if enable_thinking %}t{% endif %}{% endif %}"
)


@pytest.mark.parametrize("place", ["file", "config", "list"])
def test_the_package_s_template(package, tmp_path, ntool, place: str) -> None:
    pkg = tmp_path / "pkg"
    shutil.copytree(package, pkg)
    config = json.loads((pkg / "tokenizer" / "tokenizer_config.json").read_text())
    if place == "file":
        (pkg / "tokenizer" / "chat_template.jinja").write_text(TEMPLATE)
        config["chat_template"] = "of lower rank"
    elif place == "config":
        config["chat_template"] = TEMPLATE
    else:
        config["chat_template"] = [{"name": "default", "template": TEMPLATE}]
    (pkg / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(config))
    out = tmp_path / "out"
    options = ["--prompt", "hi", "--system", "S", "-o", out]
    ntool("run-prefill", pkg, *options)
    assert bytes(load_file(out)["token_ids"][0].tolist()) == b"s:S;u:hi;a"
    ntool("run-prefill", pkg, *options, "--think")
    assert bytes(load_file(out)["token_ids"][0].tolist()) == b"s:S;u:hi;at"
    with safe_open(out, "np") as f:
        words = json.loads(f.metadata()["ntool"])
    name = "chat_template.jinja" if place == "file" else "tokenizer_config.json"
    assert (words["template"], words["query"]) == (name, "s:S;u:hi;at")
    talk = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "text": "two"},
        {"role": "user", "content": [{"type": "text", "text": "three"}]},
    ]
    (tmp_path / "talk.json").write_text(json.dumps(talk))
    ntool("run-prefill", pkg, "--messages", tmp_path / "talk.json", "-o", out)
    assert bytes(load_file(out)["token_ids"][0].tolist()).startswith(b"u:one;a:two;u:")


def test_a_template_that_fails_is_one_error(package, tmp_path, ntool) -> None:
    pkg = tmp_path / "pkg"
    shutil.copytree(package, pkg)
    template = pkg / "tokenizer" / "chat_template.jinja"
    for source, words in (
        ("{{ 'x' * 10**12 }}", "the template takes too much"),
        ("{{ raise_exception('no system') }}", "refuses these messages: no system"),
        ("{% if %}", "the template fails"),
    ):
        template.write_text(source)
        done = ntool("run-prefill", pkg, "--prompt", "x", code=3)
        assert "chat_template.jinja" in done.err and words in done.err
    # what needs no template does not read it
    ntool("run-prefill", pkg, "--tokens", "1")


@pytest.mark.parametrize("options", [["--prompt", "x"], ["--query", "x"], ["--messages", "talk"]])
def test_a_package_without_a_tokenizer_takes_ids_alone(tmp_path, ntool, options) -> None:
    pkg = fake.write(tmp_path / "pkg", tokenizer=False)
    (tmp_path / "talk").write_text('[{"role": "user", "content": "x"}]')
    options = [tmp_path / "talk" if o == "talk" else o for o in options]
    done = ntool("run-prefill", pkg, *options, code=4)
    assert f"{pkg}/tokenizer/tokenizer.json" in done.err and "--tokens" in done.err
    done = ntool("run-prefill", pkg, "--tokens", "1,2", "--decode", 2)
    assert picked(done) == greedy([1, 2], 2)
    assert [t["text"] for t in done.of("token")] == [None, None]
    assert done.of("summary")[0]["next_text"] is None and not done.of("text")
    ntool("run-prefill", pkg, "--tokens", "1", "--decode", 2, "--raw", code=4)


WRONG: list[tuple[list[str], int, str]] = [
    ([], 2, "one of --prompt"),
    (["--prompt", "x", "--tokens", "1"], 2, "--prompt and --tokens"),
    (["--tokens", "1", "--raw"], 2, "--raw without --decode\nhint: --decode N"),
    (["--tokens", "1", "--system", "x"], 2, "no template"),
    (["--tokens", "1", "--think"], 2, "no template"),
    (["--prompt", "x", "--think"], 2, "a package with a chat template"),
    (["--tokens", "1", "--task", "text-to-image"], 2, "found text-to-image, expected chat"),
    (["--tokens", "1", "--size", "64x64"], 2, "--size"),
    (["--tokens", "1", "--cfg", "2", "--steps", "3"], 2, "--steps, --cfg"),
    (["--tokens", "1", "--seed", "1"], 2, "--seed"),
    (["--tokens", "1", "--rng", "torch-cpu"], 2, "--rng"),
    (["--tokens", "1", "--min-pixels", "5"], 2, "need --image"),
    (["--tokens", "1", "--image", "x.png"], 4, "takes no pictures"),
    (["--tokens", "1,x"], 3, "'x'"),
    (["--tokens", "1;;2"], 3, "token id"),
    (["--tokens", f"1,{V}"], 3, f"found {V}, expected 0..{V - 1}"),
    (["--tokens", "1", "--pad", f"{V}"], 3, f"found {V}, expected 0..{V - 1}"),
    (["--tokens", "1", "--pad", "-1"], 2, "--pad"),
    (["--tokens", "1", "-o", "-"], 2, "not piped"),
    (["--tokens", "@nowhere"], 4, "nowhere"),
    (["--query", ""], 3, "no tokens"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "code", "words"), WRONG, ids=lambda x: str(x)[:40])
def test_wrong_use_and_wrong_input(package, ntool, options, code: int, words: str) -> None:
    done = ntool("run-prefill", package, *options, code=code)
    assert words in done.err, done.err


def test_rows_are_not_for_packages_that_draw(demo_package, ntool) -> None:
    for options in (["--prompt", "a", "--prompt", "b"], ["--prompt", "a", "--pad", "1"]):
        done = ntool("run-prefill", demo_package, *options, code=2)
        assert "with a package of neo_chat" in done.err


TALKS = {
    "no list": ({}, 3, "JSON list"),
    "role": ([{"role": "robot", "content": "x"}], 3, "'robot'"),
    "no content": ([{"role": "user"}], 3, "one of content and text"),
    "both": ([{"role": "user", "content": "x", "text": "y"}], 3, "one of content and text"),
    "field": ([{"role": "user", "content": "x", "name": "y"}], 3, "found name"),
    "number": ([{"role": "user", "content": 5}], 3, "found 5"),
    "part": ([{"role": "user", "content": [{"type": "sound"}]}], 3, "sound"),
    "video": ([{"role": "user", "content": [{"type": "video"}]}], 5, "video is not supported"),
    "surrogate": ([{"role": "user", "content": "\ud800"}], 3, "message 0"),
    "answer last": (
        [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}],
        3,
        "expected user",
    ),
    "picture of a system": ([{"role": "system", "content": [{"type": "image"}]}], 3, "system"),
    "no picture": ([{"role": "user", "content": [{"type": "image"}]}], 2, "found 1, expected 0"),
}  # fmt: skip


@pytest.mark.parametrize("name", TALKS)
def test_conversations_that_are_refused(package, tmp_path, ntool, name: str) -> None:
    value, code, words = TALKS[name]
    (tmp_path / "talk.json").write_text(json.dumps(value))
    done = ntool("run-prefill", package, "--messages", tmp_path / "talk.json", code=code)
    assert words in done.err and "talk.json" in done.err


def edited(folder: Path, **changes: Any) -> Path:
    return fake.write(folder / "pkg", changes=changes)


def workflow(**changes: Any) -> dict[str, Any]:
    return {**fake._manifest(fake._model(), [END])["workflow"], **changes}


BROKEN = {
    "no input": (
        {"workflow": workflow(inputs={"token_ids": ["decoder.words"], "attention_mask": [],
                                      "position_ids": ["decoder.places"]})},
        3, "nothing feeds input 'seen' of decoder"),
    "edge": (
        {"workflow": workflow(edges=[{"from": "decoder.nothing", "to": "decoder.words"}])},
        3, "edge of no port"),
    "no task": ({"workflow": workflow(tasks={})}, 4, "lacks components for task chat"),
    "other task order": (
        {"workflow": workflow(tasks={"chat": {"prefixes": {}, "once": ["decoder"],
         "decode": {"each_token": ["embedding"], "stop_token_ids": []}}})},
        3, "each_token"),
    "picture of nothing": (
        {"workflow": workflow(tasks={"chat": {"prefixes": {}, "once": ["decoder"],
         "decode": {"each_token": ["decoder"], "stop_token_ids": []}}},
         inputs={"token_ids": ["decoder.words"], "attention_mask": ["decoder.seen"],
                 "position_ids": []})},
        3, "nothing feeds input 'places' of decoder"),
    "rows by number": (
        {"cache": [{"layer": layer, "role": role, "kind": kind, "input": i, "output": o,
                    "dtype": dtype, "shape": [10**6 if d == "batch" else d for d in shape],
                    "grows": grows, "initial": first}
                   for layer, role, kind, i, o, dtype, shape, grows, first in fake.STATE]},
        3, "shape"),
    "no state": ({"cache": []}, 3, "nothing feeds input"),
    "state of nothing": (
        {"cache": [{"layer": 0, "role": "key", "kind": "kv", "input": "x", "output": "K!",
                    "dtype": "float32", "shape": ["batch", 1], "grows": 1, "initial": 0}]},
        3, "past.0.key"),
    "family": ({"family": "os.path"}, 5, "expected neo_chat or qwen4_exp"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_package_that_does_not_fit_together(tmp_path, ntool, name: str) -> None:
    changes, code, words = BROKEN[name]
    done = ntool("run-prefill", edited(tmp_path, **changes), "--tokens", "1", code=code)
    assert words in done.err, done.err


def test_logits_that_are_not_finite_are_refused(tmp_path, ntool) -> None:
    pkg = fake.write(tmp_path / "pkg", best=float("inf"))
    done = ntool("run-prefill", pkg, "--tokens", "1,2;3", code=3)
    assert "logits of row 0 are not finite" in done.err
    assert not done.of("summary")


def test_what_does_not_fit_into_memory_is_refused_first(package, ntool, monkeypatch) -> None:
    from ntool.lib.runtime import memory

    monkeypatch.setattr(memory, "available", lambda device: 1000)
    done = ntool("run-prefill", package, "--tokens", ",".join(["1"] * 500), code=6)
    assert "1,000 available" in done.err and "shorter prompt" in done.err


def test_an_output_in_the_package_is_refused(package, ntool) -> None:
    ntool("run-prefill", package, "--tokens", "1", "-o", package / "x.safetensors", code=2)
    assert not (package / "x.safetensors").exists()
