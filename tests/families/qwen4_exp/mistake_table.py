"""Which golden catches which mistake in the decoder.

`TABLE` names each mistake, what makes it (the functions of `mistakes`, put into the reference), and
the goldens that catch it. The rows are those of the table that came with the goldens, as far as
they concern the decoder, the n-gram rows, the experts, the QSA and the rotation; there each mistake
was made in another program.

A golden is `RUN:STAGE.ROLE`: the largest deviation of that role over all layers, or of the logits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from . import mistakes as made
from . import reference, reference_attention, reference_layers, reference_ple
from .reference_layers import causal_convolution as _causal_convolution
from .reference_layers import sigmoid


@dataclass(frozen=True)
class Change:
    """One function replaced: `name` of a module of the reference."""

    module: ModuleType
    name: str
    function: Callable[..., Any]


@dataclass(frozen=True)
class Row:
    """One mistake.

    Attributes:
        changes: what makes it.
        caught_by: every golden that the table names for it.
    """

    changes: tuple[Change, ...]
    caught_by: tuple[str, ...]


def row(changes: Change | tuple[Change, ...], *caught_by: str) -> Row:
    return Row(changes if isinstance(changes, tuple) else (changes,), caught_by)


def whole(name: str, function: Callable[..., Any]) -> Change:
    return Change(reference, name, function)


def layer(name: str, function: Callable[..., Any]) -> Change:
    return Change(reference_layers, name, function)


def qsa(name: str, function: Callable[..., Any]) -> Change:
    return Change(reference_attention, name, function)


def ple(name: str, function: Callable[..., Any]) -> Change:
    return Change(reference_ple, name, function)


RESTARTED = ple("head_sizes", made.first_primes)
SHARED = ple("multipliers", made.first_multipliers)
ACROSS = ple("token_back", made.across_eos)
SUMMED = ple("mix", made.sum_of_products)
WITHOUT_OFFSETS = ple("head_offsets", made.no_offsets)
FROM_ZERO = ple("first_context", made.zero_context)

TABLE: dict[str, Row] = {
    "zero-centred RMS norm taken as plain weight": row(
        (layer("zero_centred_norm", made.plain_norm), qsa("zero_centred_norm", made.plain_norm)),
        "leftpad:prefill.key",
        "main:prefill.ple_conv_state",
    ),
    "hc/PLE norms over all streams instead of per stream": row(
        (
            layer("grouped_norm", made.norm_of_all_streams),
            ple("grouped_norm", made.norm_of_all_streams),
        ),
        "leftpad:prefill.logits",
        "main:prefill.logits",
    ),
    "low-rank down output not divided by stream count": row(
        layer("mixing_gate", made.down_not_divided),
        "leftpad:decode.key",
        "short:prefill.key",
        "main:prefill.key",
    ),
    "SiLU in the low-rank mixer left out": row(
        layer("mixing_gate", made.mixer_without_silu),
        "leftpad:prefill.key",
        "short:decode.key",
        "main:prefill.key",
    ),
    "gate applied to raw instead of normed streams": row(
        layer("read_streams", made.gate_of_raw_streams),
        "main:prefill.logits",
        "leftpad:prefill.logits",
    ),
    "stream sum instead of mean": row(
        layer("stream_mean", made.stream_sum),
        "main:decode.recurrent_state",
        "leftpad:decode.recurrent_state",
        "short:decode.logits",
    ),
    "inject logits not divided by stream count": row(
        layer("injection", made.inject_not_divided),
        "main:prefill.key",
        "short:decode.key",
        "leftpad:decode.key",
    ),
    "factor 2 of the inject gate missing": row(
        layer("injection", made.inject_without_two),
        "main:decode.key",
        "leftpad:decode.key",
        "short:decode.key",
    ),
    "final mixer replaced by plain mean": row(
        layer("final_mixer", made.mean_for_final_mixer),
        "main:decode.logits",
        "leftpad:prefill.logits",
        "short:prefill.logits",
    ),
    "conv taps reversed": row(
        layer("causal_convolution", made.taps_reversed),
        "main:prefill.key",
        "leftpad:prefill.key",
        "short:decode.logits",
    ),
    "SiLU after conv missing": row(
        layer("short_convolution", _causal_convolution),
        "leftpad:prefill.key",
        "main:prefill.key",
        "short:decode.key",
    ),
    "only K-1 columns kept (zero first column)": row(
        layer("next_conv_state", made.fewer_columns_kept),
        "short:decode.conv_state",
        "leftpad:decode.conv_state",
        "main:prefill.conv_state",
    ),
    "q/k order in qkv swapped": row(
        layer("split_heads", made.keys_before_queries),
        "main:prefill.key",
        "leftpad:prefill.key",
        "short:decode.key",
    ),
    "key heads tiled instead of repeated": row(
        layer("key_head_of", lambda c: np.arange(c.gv) % c.gk),
        "main:decode.key",
        "leftpad:prefill.key",
        "short:decode.key",
    ),
    "q/k L2 norm missing": row(
        layer("query_and_key", made.no_unit_length), "leftpad:prefill.key", "main:decode.key"
    ),
    "q scale missing": row(
        layer("query_and_key", made.no_query_scale), "leftpad:prefill.key", "short:decode.key"
    ),
    "beta in (0,2)": row(
        layer("write_strength", lambda b: 2 * sigmoid(b)),
        "short:decode.key",
        "main:decode.recurrent_state",
        "leftpad:prefill.key",
    ),
    "dt_bias missing": row(
        layer("log_decay", made.no_dt_bias),
        "main:prefill.key",
        "leftpad:decode.key",
        "short:decode.logits",
    ),
    "A_log used without exp": row(
        layer("log_decay", made.A_without_exp),
        "main:decode.recurrent_state",
        "leftpad:decode.recurrent_state",
        "short:decode.recurrent_state",
    ),
    "memory read before decay": row(
        layer("delta_step", made.memory_before_decay), "leftpad:decode.key", "main:prefill.logits"
    ),
    "delta correction missing": row(
        layer("delta_step", made.no_delta_correction),
        "leftpad:decode.key",
        "main:decode.key",
        "short:decode.key",
    ),
    "output read before the update": row(
        layer("delta_step", made.output_before_update),
        "leftpad:prefill.key",
        "short:decode.key",
        "main:decode.key",
    ),
    "output gate SiLU instead of sigmoid": row(
        layer("gated_norm", made.silu_gate),
        "leftpad:decode.key",
        "main:decode.key",
        "short:decode.key",
    ),
    "gate before norm": row(
        layer("gated_norm", made.gate_before_norm),
        "leftpad:decode.key",
        "short:decode.logits",
        "main:prefill.key",
    ),
    "gated norm treated as zero-centred": row(
        layer("gated_norm", made.centred_gated_norm),
        "leftpad:decode.key",
        "main:prefill.key",
        "short:decode.key",
    ),
    "padding not zeroed before linear attention": row(
        layer("zero_padding", lambda h, conv_mask: h), "leftpad:prefill.key"
    ),
    "no sparse selection": row(
        qsa("selected_tokens", made.select_all), "leftpad:decode.key", "main:decode.key"
    ),
    "blocks counted from absolute position (padding included)": row(
        qsa("selected_tokens", made.blocks_of_the_buffer), "leftpad:prefill.key"
    ),
    "incomplete block pooled and ranked": row(
        qsa("selected_tokens", made.incomplete_block_ranked),
        "main:prefill.key",
        "leftpad:decode.key",
    ),
    "max pooling": row(qsa("pool", made.max_pool), "leftpad:decode.key", "main:decode.key"),
    "norm before pooling": row(
        qsa("block_keys", made.norm_before_pooling), "main:decode.key", "leftpad:decode.key"
    ),
    "index key norm missing": row(
        qsa("index_key_norm", lambda c, w, keys: keys), "leftpad:decode.key", "main:prefill.key"
    ),
    "block rotated at its last token": row(
        qsa("block_position", made.position_of_the_last_token),
        "main:decode.key",
        "leftpad:decode.key",
    ),
    "block rotated at block number": row(
        qsa("block_position", made.block_number), "leftpad:decode.key", "main:prefill.key"
    ),
    "index keys not rotated": row(
        qsa("block_keys", made.keys_not_turned), "leftpad:decode.key", "main:prefill.key"
    ),
    "ReLU missing": row(
        qsa("block_scores", made.no_relu), "leftpad:decode.key", "main:prefill.key"
    ),
    "max over index heads": row(
        qsa("block_scores", made.max_over_heads), "leftpad:decode.key", "main:decode.key"
    ),
    "budget counted in blocks": row(
        qsa("best_blocks", made.budget_in_blocks), "leftpad:decode.key", "main:decode.key"
    ),
    "incomplete last block dropped": row(
        qsa("selected_tokens", made.incomplete_block_dropped),
        "leftpad:prefill.key",
        "main:prefill.key",
    ),
    "newest block always kept": row(
        qsa("best_blocks", made.newest_block_kept), "leftpad:decode.key", "main:prefill.key"
    ),
    "fused index projection read key first": row(
        qsa("index_projection", made.key_before_index_queries),
        "main:prefill.index_key",
        "leftpad:decode.index_key",
        "short:decode.index_key",
    ),
    "index key cached after norm": row(
        (
            qsa("index_projection", made.normed_key_cached),
            qsa("index_key_norm", lambda c, w, keys: keys),
        ),
        "main:decode.index_key",
        "leftpad:prefill.index_key",
        "short:decode.index_key",
    ),
    "frequencies over full head_dim": row(
        qsa("frequencies", made.frequencies_of_the_head),
        "main:decode.key",
        "leftpad:prefill.key",
        "short:decode.key",
    ),
    "pairwise rotation": row(
        qsa("rotate", made.turned_in_pairs),
        "leftpad:decode.key",
        "main:prefill.key",
        "short:decode.key",
    ),
    "query/gate split as halves of the whole projection": row(
        qsa("query_and_gate", made.queries_then_gates),
        "leftpad:prefill.key",
        "short:decode.logits",
        "main:prefill.key",
    ),
    "attention gate missing": row(
        qsa("output_gate", lambda y, gate: y), "main:prefill.key", "leftpad:prefill.key"
    ),
    "KV heads tiled": row(
        qsa("key_value_head_of", lambda c: np.arange(c.nh) % c.nkv),
        "short:decode.key",
        "leftpad:prefill.index_key",
    ),
    "top-k renormalisation flipped": row(
        layer("route", made.renormalised_otherwise),
        "short:decode.key",
        "main:prefill.key",
        "leftpad:decode.key",
    ),
    "second softmax over the selected": row(
        layer("route", made.softmax_of_the_chosen),
        "short:decode.key",
        "leftpad:decode.key",
        "main:prefill.key",
    ),
    "sigmoid router": row(
        layer("route", made.sigmoid_router),
        "short:decode.key",
        "leftpad:decode.key",
        "main:prefill.key",
    ),
    "gate/up interleaved rows": row(
        layer("gate_and_up", made.interleaved_gate_and_up),
        "leftpad:prefill.key",
        "short:decode.key",
        "main:prefill.key",
    ),
    "up before gate": row(
        layer("gate_and_up", made.up_before_gate),
        "leftpad:prefill.key",
        "main:prefill.key",
        "short:decode.key",
    ),
    "shared gate missing": row(
        layer("shared_expert", made.shared_without_gate),
        "main:prefill.key",
        "leftpad:prefill.logits",
    ),
    "shared expert missing": row(
        layer("shared_expert", lambda w, x: np.zeros_like(x)),
        "short:decode.key",
        "main:decode.key",
        "leftpad:prefill.key",
    ),
    "second PLE layer reuses the first prime run": row(
        RESTARTED,
        "leftpad:prefill.ple_conv_state",
        "main:prefill.ple_conv_state",
        "short:prefill.ple_conv_state",
    ),
    "second PLE layer reuses the first multipliers": row(
        SHARED,
        "leftpad:prefill.ple_conv_state",
        "main:prefill.ple_conv_state",
        "short:decode.ple_conv_state",
    ),
    "n-grams cross eos": row(ACROSS, "leftpad:prefill.ple_conv_state", "main:prefill.logits"),
    "sum instead of xor": row(
        SUMMED, "main:decode.ple_conv_state", "leftpad:prefill.ple_conv_state"
    ),
    "head offsets missing": row(
        WITHOUT_OFFSETS,
        "main:prefill.ple_conv_state",
        "leftpad:prefill.ple_conv_state",
        "short:decode.ple_conv_state",
    ),
    "initial context 0 instead of eos": row(
        FROM_ZERO, "short:prefill.ple_context", "main:prefill.key", "leftpad:prefill.key"
    ),
    "signed square root missing": row(
        ple("signed_root", lambda s: s),
        "short:decode.logits",
        "leftpad:prefill.key",
        "main:prefill.key",
    ),
    "padding not masked in PLE": row(ple("masked", lambda x, conv_mask: x), "leftpad:prefill.key"),
    "padding ids not replaced by eos": row(
        whole("hashed_ids", lambda c, ids, conv_mask: ids), "leftpad:prefill.key"
    ),
    "conv over un-normed values": row(
        ple("conv_input", lambda c, w, gv: gv),
        "main:decode.key",
        "leftpad:decode.key",
        "short:decode.key",
    ),
    "dilation 1": row(
        ple("dilated_convolution", made.dilation_1), "leftpad:prefill.key", "main:prefill.key"
    ),
    "SiLU after PLE conv missing": row(
        ple("dilated_convolution", made.ple_conv_without_silu),
        "leftpad:decode.key",
        "main:decode.key",
        "short:decode.key",
    ),
    "gated value not added": row(
        ple("injected", lambda gv, conv: conv),
        "main:prefill.key",
        "leftpad:prefill.key",
        "short:decode.key",
    ),
    "n-gram shards in lexical order": row(
        whole("shard_order", lambda numbers: sorted(numbers, key=str)),
        "leftpad:prefill.ple_conv_state",
        "main:decode.key",
        "short:decode.ple_conv_state",
    ),
    "n-gram shards reversed": row(
        whole("shard_order", lambda numbers: sorted(numbers, reverse=True)),
        "short:decode.ple_conv_state",
        "main:decode.ple_conv_state",
        "leftpad:prefill.ple_conv_state",
    ),
    "M-RoPE sections contiguous": row(
        qsa("angle_channels", made.sections_in_a_row), "image-text:prefill.key"
    ),
    "height/width channels swapped": row(
        qsa("angle_channels", made.height_and_width_swapped), "image-text:prefill.key"
    ),
    "only the temporal channel used": row(
        qsa("angle_channels", made.temporal_channel_alone), "image-text:prefill.key"
    ),
    "channel 0 used for rotation": row(
        qsa("angle_channels", made.channel_0), "image-text:prefill.key"
    ),
}

# Row ids of `ngram/rows.json`: how many of its 48 calls get other rows, and how many of its 25
# sequences end in another context. The two together are the number that the table gives.
ROW_IDS: dict[str, tuple[Change, tuple[int, int]]] = {
    "primes restart": (RESTARTED, (26, 0)),
    "multipliers shared by PLE layers": (SHARED, (26, 0)),
    "n-grams cross eos": (ACROSS, (13, 0)),
    "sum instead of xor": (SUMMED, (48, 0)),
    "offsets missing": (WITHOUT_OFFSETS, (48, 0)),
    "initial context 0": (FROM_ZERO, (33, 4)),
}
