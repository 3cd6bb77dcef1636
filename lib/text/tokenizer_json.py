"""tokenizer.json: a byte-level BPE tokenizer in one file, as the `tokenizers` library keeps it."""

from __future__ import annotations

import json
import os
from typing import Any

from ..checkpoint.paths import read_inside
from ..checkpoint.strict_json import has_lone_surrogate, load_object
from ..errors import InputError, Unsupported
from .tokenizer import MAX_BYTES, AddedToken, Tokenizer, byte_symbols, load, panics

FILE = "tokenizer.json"
MAX_ID = 1 << 31


def load_any(folder: str | os.PathLike[str]) -> Tokenizer:
    """The tokenizer of a folder: tokenizer.json, else vocab.json and merges.txt.

    Raises: as `load_json` and `tokenizer.load`.
    """
    return load_json(folder) or load(folder)


def load_json(folder: str | os.PathLike[str]) -> Tokenizer | None:
    """The tokenizer of a folder's tokenizer.json; None where there is none.

    Its cutting and padding, which would change prompts silently, are switched off.

    Raises:
        InputError: a link that leads outside, too large, not JSON, ids or tokens that are there
            twice, or what the library refuses; names the file.
        Unsupported: another model than byte-level BPE, or one that leaves merges out at random.
    """
    from tokenizers import Tokenizer as Backend

    root = os.fspath(folder)
    raw = read_inside(root, FILE, MAX_BYTES)
    if raw is None:
        return None
    path = os.path.join(root, FILE)
    values = load_object(raw, path)
    model = values.get("model")
    model = model if isinstance(model, dict) else {}
    # files of old versions of the library leave the type out
    if model.get("type", "BPE") != "BPE" or "ByteLevel" not in _types(values.get("decoder")):
        raise Unsupported(
            f"{path}: model and decoder",
            found=f"{model.get('type')} and {', '.join(_types(values.get('decoder'))) or 'none'}",
            expected="BPE and ByteLevel",
        )
    if model.get("dropout") not in (None, 0):
        found = repr(model["dropout"])
        raise Unsupported(
            f"{path}: model: dropout", found=found, expected="null: a text would have random tokens"
        )
    vocab = _vocabulary(model.get("vocab"), path)
    added = _added(values.get("added_tokens") or [], vocab, path)
    try:
        with panics(f"{path}: not a tokenizer"):
            backend = Backend.from_str(json.dumps(values, ensure_ascii=False))
    except InputError:
        raise
    except Exception as e:  # the library raises plain Exception
        raise InputError(f"{path}: not a tokenizer: {e}") from e
    backend.no_truncation()
    backend.no_padding()
    for token in added:
        if backend.token_to_id(token.content) != token.id:
            raise InputError(
                f"{path}: added token {token.content!r}",
                found=f"id {token.id}",
                expected=f"{backend.token_to_id(token.content)}, as the library has it",
            )
    size = 1 + max([*vocab.values(), *(t.id for t in added)])
    missing = frozenset(b for b, symbol in enumerate(byte_symbols()) if symbol not in vocab)
    return Tokenizer(root, tuple(added), size, missing, backend)


def _types(part: Any) -> list[str]:
    """Names of a part and, where it is a sequence, of its parts."""
    if not isinstance(part, dict):
        return []
    inner = part.get("decoders") or []
    names = [part.get("type")] + [d.get("type") for d in inner if isinstance(d, dict)]
    return [n for n in names if isinstance(n, str)]


def _vocabulary(vocab: Any, path: str) -> dict[str, int]:
    if not isinstance(vocab, dict) or not vocab:
        raise InputError(f"{path}: model: vocab", found=type(vocab).__name__, expected="an object")
    for token, i in vocab.items():
        if type(i) is not int or not 0 <= i < MAX_ID:
            raise InputError(f"{path}: id of {token!r}", found=repr(i), expected="0..2^31-1")
    if len(set(vocab.values())) != len(vocab):
        raise InputError(f"{path}: model: vocab: two tokens have one id")
    if has_lone_surrogate("".join(vocab)):
        raise InputError(f"{path}: a token has a lone surrogate")
    return vocab


def _added(entries: Any, vocab: dict[str, int], path: str) -> list[AddedToken]:
    where = f"{path}: added_tokens"
    if not isinstance(entries, list):
        raise InputError(where, found=type(entries).__name__, expected="a list")
    owner = {i: token for token, i in vocab.items()}
    names: set[str] = set()
    found = []
    for entry in entries:
        e = entry if isinstance(entry, dict) else {}
        i, content, special = e.get("id"), e.get("content"), e.get("special")
        if (
            type(i) is not int
            or not 0 <= i < MAX_ID
            or not isinstance(content, str)
            or not content
            or has_lone_surrogate(content)
            or not isinstance(special, bool)
        ):
            raise InputError(
                where, found=repr(entry)[:100], expected="objects of id, content and special"
            )
        if owner.get(i, content) != content or content in names:
            raise InputError(f"{where}: {content!r} or its id {i} is there twice")
        owner[i] = content
        names.add(content)
        found.append(AddedToken(i, content, special))
    return sorted(found, key=lambda t: t.id)
