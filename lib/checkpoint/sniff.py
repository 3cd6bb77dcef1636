"""What a file really is, told from its first bytes, when it is not what its name says."""

from __future__ import annotations

_MAGIC: tuple[tuple[bytes, str], ...] = (
    (
        b"version https://git-lfs.github.com/spec",
        "a Git LFS pointer (the file itself was not fetched)",
    ),
    (b"PK\x03\x04", "a zip archive (a torch pickle checkpoint is one)"),
    (b"PK\x05\x06", "an empty zip archive"),
    (b"GGUF", "a GGUF file"),
    (b"FUGG", "a big-endian GGUF file"),
    (b"\x1f\x8b", "gzip data"),
    (b"\x28\xb5\x2f\xfd", "Zstandard data"),
    (b"\xfd7zXZ\x00", "xz data"),
    (b"BZh", "bzip2 data"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive"),
    (b"\x93NUMPY", "a NumPy array file"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
    (b"\x89PNG\r\n\x1a\n", "a PNG picture"),
    (b"%PDF-", "a PDF document"),
    (b"\x7fELF", "an ELF program"),
    (b"\x00\x00\x00\x00\x00\x00\x00\x00", "zeros (an unfinished download?)"),
)
_PICKLE = tuple(b"\x80" + bytes([protocol]) for protocol in (2, 3, 4, 5))


def what_is(first: bytes) -> str | None:
    """A name for the kind of file that begins with these bytes, or None.

    Args:
        first: 512 bytes or more if the file has them.
    """
    for magic, name in _MAGIC:
        if first.startswith(magic):
            return name
    if first.startswith(_PICKLE):
        return "a Python pickle (never loaded by ntool)"
    if first[257:262] == b"ustar":
        return "a tar archive"
    text = first.removeprefix(b"\xef\xbb\xbf").lstrip()[:64].lower()
    if text.startswith((b"<!doctype html", b"<html", b"<head", b"<body")):
        return "an HTML page (an error page or a login form?)"
    if text.startswith(b"<?xml"):
        return "an XML document (a storage error?)"
    if text.startswith((b"{", b"[")):
        return "JSON text"
    if text.startswith((b"http://", b"https://", b"entry not found", b"access to", b"invalid")):
        return "a text message of a server"
    return None
