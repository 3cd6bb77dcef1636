"""Which test catches which mistake, and that it does: each mistake is made, and the test must fail.

The rows are those of the table that came with the goldens, where every mistake was made in the
program that wrote them. A golden that no test compares, or compares too loosely, shows here.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from . import graph_mistakes as graphs
from . import run_mistakes as runs

ROOT = Path(__file__).parents[3]
GRAPHS = "tests/families/neo_chat/test_component_goldens.py"
TEXT, PICTURE = f"{GRAPHS}::test_text_prefill", f"{GRAPHS}::test_image_prefill"
DRAWN = f"{GRAPHS}::test_text_to_image"
HEAD = f"{GRAPHS}::test_head_alone_tells_the_exact_gelu_from_its_tanh_form"
LAYERS = "tests/families/neo_chat/test_layer_parity.py"
COMMON = f"{LAYERS}::test_activations_and_sinusoid_meet_the_common_goldens"
FEATURES = "tests/families/neo_chat/test_picture_features.py::test_features_of_a_given_picture"
PLACES = "tests/families/neo_chat/test_positions.py"
PIXELS = "tests/families/neo_chat/test_processor.py"
QUERIES = "tests/families/neo_chat/test_prompts.py::test_recorded_queries"
T2I = "tests/commands/test_sample_image.py::test_text_to_image_goldens"
TASKS = "tests/commands/test_picture_tasks.py"
EDIT, PREFIXES = f"{TASKS}::test_edit_goldens", f"{TASKS}::test_edit_prefixes"
THINK, STORY = f"{TASKS}::test_think_goldens", f"{TASKS}::test_interleave_goldens"
QUESTION = "tests/commands/test_run_prefill.py::test_question_goldens"
A, B = f"{DRAWN}[t2i_a_cfg1_shift1-dense-conv]", f"{DRAWN}[t2i_b_cfg4_shift3-dense-conv]"
B_RUN = f"{T2I}[dense-conv-t2i_b_cfg4_shift3]"
B_MLP, B_MOE = (f"{DRAWN}[t2i_b_cfg4_shift3-{c}]" for c in ("dense-mlp", "moe-mlp"))
TEXT_CONV, PICTURE_CONV = f"{TEXT}[dense-conv]", f"{PICTURE}[dense-conv]"
DUAL = f"{EDIT}[dense-conv-edit_4_dual]"
EDIT_FEATURES = f"{FEATURES}[dense-conv-edit_4_dual]"
VQA_FEATURES = f"{FEATURES}[dense-conv-vqa]"

VALUES = "Mismatched elements|mismatch"
"""How NumPy says that values or shapes differ; a command that stops with an error says neither."""
ONE_NUMBER = r"assert np\.float32\(.*\) == np\.float32"


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Attributes:
        tests: the tests that hold its goldens.
        made: (mistake, the test that fails for it), for as many of the row as can be made by
            changing one thing.
        says: how that test says so.
    """

    tests: tuple[str, ...]
    made: tuple[tuple[graphs.Mistake, str], ...]
    says: str = VALUES


TABLE: dict[str, Row] = {
    "sinusoid [sin,cos] instead of [cos,sin]": Row((B, COMMON), ((graphs.sines_first, B),)),
    "t multiplied by 1000": Row((B, f"{THINK}[dense-conv-t2i_think]"), ((graphs.t_times_1000, B),)),
    "frequencies over half-1 instead of half": Row(
        (COMMON,), ((graphs.frequencies_over_half_minus_1, COMMON),)
    ),
    "plain causal prompt mask": Row(
        (PICTURE_CONV, f"{PLACES}::test_image_prefill", f"{PREFIXES}[dense-conv]"),
        ((graphs.causal_prompt, PICTURE_CONV),),
    ),
    "bidirectional prompt mask": Row((B, TEXT_CONV), ((graphs.bidirectional_prompt, TEXT_CONV),)),
    "causal inside the generated block": Row((B,), ((graphs.causal_picture, B),)),
    "generation blind to the prefix": Row((A, B), ((graphs.blind_to_the_prefix, A),)),
    "h/w rotary with rope_theta": Row(
        (PICTURE_CONV, f"{PREFIXES}[dense-conv]"), ((graphs.base_of_time_for_places, PICTURE_CONV),)
    ),
    "temporal rotary with base 1e4 (MoE: 5e6 instead of its 1e7)": Row(
        (TEXT_CONV, f"{TEXT}[moe-mlp]"),
        ((graphs.time_base_1e4, TEXT_CONV), (graphs.time_base_5e6, f"{TEXT}[moe-mlp]")),
    ),
    "rotary frequencies of the whole head, truncated": Row(
        (TEXT_CONV,), ((graphs.frequencies_of_the_whole_head, TEXT_CONV),)
    ),
    "interleaved rotary in the backbone": Row(
        (TEXT_CONV,), ((graphs.interleaved_backbone, TEXT_CONV),)
    ),
    "h and w swapped": Row(
        (PICTURE_CONV, B),
        ((graphs.rows_and_columns_swapped, PICTURE_CONV), (graphs.rows_and_columns_swapped, B)),
    ),
    "half-split rotary in the vision tower": Row(
        (PICTURE_CONV, B), ((graphs.half_split_tower, PICTURE_CONV), (graphs.half_split_tower, B))
    ),
    "tower x/y swapped": Row((EDIT_FEATURES, DUAL), ((graphs.tower_x_y_swapped, EDIT_FEATURES),)),
    "tower rotary missing / before GELU": Row(
        (PICTURE_CONV,),
        ((graphs.tower_without_places, PICTURE_CONV), (graphs.places_before_gelu, PICTURE_CONV)),
    ),
    "q/k norm halves swapped": Row((TEXT_CONV,), ((graphs.norm_halves_swapped, TEXT_CONV),)),
    "one norm over the whole head": Row(
        (TEXT_CONV,), ((graphs.norm_of_the_whole_head, TEXT_CONV),)
    ),
    "norm per quarter": Row((TEXT_CONV,), ((graphs.norm_of_each_quarter, TEXT_CONV),)),
    "scale by hd/2": Row((TEXT_CONV,), ((graphs.scale_of_half_a_head, TEXT_CONV),)),
    "kv heads tiled instead of repeated: und / gen": Row(
        (TEXT_CONV, B), ((graphs.heads_tiled, TEXT_CONV), (graphs.heads_tiled_in_generation, B))
    ),
    "understanding final norm in generation": Row((B,), ((graphs.other_final_norm, B),)),
    "image tokens each with own t; missing extra step after `<img>`": Row(
        (PICTURE_CONV, f"{PLACES}::test_image_prefill"),
        ((runs.own_t_in_a_prompt_picture, PICTURE_CONV), (runs.no_step_after_img, PICTURE_CONV)),
    ),
    "generated tokens with own t; t off by one": Row(
        (B, f"{PLACES}::test_every_picture_position[t2i_b_cfg4_shift3]"),
        ((runs.own_t_in_a_new_picture, B), (runs.t_off_by_one, B)),
    ),
    "uncond picture placed at the cond length": Row(
        (B, B_RUN), ((runs.uncond_at_the_place_of_cond, B_RUN),)
    ),
    "noise scale not divided by its max": Row(
        (B, B_MLP), ((runs.noise_scale_not_divided, B), (runs.noise_scale_not_divided, B_MLP))
    ),
    "noise scale not clamped": Row(
        (f"{T2I}[dense-conv-t2i_noise_clamped]",),
        ((runs.noise_scale_not_clamped, f"{T2I}[dense-conv-t2i_noise_clamped]"),),
        ONE_NUMBER,
    ),
    "patch grid used as token grid in the noise scale": Row(
        (B, B_RUN), ((runs.patches_taken_for_tokens, B_RUN),), ONE_NUMBER
    ),
    "noise embedding missing / noise unscaled": Row(
        (B, B_RUN), ((runs.no_noise_embedding, B), (runs.noise_not_scaled, B_RUN))
    ),
    "t_eps 0.05 / absent": Row(
        (f"{T2I}[dense-conv-t2i_teps_default]", f"{T2I}[dense-conv-t2i_teps_0.05]"),
        (
            (runs.t_eps_of_the_config, f"{T2I}[dense-conv-t2i_teps_default]"),
            (runs.no_t_eps, f"{T2I}[dense-conv-t2i_teps_0.05]"),
        ),
    ),
    "shift applied to t / ignored": Row(
        (B, B_RUN), ((runs.shift_of_t, B_RUN), (runs.no_shift, B_RUN))
    ),
    "generation tower rows channel-last": Row((B, A), ((graphs.generation_rows_channel_last, B),)),
    "head patch order channel-first": Row((B_MLP,), ((graphs.head_channel_first, B_MLP),)),
    "ImageNet normalisation of z": Row((B,), ((graphs.z_normalised, B),)),
    "DepthToSpace DCR": Row((B,), ((graphs.depth_column_row, B),)),
    "replicate padding in the head / extra GELU / grid transposed": Row(
        (B,),
        (
            (graphs.replicate_padding, B),
            (graphs.gelu_after_the_last_convolution, B),
            (graphs.grid_transposed, B),
        ),
    ),
    "tanh GELU": Row(
        (*(f"{HEAD}[{c}]" for c in ("dense-conv", "dense-mlp", "moe-mlp")), PICTURE_CONV, COMMON),
        (
            *((graphs.tanh_gelu, f"{HEAD}[{c}]") for c in ("dense-conv", "dense-mlp", "moe-mlp")),
            (graphs.tanh_gelu, PICTURE_CONV),
            (graphs.tanh_gelu, COMMON),
        ),
    ),
    "GELU instead of SiLU in embedders": Row((A, B), ((graphs.gelu_in_the_embedders, A),)),
    "1 + weight RMSNorm": Row((TEXT_CONV,), ((graphs.one_plus_weight, TEXT_CONV),)),
    "guidance from c instead of u": Row((B, B_RUN), ((runs.guided_from_c, B_RUN),)),
    "dual weights swapped": Row((DUAL,), ((runs.dual_weights_swapped, DUAL),)),
    "equal-scale branch wrong": Row(
        (f"{EDIT}[dense-conv-edit_3_equal]",),
        ((runs.equal_scales_from_c, f"{EDIT}[dense-conv-edit_3_equal]"),),
    ),
    'cfg = 1 taken as "off" although img != 1': Row(
        (f"{EDIT}[dense-conv-edit_4_dual_cfg1]",),
        ((runs.cfg_1_is_off, f"{EDIT}[dense-conv-edit_4_dual_cfg1]"),),
    ),
    "t2i interval exclusive": Row(
        (f"{T2I}[dense-conv-t2i_interval_inclusive]", B_RUN),
        (
            (runs.exclusive_interval, f"{T2I}[dense-conv-t2i_interval_inclusive]"),
            (runs.exclusive_interval, B_RUN),
        ),
    ),
    "edit interval inclusive / lo = 0 rule dropped": Row(
        (f"{EDIT}[dense-conv-edit_interval_exclusive]", f"{EDIT}[dense-conv-edit_interval_lo0]"),
        (
            (runs.inclusive_edit_interval, f"{EDIT}[dense-conv-edit_interval_exclusive]"),
            (runs.no_rule_for_lo_0, f"{EDIT}[dense-conv-edit_interval_lo0]"),
        ),
    ),
    "norm factor not clamped to 1": Row(
        (f"{EDIT}[dense-mlp-edit_norm_clamp]",),
        ((runs.norm_not_clamped, f"{EDIT}[dense-mlp-edit_norm_clamp]"),),
    ),
    "channel norm across tokens / global as channel": Row(
        (f"{T2I}[dense-conv-t2i_norm_channel]", f"{T2I}[dense-conv-t2i_norm_global]"),
        (
            (runs.channel_norm_across_tokens, f"{T2I}[dense-conv-t2i_norm_channel]"),
            (runs.channel_as_global, f"{T2I}[dense-conv-t2i_norm_channel]"),
            (runs.global_as_channel, f"{T2I}[dense-conv-t2i_norm_global]"),
        ),
    ),
    "zero-star: no zero first step / no alpha": Row(
        (f"{T2I}[dense-conv-t2i_norm_zero_star]",),
        (
            (runs.no_zero_step, f"{T2I}[dense-conv-t2i_norm_zero_star]"),
            (runs.no_alpha, f"{T2I}[dense-conv-t2i_norm_zero_star]"),
        ),
    ),
    "reference pixels rounded to bf16": Row(
        (EDIT_FEATURES, DUAL), ((runs.pixels_in_bf16, EDIT_FEATURES), (runs.pixels_in_bf16, DUAL))
    ),
    "re-encode clamped to [0,1]; image rows causal": Row(
        (f"{STORY}[dense-conv-interleave]",),
        (
            (runs.reencode_clamped, f"{STORY}[dense-conv-interleave]"),
            (runs.reencoded_rows_causal, f"{STORY}[dense-conv-interleave]"),
        ),
    ),
    "bilinear / Lanczos resize": Row(
        (
            VQA_FEATURES,
            f"{QUESTION}[dense-conv-vqa]",
            *(f"{PIXELS}::test_preprocess[{n}]" for n in ("rgb_up", "rgb_down")),
        ),
        (
            (runs.bilinear, VQA_FEATURES),
            (runs.lanczos, VQA_FEATURES),
            (runs.bilinear, f"{PIXELS}::test_preprocess[rgb_up]"),
            (runs.lanczos, f"{PIXELS}::test_preprocess[rgb_down]"),
        ),
    ),
    "mean/std 0.5; rows channel-last": Row(
        (f"{PIXELS}::test_prefill_picture_of_a_checkpoint", VQA_FEATURES),
        (
            (runs.mean_and_std_half, f"{PIXELS}::test_prefill_picture_of_a_checkpoint"),
            (runs.rows_channel_last, f"{PIXELS}::test_prefill_picture_of_a_checkpoint"),
            (runs.rows_channel_last, VQA_FEATURES),
        ),
    ),
    "system block on the empty prompt; empty think block missing": Row(
        (f"{PREFIXES}[dense-conv]", f"{QUERIES}[t2i-0_0]", f"{QUERIES}[edit-1_0]"),
        (
            (runs.system_on_the_empty_prompt, f"{PREFIXES}[dense-conv]"),
            (runs.no_empty_thought, f"{PREFIXES}[dense-conv]"),
        ),
    ),
    "MoE: weights not renormalised / top-k off by one / generation uses the und router": Row(
        (f"{PICTURE}[moe-mlp]", f"{TEXT}[moe-mlp]", B_MOE),
        (
            (graphs.weights_not_renormalised, f"{PICTURE}[moe-mlp]"),
            (graphs.one_expert_less, f"{TEXT}[moe-mlp]"),
            (graphs.understanding_router, B_MOE),
        ),
    ),
}


def test_every_row_has_its_tests_and_its_mistakes() -> None:
    assert len(TABLE) == 53
    for row, entry in TABLE.items():
        assert entry.tests and entry.made, row
        assert {node for _, node in entry.made} <= set(entry.tests), row


def test_every_named_test_is_there() -> None:
    named = sorted({node for row in TABLE.values() for node in row.tests})
    files = sorted({node.partition("::")[0] for node in named})
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-o", "addopts=", "-q",
         "-p", "no:cacheprovider", "-p", "no:xdist", *files],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:]
    collected = set(done.stdout.splitlines())
    assert [node for node in named if node not in collected] == []


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("packages")


def call_of(node: str, request: pytest.FixtureRequest) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The function of a test and its arguments: parameters by its id, the rest from fixtures."""
    path, _, name = node.partition("::")
    name, _, wanted = name.removesuffix("]").partition("[")
    package = __package__.split(".")[0]
    module = importlib.import_module(".".join([package, *Path(path).with_suffix("").parts[1:]]))
    function = getattr(module, name)
    values = dict(parameters(function, wanted)) if wanted else {}
    for argument in inspect.signature(function).parameters:
        if argument not in values:
            values[argument] = request.getfixturevalue(argument)
    return function, values


def parameters(function: Any, wanted: str) -> dict[str, Any]:
    """The parameters whose id, spelled as pytest does, is the one that is wanted."""
    marks = [m for m in function.pytestmark if m.name == "parametrize"]
    rows = []
    for mark in marks:
        names, values = mark.args[:2]
        names = [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names)
        rows.append([(mark, names, v if len(names) > 1 else (v,)) for v in values])
    for chosen in itertools.product(*rows):
        spelled = []
        for mark, _, values in chosen:
            make = mark.kwargs.get("ids")
            spelled += [make(v) if make else str(v) for v in values]
        if "-".join(spelled) == wanted:
            return {n: v for _, names, values in chosen for n, v in zip(names, values, strict=True)}
    raise AssertionError(f"{function.__name__} has no parameters [{wanted}]")


def all_made() -> Iterator[Any]:
    """(mistake, test, words) of the table."""
    for row in TABLE.values():
        for mistake, node in row.made:
            words = re.sub(r"^.*/test_|\.py::test|\[", "-", node).strip("]")
            yield pytest.param(mistake, node, row.says, id=f"{mistake.__name__}-{words}")


@pytest.mark.parametrize(("mistake", "node", "says"), list(all_made()))
def test_the_mistake_is_caught(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    mistake: graphs.Mistake,
    node: str,
    says: str,
) -> None:
    function, values = call_of(node, request)
    graphs.rebuild_graphs(monkeypatch)
    mistake(monkeypatch)
    with pytest.raises(AssertionError, match=says):
        function(**values)


UNCHANGED = [B, COMMON, DUAL, f"{STORY}[dense-conv-interleave]", EDIT_FEATURES, f"{TEXT}[moe-mlp]"]


@pytest.mark.parametrize("node", UNCHANGED)
def test_without_a_mistake_nothing_is_caught(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, node: str
) -> None:
    """Calling tests in this way changes nothing by itself."""
    function, values = call_of(node, request)
    graphs.rebuild_graphs(monkeypatch)
    function(**values)
