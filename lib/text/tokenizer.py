"""Byte-level BPE tokenizers of the Qwen2 kind, from vocab.json, merges.txt and the added tokens."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..checkpoint.paths import read_inside
from ..checkpoint.strict_json import load_object
from ..errors import InputError, SourceNotFound, Unsupported

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

MAX_BYTES = 256 << 20
"""Cap on each file; that of the largest public vocabulary is about 10 MB."""

CLASSES = ("Qwen2Tokenizer", "Qwen2TokenizerFast")

PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Where a text is split before BPE: the pattern of the Qwen2 tokenizer."""


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token matched literally before BPE. `special` ones vanish in skip-special decoding."""

    id: int
    content: str
    special: bool


@dataclass(slots=True)
class Tokenizer:
    """Text to ids and back.

    Attributes:
        folder: where it was read from, for messages.
        added: the added tokens, by id.
        size: number of tokens, added ones included; ids are 0..size - 1.
        missing_bytes: bytes that the vocabulary has no symbol for; empty in a complete one.
    """

    folder: str
    added: tuple[AddedToken, ...]
    size: int
    missing_bytes: frozenset[int]
    _backend: Backend = field(repr=False)

    def encode(self, text: str) -> list[int]:
        """Token ids of a finished prompt. Nothing is put in front or behind.

        Raises:
            InputError: a lone surrogate, or a byte that the vocabulary cannot spell (the BPE would
                drop it silently).
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as e:
            raise InputError(f"text: lone surrogate at character {e.start}") from e
        if self.missing_bytes:
            self._refuse_missing(text)
        with panics(f"{self.folder}: the tokenizer fails on this text"):
            return list(self._backend.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Text of ids; bytes that are not UTF-8 become U+FFFD. No clean-up of spaces.

        Raises:
            InputError: an id outside 0..size - 1.
        """
        ids = [int(i) for i in ids]
        for i in ids:
            if not 0 <= i < self.size:
                raise InputError("token id", found=i, expected=f"0..{self.size - 1}")
        return str(self._backend.decode(ids, skip_special_tokens=skip_special))

    def token(self, i: int) -> str | None:
        """Exact spelling of a token by its id in the vocabulary; None where there is none."""
        found = self._backend.id_to_token(i)
        return None if found is None else str(found)

    def id(self, token: str) -> int:
        """Id of a token by its exact spelling in the vocabulary.

        Raises:
            SourceNotFound: there is none.
        """
        found = self._backend.token_to_id(token)
        if found is None:
            raise SourceNotFound(f"{self.folder}: token {token!r} is not in the vocabulary")
        return int(found)

    def _refuse_missing(self, text: str) -> None:
        # added tokens are matched whole and need no byte symbols
        literal = sorted((re.escape(t.content) for t in self.added), key=len, reverse=True)
        plain = re.split("|".join(literal), text) if literal else [text]
        for part in plain:
            for byte in unicodedata.normalize("NFC", part).encode("utf-8"):
                if byte in self.missing_bytes:
                    raise InputError(
                        f"{self.folder}: text has a byte the vocabulary cannot spell",
                        found=f"0x{byte:02x}",
                    )


@contextmanager
def panics(what: str) -> Iterator[None]:
    """Make an InputError of a panic inside the library, such as a stranger's pattern that never
    ends; the listing that a panic writes to standard error by itself is thrown away.

    Args:
        what: the beginning of the message.
    Raises:
        InputError: the library panicked.
    """
    try:
        own = os.dup(2)
    except OSError:  # standard error is closed
        own = -1
    try:
        if own >= 0:
            with open(os.devnull, "wb") as nothing:
                os.dup2(nothing.fileno(), 2)
        yield
    except BaseException as e:
        if type(e).__name__ != "PanicException":  # it is no Exception, and has no name to import
            raise
        raise InputError(f"{what}: {str(e).splitlines()[0][:200]}") from None
    finally:
        if own >= 0:
            os.dup2(own, 2)
            os.close(own)


def load(folder: str | os.PathLike[str]) -> Tokenizer:
    """Reads a tokenizer folder: vocab.json and merges.txt, and if present tokenizer_config.json
    (`added_tokens_decoder`) with its mirror added_tokens.json.

    No other file is read and no code is run.

    Raises:
        SourceNotFound: vocab.json or merges.txt is missing.
        InputError: a file is a link that leads outside of the folder (and of the blobs of its Hub
            cache), is not a regular file, or is larger than MAX_BYTES; or it breaks the format: a
            key twice, two tokens with one id, ids with a hole, a merge of unknown parts, an added
            token that differs between the two files.
        Unsupported: another tokenizer class, or options this one does not have.
    Source: the Qwen2 tokenizer; ids agree with transformers 4.57.1.
    """
    from tokenizers import AddedToken as BackendToken
    from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    root = os.fspath(folder)
    vocab_path = os.path.join(root, "vocab.json")
    vocab = _vocabulary(load_object(_needed(root, "vocab.json"), vocab_path), vocab_path)
    merges_path = os.path.join(root, "merges.txt")
    merges = _merges(_needed(root, "merges.txt"), vocab, merges_path)
    added = _added_tokens(root, vocab)
    _refuse_holes(vocab, added, root)

    try:
        backend = Backend(models.BPE(vocab=vocab, merges=merges))
    except Exception as e:  # the library raises plain Exception for a bad model
        raise InputError(f"{root}: vocabulary and merges do not make a BPE model: {e}") from e
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    # The library numbers new tokens onwards from the vocabulary, so they go in by id
    for token in added:
        backend.add_tokens([BackendToken(token.content, special=token.special, normalized=False)])
        if backend.token_to_id(token.content) != token.id:
            raise InputError(
                f"{root}: added token {token.content!r}",
                found=f"id {token.id}",
                expected=f"{backend.token_to_id(token.content)}, the next free id",
            )
    # special tokens of text are recognised (`split_special_tokens` is false)
    size = backend.get_vocab_size(with_added_tokens=True)
    missing = frozenset(b for b, symbol in enumerate(byte_symbols()) if symbol not in vocab)
    return Tokenizer(root, tuple(added), size, missing, backend)


def _needed(root: str, name: str) -> bytes:
    raw = read_inside(root, name, MAX_BYTES)
    if raw is None:
        raise SourceNotFound(f"{os.path.join(root, name)}: no such file")
    return raw


def byte_symbols() -> list[str]:
    """The printable character that stands for each byte 0..255 in a byte-level vocabulary.

    Printable bytes of Latin-1 stand for themselves; the others take U+0100 onwards, in order.
    Source: the byte-level BPE of GPT-2, which Qwen2 keeps.
    """
    own = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    out, spare = [], 0
    for byte in range(256):
        if byte in own:
            out.append(chr(byte))
        else:
            out.append(chr(0x100 + spare))
            spare += 1
    return out


def _vocabulary(raw: dict[str, Any], path: str) -> dict[str, int]:
    owner: dict[int, str] = {}
    for token, i in raw.items():
        if type(i) is not int or not 0 <= i < 1 << 31:
            raise InputError(f"{path}: id of {token!r}", found=repr(i), expected="0..2^31-1")
        if i in owner:
            raise InputError(f"{path}: id {i} belongs to both {owner[i]!r} and {token!r}")
        owner[i] = token
    if not raw:
        raise InputError(f"{path}: no tokens")
    _refuse_surrogates(raw, path)
    return raw


def _refuse_surrogates(tokens: Iterable[str], path: str) -> None:
    # "\ud800" is legal JSON but not text, and the BPE library cannot take it
    try:
        "".join(tokens).encode("utf-8")
    except UnicodeEncodeError as e:
        raise InputError(f"{path}: a token has the lone surrogate {e.object[e.start]!r}") from e


def _merges(data: bytes, vocab: dict[str, int], path: str) -> list[tuple[str, str]]:
    """Pairs in order of priority. A BOM, CRLF ends and empty lines make no difference.

    Only a first line that begins with `#version` is a comment: `# #` is a merge of other files.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise InputError(f"{path}: not UTF-8 at byte {e.start}") from e
    merges = []
    seen = set()
    for number, line in enumerate(text.split("\n"), 1):
        line = line.removesuffix("\r")
        if not line or (number == 1 and line.startswith("#version")):
            continue
        parts = line.split(" ")
        if len(parts) != 2 or not all(parts):
            raise InputError(f"{path}: line {number}", found=repr(line[:60]), expected="two parts")
        pair = (parts[0], parts[1])
        for piece in (*pair, parts[0] + parts[1]):
            if piece not in vocab:
                raise InputError(f"{path}: line {number}: {piece!r} is not in vocab.json")
        if pair in seen:
            raise InputError(f"{path}: line {number}: merge {line!r} appears twice")
        seen.add(pair)
        merges.append(pair)
    return merges


def _added_tokens(root: str, vocab: dict[str, int]) -> list[AddedToken]:
    config_path = os.path.join(root, "tokenizer_config.json")
    mirror_path = os.path.join(root, "added_tokens.json")
    raw_config = read_inside(root, "tokenizer_config.json", MAX_BYTES)
    raw_mirror = read_inside(root, "added_tokens.json", MAX_BYTES)
    config = load_object(raw_config, config_path) if raw_config is not None else None
    mirror = load_object(raw_mirror, mirror_path) if raw_mirror is not None else None
    if config is not None:
        _check_options(config, config_path)
    raw = (config or {}).get("added_tokens_decoder")
    if raw is None:
        if mirror:
            raise InputError(
                f"{mirror_path}: no added_tokens_decoder in tokenizer_config.json, so which of "
                "these tokens are special is not known"
            )
        return []
    if not isinstance(raw, dict):
        raise InputError(
            f"{config_path}: added_tokens_decoder", found=type(raw).__name__, expected="an object"
        )
    added = [_added_token(key, entry, config_path) for key, entry in raw.items()]
    added.sort(key=lambda t: t.id)
    _check_added(added, vocab, config_path)
    if mirror is not None and mirror != {t.content: t.id for t in added}:
        theirs = set(mirror.items()) ^ {(t.content, t.id) for t in added}
        raise InputError(
            f"{mirror_path}: differs from added_tokens_decoder of tokenizer_config.json",
            found=repr(min(theirs, key=repr)[0]),
        )
    return added


def _check_options(config: dict[str, Any], path: str) -> None:
    kind = config.get("tokenizer_class", CLASSES[0])
    if kind not in CLASSES:
        raise Unsupported(f"{path}: tokenizer_class", found=kind, expected=" or ".join(CLASSES))
    for option in ("add_prefix_space", "add_bos_token", "add_eos_token", "split_special_tokens"):
        if config.get(option) not in (None, False):
            raise Unsupported(f"{path}: {option}", found=config[option], expected=False)


def _added_token(key: str, entry: Any, path: str) -> AddedToken:
    where = f"{path}: added token {key}"
    if not re.fullmatch(r"0|[1-9][0-9]{0,9}", key):
        raise InputError(where, expected="a decimal id")
    if not isinstance(entry, dict):
        raise InputError(where, found=type(entry).__name__, expected="an object")
    content, special = entry.get("content"), entry.get("special")
    if not isinstance(content, str) or not content:
        raise InputError(f"{where}: content", found=repr(content), expected="a non-empty string")
    _refuse_surrogates([content], path)
    if not isinstance(special, bool):
        raise InputError(f"{where}: special", found=repr(special), expected="true or false")
    for flag in ("lstrip", "rstrip", "single_word", "normalized"):
        if entry.get(flag, False) is not False:
            raise Unsupported(f"{where}: {flag}", found=entry[flag], expected=False)
    return AddedToken(int(key), content, special)


def _check_added(added: Iterable[AddedToken], vocab: dict[str, int], path: str) -> None:
    owner = {i: token for token, i in vocab.items()}
    seen: dict[str, int] = {}
    for token in added:
        if token.content in seen:
            raise InputError(
                f"{path}: added token {token.content!r} has ids {seen[token.content]} "
                f"and {token.id}"
            )
        seen[token.content] = token.id
        if owner.get(token.id, token.content) != token.content:
            raise InputError(
                f"{path}: id {token.id} belongs to both {owner[token.id]!r} and {token.content!r}"
            )
        if vocab.get(token.content, token.id) != token.id:
            raise InputError(
                f"{path}: {token.content!r} has id {token.id} here and "
                f"{vocab[token.content]} in vocab.json"
            )


def _refuse_holes(vocab: dict[str, int], added: Iterable[AddedToken], root: str) -> None:
    ids = sorted({*vocab.values(), *(t.id for t in added)})
    for expected, i in enumerate(ids):
        if i != expected:
            raise InputError(
                f"{root}: token ids have a hole",
                found=f"no id {expected}, next is {i}",
                expected=f"0..{len(ids) - 1}",
            )
