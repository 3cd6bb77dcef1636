"""The recurrence of the delta net alone, in chunks and token after token, against float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ntool.lib.families.qwen4_exp.config import Text
from ntool.lib.families.qwen4_exp.delta_net import CHUNK, Tokens, chunked, inverse, single
from ntool.lib.graph.builder import FLOAT, Graph, Value
from ntool.lib.runtime.session import Session

from .decoder_session import session
from .decoder_variants import text
from .reference_layers import Array

Arrays = dict[str, Array]
How = Callable[[Graph, Tokens, Value, Text], tuple[Value, Value]]
C = text()
REP = C.gv // C.gk


def recurrence(how: How) -> Session:
    """A graph of one of the two forms, on inputs q, k, v, beta, decay and the state u."""
    g = Graph("recurrence")
    dims = {
        "q": (1, C.dk), "k": (1, C.dk), "v": (REP, C.dv), "beta": (REP, 1), "decay": (REP, 1),
    }  # fmt: skip
    given = {
        name: g.input(name, FLOAT, ["batch", C.gk, heads, "sequence", width])
        for name, (heads, width) in dims.items()
    }
    u = g.input("u", FLOAT, ["batch", C.gk, REP, C.dk, C.dv])
    o, after = how(g, Tokens(**given), u, C)
    g.output("o", o)
    g.output("after", after)
    return session(g, {})


@pytest.fixture(scope="module")
def chunks() -> Session:
    return recurrence(chunked)


@pytest.fixture(scope="module")
def step() -> Session:
    return recurrence(single)


def tokens(S: int, seed: int = 0) -> Arrays:
    """Plain inputs: unit keys, scaled unit queries, moderate decay, a state from before."""
    rng = np.random.default_rng(seed)
    B = 2

    def unit(shape: tuple[int, ...]) -> Array:
        x = rng.standard_normal(shape)
        return x / np.sqrt((x * x).sum(-1, keepdims=True))

    given = {
        "q": unit((B, C.gk, 1, S, C.dk)) * C.dk**-0.5,
        "k": unit((B, C.gk, 1, S, C.dk)),
        "v": rng.standard_normal((B, C.gk, REP, S, C.dv)),
        "beta": rng.random((B, C.gk, REP, S, 1)),
        "decay": -rng.random((B, C.gk, REP, S, 1)),
        "u": rng.standard_normal((B, C.gk, REP, C.dk, C.dv)),
    }
    return {k: v.astype(np.float32) for k, v in given.items()}


def exact(given: Arrays) -> tuple[Array, Array]:
    """o and the state after all tokens in float64, one token after the other."""
    x = {k: v.astype(np.float64) for k, v in given.items()}
    u, out = x["u"], []
    for t in range(x["q"].shape[3]):
        q, k, v, beta, decay = (x[n][..., t, :] for n in ("q", "k", "v", "beta", "decay"))
        u = u * np.exp(decay)[..., None]
        d = beta * (v - (k[..., None, :] @ u)[..., 0, :])
        u = u + k[..., :, None] * d[..., None, :]
        out.append((q[..., None, :] @ u)[..., 0, :])
    return np.stack(out, axis=3), u


def error(s: Session, given: Arrays) -> float:
    """The largest difference to float64, of values that are about 1."""
    o, u = exact(given)
    found = s.run(given)
    assert np.isfinite(found["o"]).all() and np.isfinite(found["after"]).all()
    assert found["o"].shape == o.shape
    return max(np.abs(found["o"] - o).max(), np.abs(found["after"] - u).max())


# float32 has 6e-8 for a value of 1, and a state of 128 tokens sums that up. Measured: 2e-6 at most.
PLAIN = 1e-5


@pytest.mark.parametrize("S", [1, 2, 63, 64, 65, 127, 128, 129])
def test_chunks(chunks: Session, S: int) -> None:
    assert error(chunks, tokens(S)) < PLAIN


def test_one_token(step: Session, chunks: Session) -> None:
    given = tokens(1)
    assert error(step, given) < PLAIN
    one, many = step.run(given), chunks.run(given)
    np.testing.assert_allclose(one["o"], many["o"], atol=PLAIN)
    np.testing.assert_allclose(one["after"], many["after"], atol=PLAIN)


def filled(given: Arrays, **values: float) -> Arrays:
    return {k: np.full_like(v, values[k]) if k in values else v for k, v in given.items()}


def same_keys(S: int) -> Arrays:
    """Every key is the first one of its head."""
    given = tokens(S)
    return given | {"k": np.ascontiguousarray(np.broadcast_to(given["k"][..., :1, :],
                                                              given["k"].shape))}  # fmt: skip


@pytest.mark.parametrize("beta", [0.5, 0.9, 0.999, 1.0])
def test_equal_keys_without_decay(chunks: Session, beta: float) -> None:
    """Powers of M grow to 2^63 and cancel; its inverse by blocks has entries of at most 1."""
    assert error(chunks, filled(same_keys(128), beta=beta, decay=0.0)) < 2e-5


def test_keys_of_changing_sign(chunks: Session) -> None:
    given = filled(same_keys(128), beta=1.0, decay=0.0)
    sign = np.where(np.arange(128) % 2, -1, 1).astype(np.float32)[:, None]
    assert error(chunks, given | {"k": given["k"] * sign}) < 2e-5


@pytest.mark.parametrize("decay", [-1.0, -50.0, -200.0, -1e4])
def test_strong_decay(chunks: Session, step: Session, decay: float) -> None:
    """Sums of g reach -6.4e5, whose exponential is no float32 in one direction or the other."""
    assert error(chunks, filled(tokens(130), decay=decay)) < PLAIN
    assert error(chunks, filled(same_keys(130), decay=decay, beta=1.0)) < PLAIN
    assert error(step, filled(tokens(1), decay=decay)) < PLAIN


def test_decay_of_one_token_among_many(chunks: Session) -> None:
    """What was before it is gone, what comes after it is not."""
    given = filled(tokens(130), decay=0.0)
    given["decay"][..., [5, 64, 100], :] = -80.0
    assert error(chunks, given) < PLAIN


def test_tokens_of_no_key_change_nothing(chunks: Session) -> None:
    """Padding: k = 0 and any g of 0; the state is what it was."""
    given = filled(tokens(70), k=0.0, decay=0.0)
    np.testing.assert_array_equal(chunks.run(given)["after"], given["u"])


@pytest.mark.parametrize("size", [1, 2, 8, 64])
def test_inverse(size: int) -> None:
    g = Graph("inverse")
    m = g.input("m", FLOAT, ["n", size, size])
    g.output("r", inverse(g, m, size))
    rng = np.random.default_rng(2)
    below = np.tril(np.ones((size, size)), -1)
    given = np.stack([below, 0 * below, below * rng.uniform(-1, 1, below.shape) / size**0.5])
    r = session(g, {}).run({"m": given.astype(np.float32)})["r"]
    wanted = np.linalg.inv(np.eye(size) + given.astype(np.float32).astype(np.float64))
    np.testing.assert_allclose(r, wanted, rtol=1e-5, atol=2e-6 * max(1, np.abs(wanted).max()))


def test_the_chunk_is_a_power_of_two() -> None:
    assert CHUNK == 64 and CHUNK & (CHUNK - 1) == 0
