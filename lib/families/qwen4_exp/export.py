"""What the exporter needs to know of qwen4_exp: components, types, what is left out, the report.

State, workflow and sizes as data are in manifest.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from ...checkpoint.config import MAX_CONFIG
from ...checkpoint.folder import read_small
from ...checkpoint.strict_json import load_object
from ...checkpoint.tensor import Checkpoint, Problem, Tensor
from ...errors import InputError, Unsupported, UsageProblem
from ...fp8 import qdq_report, scale_values
from ...fp8.dense_view import dense_view, watched_scales
from ...fp8.forms import tables_of
from ...fp8.pairs import Pairs
from ...fp8.settings import read_settings
from ...graph.builder import NARROW, Graph, WeightSource
from ...package.bindings import Binding
from ...package.layout import ANY_EP, GENERATION, PREPROCESSOR, STANDARD_EPS
from ...package.model import READINGS, Wishes, usual_dtype
from . import COMPONENTS, NAME, SEMANTIC_REFERENCE, manifest
from .config import Qwen4ExpConfig, read_config
from .contents import BUFFERS
from .decoder import decoder
from .embedding import embedding
from .fp8_contract import EXCLUDED
from .ngram_table import rows_of, shard_rows
from .processor import processor_json
from .vision import vision_encoder
from .weights import HEAD, check, check_tied, renamed

MAX_SCHEME = 80
"""Characters of a name that a report repeats."""

SHARD_NBYTES, MOST_SHARD_NBYTES = 1 << 30, 5_000_000_000
"""Bytes of a data file by default, and at most; a larger tensor has its own."""
LOWERING = "blocked"
"""How the decoder spells FP8 matrices, see graph/fp8.py."""


def open_model(checkpoint: Checkpoint, wishes: Wishes) -> Qwen4Exp:
    """The model of a checkpoint, judged whole from its headers.

    Raises:
        InputError, SourceNotFound, Unsupported: what `read_config` and `check` raise.
        UsageProblem: a wish about FP8 weights, and there are none.
    """
    return Qwen4Exp(checkpoint, wishes)


class Qwen4Exp:
    """One checkpoint of the family.

    Attributes:
        source: the checkpoint as it is; `checkpoint` is a view of it where FP8 weights are wanted
            dense.
        pairs: its FP8 codes and scales, or None.
    """

    special_tokens: tuple[str, ...] = ()
    shard_nbytes = SHARD_NBYTES
    most_shard_nbytes: int | None = MOST_SHARD_NBYTES

    def __init__(self, checkpoint: Checkpoint, wishes: Wishes) -> None:
        where = f"{checkpoint.source}: config.json"
        self.source, self.wishes = checkpoint, wishes
        self.config: Qwen4ExpConfig = read_config(
            checkpoint.config, where, text_only=wishes.text_only
        )
        self.pairs: Pairs | None = check(checkpoint, self.config, wishes.text_only)
        if self.pairs is None:
            _refuse_fp8_wishes(checkpoint, wishes)
        self.fp8 = self.pairs is not None and not wishes.dequantize
        self.checkpoint = checkpoint
        if self.pairs is not None and wishes.dequantize:
            self.checkpoint = dense_view(checkpoint, self.pairs)
        elif self.pairs is not None and not checkpoint.folder.local:
            self.checkpoint = watched_scales(checkpoint, self.pairs)
        self.rename = renamed(self.config, self.checkpoint.tensors)
        self.text_only = self.config.vision is None
        self.components = ("decoder",) if self.text_only else COMPONENTS
        self.vocab_size = self.config.text.V
        self.quantization: dict[str, Any] | None = None
        if self.pairs is not None and self.fp8:
            self.quantization = {
                "format": "fp8_qdq",
                "lowering": LOWERING,
                "scale_reading": wishes.reading,
                "block": list(self.pairs.settings.block or ()),
            }
        self._processor = None if self.text_only else _processor(checkpoint)
        self.stop = _stop(checkpoint, self.config)

    def refuse(self, component: str, dtype: str, *, force_f16: bool) -> None:
        """For any runtime the vision encoder is not exported in bfloat16.

        Raises:
            Unsupported: with the reason and the ways out.
        """
        if component == "vision_encoder" and dtype == "bf16" and self.wishes.provider == ANY_EP:
            raise Unsupported(
                f"vision_encoder in bf16 for {ANY_EP}: its features are not established at "
                "production size: the largest error is 0.0405, and the tolerance 1e-2",
                expected="--dtype f32 or f16, or --text-only, whose decoder may be bf16",
            )

    def auto(self, component: str) -> str:
        """float32; on CUDA the checkpoint's own type, but not bfloat16 for pictures, whose features
        are not established in it."""
        usual = usual_dtype(self.checkpoint, self.wishes.provider)
        return "f32" if component == "vision_encoder" and usual == "bf16" else usual

    def forced(self, component: str, dtype: str) -> bool:
        """No type is for experiments alone."""
        return False

    def build(
        self, component: str, weights: WeightSource, dtype: int, tokens: dict[str, int]
    ) -> Graph:
        """The graph of one component, its parameters claimed from `weights`."""
        build: Callable[[WeightSource, int], Graph] = {
            "vision_encoder": self._vision_encoder,
            "embedding": self._embedding,
            "decoder": self._decoder,
        }[component]
        return build(weights, dtype)

    def _vision_encoder(self, weights: WeightSource, dtype: int) -> Graph:
        assert self.config.vision is not None
        return vision_encoder(
            self.config.vision, self.config.text.H, weights, dtype, rounded=self._rounded(dtype)
        )

    def _embedding(self, weights: WeightSource, dtype: int) -> Graph:
        c = self.config
        assert c.image_token_id is not None and c.video_token_id is not None
        return embedding(c.text.V, c.text.H, c.image_token_id, c.video_token_id, weights, dtype)

    def _decoder(self, weights: WeightSource, dtype: int) -> Graph:
        # experts are a Scan, or one fused operator; codes stay codes only in standard operators
        standard = self.fp8 or self.wishes.provider in STANDARD_EPS
        return decoder(
            self.config.text,
            weights,
            dtype,
            text_only=self.text_only,
            route="standard" if standard else "fused",
            fp8=self.fp8,
            reading=self.wishes.reading,
            rounded=self._rounded(dtype),
        )

    def _rounded(self, dtype: int) -> bool:
        """Whether 16-bit arithmetic is spelled out: CUDA alone is known to have it."""
        return dtype in NARROW and self.wishes.provider != "cuda"

    def before_writing(self, bindings: Sequence[Binding]) -> list[Problem]:
        """Compare a stored output head that is tied; look at the values of scales.

        Returns:
            scales that are sound and odd: negative, or 0.
        Raises:
            InputError: they are not what they must be; names the tensor.
        """
        check_tied(self.source)
        if self.pairs is None or not self.source.folder.local:
            return []  # of a remote checkpoint scales are looked at when they are read
        values, found = scale_values.check(self.source.folder, self.pairs.scales.values())
        errors = [p for p in found if p.severity == "error"]
        if errors:
            p = errors[0]
            raise InputError(f"{self.source.source}: {p.file}: tensor '{p.name}': {p.message}")
        if values.zero:
            message = f"{values.zero} scales are or hold 0: what they scale is 0"
            found.append(Problem("zero-scale", message, "warning"))
        return found

    def left(self, tensor: Tensor) -> tuple[str, str] | None:
        """Families that are not executed, buffers that follow from the config, a head that is tied,
        scales that are multiplied into their weights."""
        name = tensor.name
        for family, pattern, reason in EXCLUDED:
            if name.startswith(pattern.removesuffix("*")):
                left = family != "visual" or self.text_only
                return ("excluded", reason) if left else None
        if name.endswith(BUFFERS):
            return "bound", "equals the value derived from config.json"
        if name == HEAD and self.config.text.tied:
            return "excluded", "tie_word_embeddings: equals the embedding, byte for byte"
        if self.pairs is not None and not self.fp8 and name in self.pairs.scales:
            return "scale-consumed", "multiplied into its weights"
        return None

    def variant(self) -> dict[str, str]:
        """Which member of the family this is."""
        return {"backbone": "moe", "input": "text" if self.text_only else "image-text"}

    def defaults(self) -> dict[str, Any]:
        """Defaults of a run by task."""
        return {"chat": {}}

    def sizes(self) -> dict[str, Any]:
        """Sizes from which a runtime can plan its memory (symbols of docs/qwen4-exp.md)."""
        return manifest.sizes(self.config)

    def cache(self, dtype: str) -> list[dict[str, Any]]:
        """Every tensor of the decoder's state, one entry each."""
        return manifest.cache(self.config.text, dtype)

    def workflow(self) -> dict[str, Any]:
        """How the components are composed, as data."""
        return manifest.workflow(self.config, self.stop)

    def processor(self) -> dict[str, Any] | None:
        """Content of processor.json, None of text alone or without the checkpoint's file."""
        return self._processor

    def unsupported_token_ids(self, component: str) -> list[int]:
        """The token of videos, which the embedding refuses."""
        video = self.config.video_token_id
        return [video] if component == "embedding" and video is not None else []

    def metadata(self, component: str, dtype: str) -> dict[str, str]:
        """Where meaning and weights come from, the state, tokens that are refused."""
        c = self.source
        made = {
            "ntool.semantic_reference": SEMANTIC_REFERENCE["repository"],
            "ntool.semantic_reference_revision": SEMANTIC_REFERENCE["revision"],
            "ntool.source_revision": c.requested_revision or "unpinned",
            "ntool.source_resolved_revision": c.revision or "",
        }
        if component == "decoder":
            state = manifest.state(self.config.text, dtype)
            made["ntool.state_manifest"] = json.dumps(state, separators=(",", ":"))
            if self.quantization is not None:
                how = ("format", "lowering", "scale_reading")
                made["ntool.quantization"] = "/".join(self.quantization[key] for key in how)
        refused = self.unsupported_token_ids(component)
        if refused:
            made["ntool.unsupported_token_ids"] = json.dumps(refused)
        return made

    def report(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Families one by one, and what became of FP8 weights."""
        checkpoint = self.source
        pairs = self.pairs or Pairs(read_settings(checkpoint.config))
        left = tuple(d for d in EXCLUDED if d[0] != "visual" or self.text_only)
        tables = tables_of(checkpoint.tensors, pairs)
        account = qdq_report.account(checkpoint, NAME, pairs, rows, left, tables)
        converted = any(row["action"] == "converted" for row in rows)
        text = self.config.text
        heights = [rows_of(text, place) for place in range(len(text.ple))]
        made = {
            "output_weight_format": "fp8_qdq" if self.fp8 else "dense",
            # of codes and scales where there are any: beside them any type may be asked for
            "storage_preserving": self.fp8 or not converted,
            "native_fp8": False,
            **account,
            **qdq_report.mtp_and_ple(account),
        }
        if self.pairs is None:  # a table of dense shards has no scale, and is none of the account
            made["ple"] |= {
                "shards": sum(len(shard_rows(rows, text.parts)) for rows in heights),
                "rows": sum(heights),
            }
        if pairs.settings.activation is not None:
            # only weights are stored in FP8: what activations are to become concerns no graph
            scheme = str(pairs.settings.activation)[:MAX_SCHEME]
            made["activation_scheme"] = {"found": scheme, "used": False}
        if self.quantization is not None:
            made["quantization"] = self.quantization
        return made


def _refuse_fp8_wishes(checkpoint: Checkpoint, wishes: Wishes) -> None:
    for given, option in (
        (wishes.dequantize, "--dequantize"),
        (wishes.reading != READINGS[0], f"--scale-reading {wishes.reading}"),
    ):
        if given:
            raise UsageProblem(f"{option}: {checkpoint.source} has no FP8 weights")


def _stop(checkpoint: Checkpoint, c: Qwen4ExpConfig) -> tuple[int, ...]:
    """Ids that end a text: those of generation_config.json where it has some, as the published
    loop takes them, else those of config.json.

    Raises:
        InputError: something else than ids of the vocabulary.
    """
    given = checkpoint.generation_config.get("eos_token_id")
    if given is None:
        return c.text.eos
    ids = given if isinstance(given, list) else [given]
    for i in ids:
        if type(i) is not int or not 0 <= i < c.text.V:
            raise InputError(
                f"{checkpoint.source}: {GENERATION}: 'eos_token_id'",
                found=repr(given)[:80],
                expected=f"ids from 0 to {c.text.V - 1}",
            )
    return tuple(dict.fromkeys(ids))


def _processor(checkpoint: Checkpoint) -> dict[str, Any] | None:
    """processor.json by the checkpoint's own file. There is no default: the published numbers are
    not those of the class that reads the file."""
    if not checkpoint.folder.exists(PREPROCESSOR):
        return None
    where = f"{checkpoint.source}: {PREPROCESSOR}"
    raw = read_small(checkpoint.folder, PREPROCESSOR, MAX_CONFIG)
    return processor_json(load_object(raw, where), where)
