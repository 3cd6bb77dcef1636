"""Running a qwen4_exp package: prompts to state and logits, and greedy tokens after them.

B rows, S tokens of a row, P cached tokens. What is fed to what is read from package.json: `workflow`
(inputs, edges, tasks) and `cache`; no port of the decoder is known by its name but `logits`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError, SourceNotFound, Unsupported, UsageProblem
from ...package import layout
from ...package.package import Package
from ...runtime import arrays
from ...runtime import memory as machine
from ...runtime.session import DEFAULT, Session, Settings, host_view, to_numpy
from ...sampling.image import load_image
from ...text.chat_template import Template, read_template
from ...text.tokenizer import Tokenizer
from ...text.tokenizer_json import load_any
from . import memory, prompts
from . import positions as place
from . import processor as pictures
from .request import NAME, TASK, Request

I64 = NDArray[np.int64]
LOGITS = "logits"
PIXELS, GRIDS = "pixel_values", "image_grid_thw"
"""Inputs of the component that sees (docs/qwen4-exp.md, "Vision tower")."""


@dataclass(frozen=True)
class State:
    """One tensor of the decoder's state, from the package's cache list.

    Attributes:
        name: in prefix files: `past.LAYER.ROLE`, or `past.ROLE` of a state of no layer.
        input, output: ports of the decoder.
        shape: numbers, or names of symbolic dimensions. grows: the axis that a token makes longer.
        initial: every value before the first token.
    """

    name: str
    input: str
    output: str
    dtype: str
    shape: tuple[int | str, ...]
    grows: int | None
    initial: int

    def empty(self, rows: int) -> np.ndarray:
        """The state of a batch before its first token."""
        shape = [
            0 if axis == self.grows else rows if isinstance(d, str) else d
            for axis, d in enumerate(self.shape)
        ]
        return np.full(shape, self.initial, self.dtype)


def read_states(entries: Iterable[Mapping[str, Any]]) -> tuple[State, ...]:
    """The `cache` of a package.json."""
    found = []
    for e in entries:
        layer = e["layer"]
        name = f"past.{e['role']}" if layer is None else f"past.{layer}.{e['role']}"
        shape = tuple(e["shape"])
        initial = e.get("initial", 0)
        found.append(
            State(name, e["input"], e["output"], e["dtype"], shape, e.get("grows"), initial)
        )
    return tuple(found)


@dataclass(frozen=True)
class Pictures:
    """Pictures as the vision encoder takes them.

    Attributes:
        rows: float32 [patches, 1536], picture after picture.
        grids: (1, h, w) in patches of each.
        sizes: (width, height) in pixels of each before it was resized.
    """

    rows: np.ndarray
    grids: tuple[tuple[int, int, int], ...] = ()
    sizes: tuple[tuple[int, int], ...] = ()


NONE = Pictures(np.zeros((0, 1536), np.float32))


@dataclass
class Prefix:
    """A batch after its prompt, or after some tokens more.

    Attributes:
        ids, mask: int64 [B, S]; 0 in the mask at left padding.
        positions: int64 [4, B, S].
        deltas: int64 [B], what channels 1 to 3 of the next positions are ahead of channel 0.
        state: arrays, or OrtValues where they stay on the device, by decoder input.
        logits: [B, kept, V] of the last tokens.
        words: metadata of the prefix file.
    """

    ids: I64
    mask: I64
    positions: I64
    deltas: I64
    state: dict[str, Any]
    logits: np.ndarray
    words: dict[str, Any] = field(default_factory=dict)


class Pipeline:
    """A package with its sessions, loaded when first used."""

    def __init__(self, package: Package, settings: Settings = DEFAULT) -> None:
        self.package, self._settings = package, settings
        self._sessions: dict[str, Session] = {}
        m = package.manifest
        if m.get("family") != NAME:
            raise Unsupported(f"{package.root}: family", found=m.get("family"), expected=NAME)
        self._where = f"{package.root}: {layout.MANIFEST}"
        self.vocab_size: int = m["vocab_size"]
        self.workflow: dict[str, Any] = m["workflow"]
        self.states = read_states(m["cache"])
        if TASK not in self.workflow["tasks"]:
            raise SourceNotFound(
                f"{package.root}: package lacks components for task {TASK}",
                found=", ".join(m["components"]),
                hint="export all components: ntool export-component SOURCE -o PKG",
            )
        task = self.workflow["tasks"][TASK]
        self.once: list[str] = task["once"]
        self.each_token: list[str] = task["decode"]["each_token"]
        self.stop: list[int] = task["decode"]["stop_token_ids"]
        rule = self.workflow["positions"]
        if rule["rule"] != "mrope" or rule["channels"] != 4 or rule["merge_size"] != pictures.MERGE:
            raise Unsupported(
                f"{self._where}: workflow.positions", found=rule, expected="rule mrope, 4 channels"
            )
        self.image_token: int | None = rule["image_token_id"]
        self.vision_tokens = [rule["vision_start_token_id"], rule["vision_end_token_id"]]
        self.unsupported = {i for c in m["components"].values() for i in c["unsupported_token_ids"]}
        self._targets: dict[str, list[tuple[str, str, str | None]]] = {}
        for edge in self.workflow["edges"]:
            component, port = edge["from"].split(".", 1)
            self._targets.setdefault(component, []).append((port, edge["to"], edge.get("cast")))
        self._kept = {s.output for s in self.states}

    # -- package ------------------------------------------------------------------------------

    def session(self, component: str) -> Session:
        """The loaded session of a component.

        Raises:
            InputError: its graph has not the ports that package.json gives it.
        """
        if component not in self._sessions:
            self.package.check_data(component)
            session = Session(self.package.graph(component), self._settings)
            entry = self.package.manifest["components"][component]
            for side, there in (("inputs", session.inputs), ("outputs", session.output_types)):
                wanted = {p["name"] for p in entry[side]}
                if wanted != there.keys():
                    raise InputError(
                        f"{session.path}: {side} of {component}",
                        found=", ".join(sorted(there.keys() - wanted)) or "too few",
                        expected=", ".join(sorted(wanted - there.keys())) or "no others",
                    )
            self._sessions[component] = session
        return self._sessions[component]

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """The package's tokenizer; None where it has none."""
        if self.package.manifest["tokenizer"] is None:
            return None
        return load_any(self.package.tokenizer_folder())

    def need_tokenizer(self, what: str) -> Tokenizer:
        """The tokenizer.

        Args:
            what: option that cannot do without.
        Raises:
            SourceNotFound: the package has none.
        """
        if self.tokenizer is None:
            raise SourceNotFound(
                f"{self.package.root}/{layout.TOKENIZER}/tokenizer.json: no such file, "
                f"and {what} needs a tokenizer",
                hint="--tokens takes token ids",
            )
        return self.tokenizer

    @cached_property
    def template(self) -> Template | None:
        """The package's chat template; None where it has none."""
        self.need_tokenizer("a chat template")
        return read_template(self.package.tokenizer_folder())

    @cached_property
    def placeholder(self) -> str | None:
        """Text that stands for a picture in a prompt: the image token's spelling.

        Raises:
            InputError: the tokenizer has no such token.
        """
        return None if self.image_token is None else self.spelling(self.image_token)

    def spelling(self, token: int) -> str:
        """A token of package.json as the tokenizer spells it.

        Raises:
            InputError: it has no such token.
        """
        found = self.need_tokenizer("a picture").token(token)
        if found is None:
            raise InputError(f"{self._where}: token id is not in the tokenizer", found=token)
        return found

    def text(self, ids: Sequence[int], *, skip_special: bool = False) -> str | None:
        """Text of tokens; None without a tokenizer, or for ids that it has no token for."""
        if self.tokenizer is None or any(i >= self.tokenizer.size for i in ids):
            return None
        return self.tokenizer.decode(ids, skip_special=skip_special)

    # -- prompts ------------------------------------------------------------------------------

    def see(self, request: Request) -> Pictures:
        """The pictures of a request as patch rows; nothing is run.

        Raises:
            SourceNotFound: the package has no vision encoder.
        """
        if not request.images:
            return NONE
        if self.image_token is None or self.package.manifest["processor"] is None:
            raise SourceNotFound(
                f"{self.package.root}: package takes no pictures",
                found=", ".join(self.package.manifest["components"]),
                hint="export it without --text-only",
            )
        where = f"{self.package.root}: {layout.PROCESSOR}"
        p = pictures.from_package(self.package.manifest_processor(), where)
        least, most = (
            own if own is not None else usual
            for own, usual in zip(request.limits, (p.min_pixels, p.max_pixels), strict=True)
        )
        if least > most:
            raise UsageProblem("--min-pixels", found=least, expected=f"<= {most}, the most pixels")
        p = pictures.Processor(least, most, p.mean, p.std)
        loaded = [load_image(path) for path in request.images]
        made = [pictures.preprocess(image, p) for image in loaded]
        rows, grids = zip(*made, strict=True)
        return Pictures(np.concatenate(rows), grids, tuple(i.size for i in loaded))

    def tokens(self, request: Request, seen: Pictures) -> tuple[list[list[int]], list[str]]:
        """Token ids of each row, and the finished texts that they are from.

        A finished text and ids are taken as they are; the placeholders of a template become as many
        image tokens as their pictures have.

        Raises:
            SourceNotFound: no tokenizer. UsageProblem: placeholders and pictures differ in number.
        """
        if request.ids:
            return [list(row) for row in request.ids], []
        if request.query is not None:
            query = request.query
            return [self.need_tokenizer("--query").encode(query)], [query]
        tokenizer = self.need_tokenizer("--prompt and --messages")
        mark = self.placeholder
        chats = [list(chat) for chat in request.chats]
        if mark is not None and len(chats) == 1:
            chats = [prompts.with_pictures(chats[0], len(request.images), mark)]
        elif mark is not None:
            there = sum(prompts.placeholders(m, mark) for chat in chats for m in chat)
            if there != len(request.images):
                raise UsageProblem(
                    f"several prompts: {mark} placeholders",
                    found=there,
                    expected=f"{len(request.images)}, the number of pictures",
                )
        picture = ""
        if request.images:
            start, end = (self.spelling(i) for i in self.vision_tokens)
            picture = f"{start}{mark}{end}"
        texts = [prompts.rendered(c, self.template, request.think, picture) for c in chats]
        rows = [tokenizer.encode(text) for text in texts]
        if self.image_token is None:
            return rows, texts
        return prompts.expand(rows, self.image_token, features(seen.grids)), texts

    def batch(self, rows: Sequence[Sequence[int]], pad: int | None) -> tuple[I64, I64]:
        """Ids and mask int64 [B, S] of rows, padded on the left.

        Args:
            pad: id at padded positions; None: the first stop token.
        Raises:
            InputError: an empty row; an id outside the vocabulary (a Gather out of range is an
                error on one provider and silence on another); a token of video.
        """
        if pad is None:
            pad = self.stop[0] if self.stop else 0
        if pad in self.unsupported or pad == self.image_token:
            raise UsageProblem("--pad: a token of pictures or video", found=pad)
        self._check_ids([pad], "--pad")
        longest = max(map(len, rows))
        ids = np.full((len(rows), longest), pad, np.int64)
        mask = np.zeros_like(ids)
        for b, row in enumerate(rows):
            if not row:
                raise InputError("prompt: no tokens")
            self._check_ids(row, "prompt")
            ids[b, longest - len(row) :] = row
            mask[b, longest - len(row) :] = 1
        return ids, mask

    def _check_ids(self, ids: Sequence[int], what: str) -> None:
        for i in ids:
            if not 0 <= i < self.vocab_size:
                raise InputError(
                    f"{what}: token id", found=i, expected=f"0..{self.vocab_size - 1}"
                )
            if i in self.unsupported:
                raise InputError(
                    f"{what}: token id {i} is that of a video: video is not supported",
                    expected="text and pictures",
                )

    # -- running ------------------------------------------------------------------------------

    def prefill(
        self, request: Request, *, all_logits: bool = False, keep: bool = True
    ) -> Prefix:
        """Run the prompts of a request.

        Args:
            keep: the state stays on the device, for decoding; else it is arrays.
        Raises:
            what `see`, `tokens`, `batch` and `run` raise.
            EnvironmentProblem: it does not fit into memory.
        """
        seen = self.see(request)
        rows, texts = self.tokens(request, seen)
        ids, mask = self.batch(rows, request.pad)
        p, deltas = self.places(ids, mask, seen)
        self._fits(ids.shape, seen)
        prefix = self.run(ids, mask, p, deltas, seen, all_logits=all_logits, keep=keep)
        prefix.words = {
            "task": TASK,
            "prompt": _one(request.prompt),
            "query": _one(texts),
            "template": self.template.name if request.chats and self.template else None,
            "think": request.think,
            "text_length": _one([len(row) for row in rows]),
            "sizes": [list(size) for size in seen.sizes],
            "package": self.package.digest,
        }
        if prefix.words["template"]:
            prefix.words["template"] = Path(prefix.words["template"]).name
        return prefix

    def places(self, ids: I64, mask: I64, seen: Pictures) -> tuple[I64, I64]:
        """Positions int64 [4, B, S] and deltas [B] of prompts.

        Raises:
            InputError: image tokens and features of pictures differ in number, as a whole or of one
                picture.
        """
        token = -1 if self.image_token is None else self.image_token
        there = int(np.count_nonzero((ids == token) & (mask != 0)))
        wanted = sum(features(seen.grids))
        if there != wanted:
            raise InputError(
                "prompt: image tokens",
                found=there,
                expected=f"{wanted}, the features of {len(seen.grids)} pictures",
            )
        return place.prompt_positions(ids, mask, seen.grids, token, pictures.MERGE)

    def _fits(self, shape: tuple[int, ...], seen: Pictures) -> None:
        sizes = memory.Sizes(self.package, self._settings.low_memory, self._settings.device[0])
        names = [c for c in self.once if seen.grids or c not in self.seeing]
        patches = [t * h * w for t, h, w in seen.grids]
        machine.check(
            [sizes.prefill(names, shape[0], shape[1], patches)],
            self._settings.device,
            low_memory=self._settings.low_memory,
            shorter="a shorter prompt, fewer rows or fewer pixels",
        )

    @cached_property
    def seeing(self) -> frozenset[str]:
        """Components that run for pictures alone: those of a prompt that no token needs."""
        return frozenset(self.once) - frozenset(self.each_token)

    def run(
        self,
        ids: I64,
        mask: I64,
        p: I64,
        deltas: I64,
        seen: Pictures = NONE,
        *,
        all_logits: bool = False,
        keep: bool = True,
    ) -> Prefix:
        """Run prompts of a batch, given as arrays, from the empty state.

        Args:
            ids, mask: int64 [B, S]. p: int64 [4, B, S]. deltas: int64 [B].
        Raises:
            InputError: logits that are not finite at a real token.
        """
        values: dict[str, Any] = self._inputs(ids, mask, p)
        if seen.grids:
            for component in self.seeing:
                values[f"{component}.{PIXELS}"] = self.session(component).cast(PIXELS, seen.rows)
                values[f"{component}.{GRIDS}"] = np.array(seen.grids, np.int64)
        state = {s.input: s.empty(len(ids)) for s in self.states}
        names = [c for c in self.once if seen.grids or c not in self.seeing]
        logits, after = self._pass(names, values, state, keep)
        kept = np.array(logits if all_logits else logits[:, -1:])
        real = mask if all_logits else np.ones((len(ids), 1), np.int64)
        _refuse_nonfinite(kept, real)
        return Prefix(ids, mask, p, deltas, after, kept)

    def step(self, prefix: Prefix, chosen: I64) -> None:
        """Run one token of each row behind a prefix, which grows in place.

        Args:
            chosen: int64 [B].
        """
        ids = np.ascontiguousarray(chosen, np.int64).reshape(-1, 1)
        p = place.next_positions(prefix.mask, prefix.deltas)
        prefix.mask = np.concatenate([prefix.mask, np.ones_like(ids)], axis=1)
        values = self._inputs(ids, prefix.mask, p)
        logits, prefix.state = self._pass(self.each_token, values, prefix.state, True)
        prefix.logits = np.array(logits[:, -1:])
        _refuse_nonfinite(prefix.logits, np.ones_like(ids))
        prefix.ids = np.concatenate([prefix.ids, ids], axis=1)
        prefix.positions = np.concatenate([prefix.positions, p], axis=2)

    def decode(self, prefix: Prefix, count: int) -> Iterator[list[int | None]]:
        """Greedy continuation by at most `count` tokens: of each step the token of each row.

        A row ends with its stop token, included, and is None from then on; rows that have ended
        are fed their stop token, which no other row sees. A token joins the prefix when the next
        one is asked for.
        """
        running = np.ones(len(prefix.ids), bool)
        for i in range(count):
            chosen = prefix.logits[:, -1].astype(np.float32, copy=False).argmax(axis=-1)
            yield [int(t) if r else None for t, r in zip(chosen, running, strict=True)]
            running &= ~np.isin(chosen, self.stop)
            if not running.any() or i == count - 1:
                return
            self.step(prefix, chosen)

    def _inputs(self, ids: I64, mask: I64, p: I64) -> dict[str, Any]:
        given = {"token_ids": ids, "attention_mask": mask, "position_ids": p}
        ports = self.workflow["inputs"]
        return {port: value for name, value in given.items() for port in ports.get(name, ())}

    def _pass(
        self, names: list[str], values: dict[str, Any], state: dict[str, Any], keep: bool
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Run components one after the other; returns logits [B, S, V] and the state after them.

        The logits may lie in memory that is theirs for a short while: they are to be copied.
        """
        for name in names:
            session = self.session(name)
            feeds: dict[str, Any] = {}
            for port in session.inputs:
                if port in state:
                    feeds[port] = state[port]
                elif f"{name}.{port}" in values:
                    feeds[port] = values[f"{name}.{port}"]
                else:  # of a component that is left out: features of no pictures
                    feeds[port] = self._nothing(name, port)
            passed = {p for p, _, cast in self._targets.get(name, ()) if cast is None}
            on_device = passed | (self._kept if keep else set())
            if self._settings.device[0] == "cpu":
                on_device = on_device | {LOGITS}
            out = session.run(feeds, keep=on_device)
            for port, target, cast in self._targets.get(name, ()):
                values[target] = out[port] if cast is None else out[port].astype(cast)
        logits = out[LOGITS]
        if not isinstance(logits, np.ndarray):
            logits = host_view(logits)
        return logits, {s.input: out[s.output] for s in self.states}

    def _nothing(self, component: str, port: str) -> Any:
        """An array of length 0 for an input, put on the device once."""
        key = f"{component}.{port}"
        if key not in self._empty:
            session = self.session(component)
            shape = [d if isinstance(d, int) else 0 for d in session.inputs[port][1]]
            empty = session.cast(port, np.zeros(shape, np.float32))
            self._empty[key] = session.load({port: empty})[port]
        return self._empty[key]

    @cached_property
    def _empty(self) -> dict[str, Any]:
        return {}

    def save(self, prefix: Prefix, path: Path) -> list[dict[str, Any]]:
        """Write the prefix file; returns its `tensor` records (name, dtype, shape, nbytes)."""
        state = {s.name: prefix.state[s.input] for s in self.states}
        tensors = {
            LOGITS: prefix.logits,
            **{k: v if isinstance(v, np.ndarray) else to_numpy(v) for k, v in state.items()},
            "token_ids": prefix.ids,
            "position_ids": prefix.positions,
            "attention_mask": prefix.mask,
        }
        arrays.save(path, tensors, prefix.words)
        return [
            {
                "name": k,
                "dtype": arrays.NAMES[v.dtype.name],
                "shape": list(v.shape),
                "nbytes": v.nbytes,
            }
            for k, v in tensors.items()
        ]


def features(grids: Iterable[tuple[int, int, int]]) -> list[int]:
    """Image tokens of each picture."""
    return [t * h * w // pictures.MERGE**2 for t, h, w in grids]


def _refuse_nonfinite(logits: np.ndarray, real: I64) -> None:
    finite = np.isfinite(logits.astype(np.float32, copy=False)).all(axis=-1)
    bad = np.argwhere(~finite & (real != 0))
    if len(bad):
        row, token = bad[0].tolist()
        raise InputError(f"decoder: logits of row {row} are not finite (position {token})")


def _one(values: Sequence[Any]) -> Any:
    """The value of a single row, a list of several, None of none."""
    return values[0] if len(values) == 1 else list(values) or None
