"""What is an address of a repository on the Hub, and which part of it is what."""

from __future__ import annotations

import pytest

from ntool.lib.checkpoint.hub_address import Address, long, short, with_revision
from ntool.lib.errors import Unsupported, UsageProblem

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    "text, address",
    [
        ("org/name", Address("org/name")),
        ("org/name@main", Address("org/name", "main")),
        ("org/name@refs/pr/1", Address("org/name", "refs/pr/1")),
        (f"Org-1/Name.v2_x@{COMMIT}", Address("Org-1/Name.v2_x", COMMIT)),
    ],
)
def test_short(text: str, address: Address) -> None:
    assert short(text) == address


@pytest.mark.parametrize(
    "text",
    [
        "name", "a/b/c", "/a/b", "./a", "../a", "a/..", "a/.b", "a/-b", "a--b/c", "a/b..c", "a/b@",
        "a /b", "a/b@x y", "ö/b", "~/b", "a/b\n",
    ],
)  # fmt: skip
def test_not_short(text: str) -> None:
    assert short(text) is None


@pytest.mark.parametrize(
    "text, address",
    [
        ("hf://org/name", Address("org/name")),
        ("hf://models/org/name", Address("org/name")),
        ("hf://models/name", Address("models/name")),
        ("hf://org/name/", Address("org/name")),
        ("hf://org/name@v1", Address("org/name", "v1")),
        ("hf://org/name@v1/a/b.safetensors", Address("org/name", "v1", "a/b.safetensors")),
        ("hf://org/name/b.safetensors", Address("org/name", None, "b.safetensors")),
        ("hf://org/name@refs/pr/7/b", Address("org/name", "refs/pr/7", "b")),
        ("hf://org/name@feature%2Fx/b", Address("org/name", "feature/x", "b")),
    ],
)
def test_long(text: str, address: Address) -> None:
    assert long(text) == address


def test_not_long() -> None:
    for text in ("hf://", "hf://name", "hf:///a/b", "hf://a--b/c", "hf://org/name/../x"):
        with pytest.raises(UsageProblem):
            long(text)
    for kind in ("datasets", "spaces", "buckets", "kernels"):
        with pytest.raises(Unsupported, match=kind):
            long(f"hf://{kind}/org/name")


def test_revision_of_the_option() -> None:
    plain = Address("org/name")
    assert with_revision("s", plain, None) == plain
    assert with_revision("s", plain, "v1").revision == "v1"
    assert with_revision("s", plain._replace(revision="v1"), None).revision == "v1"
    assert with_revision("s", plain._replace(revision="v1"), "v1").revision == "v1"
    with pytest.raises(UsageProblem, match="found v2, expected v1"):
        with_revision("s", plain._replace(revision="v1"), "v2")
    for revision in ("", "..", "../../x", "/etc", "a\nb", "a//b"):
        with pytest.raises(UsageProblem, match="revision"):
            with_revision("s", plain, revision)
