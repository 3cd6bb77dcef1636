"""Running a neo_chat package: prompts to prefixes, prefixes to words and pictures.

B sequences (1 here), S tokens of a prompt, L = th tw tokens of a picture, P cached tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError, SourceNotFound, Unsupported, UsageProblem
from ...package.package import Package
from ...runtime import arrays
from ...runtime.session import Session
from ...sampling import euler, guidance, schedule
from ...sampling.image import load_image
from ...text.tokenizer import Tokenizer, load
from . import positions as place
from . import processor as pictures
from . import prompts

TASKS = ("chat", "text-to-image", "unconditional")


@dataclass
class Prefix:
    """A prefilled prompt: what the decoder remembers of it, and where its next token would stand.

    Attributes:
        ids: int64 [1, S]. positions: int64 [3, S].
        cache: `past.I.key`, `past.I.value` [1, KV, S, hd].
        logits: [1, kept, V] of the last tokens.
        words: metadata of the prefix file: task, query, prompt, text length, package.
    """

    ids: np.ndarray
    positions: np.ndarray
    cache: dict[str, np.ndarray]
    logits: np.ndarray
    words: dict[str, Any] = field(default_factory=dict)

    @property
    def next_t(self) -> int:
        """Temporal index of the token that would follow: 1 + the greatest so far."""
        return int(self.positions[0].max()) + 1

    def save(self, path: Path) -> list[dict[str, Any]]:
        """Write the prefix file; returns its `tensor` records (name, dtype, shape)."""
        tensors = {
            "logits": self.logits,
            **self.cache,
            "token_ids": self.ids,
            "position_ids": self.positions,
        }
        arrays.save(path, tensors, self.words)
        return [
            {
                "name": k,
                "dtype": DTYPE_NAMES[v.dtype.name],
                "shape": list(v.shape),
                "nbytes": v.nbytes,
            }
            for k, v in tensors.items()
        ]


DTYPE_NAMES = {"float32": "F32", "float16": "F16", "int64": "I64"}


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a picture but the prompt and the weights.

    Attributes:
        width, height: pixels, multiples of the token side.
        steps: Euler steps. cfg: guidance scale. shift: of the schedule. t_eps: floor of 1 - t.
        interval: t range in which guidance applies, both ends included.
    """

    width: int
    height: int
    steps: int
    cfg: float
    cfg_norm: str
    interval: tuple[float, float]
    shift: float
    t_eps: float

    def guidance(self, tile: int) -> guidance.Guidance:
        """The guidance of a text-to-image run."""
        return guidance.Guidance(
            "text-to-image", cfg=self.cfg, interval=self.interval, norm=self.cfg_norm, tile=tile
        )


class Pipeline:
    """A package with its sessions, loaded when first used and kept for every further prompt."""

    def __init__(self, package: Package, device: tuple[str, int] = ("cpu", 0)) -> None:
        self.package, self._device = package, device
        self._sessions: dict[str, Session] = {}
        manifest = package.manifest
        if manifest.get("family") != "neo_chat":
            raise Unsupported(
                f"{package.root}: family", found=manifest.get("family"), expected="neo_chat"
            )
        self.tokenizer: Tokenizer = load(str(package.root / manifest["tokenizer"]))
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

    def session(self, component: str) -> Session:
        """The loaded session of a component."""
        if component not in self._sessions:
            self._sessions[component] = Session(self.package.graph(component), self._device)
        return self._sessions[component]

    def defaults(self, task: str) -> dict[str, Any]:
        """The package's defaults for a task."""
        return dict(self.package.manifest["defaults"][task])

    # -- prompts to prefixes ------------------------------------------------------------------

    def query(self, task: str, prompt: str, n_images: int, system: str | None) -> str:
        """The finished text of a task's prompt, `<image>` placeholders not yet expanded.

        Raises:
            UsageProblem: a picture for a task that takes none, or a system text for one without.
        """
        if n_images and task != "chat":
            raise UsageProblem(f"--image with task {task}", expected="task chat")
        if task == "chat":
            return prompts.chat(prompt, n_images, system=system or "")
        if task == "text-to-image":
            chosen = prompts.GENERATION_SYSTEM if system is None else system
            return prompts.text_to_image(prompt, system=chosen)
        if task == "unconditional":
            if prompt or system:
                raise UsageProblem("task unconditional takes no prompt and no system text")
            return prompts.unconditional()
        raise UsageProblem("--task", found=task, expected=" or ".join(TASKS))

    def encode_pictures(
        self, images: Sequence[Path], limits: tuple[int, int]
    ) -> tuple[np.ndarray, list[tuple[int, int]]]:
        """Features [image_tokens, D] of all pictures, and the token grid (th, tw) of each."""
        features = self.session("embedding").inputs["image_features"]
        if not images:
            return np.zeros((0, features[1][1]), np.float32), []
        p = self.package.manifest_processor()
        size = pictures.Processor(p["patch_size"], p["merge_size"])
        rows, grids = [], []
        for path in images:
            patch_rows, grid = pictures.preprocess(load_image(path), *limits, size)
            rows.append(patch_rows)
            grids.append(grid)
        feeds: arrays.Arrays = {
            "pixel_values": np.concatenate(rows),
            "grid_hw": np.array(grids, np.int64),
        }
        out = self.session("vision_encoder").run(feeds)["image_features"]
        return out, [(gh // size.merge, gw // size.merge) for gh, gw in grids]

    def prefill(
        self,
        query: str | None,
        *,
        task: str,
        finished: bool = False,
        prompt: str = "",
        ids: Sequence[int] | None = None,
        images: Sequence[Path] = (),
        limits: tuple[int, int] | None = None,
        all_logits: bool = False,
    ) -> Prefix:
        """Run a query (or token ids) through embedding and decoder.

        Args:
            finished: the query is taken as it is; else its `<image>` placeholders are expanded.
        Raises:
            InputError: ids outside the vocabulary; pictures and context tokens that do not match;
                logits that are not finite.
        """
        chosen = limits or pictures.pixel_limits("chat")
        features, grids = self.encode_pictures(images, chosen)
        if ids is None:
            assert query is not None
            text = query if finished else prompts.expand(query, [h * w for h, w in grids])
            ids = self.tokenizer.encode(text)
        tokens = self.checked(ids)
        p = place.prompt_positions(
            tokens, self.tokens["<IMG_CONTEXT>"], self.tokens["<img>"], grids
        )
        prefix = Prefix(tokens, p, self.empty_cache(), np.zeros(0), {})
        self._extend(prefix, tokens, p, features, keep=tokens.shape[1] if all_logits else 1)
        prefix.words = {
            "task": task,
            "prompt": prompt,
            "query": query,
            "text_length": tokens.shape[1],
            "images": len(images),
            "package": self.package.digest,
        }
        return prefix

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

    def _extend(
        self, prefix: Prefix, ids: np.ndarray, p: np.ndarray, features: np.ndarray, keep: int
    ) -> None:
        """Run tokens through the decoder on top of the prefix's cache, which grows in place."""
        feeds = {"input_ids": ids, "image_features": features}
        embeds = self.session("embedding").run(feeds)["inputs_embeds"]
        out = self.session("decoder").run(
            {
                "inputs_embeds": embeds,
                "position_ids": p,
                "logits_to_keep": np.array([keep], np.int64),
                **prefix.cache,
            }
        )
        prefix.logits = out["logits"]
        if not np.isfinite(prefix.logits).all():
            raise InputError("decoder: logits are not finite")
        for entry in self.package.manifest["cache"]:
            prefix.cache[entry["input"]] = out[entry["output"]]

    def decode(self, prefix: Prefix, count: int) -> Iterator[int]:
        """Greedy continuation: token ids, the stop token included, which ends it. The prefix
        grows."""
        stop = self.tokens["<|im_end|>"]
        none = self.encode_pictures((), (0, 0))[0]
        for _ in range(count):
            chosen = int(prefix.logits[0, -1].argmax())
            yield chosen
            if chosen == stop:
                return
            p = place.text_positions(prefix.next_t, 1)
            ids = np.array([[chosen]], np.int64)
            prefix.ids = np.concatenate([prefix.ids, ids], axis=1)
            prefix.positions = np.concatenate([prefix.positions, p], axis=1)
            self._extend(prefix, ids, p, none, keep=1)

    def read_prefix(self, path: Path) -> Prefix:
        """A prefix file, checked against this package.

        Raises:
            InputError: an array is missing or has another shape than the package's cache, or the
                file was made with another package.
        """
        tensors, words = arrays.load(path)
        if words.get("package") != self.package.digest:
            raise InputError(
                f"{path}: made with package",
                found=words.get("package"),
                expected=self.package.digest,
            )
        for name in ("token_ids", "position_ids"):
            if name not in tensors:
                raise InputError(f"{path}: tensor '{name}' is missing")
        ids, p = tensors["token_ids"], tensors["position_ids"]
        if ids.ndim != 2 or p.shape != (3, ids.shape[1]) or p.dtype != np.int64 or not ids.size:
            raise InputError(f"{path}: position_ids", found=list(p.shape), expected="[3, S], int64")
        cache = {}
        for entry in self.package.manifest["cache"]:
            name = entry["input"]
            if name not in tensors:
                raise InputError(f"{path}: tensor '{name}' is missing")
            dims = {"batch": 1, "past_sequence": ids.shape[1]}
            wanted = tuple(dims.get(d, d) for d in entry["shape"])
            found = tensors[name]
            if found.shape != wanted or found.dtype.name != entry["dtype"]:
                raise InputError(
                    f"{path}: tensor '{name}'",
                    found=f"{found.dtype} {list(found.shape)}",
                    expected=f"{entry['dtype']} {list(wanted)}",
                )
            cache[name] = found
        return Prefix(ids, p, cache, tensors.get("logits", np.zeros(0)), dict(words))

    # -- prefixes to pictures -------------------------------------------------------------------

    def noise_scale(self, width: int, height: int) -> float:
        """Noise standard deviation for a picture size; refuses sizes that are no whole tokens."""
        pictures.check_size(width, height, self.token_pixels)
        rule = self.package.manifest["workflow"]["tasks"]["text-to-image"]["noise_scale"]
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
    ) -> np.ndarray:
        """Flow-matching sampling of one picture from z [1, 3, H, W]; returns the last z.

        The picture is embedded once a step and denoised once a branch. Each branch places the
        picture behind its own prefix.
        """
        F = self.token_pixels
        th, tw = recipe.height // F, recipe.width // F
        embedder, denoiser = self.session("image_gen_embedding"), self.session("image_gen_denoiser")
        noise = np.array([scale], np.float32)
        fixed = {
            name: {
                "position_ids": place.image_positions(prefix.next_t, th, tw),
                "token_grid": np.array([th, tw], np.int64),
                **prefix.cache,
            }
            for name, prefix in branches.items()
        }

        def model(
            z: np.ndarray, t: np.float32, step: int, names: tuple[str, ...]
        ) -> dict[str, np.ndarray]:
            feeds = {"z": z, "timestep": np.array([t], np.float32), "noise_scale": noise}
            embeds = embedder.run(feeds)["inputs_embeds"]
            return {n: denoiser.run({"inputs_embeds": embeds, **fixed[n]})["x0"] for n in names}

        t = schedule.timesteps(recipe.steps, recipe.shift)
        return euler.sample(
            z, t, model, recipe.guidance(F), t_eps=recipe.t_eps, on_step=on_step, trace=trace
        )
