"""A Hub over https: certificates are checked, and nothing goes on without them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ntool.lib.checkpoint.source import open_checkpoint
from ntool.lib.errors import EnvironmentProblem

from .hub_fixtures import ONE, TOKEN, hub, model, require_same
from .loopback_hub import CDN, LoopbackHub

__all__ = ["hub"]

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="openssl makes the certificate"
)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that nobody trusts yet, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


@pytest.fixture
def secure(
    hub: LoopbackHub,
    certificate: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[LoopbackHub]:
    """A Hub over https whose certificate is trusted; `hub` has set everything else."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with LoopbackHub(certificate=certificate) as server:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.address())
        server.add("org/model", model(tmp_path / "m"), token=TOKEN)
        yield server


def test_https(secure: LoopbackHub, tmp_path: Path) -> None:
    assert secure.address().startswith("https://")
    require_same(open_checkpoint("org/model"), tmp_path / "m")


def test_a_certificate_that_is_not_trusted(
    secure: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(EnvironmentProblem, match="certificate verify failed"):
        open_checkpoint("org/model")
    assert secure.log == []


def test_a_redirect_to_http_is_refused(secure: LoopbackHub) -> None:
    secure.redirects = True  # to the other port, which does not speak https
    with pytest.raises(EnvironmentProblem, match=r"redirect from https to http .*: refused") as e:
        open_checkpoint("org/model")
    assert ONE in str(e.value) and "secret" not in str(e.value)  # the address is signed
    assert not [r for r in secure.log if r.port == CDN]
