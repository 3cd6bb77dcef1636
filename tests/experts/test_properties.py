"""Random groups are detected as they were made, damage is named, nothing crashes."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ntool.lib.checkpoint.tensor import BITS
from ntool.lib.experts.detect import Detection, detect
from ntool.lib.experts.messages import message
from ntool.lib.experts.names import CONTAINERS, KITS, SPLIT_PARTS

from .making import SPLIT_NAMES, Headers, Sizes, found, fused, split, stacked, tensors

PREFIXES = (
    "model.layers.{}.mlp.experts",
    "model.language_model.layers.{}.mlp.experts",
    "language_model.model.layers.{}.feed_forward.experts",
    "thinker.model.layers.{}.mlp.experts",
    "backbone.layers.{}.mixer.experts",
    "transformer.blocks.{}.block_sparse_moe.experts",
    "layers.{}.ffn.experts",
    "mtp.{}.moe.experts",
    "experts.{}.experts",
)
FUSED_NAMES = (
    ("gate_up_proj", "down_proj"),
    ("fc1.weight", "fc2.weight"),
    ("w13_weight", "w2_weight"),
)
STACKED_NAMES = (("gate_proj", "up_proj", "down_proj"), ("w1.weight", "w3.weight", "w2.weight"))


@st.composite
def any_sizes(draw: st.DrawFn) -> Sizes:
    """Sizes that differ pairwise, and those with H = 2I, H = I and E equal to a side."""
    inner = draw(st.integers(1, 40))
    hidden = draw(st.sampled_from([inner, 2 * inner, 3 * inner + 1, 64]) | st.integers(1, 80))
    return Sizes(draw(st.sampled_from([1, 2, 11, inner, hidden])), hidden, inner)


@st.composite
def layers(draw: st.DrawFn) -> tuple[Headers, list[dict[str, Any]], Sizes]:
    """Some layers of one tower, each in a layout of its own, and what is to be detected."""
    prefix, sizes = draw(st.sampled_from(PREFIXES)), draw(any_sizes())
    headers: Headers = {}
    expected = []
    for layer in draw(st.lists(st.integers(0, 99), min_size=1, max_size=3, unique=True)):
        group = prefix.format(layer)
        facts: dict[str, Any] = {"group": group, "E": sizes.E, "H": sizes.H, "I": sizes.I}
        layout = draw(st.sampled_from(["split", "fused", "stacked"]))
        transposed = layout != "split" and draw(st.booleans())
        if layout == "split":
            gated = [n for n in SPLIT_NAMES if "gate" in SPLIT_NAMES[n]]
            facts["naming"] = draw(st.sampled_from(gated))
            headers |= split(group, sizes, facts["naming"])
        elif layout == "fused":
            names = draw(st.sampled_from(FUSED_NAMES))
            headers |= fused(group, sizes, names, transposed)
        elif sizes.H == sizes.I:
            continue  # ambiguous
        else:
            headers |= stacked(group, sizes, draw(st.sampled_from(STACKED_NAMES)), transposed)
        if layout != "split":
            facts["orientation"] = "transposed" if transposed else "direct"
        expected.append({"layout": layout, **facts})
    return headers, sorted(expected, key=lambda f: f["group"]), sizes


def shuffled(data: st.DataObject, headers: Headers) -> Headers:
    return dict(data.draw(st.permutations(list(headers.items()))))


@given(layers(), st.data())
@settings(deadline=None, max_examples=150)
def test_detected_as_made(made: tuple[Headers, list[dict[str, Any]], Sizes], data: Any) -> None:
    headers, expected, sizes = made
    if len(headers) < 100:
        headers = shuffled(data, headers)
    detection = found({**headers, "lm_head.weight": ("BF16", (9, sizes.H))}, sizes.config)
    assert detection.problems == []
    keys = ("layout", "group", "E", "H", "I", "naming", "orientation")
    got = [{k: r[k] for k in keys if k in r} for r in detection.records()]
    assert got == expected
    forms = {(g["layout"], g.get("orientation")) for g in expected}
    assert detection.mixed == (len(forms) > 1)


DAMAGE = {
    "remove": "missing-expert",
    "widen": "shape-mismatch",
    "retype": "dtype-mismatch",
    "fuse": "mixed-in-group",
}


@given(
    st.sampled_from(sorted(SPLIT_NAMES)),
    st.sampled_from(sorted(DAMAGE)),
    st.integers(3, 12),
    st.data(),
)
@settings(deadline=None, max_examples=120)
def test_one_damage_to_matrices(naming: str, damage: str, experts: int, data: Any) -> None:
    sizes = Sizes(E=experts)
    headers = split("a.b.1.experts", sizes, naming) | split("a.b.2.experts", sizes, naming)
    name = data.draw(st.sampled_from(sorted(headers)))
    dtype, (rows, columns) = headers[name]
    if damage == "remove":
        del headers[name]
    elif damage == "widen":
        headers[name] = dtype, (rows, columns + 1)
    elif damage == "retype":
        headers[name] = "F16", (rows, columns)
    else:
        headers |= fused(name.split(".experts")[0] + ".experts", sizes)
    (problem,) = found(headers, sizes.config).problems
    assert problem["code"] == DAMAGE[damage]
    assert name.startswith(problem["group"] + ".")
    assert problem.get("tensor", name) == name


@given(any_sizes(), st.booleans(), st.sampled_from(["gate_up_proj", "down_proj"]), st.data())
@settings(deadline=None, max_examples=120)
def test_one_damage_to_banks(sizes: Sizes, transposed: bool, bank: str, data: Any) -> None:
    """An axis of one bank grows: never without a problem."""
    headers = fused("g.experts", sizes, transposed=transposed)
    dtype, shape = headers[f"g.experts.{bank}"]
    axis = data.draw(st.integers(0, 2))
    grown = tuple(n + (i == axis) for i, n in enumerate(shape))
    headers[f"g.experts.{bank}"] = dtype, grown
    got = {p["code"] for p in found(headers, sizes.config).problems}
    if axis == 0:
        assert got == {"count-mismatch"}
    else:
        assert got and got <= {
            "unrecognized-layout",
            "contradictory-orientation",
            "config-mismatch",
        }


TAILS = [t for table in CONTAINERS.values() for t in table]
MODULES = [m for kit in KITS for m in kit.roles]
NUMBERS = st.integers(0, 3).map(str) | st.sampled_from(["9" * 15, "9" * 20, "9" * 5000, "00", "²"])
WORDS = st.sampled_from(["experts", "moe", "block_sparse_moe", "layers", "0", "shared_experts", ""])


@st.composite
def any_name(draw: st.DrawFn) -> str:
    prefix = ".".join(draw(st.lists(WORDS, max_size=3)))
    container = draw(st.sampled_from(["experts", "experts", "moe", "block_sparse_moe", "x"]))
    part = draw(st.sampled_from([*SPLIT_PARTS, "qweight", "lora_A.weight", ""]))
    one = f"{draw(st.sampled_from(['', 'expert_']))}{draw(NUMBERS)}"
    module = draw(st.sampled_from([*MODULES, "x", ""]))
    tail = draw(st.sampled_from([*TAILS, f"{one}.{module}.{part}", f"{one}.{module}"]))
    return draw(st.sampled_from([f"{prefix}.{container}.{tail}", f"{container}.{tail}", tail]))


SHAPES = st.lists(st.sampled_from([0, 1, 2, 4, 8, 16, 2**62]), max_size=4).map(tuple)
HEADERS = st.dictionaries(
    any_name() | st.text(max_size=12),
    st.tuples(st.sampled_from([*BITS, "GGUF:Q8_0"]), SHAPES),
    max_size=12,
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 9) | st.just(10**18) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
KEYS = [*Sizes().config, "text_config", "quantization_config", "weight_block_size", "group_size"]
CONFIGS = st.dictionaries(
    st.sampled_from([*KEYS, "num_hidden_layers", "moe_num_experts"]),
    VALUES | st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=3),
    max_size=5,
)


def whole(detection: Detection) -> None:
    """All that may be asked of a detection can be, and can be written."""
    text = json.dumps([list(detection.records()), detection.problems, detection.summary()])
    assert len(text) < 1_000_000
    assert all(len(message(p)) < 20_000 for p in detection.problems)
    assert detection.exit == bool(detection.problems)
    names = [g.name for g in detection.groups]
    assert names == sorted(set(names))


@given(HEADERS, CONFIGS)
@settings(deadline=None, max_examples=400)
def test_anything_goes_in(headers: Headers, config: dict[str, Any]) -> None:
    whole(found(headers, config))
    twice = tensors(headers) * 2
    assert sum(p["code"] == "duplicate-tensor" for p in detect(twice, config).problems) <= len(
        headers
    )
