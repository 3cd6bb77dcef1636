"""From a request to the inputs of a qwen4_exp package: token ids, masks, patch rows of pictures.

Nothing is run here. B rows, S tokens of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ...errors import InputError, SourceNotFound, Unsupported, UsageProblem
from ...package import layout
from ...package.package import Package
from ...sampling.image import load_image
from ...text.chat_template import Template, read_template
from ...text.tokenizer import Tokenizer
from ...text.tokenizer_json import load_any
from . import processor as pictures
from . import prompts
from .request import Request
from .state import I64, NONE, Pictures, features
from .workflow import Workflow


class Reader:
    """The prompts of a package: its tokenizer, template and processor, read when first used.

    Attributes:
        unsupported: ids that no component takes.
    """

    def __init__(self, package: Package, workflow: Workflow) -> None:
        m = package.manifest
        self.package, self._workflow = package, workflow
        self._image_token = workflow.image_token
        self._where = f"{package.root}: {layout.MANIFEST}"
        self.vocab_size: int = m["vocab_size"]
        rule: dict[str, Any] = m["workflow"]["positions"]
        self._around: list[int] = [rule["vision_start_token_id"], rule["vision_end_token_id"]]
        self._components: dict[str, Any] = m["components"]
        refused = [i for c in self._components.values() for i in c["unsupported_token_ids"]]
        self.unsupported = frozenset(refused)

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
                f"and there is no tokenizer for {what}",
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
        return None if self._image_token is None else self.spelling(self._image_token)

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

    def placed(self, request: Request) -> Request:
        """The request with a place for each picture: see `prompts.placed`.

        Raises:
            SourceNotFound: no tokenizer. UsageProblem: places and pictures differ in number.
        """
        if not request.chats:
            return request
        self.need_tokenizer("--prompt and --messages")
        return prompts.placed(request, self.placeholder)

    def see(self, request: Request) -> Pictures:
        """The pictures of a request that are placed, as patch rows; nothing is run.

        Raises:
            SourceNotFound: the package has no vision encoder, or no processor.json.
            what `load_image` and `preprocess` raise.
        """
        if not request.images:
            return NONE
        if self._image_token is None or not self._workflow.seeing <= set(self._components):
            raise SourceNotFound(
                f"{self.package.root}: package takes no pictures",
                found=", ".join(self._components),
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
        made = []
        for path in request.images:
            image = load_image(path, upright=True)
            made.append((*pictures.preprocess(image, p, f"{path}: picture"), image.size))
        rows, grids, sizes = zip(*made, strict=True)
        return Pictures(np.concatenate(rows), grids, sizes)

    def tokens(self, request: Request, seen: Pictures) -> tuple[list[list[int]], list[str]]:
        """Token ids of each row of a request whose pictures are placed, and the finished texts that
        they are from.

        Ids are taken as they are, and so is a finished text, unless it has one image token for each
        picture; those of a conversation's text become as many image tokens as their pictures have.

        Raises:
            SourceNotFound: no tokenizer.
            InputError: a template that writes more or fewer image tokens than there are pictures.
        """
        if request.ids:
            return [list(row) for row in request.ids], []
        counts = features(seen.grids)
        if request.query is not None:
            query = request.query
            row = self.need_tokenizer("--query").encode(query)
            if self._image_token is not None and row.count(self._image_token) == len(counts):
                row = prompts.expand([row], self._image_token, counts)[0]
            return [row], [query]
        tokenizer = self.need_tokenizer("--prompt and --messages")
        picture = ""
        if request.images:
            start, end = (self.spelling(i) for i in self._around)
            picture = f"{start}{self.placeholder}{end}"
        texts = [prompts.rendered(c, self.template, request.think, picture) for c in request.chats]
        rows = [tokenizer.encode(text) for text in texts]
        if self._image_token is None:
            return rows, texts
        return prompts.expand(rows, self._image_token, counts), texts

    def batch(self, rows: Sequence[Sequence[int]], pad: int | None) -> tuple[I64, I64]:
        """Ids and mask int64 [B, S] of rows, padded on the left.

        Args:
            pad: id at padded positions; None: the first stop token.
        Raises:
            InputError: an empty row; an id outside the vocabulary (a Gather out of range is an
                error on one provider and silence on another).
            Unsupported: a token of video. UsageProblem: such a one, or that of pictures, to pad.
        """
        if pad is None:
            pad = next(iter(self._workflow.stop), 0)
        if pad in self.unsupported or pad == self._image_token:
            raise UsageProblem("--pad: a token of pictures or video", found=pad)
        self.check_ids([pad], "--pad")
        longest = max(map(len, rows))
        ids = np.full((len(rows), longest), pad, np.int64)
        mask = np.zeros_like(ids)
        for b, row in enumerate(rows):
            if not row:
                raise InputError("prompt: no tokens")
            self.check_ids(row, "prompt")
            ids[b, longest - len(row) :] = row
            mask[b, longest - len(row) :] = 1
        return ids, mask

    def check_ids(self, ids: Sequence[int], what: str) -> None:
        """Refuse ids that the package has no embedding for.

        Raises:
            InputError: outside the vocabulary. Unsupported: a token of video.
        """
        for i in ids:
            if not 0 <= i < self.vocab_size:
                raise InputError(f"{what}: token id", found=i, expected=f"0..{self.vocab_size - 1}")
            if i in self.unsupported:
                raise Unsupported(
                    f"{what}: token id {i} is that of a video: video is not supported",
                    expected="text and pictures",
                )
