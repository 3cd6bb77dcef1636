"""The decoder's graph against the NumPy reference: configurations and inputs that no golden has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from . import reference as R
from .decoder_cases import CLOSE, at_real_tokens, deviation, deviations, run_call
from .decoder_session import Decoder
from .decoder_variants import RandomWeights, config
from .reference_layers import Array

# CLOSE is 0.03 of the tolerance 1e-3, for roundings of two float32 programs. Measured for three
# layers: 0.0094 in the worst configuration, 0.0055 for chunks of 64 against token after token, and
# 0.018 with extreme weights.
IGNORED = 1.0
"""An option that is not read must show by more than this many tolerances."""

Arrays = dict[str, Array]
BASE = config()


def inputs(lengths: Sequence[int], seed: int = 1, vocabulary: int = 61, eos: int = 7) -> Arrays:
    """A left-padded batch: ids with an eos inside, and channels of positions that all differ."""
    rng = np.random.default_rng(seed)
    B, S = len(lengths), max(lengths)
    ids = rng.integers(0, vocabulary, (B, S))
    ids[:, S // 2] = eos
    mask = (np.arange(S) >= S - np.array(lengths)[:, None]).astype(np.int64)
    positions = np.cumsum(mask, 1)[None] - 1 + rng.integers(0, 9, (4, B, S))
    return {"input_ids": ids, "attention_mask": mask, "position_ids": positions * mask}


def following(g: Arrays, S: int, seed: int) -> Arrays:
    """Inputs of a call of S more tokens after the inputs g."""
    new = inputs([S] * len(g["input_ids"]), seed)
    mask = np.concatenate([g["attention_mask"], new["attention_mask"]], axis=1)
    return {**new, "attention_mask": mask, "position_ids": new["position_ids"] + mask.shape[1]}


def pair(values: Mapping[str, Any], names: Sequence[str] = (), **how: Any) -> tuple[Decoder, Any]:
    """A graph with random weights, and those weights."""
    weights = RandomWeights(values, names)
    return Decoder(values, weights, **how), weights


def run_both(
    d: Decoder, reference: R.Decoder, calls: Sequence[Arrays]
) -> list[tuple[Arrays, Arrays]]:
    """Outputs of both for each call, the state of each handed on."""
    found = []
    mine: Any = None
    theirs: Any = None
    for g in calls:
        outputs, mine = d.call(g, mine)
        expected, theirs = run_call(reference, g, theirs)
        found.append((outputs, expected | {"attention_mask": g["attention_mask"]}))
    return found


def worst(pairs: list[tuple[Arrays, Arrays]]) -> float:
    return max(max(deviations(a, b).values()) for a, b in pairs)


CALLS = [inputs([21, 13])]
CALLS.append(following(CALLS[0], 1, seed=2))
CALLS.append(following(CALLS[1], 3, seed=3))
"""A padded prompt beyond the budget, one token, three tokens."""


def check(d: Decoder, reference: R.Decoder, calls: Sequence[Arrays] = CALLS) -> None:
    found = run_both(d, reference, calls)
    for outputs, expected in found:
        assert outputs.keys() == expected.keys() - {"attention_mask"}
    assert worst(found) < CLOSE


# --- configurations -------------------------------------------------------------------------------

SAME_SHAPES: dict[str, dict[str, Any]] = {
    "gate silu": {"output_gate_type": "silu"},
    "gate null": {"output_gate_type": None},
    "no renormalisation": {"norm_topk_prob": False},
    "list of eos": {"eos_token_id": [9, 7]},
    "other seed": {"seed": 1234},
    "all experts": {"num_experts_per_tok": 6},
    "one expert of six": {"num_experts_per_tok": 1},
    "blocks of two": {"indexer_compress_ratio": 2},
    "blocks of one": {"indexer_compress_ratio": 1},
    "budget of one block": {"indexer_budget": 4},
    "larger budget": {"indexer_budget": 16},
    "more budget than tokens": {"indexer_budget": 64},
    "whole heads rotated": {"partial_rotary_factor": 1.0, "mrope_section": [4, 2, 2],
                            "indexer_head_dim": 16},
    "no width": {"mrope_section": [2, 2, 0]},
    "time alone": {"mrope_section": [4, 0, 0]},
    "height beside time": {"mrope_section": [0, 4, 0]},
    "width beside time": {"mrope_section": [0, 0, 4]},
    "rotary base": {"rope_theta": 1e7},
    "large epsilon": {"rms_norm_eps": 0.1},
}  # fmt: skip
"""Options that change numbers and no shape: not to read them gives other numbers."""

OTHER_SHAPES: dict[str, dict[str, Any]] = {
    "two streams": {"hc_count": 2},
    "three streams": {"hc_count": 3},
    "low rank of one": {"hc_lowrank": 1},
    "tied head": {"tie_word_embeddings": True},
    "pairs of tokens": {"ngram_size": 2},
    "four tokens": {"ngram_size": 4},
    "one head of an order": {"heads_per_ngram": 1},
    "another width of the table": {"ple_embed_dim": 32},
    "another height of the table": {"make_ngram_vocab_size_divisible_by": 128},
    "a table of uneven shards": {"split_ngram_parts": 3},
    "a table with fewer shards than parts": {"split_ngram_parts": 100},
    "a table in one shard": {"split_ngram_parts": 1},
    "two n-gram layers": {"ple_layer_ids": [3, 1]},
    "the second n-gram layer alone": {"ple_layer_ids": [3]},
    "no n-gram layer": {"ple_layer_ids": [], "eos_token_id": None},
    "no tap before the token": {"ple_conv_kernel_size": 1},
    "two taps of the n-grams": {"ple_conv_kernel_size": 2},
    "one tap": {"linear_conv_kernel_dim": 1},
    "two taps": {"linear_conv_kernel_dim": 2},
    "five taps": {"linear_conv_kernel_dim": 5},
    "all linear": {"layer_types": ["linear_attention"] * 3},
    "all linear without an indexer": {
        "layer_types": ["linear_attention"] * 3, "indexer_n_heads": None,
        "indexer_kv_heads": None, "indexer_head_dim": None, "indexer_budget": None,
        "indexer_compress_ratio": None,
    },
    "all sparse": {"layer_types": ["indexed_attention"] * 3, "ple_layer_ids": []},
    "as many value heads as key heads": {"linear_num_value_heads": 2},
    "one key head": {"linear_num_key_heads": 1},
    "wide values": {"linear_value_head_dim": 20},
    "one index head": {"indexer_n_heads": 1},
    "index heads as wide as what is rotated": {"indexer_head_dim": 8},
    "one key head of attention": {"num_key_value_heads": 1},
    "no grouped heads": {"num_key_value_heads": 4},
    "one expert": {"num_experts": 1, "num_experts_per_tok": 1},
    "experts of one": {"moe_intermediate_size": 1, "shared_expert_intermediate_size": 1},
    "biases of attention": {"attention_bias": True},
}  # fmt: skip
"""Options that change names or shapes of tensors: not to read them would not fit a checkpoint."""


@pytest.mark.parametrize("name", SAME_SHAPES)
def test_option_of_numbers(name: str) -> None:
    values = config(**SAME_SHAPES[name])
    d, weights = pair(values)
    stored = weights.widened()
    check(d, R.Decoder(values, stored))
    before = BASE | {"indexer_head_dim": values["indexer_head_dim"]}  # a shape: heads have to fit
    assert worst(run_both(d, R.Decoder(before, stored), CALLS)) > IGNORED


@pytest.fixture(scope="module")
def shapes() -> dict[str, tuple[int, ...]]:
    return {n: v.shape for n, v in pair(BASE)[1].made.items()}


@pytest.mark.parametrize("name", OTHER_SHAPES)
def test_option_of_shapes(name: str, shapes: dict[str, tuple[int, ...]]) -> None:
    values = config(**OTHER_SHAPES[name])
    d, weights = pair(values)
    check(d, R.Decoder(values, weights.widened()))
    assert {n: v.shape for n, v in weights.made.items()} != shapes


def test_biases_are_added() -> None:
    """Q2: `attention_bias` is implemented, not ignored."""
    values = config(attention_bias=True)
    d, weights = pair(values)
    stored = weights.widened()
    biases = {n for n in stored if n.endswith(".bias")}
    assert {n.rpartition("self_attn.")[2] for n in biases} == {
        f"{p}_proj.bias" for p in "qkvo"
    }  # fmt: skip
    for bias in biases:
        without = R.Decoder(values, {k: v for k, v in stored.items() if k != bias})
        assert worst(run_both(d, without, CALLS)) > IGNORED, bias


def test_a_tied_head_is_the_embedding() -> None:
    values = config(tie_word_embeddings=True)
    d, weights = pair(values)
    assert "lm_head.weight" not in weights.made
    head = d.weights.found["lm_head.weight"]
    np.testing.assert_array_equal(head, d.weights.found["model.embed_tokens.weight"])


@pytest.mark.parametrize("start", ["model.", "model.language_model."])
@pytest.mark.parametrize("fused", [False, True], ids=["split", "fused"])
def test_names_of_a_checkpoint(start: str, fused: bool) -> None:
    """Both prefixes, and both layouts of the experts."""
    names = [f"{start}embed_tokens.weight"]
    if fused:
        banks = ("gate_up_proj", "down_proj")
        names += [f"{start}layers.{i}.mlp.experts.{b}" for i in range(3) for b in banks]
    d, weights = pair(BASE, names)
    check(d, R.Decoder(BASE, weights.widened()))
    assert all(n.startswith(start) or n == "lm_head.weight" for n in weights.made)
    assert (f"{start}layers.0.mlp.experts.down_proj" in weights.made) == fused
    assert (f"{start}layers.0.mlp.experts.5.down_proj.weight" in weights.made) != fused


def test_a_fused_route_of_other_configurations() -> None:
    for change in ({"norm_topk_prob": False}, {"num_experts_per_tok": 6}, {"hc_count": 2}):
        values = config(**change)
        d, weights = pair(values, route="fused")
        check(d, R.Decoder(values, weights.widened()))


# --- FP8 ------------------------------------------------------------------------------------------

ODD = config(
    hidden_size=150, moe_intermediate_size=130, num_experts=3, ple_embed_dim=20,
    layer_types=["linear_attention"] * 2, num_hidden_layers=2, split_ngram_parts=3,
)  # fmt: skip
"""Sizes that leave a partial block of 128 in both axes of every matrix."""


@pytest.mark.parametrize("reading", ["exact", "bf16"])
def test_fp8_with_partial_blocks(reading: str) -> None:
    d, weights = pair(ODD, fp8=True, reading=reading)
    stored = weights.widened()
    codes = [n for n in weights.made if stored.get(n) is not None and is_code(weights, n)]
    assert len(codes) == 2 * 3 * 3 + 3
    rounded = {n: as_bf16(v) if n in codes else v for n, v in stored.items()}
    by_reading = {"exact": stored, "bf16": rounded}
    expected = R.Decoder(ODD, by_reading.pop(reading))
    check(d, expected)
    (other,) = by_reading.values()
    assert worst(run_both(d, R.Decoder(ODD, other), CALLS)) > IGNORED
    # The scales of gate and up, and of the second block, are their own.
    grid = weights.made["model.layers.0.mlp.experts.0.gate_proj.weight_scale_inv"]
    assert grid.shape == (2, 2) and len(np.unique(grid.astype(np.float32))) > 2


def is_code(weights: RandomWeights, name: str) -> bool:
    return weights.made[name].dtype == ml_dtypes.float8_e4m3fn


def as_bf16(x: Array) -> Array:
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


# --- lengths, calls, batches ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def base() -> tuple[Decoder, R.Decoder]:
    d, weights = pair(BASE)
    return d, R.Decoder(BASE, weights.widened())


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 128, 130])
def test_length_of_a_prompt(base: tuple[Decoder, R.Decoder], length: int) -> None:
    """Around one and two chunks of 64; and one token after it, from the state."""
    g = inputs([length])
    check(*base, [g, following(g, 1, seed=2), following(following(g, 1, seed=2), 66, seed=3)])


@pytest.mark.parametrize("sizes", [[1] * 70, [65, 5], [3, 64, 2, 1], [1, 69]], ids=str)
def test_a_prompt_in_several_calls(base: tuple[Decoder, R.Decoder], sizes: list[int]) -> None:
    d, _ = base
    g = inputs([70, 70])
    whole, _ = d.call(g, None)
    outputs, logits = in_pieces(d, g, sizes)
    for name, value in whole.items():
        found = logits if name == "logits" else outputs[name]
        assert deviation(found, value) < CLOSE, name


def in_pieces(d: Decoder, g: Arrays, sizes: list[int]) -> tuple[Arrays, Array]:
    """Outputs of the last call, and the logits of all."""
    state, logits, done = None, [], 0
    outputs: Arrays = {}
    for size in sizes:
        piece = slice(done, done + size)
        done += size
        part = {
            "input_ids": g["input_ids"][:, piece],
            "attention_mask": g["attention_mask"][:, :done],
            "position_ids": np.ascontiguousarray(g["position_ids"][:, :, piece]),
        }
        outputs, state = d.call(part, state)
        logits.append(outputs["logits"])
    assert done == g["input_ids"].shape[1]
    return outputs, np.concatenate(logits, axis=1)


@pytest.mark.parametrize("sizes", [[15, 15], [5, 9, 14, 2], [28, 1, 1]], ids=str)
def test_a_padded_prompt_in_several_calls(
    base: tuple[Decoder, R.Decoder], sizes: list[int]
) -> None:
    """A call of one token masks nothing, so none of these has padding."""
    d, _ = base
    g = inputs([30, 17, 3])
    whole, _ = d.call(g, None)
    outputs, logits = in_pieces(d, g, sizes)
    for name, value in whole.items():
        found = logits if name == "logits" else outputs[name]
        real = [at_real_tokens(name, v, g["attention_mask"]) for v in (found, value)]
        assert deviation(*real) < CLOSE, name


def test_rows_of_a_padded_batch_are_those_of_each_alone(
    base: tuple[Decoder, R.Decoder],
) -> None:
    """Q15: also the numbers of blocks."""
    d, reference = base
    lengths = [30, 17, 3]
    g = inputs(lengths)
    calls = [g, following(g, 1, seed=2), following(following(g, 1, seed=2), 7, seed=3)]
    check(d, reference, calls)
    together: Any = None
    alone: list[Any] = [None] * 3
    for number, call in enumerate(calls):
        outputs, together = d.call(call, together)
        for row, length in enumerate(lengths):
            pad = 30 - length
            part = {k: v[row : row + 1] for k, v in call.items() if k != "position_ids"}
            part["position_ids"] = call["position_ids"][:, row : row + 1]
            part["attention_mask"] = part["attention_mask"][:, pad:]
            if number == 0:
                part["input_ids"] = part["input_ids"][:, pad:]
                part["position_ids"] = part["position_ids"][:, :, pad:]
            part["position_ids"] = np.ascontiguousarray(part["position_ids"])
            own, alone[row] = d.call(part, alone[row])
            for name, value in own.items():
                if name == "present_position_ids":
                    continue
                both = outputs[name][row : row + 1]
                assert deviation(cut(name, both, value), value) < CLOSE, (name, row)


def cut(name: str, both: Array, alone: Array) -> Array:
    """Without the padding on the left that a row alone has not."""
    axis = {"logits": 1, "key": 2, "value": 2, "index_key": 1}.get(name.rpartition(".")[2])
    if axis is None:
        return both
    extra = both.shape[axis] - alone.shape[axis]
    return both.take(range(extra, both.shape[axis]), axis)


def test_a_call_of_one_token_masks_nothing(base: tuple[Decoder, R.Decoder]) -> None:
    """The states of convolutions and of the delta net take the token whatever the mask says."""
    d, _ = base
    first, one = CALLS[:2]
    mask = one["attention_mask"].copy()
    mask[1, -1] = 0
    masked = one | {"attention_mask": mask}
    check(*base, [first, masked])
    check(*base, [{k: v[..., -1:] for k, v in masked.items()}])
    state = d.call(first, None)[1]
    plain, found = d.call(one, state)[0], d.call(masked, state)[0]
    for role in ("0.conv_state", "0.recurrent_state", "0.ple_conv_state", "0.ple_context"):
        np.testing.assert_array_equal(found[f"present.{role}"], plain[f"present.{role}"])
    assert deviation(found["present.2.conv_state"][1], plain["present.2.conv_state"][1]) > IGNORED


def test_channel_zero_changes_nothing(base: tuple[Decoder, R.Decoder]) -> None:
    """Q33: it is kept in the history, and no number depends on it."""
    d, _ = base
    first = CALLS[0]
    moved = first["position_ids"].copy()
    moved[0] += 7
    plain, found = d.call(first, None)[0], d.call(first | {"position_ids": moved}, None)[0]
    history = "present_position_ids"
    np.testing.assert_array_equal(found[history][0], plain[history][0] + 7)
    for name in plain.keys() - {history}:
        np.testing.assert_array_equal(found[name], plain[name])


def test_embeddings_and_ids_of_ngrams_are_independent() -> None:
    d, weights = pair(BASE, text_only=False)
    made = weights.made | {}
    table = np.random.default_rng(3).standard_normal((61, 24)).astype(np.float32)
    reference = R.Decoder(BASE, weights.widened() | {"model.embed_tokens.weight": table})
    assert "model.embed_tokens.weight" not in made
    g = inputs([21, 13])
    embedded = g | {"inputs_embeds": table[g["input_ids"]]}
    check(d, reference, [embedded])
    other = embedded | {"input_ids": g["input_ids"] + 1}
    assert (
        deviation(d.call(other, None)[0]["logits"], d.call(embedded, None)[0]["logits"]) > IGNORED
    )


# --- what only extreme weights show ---------------------------------------------------------------


def changed(weights: RandomWeights, ending: str, value: Any) -> RandomWeights:
    """The same weights, one role of every layer overwritten by a constant."""
    again = RandomWeights(BASE)
    again.made.update(weights.made)
    for name, old in weights.made.items():
        if name.endswith(ending):
            again.made[name] = np.full(old.shape, value, np.float32)
    return again


@pytest.mark.parametrize(
    ("ending", "value"),
    [
        ("linear_attn.dt_bias", 200.0),  # softplus is linear there, and e^200 no float32
        ("linear_attn.dt_bias", -200.0),  # no decay at all
        ("linear_attn.A_log", 6.0),  # e^g is zero after each token
        ("linear_attn.in_proj_qkv.weight", 1e-5),  # beside the epsilon 1e-6 of unit length
        ("linear_attn.in_proj_qkv.weight", 0.0),
        ("ple.norm_key.weight", -1 + 2e-6),  # beside the least 1e-6 under the square root
        ("ple.norm_key.weight", -1.0),  # the sign of zero is zero
        ("indexer.index_qk_proj.weight", 0.0),  # every score is the same: the first blocks
        ("mlp.gate.weight", 0.0),  # every expert is as good: the first ones
        ("mlp.experts.0.gate_proj.weight", -20.0),
        ("block_inject_weight.weight", 10.0),
    ],
)
def test_extreme_weights(base: tuple[Decoder, R.Decoder], ending: str, value: float) -> None:
    weights = base[0].weights
    assert isinstance(weights, RandomWeights)
    again = changed(weights, ending, value)
    d = Decoder(BASE, again)
    reference = R.Decoder(BASE, again.widened())
    long = inputs([66])
    for calls in (CALLS, [long, following(long, 1, seed=2)]):
        found = run_both(d, reference, calls)
        assert all(np.isfinite(v).all() for outputs, _ in found for v in outputs.values())
        assert worst(found) < CLOSE
    assert worst(run_both(d, base[1], CALLS)) > IGNORED
