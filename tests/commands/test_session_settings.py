"""--low-memory and --threads give the same picture; which sessions a run makes, keeps, lets go."""

from __future__ import annotations

import weakref
from collections import Counter
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from ntool.lib.families.neo_chat.pipeline import DRAWING, READING, SEEING, Pipeline
from ntool.lib.runtime.session import Session

from ..families.neo_chat.golden_cases import CASES, RUN, close, load_case
from ..families.neo_chat.golden_runs import (
    check_picture,
    drawn,
    golden_noise,
    package,
    sampler_options,
)

DEMO = Path(__file__).parents[1] / "data" / "demo-shapes" / "goldens"
PROMPT = "a large red circle on a white background"
EDIT = ["--prompt", "make the circle green", "--image", DEMO / "edit_0_source.png"]
SETTINGS = {
    "default": [],
    "one thread": ["--threads", 1],
    "two threads": ["--threads", 2],
    "low memory": ["--low-memory"],
    "both": ["--low-memory", "--threads", 1],
}
STEPS = ["--steps", 32]
"""With two branches enough for the denoiser's weights to be rearranged into memory."""
SAME = 5e-5
"""Thirty-two guided steps of five layers on values up to 4, where guidance multiplies a rounding
difference by up to 7 a step: 4.5e-6 was measured, with other kernels it may be more."""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("packages")


@pytest.mark.parametrize("task", ["text-to-image", "image-edit"])
def test_settings_do_not_show_in_a_picture(demo_package, tmp_path, ntool, task: str) -> None:
    """Threads and rearranged weights change the order of sums: levels move where rounding ties."""
    prompt = ["--prompt", PROMPT] if task == "text-to-image" else EDIT
    found = {}
    for name, options in SETTINGS.items():
        found[name] = drawn(ntool, demo_package, tmp_path, *prompt, "--cfg", 4, *STEPS, *options)
    trace, picture = found.pop("default")
    for name, (other, levels) in found.items():
        off = np.abs(levels.astype(int) - picture.astype(int))
        z = np.abs(other["z"][-1] - trace["z"][-1]).max()
        print(f"{task}, {name}: {(off > 0).sum()} of {off.size} levels differ, z by {z:.1e}")
        close(other["z"][-1], trace["z"][-1], SAME)
        assert off.max() <= 1 and (off > 0).mean() < 0.002


@pytest.mark.parametrize("options", [["--low-memory"], ["--threads", 1]], ids=["memory", "threads"])
@pytest.mark.parametrize("name", CASES)
def test_goldens_hold_under_every_setting(packages, tmp_path, ntool, name: str, options) -> None:
    case = load_case(name)
    golden, entry = case.golden("t2i_b_cfg4_shift3"), case.runs["t2i_b_cfg4_shift3"]
    args = entry["args"]
    prompt = ["--prompt", args["prompt"], "--latent", golden_noise(case, entry)]
    pkg = package(name, packages)
    trace, picture = drawn(ntool, pkg, tmp_path, *prompt, *sampler_options(args), *options)
    close(trace["z"][-1:], golden["z_final"], RUN)
    check_picture(picture, golden["image_uint8"])


def test_settings_reach_every_session(demo_package, tmp_path, ntool, monkeypatch) -> None:
    """Weights stay in their files but for the denoiser's in a long run; docs/architecture.md."""
    asked: list[tuple[int, bool]] = []
    plain = ort.InferenceSession

    def watched(path, options, **more):
        try:
            mapped = options.get_session_config_entry("session.disable_prepacking") == "1"
        except RuntimeError:  # never set
            mapped = False
        asked.append((options.intra_op_num_threads, mapped))
        return plain(path, options, **more)

    monkeypatch.setattr(ort, "InferenceSession", watched)
    threads = {"default": 0, "one thread": 1, "two threads": 2, "low memory": 0, "both": 1}
    count = len([*READING, *DRAWING])
    for name, options in SETTINGS.items():
        asked.clear()
        base = ["--prompt", PROMPT, *STEPS, "-o", tmp_path / "p.png"]
        ntool("sample-image", demo_package, *base, *options)
        mapped = count if "--low-memory" in options else count - 1
        n = threads[name]
        assert sorted(asked) == sorted([(n, True)] * mapped + [(n, False)] * (count - mapped))
    asked.clear()
    ntool("sample-image", demo_package, *base, "--steps", 31)
    assert asked == [(0, True)] * count


class Watch:
    """What sessions a run makes, and which of them live when a sampling loop begins."""

    def __init__(self, m: pytest.MonkeyPatch) -> None:
        self.made: Counter[str] = Counter()
        self.at_loop: list[set[str]] = []
        alive: list[tuple[str, weakref.ref[Session]]] = []
        start, sample = Session.__init__, Pipeline.sample

        def made(session, path, *args, **more):
            start(session, path, *args, **more)
            self.made[path.parent.name] += 1
            alive.append((path.parent.name, weakref.ref(session)))

        def loop(pipeline, *args):
            held = {name for name, session in alive if session() is not None}
            assert held == set(pipeline.sessions._loaded)  # nothing else keeps one alive
            self.at_loop.append(held)
            return sample(pipeline, *args)

        m.setattr(Session, "__init__", made)
        m.setattr(Pipeline, "sample", loop)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(monkeypatch)


RUNS = [
    (["--prompt", PROMPT], READING),
    (EDIT, SEEING),
]


@pytest.mark.parametrize(("prompt", "reading"), RUNS, ids=["text-to-image", "image-edit"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_each_session_is_made_once_and_reading_ends_before_the_last_loop(
    demo_package, tmp_path, ntool, watch: Watch, prompt, reading, count: int
) -> None:
    options = [*prompt, "--count", count, "--steps", 2, "-o", tmp_path / "p.png"]
    ntool("sample-image", demo_package, *options)
    assert watch.made == dict.fromkeys([*reading, *DRAWING], 1)
    assert len(watch.at_loop) == count
    # earlier pictures keep them for the next prompt
    for k, held in enumerate(watch.at_loop[:-1]):
        assert held == set(reading) | (set(DRAWING) if k else set())
    assert watch.at_loop[-1] == (set(DRAWING) if count > 1 else set())


def test_prompts_of_several_kinds_share_the_sessions(
    demo_package, tmp_path, ntool, watch: Watch
) -> None:
    lines = tmp_path / "prompts.jsonl"
    picture = str(DEMO / "edit_0_source.png")
    lines.write_text(
        f'{{"prompt": "{PROMPT}", "steps": 1}}\n'
        f'{{"prompt": "make it blue", "images": ["{picture}"], "steps": 1}}\n'
        f'{{"prompt": "{PROMPT}", "steps": 1, "cfg": 1}}\n'
    )
    ntool("sample-image", demo_package, "--prompts", lines, "-o", tmp_path / "p.png")
    assert watch.made == dict.fromkeys([*SEEING, *DRAWING], 1)
    assert watch.at_loop[-1] == set(DRAWING)


def test_prefix_files_need_no_reading_session(
    demo_package, tmp_path, ntool, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = ["--task", "text-to-image", "--prompt", PROMPT]
    ntool("run-prefill", demo_package, *prompt, "-o", tmp_path / "cond")
    watch = Watch(monkeypatch)
    options = ["--prefix", tmp_path / "cond", "--cfg", 1, "--steps", 1]
    ntool("sample-image", demo_package, *options, "-o", tmp_path / "p.png")
    assert watch.made == dict.fromkeys(DRAWING, 1)
    assert watch.at_loop == [set()]
