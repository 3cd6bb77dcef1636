"""Running a qwen4_exp package: prompts to state and logits, and greedy tokens after them.

B rows, S tokens of a row, P cached tokens. What is fed to what is read from package.json
(workflow.py); no port of the decoder is known by its name but `logits`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError
from ...package.package import Package
from ...progress import step as shown
from ...progress import tracked
from ...runtime import arrays
from ...runtime.session import DEFAULT, Session, Settings, host_view, to_numpy
from ...runtime.sessions import Sessions
from . import memory
from . import positions as place
from .processor import MERGE
from .reader import Reader
from .request import TASK, Request
from .state import I64, NONE, Pictures, Prefix, features
from .workflow import GRIDS, LOGITS, PIXELS, read_workflow


class Pipeline:
    """A package with its sessions, loaded when first used.

    Attributes:
        reader: makes inputs of prompts, and text of tokens.
        workflow: how the components are run.
    """

    def __init__(self, package: Package, settings: Settings = DEFAULT) -> None:
        """Judge package.json; raises what `read_workflow` raises."""
        self.package = package
        self.workflow = read_workflow(package)
        self.reader = Reader(package, self.workflow)
        self.sessions = Sessions(package, settings, self._has_ports)
        self._kept = frozenset(s.output for s in self.workflow.states)
        self._empty: dict[str, Any] = {}

    def session(self, component: str) -> Session:
        """The loaded session of a component.

        Raises:
            InputError: its graph has not the ports that package.json gives it.
        """
        return self.sessions[component]

    def _has_ports(self, component: str, session: Session) -> None:
        entry = self.package.manifest["components"][component]
        for side, there in (("inputs", session.inputs), ("outputs", session.output_types)):
            wanted = {p["name"] for p in entry[side]}
            if wanted != there.keys():
                raise InputError(
                    f"{session.path}: {side} of {component}",
                    found=", ".join(sorted(there.keys() - wanted)) or "too few",
                    expected=", ".join(sorted(wanted - there.keys())) or "no others",
                )
        for p in entry["inputs"]:
            _, shape = session.inputs[p["name"]]
            fixed = [d if isinstance(d, int) else None for d in shape]
            if fixed != [d if isinstance(d, int) else None for d in p["shape"]]:
                raise InputError(
                    f"{session.path}: input '{p['name']}' of {component}: shape",
                    found=list(shape),
                    expected=p["shape"],
                )

    def prefill(self, request: Request, *, all_logits: bool = False, keep: bool = True) -> Prefix:
        """Run the prompts of a request.

        Args:
            keep: the state stays on the device, for decoding; else it is arrays.
        Raises:
            what `placed`, `see`, `tokens`, `batch` and `run` raise.
            EnvironmentProblem: it does not fit into memory.
        """
        reader = self.reader
        request = reader.placed(request)
        seen = reader.see(request)
        rows, texts = reader.tokens(request, seen)
        ids, mask = reader.batch(rows, request.pad)
        p, deltas = self.places(ids, mask, seen)
        self._fits(ids.shape, seen)
        prefix = self.run(ids, mask, p, deltas, seen, all_logits=all_logits, keep=keep)
        prefix.words = {
            "task": TASK,
            "prompt": _one(request.prompt),
            "query": _one(texts),
            "template": self._template(request),
            "think": request.think,
            "text_length": _one([len(row) for row in rows]),
            "sizes": [list(size) for size in seen.sizes],
            "package": self.package.digest,
        }
        return prefix

    def _template(self, request: Request) -> str | None:
        """Name of the file that the request's template is from; None: plain ChatML, or none."""
        template = self.reader.template if request.chats else None
        return Path(template.name).name if template is not None else None

    def places(self, ids: I64, mask: I64, seen: Pictures) -> tuple[I64, I64]:
        """Positions int64 [4, B, S] and deltas [B] of prompts.

        Raises:
            InputError: image tokens and features of pictures differ in number, as a whole or of one
                picture.
        """
        token = -1 if self.workflow.image_token is None else self.workflow.image_token
        there = int(np.count_nonzero((ids == token) & (mask != 0)))
        wanted = sum(features(seen.grids))
        if there != wanted:
            raise InputError(
                "prompt: image tokens",
                found=there,
                expected=f"{wanted}, the features of the pictures ({len(seen.grids)})",
                hint=f"each feature has its place in the prompt: id {token}, once for each",
            )
        return place.prompt_positions(ids, mask, seen.grids, token, MERGE)

    def _fits(self, shape: tuple[int, ...], seen: Pictures) -> None:
        names = self._names(seen)
        patches = [t * h * w for t, h, w in seen.grids]
        phase = memory.Sizes(self.sessions).prefill(names, shape[0], shape[1], patches)
        self.sessions.fits([phase], shorter="a shorter prompt, fewer rows or fewer pixels")

    def _names(self, seen: Pictures) -> tuple[str, ...]:
        """Components that run for a prompt."""
        return self.workflow.once if seen.grids else self.workflow.each_token

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
            for component in self.workflow.seeing:
                values[f"{component}.{PIXELS}"] = self.session(component).cast(PIXELS, seen.rows)
                values[f"{component}.{GRIDS}"] = np.array(seen.grids, np.int64)
        state = {s.input: s.empty(len(ids)) for s in self.workflow.states}
        with shown(None, "prefill", ""):
            logits, after = self._pass(self._names(seen), values, state, keep)
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
        logits, prefix.state = self._pass(self.workflow.each_token, values, prefix.state, True)
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
        chosen = np.zeros(len(prefix.ids), np.int64)
        for i in tracked(range(count), count, "decoding", "token"):
            best = prefix.logits[:, -1].astype(np.float32, copy=False).argmax(axis=-1)
            chosen = np.where(running, best, chosen)
            yield [int(t) if r else None for t, r in zip(chosen, running, strict=True)]
            running &= ~np.isin(chosen, self.workflow.stop)
            if not running.any() or i == count - 1:
                return
            self.reader.check_ids(chosen.tolist(), f"decode: token {i}")
            self.step(prefix, chosen)

    def _inputs(self, ids: I64, mask: I64, p: I64) -> dict[str, Any]:
        given = {"token_ids": ids, "attention_mask": mask, "position_ids": p}
        readers = self.workflow.inputs
        return {port: value for what, value in given.items() for port in readers[what]}

    def _pass(
        self, names: Sequence[str], values: dict[str, Any], state: dict[str, Any], keep: bool
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Run components one after the other; returns logits [B, S, V] and the state after them.

        The logits may lie in memory that is theirs for a short while: they are to be copied.

        Args:
            values: of the ports that inputs are for; of others too when it returns.
            state: of the last component, by its ports.
        """
        for name in names:
            session = self.session(name)
            edges = self.workflow.edges.get(name, ())
            feeds = {port: values.get(f"{name}.{port}") for port in session.inputs}
            kept = {e.port for e in edges if e.cast is None}
            if name == names[-1]:
                feeds |= state
                kept |= self._kept if keep else set()
                if session.on_host:  # what is on the host anyway is looked at where it lies
                    kept.add(LOGITS)
            for port, value in feeds.items():
                if value is None:  # what pictures would feed, and there are none
                    feeds[port] = self._nothing(session, name, port)
            out = session.run(feeds, keep=kept)
            for e in edges:
                value = out[e.port]
                values[e.target] = value if e.cast is None else value.astype(e.cast)
        logits = out[LOGITS]
        after = {s.input: out[s.output] for s in self.workflow.states}
        return logits if isinstance(logits, np.ndarray) else host_view(logits), after

    def _nothing(self, session: Session, component: str, port: str) -> Any:
        """An array of length 0 for an input, put on the device once."""
        key = f"{component}.{port}"
        if key not in self._empty:
            zeros = np.zeros(self.workflow.empty[key], np.float32)
            self._empty[key] = session.load({port: session.cast(port, zeros)})[port]
        return self._empty[key]

    def save(self, prefix: Prefix, path: Path) -> list[dict[str, Any]]:
        """Write the prefix file; returns its `tensor` records (name, dtype, shape, nbytes)."""
        state = {s.name: prefix.state[s.input] for s in self.workflow.states}
        tensors = {
            LOGITS: prefix.logits,
            **{k: v if isinstance(v, np.ndarray) else to_numpy(v) for k, v in state.items()},
            "token_ids": prefix.ids,
            "position_ids": prefix.positions,
            "attention_mask": prefix.mask,
        }
        arrays.save(path, tensors, prefix.words)
        return arrays.records(tensors)


def _refuse_nonfinite(logits: np.ndarray, real: I64) -> None:
    finite = np.isfinite(logits.astype(np.float32, copy=False))
    if finite.all():
        return
    bad = np.argwhere(~finite.all(axis=-1) & (real != 0))
    if len(bad):
        row, token = bad[0].tolist()
        raise InputError(f"decoder: logits of row {row} are not finite (position {token})")


def _one(values: Sequence[Any]) -> Any:
    """The value of a single row, a list of several, None of none."""
    return values[0] if len(values) == 1 else list(values) or None
