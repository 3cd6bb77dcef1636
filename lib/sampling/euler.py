"""Euler integration of dz/dt = v from noise (t = 0) to picture (t = 1), on float32 arrays."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, UsageProblem
from . import guidance as guide

F32 = NDArray[np.float32]

T_EPS = 0.02
"""Floor of 1 - t in the velocity. The published code always uses this one and never the `t_eps` of
config.json (every generate function of sensenova_u1 overwrites it with its own argument)."""

ROW = 1024
"""Values summed in float32 before float64 takes over; relative error of a sum below 1e-4."""

Model = Callable[[F32, np.float32, int, tuple[str, ...]], Mapping[str, F32]]
"""(z [B, 3, H, W], t, step, branches) -> x0 [B, 3, H, W], float32, for each branch named."""


@dataclass(frozen=True, slots=True)
class Step:
    """What happened in one step.

    Attributes:
        index: 0-based.
        t, t_next: time before and after.
        rms_x0: root mean square of the clean picture predicted by branch `cond`.
        rms_v: the same of the combined velocity.
        seconds: wall time of the step, the model included.
    """

    index: int
    t: float
    t_next: float
    rms_x0: float
    rms_v: float
    seconds: float


@dataclass(slots=True)
class Trace:
    """What a run went through: z before the first step and after each, unclamped, and each v."""

    z: list[F32] = field(default_factory=list)
    v: list[F32] = field(default_factory=list)

    def arrays(self) -> dict[str, F32]:
        """`z` [n + 1, B, 3, H, W] and `v` [n, B, 3, H, W], float32."""
        return {"z": np.stack(self.z), "v": np.stack(self.v)}


def velocity(x0: F32, z: F32, t: np.float32, t_eps: float = T_EPS) -> F32:
    """v = (x0 - z) / max(1 - t, t_eps), float32 throughout.

    Source: `t2i_generate` of sensenova_u1.
    """
    v = x0 - z
    v /= np.maximum(np.float32(1) - np.float32(t), np.float32(t_eps))
    return v


def advance(z: F32, v: F32, t: np.float32, t_next: np.float32) -> F32:
    """z + (t_next - t) v, float32 throughout.

    Source: `t2i_generate` of sensenova_u1.
    """
    out = v * (np.float32(t_next) - np.float32(t))
    out += z
    return out


def sample(
    z: F32,
    t: F32,
    model: Model,
    guidance: guide.Guidance | None = None,
    *,
    t_eps: float = T_EPS,
    on_step: Callable[[Step], None] | None = None,
    trace: Trace | None = None,
) -> F32:
    """Runs all steps of the schedule t and returns the last z, float32 [B, 3, H, W].

    Args:
        z: first latent, noise times noise scale, float32 [B, 3, H, W].
        t: schedule of `schedule.timesteps`, float32 [n + 1].
        model: predicts x0 for the branches it is asked for, and for no other.
        guidance: None runs `cond` alone.
        t_eps: floor of 1 - t in the velocity, above 0.
        on_step: called after each step.
        trace: filled when given: 2 n + 1 arrays of the size of z.
    Raises:
        InputError: z, an x0 or v is not finite (names step and tensor), or an x0 has another shape
            or dtype than z.
        UsageProblem: t_eps is not above 0.
    Source: `t2i_generate`, `it2i_generate` of sensenova_u1.
    """
    if not (math.isfinite(t_eps) and t_eps > 0):
        raise UsageProblem("t_eps", found=t_eps, expected="a finite number above 0")
    if z.ndim != 4 or z.dtype != np.float32:
        raise InputError("z", found=f"{z.dtype} {list(z.shape)}", expected="float32 [B, 3, H, W]")
    g = guidance or guide.Guidance()
    _rms(z, "before step 0: tensor z")
    if trace is not None:
        trace.z.append(z.copy())
    for k in range(len(t) - 1):
        started = time.perf_counter()
        names = guide.branches_at(g, t[k])
        x0 = model(z, t[k], k, names)
        rms = {}
        for name in names:
            x = x0[name]
            where = f"step {k}: tensor x0 of branch {name}"
            if x.shape != z.shape or x.dtype != np.float32:
                raise InputError(
                    where, found=f"{x.dtype} {list(x.shape)}", expected=f"float32 {list(z.shape)}"
                )
            rms[name] = _rms(x, where)
        # overflow is refused below by name; NumPy's warning would only come before it
        with np.errstate(over="ignore", invalid="ignore"):
            v = guide.combine(g, {n: velocity(x0[n], z, t[k], t_eps) for n in names}, t[k], k)
            rms_v = _rms(v, f"step {k}: tensor v")
            z = advance(z, v, t[k], t[k + 1])
        _rms(z, f"after step {k}: tensor z")
        if trace is not None:
            trace.z.append(z.copy())
            trace.v.append(v.copy())
        if on_step is not None:
            seconds = round(time.perf_counter() - started, 6)
            on_step(Step(k, float(t[k]), float(t[k + 1]), rms["cond"], rms_v, seconds))
    return z


def _rms(x: F32, what: str) -> float:
    """Root mean square; refuses an array with a NaN or an infinity.

    One cheap pass serves both: sums of squares of ROW values in float32, added up in float64. A sum
    is not finite when a value is not; only then is the array looked at again, because values above
    1e17 overflow the sum as well.
    """
    flat = x.reshape(-1)
    whole = flat.size - flat.size % ROW
    rows, rest = flat[:whole].reshape(-1, ROW), flat[whole:].astype(np.float64)
    total = float(np.einsum("ij,ij->i", rows, rows).sum(dtype=np.float64) + rest @ rest)
    if not math.isfinite(total):
        bad = x.size - int(np.isfinite(x).sum())
        if bad:
            raise InputError(
                what,
                found=f"{bad} of {x.size} values NaN or infinite",
                expected="finite values",
                hint="a float16 generation branch overflows; export it as bfloat16 or float32",
            )
        total = float(np.einsum("i,i->", flat, flat, dtype=np.float64))
    return math.sqrt(total / max(x.size, 1))
