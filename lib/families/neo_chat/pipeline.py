"""Running a neo_chat package: prompts to prefixes, prefixes to words and pictures.

B sequences (1 here), S tokens of a prompt, L = th tw tokens of a picture, P cached tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError, SourceNotFound, Unsupported
from ...package.package import Package
from ...progress import step, tracked
from ...runtime import arrays
from ...runtime.memory import Phase
from ...runtime.session import DEFAULT, Session, Settings, to_numpy
from ...runtime.sessions import Sessions
from ...sampling import device_step, euler, guidance, schedule
from ...sampling.image import load_image
from ...text.tokenizer import Tokenizer, load
from . import memory, prefix_file, prompts
from . import positions as place
from . import processor as pictures
from .abi import OPTIONAL_PORTS, PORTS
from .denoising import Denoising
from .preview import Preview
from .request import Request

READING = ("embedding", "decoder")
SEEING = ("vision_encoder", *READING)
DRAWING = ("image_gen_embedding", "image_gen_denoiser")
"""Components of a prefill, of one with pictures, and of the sampling loop."""
THINK_TOKENS = 1024
"""Most tokens of a thought (docs/neo-chat.md 5.10)."""


@dataclass
class Prefix:
    """A prefilled prompt: what the decoder remembers of it, and where its next token would stand.

    Attributes:
        ids: int64 [1, S]. positions: int64 [3, S].
        cache: `past.I.key`, `past.I.value` [1, KV, S, hd]: arrays, or OrtValues on the device,
            where the decoder left them; `arrays` has them on the host.
        logits: [1, kept, V] of the last tokens.
        words: metadata of the prefix file: task, query, prompt, text length, package.
    """

    ids: np.ndarray
    positions: np.ndarray
    cache: dict[str, Any]
    logits: np.ndarray
    words: dict[str, Any] = field(default_factory=dict)

    @property
    def next_t(self) -> int:
        """Temporal index of the token that would follow: 1 + the greatest so far."""
        return int(self.positions[0].max()) + 1

    def arrays(self) -> dict[str, np.ndarray]:
        """The cache in host memory."""
        return {k: v if isinstance(v, np.ndarray) else to_numpy(v) for k, v in self.cache.items()}

    def save(self, path: Path) -> list[dict[str, Any]]:
        """Write the prefix file; returns its `tensor` records (name, dtype, shape)."""
        tensors = {
            "logits": self.logits,
            **self.arrays(),
            "token_ids": self.ids,
            "position_ids": self.positions,
        }
        arrays.save(path, tensors, self.words)
        return arrays.records(tensors)


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a picture but the prompt and the weights.

    Attributes:
        task: `text-to-image`, `image-edit` or `interleave`; they differ in branches and interval.
        width, height: pixels, multiples of the token side.
        steps: Euler steps. shift: of the schedule. t_eps: floor of 1 - t.
        cfg, img_cfg: guidance scales of the prompt and of the pictures.
        interval: t range in which guidance applies (ends: see `sampling.guidance`).
    """

    task: str
    width: int
    height: int
    steps: int
    cfg: float
    img_cfg: float
    cfg_norm: str
    interval: tuple[float, float]
    shift: float
    t_eps: float

    def guidance(self, tile: int) -> guidance.Guidance:
        """The guidance of the run; `tile` is the token side in pixels."""
        return guidance.Guidance(
            self.task,
            cfg=self.cfg,
            img_cfg=self.img_cfg,
            interval=self.interval,
            norm=self.cfg_norm,
            tile=tile,
        )


@dataclass(frozen=True)
class Pictures:
    """Encoded pictures.

    Attributes:
        features: [image_tokens, D], picture after picture.
        grids: (th, tw) in tokens of each.
        sizes: (width, height) in pixels of each before it was resized.
    """

    features: np.ndarray
    grids: tuple[tuple[int, int], ...]
    sizes: tuple[tuple[int, int], ...] = ()


class Pipeline:
    """A package with its sessions, loaded when first used and kept for every further prompt."""

    def __init__(self, package: Package, settings: Settings = DEFAULT) -> None:
        self.package, self._settings = package, settings
        self.sessions = Sessions(package, settings, self._has_ports)
        manifest = package.manifest
        if manifest.get("family") != "neo_chat":
            raise Unsupported(
                f"{package.root}: family",
                found=manifest.get("family"),
                expected="neo_chat",
                hint="only that family draws; ntool run-prefill runs a package's text",
            )
        self.tokenizer: Tokenizer = load(package.tokenizer_folder())
        self.tokens: dict[str, int] = manifest["special_tokens"]
        for name, i in self.tokens.items():
            if self.tokenizer.id(name) != i:
                raise InputError(
                    f"{package.root}: token '{name}': id in package.json",
                    found=i,
                    expected=f"{self.tokenizer.id(name)}, as the tokenizer has it",
                )
        self.token_pixels: int = manifest["workflow"]["positions"]["token_pixels"]
        self.vocab_size: int = manifest["vocab_size"]

    @cached_property
    def sizes(self) -> pictures.Processor:
        """Patch and merge size of the picture processor.

        Raises:
            Unsupported: processor.json asks for what is not done here.
        """
        p = self.package.manifest_processor()
        pictures.check_processor(p, f"{self.package.root}: processor.json")
        return pictures.Processor(p["patch_size"], p["merge_size"])

    def session(self, component: str) -> Session:
        """The loaded session of a component."""
        return self.sessions[component]

    def _has_ports(self, component: str, session: Session) -> None:
        for side, there in (("inputs", session.inputs), ("outputs", session.output_types)):
            lacking = PORTS[component][side].keys() - there.keys() - set(OPTIONAL_PORTS)
            if lacking:
                raise InputError(
                    f"{session.path}: {side} of {component}",
                    found=", ".join(there),
                    expected=", ".join(sorted(lacking)),
                )

    def need(self, *components: str) -> None:
        """Refuse a run that this package lacks components for.

        Raises:
            SourceNotFound: names what is missing and how to get it.
        """
        there = self.package.manifest["components"]
        missing = [c for c in components if c not in there]
        if missing:
            raise SourceNotFound(
                f"{self.package.root}: package lacks component {' and '.join(missing)}",
                found=", ".join(there),
                hint="export all components: ntool export-component SOURCE -o PKG",
            )

    def release(self, *components: str) -> None:
        """Unload components that are not needed any more."""
        self.sessions.release(*components)

    def defaults(self, task: str) -> dict[str, Any]:
        """The package's defaults for a task."""
        if task not in self.package.manifest["defaults"]:
            raise Unsupported(f"{self.package.root}: package.json has no defaults for task {task}")
        return dict(self.package.manifest["defaults"][task])

    # -- prompts to prefixes ------------------------------------------------------------------

    def encode(self, images: Sequence[Path], limits: tuple[int, int]) -> Pictures:
        """Features of pictures, resized into (least, most) pixels."""
        if not images:
            return self.no_pictures()
        self.need(*SEEING)
        loaded = [load_image(path) for path in images]
        made = [
            pictures.preprocess(image, *limits, self.sizes, f"{path}: picture")
            for image, path in zip(loaded, images, strict=True)
        ]
        rows, grids = zip(*made, strict=True)
        encoded = self.encode_rows(np.concatenate(rows), grids)
        return replace(encoded, sizes=tuple(image.size for image in loaded))

    def encode_rows(self, rows: np.ndarray, grids: Sequence[tuple[int, int]]) -> Pictures:
        """Features of patch rows [N, 3 P P] of pictures with patch grids (gh, gw)."""
        feeds: arrays.Arrays = {"pixel_values": rows, "grid_hw": np.array(grids, np.int64)}
        session = self.session("vision_encoder")
        with step(None, "encoding pictures", ""):
            features = session.run(feeds)["image_features"]
        m = self.sizes.merge
        return Pictures(features, tuple((gh // m, gw // m) for gh, gw in grids))

    def no_pictures(self) -> Pictures:
        """Features of no picture, which a text-only run feeds."""
        session = self.session("embedding")
        width = session.inputs["image_features"][1][1]
        return Pictures(session.cast("image_features", np.zeros((0, width), np.float32)), ())

    def prefill(
        self, request: Request, pictures: Pictures | None = None, *, all_logits: bool = False
    ) -> Prefix:
        """Run a request's query (or ids) through embedding and decoder.

        Args:
            pictures: its encoded pictures, where the caller has them already.
        Raises:
            InputError: ids outside the vocabulary; pictures and context tokens that do not match;
                logits that are not finite.
        """
        self.need(*(SEEING if request.images else READING))
        tokens, of_pictures = self.count_tokens(request)
        kept = tokens if all_logits else 1
        self.fits([self.planned.prefill(tokens, kept, of_pictures)])
        seen = pictures or self.encode(request.images, request.pixels())
        query = request.query if request.finished else request.template()
        prefix = self.prefill_query(
            query, seen, ids=request.ids, expand=not request.finished, all_logits=all_logits
        )
        prefix.words = {
            "task": request.task,
            "prompt": request.prompt,
            "query": query,
            "think": request.think,
            "text_length": prefix.ids.shape[1],
            "sizes": [list(size) for size in seen.sizes],
            "package": self.package.digest,
        }
        return prefix

    def count_tokens(self, request: Request) -> tuple[int, int]:
        """Tokens of a request's prompt, and how many of them are its pictures'; nothing is run."""
        if request.ids is not None:
            return len(request.ids), 0
        F, (lo, hi) = self.token_pixels, request.pixels()
        counts = []
        for path in request.images:
            width, height = load_image(path).size
            w, h = pictures.resized(width, height, lo, hi, F, f"{path}: picture")
            counts.append((w // F) * (h // F))
        if request.query is not None:
            return len(self.tokenizer.encode(request.query)), sum(counts)
        text = request.template().replace(prompts.PLACEHOLDER, "<img></img>")
        return len(self.tokenizer.encode(text)) + sum(counts), sum(counts)

    @property
    def device(self) -> tuple[str, int]:
        """(`cpu` or `cuda`, index)."""
        return self._settings.device

    @cached_property
    def planned(self) -> memory.Sizes:
        """Memory estimates of this package."""
        return memory.Sizes(self.sessions)

    def fits(self, phases: list[Phase]) -> None:
        """Refuse what does not fit into memory; see `Sessions.fits`."""
        self.sessions.fits(phases)

    def prefill_query(
        self,
        query: str | None,
        pictures: Pictures,
        *,
        ids: Sequence[int] | None = None,
        expand: bool = True,
        all_logits: bool = False,
    ) -> Prefix:
        """Run a query, or token ids, through embedding and decoder.

        Args:
            expand: each `<image>` of the query becomes the tokens of its picture.
        """
        if ids is None:
            assert query is not None
            counts = [h * w for h, w in pictures.grids]
            ids = self.tokenizer.encode(prompts.expand(query, counts) if expand else query)
        tokens = self.checked(ids)
        p = place.prompt_positions(
            tokens, self.tokens["<IMG_CONTEXT>"], self.tokens["<img>"], pictures.grids
        )
        shape = (3, 0)
        prefix = Prefix(
            tokens[:, :0], np.zeros(shape, np.int64), self.empty_cache(), np.zeros(0), {}
        )
        with step(None, "prefill", ""):
            self.extend(prefix, tokens, p, pictures, keep=tokens.shape[1] if all_logits else 1)
        return prefix

    def think(self, prefix: Prefix, limit: int = THINK_TOKENS) -> str:
        """Let the model think on an open `<think>`, close it, and open the picture.

        Greedy decoding; the end-of-turn token stops and is dropped, `</think>` stops and is kept.
        Returns:
            the thought with its special tokens, `</think>` included.
        """
        close = self.tokens["</think>"]
        thought = []
        for token in self.decode(prefix, limit):
            if token != self.tokens["<|im_end|>"]:
                thought.append(token)
            if token == close:
                break
        if thought and thought[-1] == close:
            self.append_text(prefix, [close])
        self.append_text(prefix, self.tokenizer.encode(prompts.AFTER_THOUGHT))
        text = self.tokenizer.decode(thought, skip_special=False)
        prefix.words["thought"] = text
        prefix.words["text_length"] = prefix.ids.shape[1]
        return text

    def append_text(self, prefix: Prefix, ids: Sequence[int]) -> None:
        """Add text tokens behind a prefix."""
        tokens = self.checked(ids)
        p = place.text_positions(prefix.next_t, tokens.shape[1])
        self.extend(prefix, tokens, p, self.no_pictures(), keep=1)

    def append_picture(self, prefix: Prefix, pictures: Pictures) -> None:
        """Add one picture's features and `</img>` behind a prefix that ends with `<img>`."""
        ((th, tw),) = pictures.grids
        t = prefix.next_t
        context = [self.tokens["<IMG_CONTEXT>"]] * (th * tw)
        tokens = self.checked([*context, self.tokens["</img>"]])
        p = np.concatenate([place.image_positions(t, th, tw), place.text_positions(t + 1, 1)], 1)
        self.extend(prefix, tokens, p, pictures, keep=1)

    def checked(self, ids: Sequence[int]) -> np.ndarray:
        """Token ids as int64 [1, S], none of them outside the embedding table.

        A Gather out of range is an error on one provider and silence on another.
        """
        tokens = np.asarray(ids, np.int64).reshape(1, -1)
        if tokens.size == 0:
            raise InputError("prompt: no tokens")
        bad = tokens[(tokens < 0) | (tokens >= self.vocab_size)]
        if bad.size:
            raise InputError(
                "prompt: token id", found=int(bad[0]), expected=f"0..{self.vocab_size - 1}"
            )
        return tokens

    def empty_cache(self) -> dict[str, np.ndarray]:
        """A cache of no tokens, from the manifest's cache list."""
        entries = self.package.manifest["cache"]
        if not entries:
            raise SourceNotFound(f"{self.package.root}: component 'decoder' is not in this package")
        return {
            e["input"]: np.zeros(
                [1 if d == "batch" else 0 if isinstance(d, str) else d for d in e["shape"]],
                e["dtype"],
            )
            for e in entries
        }

    def extend(
        self, prefix: Prefix, ids: np.ndarray, p: np.ndarray, pictures: Pictures, keep: int
    ) -> None:
        """Run tokens through the decoder on top of the prefix's cache, which grows in place.

        Args:
            ids: int64 [1, n]. p: their positions, int64 [3, n].
            keep: of how many last tokens the logits are computed.
        """
        embedding, decoder = self.session("embedding"), self.session("decoder")
        features = embedding.cast("image_features", pictures.features)
        embeds = embedding.run({"input_ids": ids, "image_features": features})["inputs_embeds"]
        out = decoder.run(
            {
                "inputs_embeds": decoder.cast("inputs_embeds", embeds),
                "position_ids": p,
                "logits_to_keep": np.array([keep], np.int64),
                **prefix.cache,
            },
            keep={entry["output"] for entry in self.package.manifest["cache"]},
        )
        prefix.logits = out["logits"]
        if not np.isfinite(prefix.logits).all():
            raise InputError("decoder: logits are not finite")
        for entry in self.package.manifest["cache"]:
            prefix.cache[entry["input"]] = out[entry["output"]]
        prefix.ids = np.concatenate([prefix.ids, ids], axis=1)
        prefix.positions = np.concatenate([prefix.positions, p], axis=1)

    def decode(self, prefix: Prefix, count: int) -> Iterator[int]:
        """Greedy continuation of at most `count` tokens; the stop token, included, ends it.

        A token joins the prefix when the next one is asked for, so a caller that breaks off at a
        token leaves the prefix in front of it.
        """
        stop = self.tokens["<|im_end|>"]
        for _ in tracked(range(count), count, "decoding", "token"):
            chosen = int(prefix.logits[0, -1].argmax())
            yield chosen
            if chosen == stop:
                return
            self.append_text(prefix, [chosen])

    def read_prefix(self, path: Path) -> Prefix:
        """A prefix file, checked against this package; see `prefix_file.read`."""
        ids, positions, cache, words = prefix_file.read(
            path, self.package, self.tokens["<IMG_CONTEXT>"], self.vocab_size
        )
        return Prefix(ids, positions, cache, np.zeros(0), words)

    # -- prefixes to pictures -------------------------------------------------------------------

    def noise_scale(self, width: int, height: int) -> float:
        """Noise standard deviation for a picture size; refuses sizes that are no whole tokens."""
        pictures.check_size(width, height, self.token_pixels)
        self.need(*DRAWING)
        rule = self.package.manifest["workflow"]["noise_scale"]
        return schedule.noise_scale(
            height // self.token_pixels,
            width // self.token_pixels,
            sigma_0=rule["scale"],
            mode=rule["mode"],
            base_image_seq_len=rule["base_tokens"],
            max_value=rule["max"],
            merge=1,  # the grid is counted in tokens already
        )

    def sample(
        self,
        branches: dict[str, Prefix],
        z: np.ndarray,
        scale: float,
        recipe: Recipe,
        on_step: Callable[[euler.Step], None],
        trace: euler.Trace | None = None,
        preview: Preview | None = None,
    ) -> np.ndarray:
        """Flow-matching sampling of one picture from z [1, 3, H, W]; returns the last z."""
        F = self.token_pixels
        embedder, denoiser = self.session("image_gen_embedding"), self.session("image_gen_denoiser")
        grid = (recipe.height // F, recipe.width // F)
        denoise = Denoising(embedder, denoiser, branches, z, scale, grid)
        stepper: euler.Stepper | None = None
        if device_step.used_on(self.device[0]):
            stepper = device_step.GraphStepper(recipe.guidance(F), recipe.t_eps, self._settings)

        def stepped(step: euler.Step) -> None:
            if preview is not None:  # by now what the step made is known to be finite
                before = preview.seen
                preview.show(step.index, recipe.steps, denoise.latest("cond"))
                if before and not preview.seen:
                    self._settings.note(f"{preview.path}: its reader has gone: no more previews")
            on_step(step)

        return euler.sample(
            z,
            schedule.timesteps(recipe.steps, recipe.shift),
            denoise,
            recipe.guidance(F),
            t_eps=recipe.t_eps,
            stepper=stepper,
            on_step=stepped,
            trace=trace,
        )
