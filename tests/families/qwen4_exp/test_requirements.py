"""Which test holds which requirement, Q1 to Q57, and which mistake of the goldens' table.

A test that is named here names the number itself, in its own lines or in its module's docstring.
"""

from __future__ import annotations

import ast
import json
import re
from functools import cache
from pathlib import Path

import pytest

from ...conftest import DATA
from . import mistake_table, test_fp8_mistakes, test_vision_mistakes

TESTS = Path(__file__).parents[2]

C, F, P = "commands/", "families/qwen4_exp/", "commands/test_qwen4_exp_packages.py::"
R = "commands/test_export_qwen4_exp_refusals.py::"
W = "commands/test_qwen4_exp_package_weights.py::"
STRUCTURE, VARIANTS = F + "test_decoder_structure.py::", F + "test_decoder_variants.py::"
GOLDENS, EMBEDDING = F + "test_decoder_goldens.py::", F + "test_embedding.py::"
TABLE: dict[int, tuple[str, ...]] = {
    1: (F + "test_config.py::test_refused_by_name",),
    2: (F + "test_config.py::test_refused_by_name", VARIANTS + "test_biases_are_added"),
    3: (F + "test_config.py::test_refused_by_name",),
    4: (F + "test_config.py::test_refused_by_name",),
    5: (F + "test_config.py::test_refused_by_name",
        P + "test_the_token_of_videos_is_named_and_nothing_else_of_them"),
    6: (R + "test_header_errors_come_before_payloads_that_are_cut_off",),
    7: (W + "test_a_table_is_its_shards_in_numeric_order",),
    8: (R + "test_a_checkpoint_that_is_not_sound", R + "test_a_tensor_in_two_files"),
    9: (R + "test_hash_buffers_may_be_absent", R + "test_a_checkpoint_that_is_not_sound"),
    10: (C + "test_export_qwen4_exp.py::test_the_text_model_of_a_composite",),
    11: (STRUCTURE + "test_means_norms_and_comparisons_are_not_in_16_bits",),
    12: (GOLDENS + "test_text",),
    13: (STRUCTURE + "test_means_norms_and_comparisons_are_not_in_16_bits",),
    14: (GOLDENS + "test_padded_rows_are_finite",),
    15: (VARIANTS + "test_rows_of_a_padded_batch_are_those_of_each_alone",
         C + "test_export_qwen4_exp.py::test_left_padding"),
    16: (STRUCTURE + "test_top_k_takes_float32_and_a_k_of_one_element",),
    17: (STRUCTURE + "test_one_scan_over_experts",),
    18: (STRUCTURE + "test_one_scan_over_experts",),
    19: (STRUCTURE + "test_one_scan_over_experts",),
    20: (GOLDENS + "test_silu_of_long_tails",),
    21: (STRUCTURE + "test_one_scan_over_experts",),
    22: (STRUCTURE + "test_nodes_do_not_grow_with_experts",
         STRUCTURE + "test_no_value_holds_all_experts_of_a_token"),
    23: (GOLDENS + "test_experts_alone",),
    24: (R + "test_other_providers_have_the_fused_operator",),
    25: (R + "test_an_operator_that_is_not_standard",
         STRUCTURE + "test_standard_operators_alone"),
    26: (R + "test_bfloat16_vision_for_any_runtime",),
    27: (EMBEDDING + "test_without_features_every_token_keeps_its_row",
         EMBEDDING + "test_recorded_values"),
    28: (EMBEDDING + "test_another_number_of_features_fails",
         C + "test_run_prefill_qwen4_exp_goldens.py::test_image_tokens_are_counted"),
    29: (EMBEDDING + "test_a_video_token_fails",
         EMBEDDING + "test_the_guard_comes_before_the_table_is_read"),
    30: (P + "test_the_token_of_videos_is_named_and_nothing_else_of_them",),
    31: (F + "test_positions.py::test_runs_and_pictures_must_agree",),
    32: (STRUCTURE + "test_interface", P + "test_inputs_of_both_decoders"),
    33: (GOLDENS + "test_text", VARIANTS + "test_channel_zero_changes_nothing"),
    34: (P + "test_each_graph_tells_its_origin_and_state",),
    35: (P + "test_no_metadata_of_another_runtime",),
    36: (C + "test_export_qwen4_exp.py::test_text_prefill_and_six_steps_from_the_manifest_alone",),
    37: (R + "test_options_that_do_not_fit",),
    38: (R + "test_options_that_do_not_fit", W + "test_a_plan_of_the_published_repository"),
    39: (R + "test_a_failure_while_writing_leaves_nothing",),
    40: (F + "test_weights.py::test_refused_by_name", R + "test_a_checkpoint_that_is_not_sound"),
    41: (W + "test_codes_and_scales_keep_their_bytes",),
    42: (W + "test_codes_and_scales_keep_their_bytes", W + "test_products_are_rounded_once"),
    43: (C + "test_export_from_the_hub.py::test_a_revision_is_passed_on",),
    44: (R + "test_fp8_with_pictures_names_the_way_out",),
    45: (STRUCTURE + "test_checker_and_strict_inference",),
    46: (STRUCTURE + "test_one_dense_shard_at_a_time",),
    47: (W + "test_the_report_of_fp8_weights",),
    48: (W + "test_the_report_of_fp8_weights",),
    49: (F + "test_gguf_contract.py::", "checkpoint/test_gguf_header.py::",
         "checkpoint/test_gguf_agreement.py::"),
    50: ("checkpoint/test_gguf_set.py::",),
    51: (F + "test_gguf_contract.py::",),
    52: (F + "test_gguf_payload.py::",),
    53: (F + "test_gguf_contract.py::",),
    54: (F + "test_gguf_indexer.py::",),
    55: ("test_backends.py::",),
    56: (F + "test_claims.py::test_no_page_claims_it",),
    57: (R + "test_options_that_do_not_fit",),
}  # fmt: skip
"""Requirement to tests; a module alone where several of its tests share a requirement."""


@cache
def module(path: str) -> tuple[str, ast.Module]:
    text = (TESTS / path).read_text()
    return text, ast.parse(text)


def lines_of(test: str) -> str:
    """The test with its decorators and what stands above it, and its module's docstring."""
    path, _, name = test.partition("::")
    text, top = module(path)
    if not name:
        return text
    found = [n for n in top.body if isinstance(n, ast.FunctionDef) and n.name == name]
    assert len(found) == 1, f"no {test}"
    node = found[0]
    decorators = [ast.get_source_segment(text, d) or "" for d in node.decorator_list]
    named = {n.id for d in node.decorator_list for n in ast.walk(d) if isinstance(n, ast.Name)}
    tables = [
        text[: text.index("\n" + line)].rpartition("\n\n")[2]
        + (ast.get_source_segment(text, n) or "")
        for n in top.body
        if isinstance(n, (ast.Assign, ast.AnnAssign))
        for line in [(ast.get_source_segment(text, n) or "").splitlines()[0]]
        if named & {t.id for t in ast.walk(n) if isinstance(t, ast.Name)}
    ]
    own = ast.get_source_segment(text, node) or ""
    return "\n".join([ast.get_docstring(top) or "", own, *decorators, *tables])


def numbers(text: str) -> set[int]:
    """Numbers of requirements in a text: `Q6`, and ranges as `Q16 to Q22`."""
    found = {int(n) for n in re.findall(r"\bQ(\d+)\b", text)}
    for first, last in re.findall(r"\bQ(\d+)\s+to\s+Q(\d+)\b", text):
        found |= set(range(int(first), int(last) + 1))
    return found


def test_every_requirement_is_there() -> None:
    assert list(TABLE) == list(range(1, 58))
    assert all(TABLE.values())


@pytest.mark.parametrize("number", TABLE)
def test_its_tests_name_it(number: int) -> None:
    for test in TABLE[number]:
        assert number in numbers(lines_of(test)), test


def test_a_test_that_is_not_there_is_noticed() -> None:
    with pytest.raises(AssertionError, match="no families"):
        lines_of(F + "test_config.py::test_nothing")
    assert numbers("Q3, Q16 to Q18, Q5x") == {3, 16, 17, 18}


NAMES = DATA / "qwen4-exp" / "mistakes.json"
"""The first column of the table of mistakes that came with the goldens, in its order."""


def test_every_mistake_is_made() -> None:
    """Each row of the table that came with the goldens is made by a test, which has to catch it."""
    rows_of_ids = {f"row ids: {row}" for row in mistake_table.ROW_IDS}
    made = [mistake_table.TABLE, rows_of_ids, test_vision_mistakes.TABLE, test_fp8_mistakes.TABLE]
    names = json.loads(NAMES.read_text())
    assert len(names) == 102
    assert [n for n in names if not any(n in table for table in made)] == []
