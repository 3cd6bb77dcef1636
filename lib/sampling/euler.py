"""Euler integration of dz/dt = v from noise (t = 0) to picture (t = 1), on float32 arrays."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

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

Model = Callable[[Any, np.float32, int, tuple[str, ...]], Mapping[str, Any]]
"""(z [B, 3, H, W], t, step, branches) -> x0 [B, 3, H, W], float32, for each branch named. The
arrays are the stepper's: NumPy's, or values on a device."""


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


def velocity(x0: F32, z: F32, t: np.float32, t_eps: float = T_EPS, out: F32 | None = None) -> F32:
    """v = (x0 - z) / max(1 - t, t_eps), float32 throughout; in `out` where given.

    Source: `t2i_generate` of sensenova_u1.
    """
    v = np.subtract(x0, z, out=out)
    v /= np.maximum(np.float32(1) - np.float32(t), np.float32(t_eps))
    return v


def advance(z: F32, v: F32, t: np.float32, t_next: np.float32, out: F32 | None = None) -> F32:
    """z + (t_next - t) v, float32 throughout; in `out` where given, which is neither z nor v.

    Source: `t2i_generate` of sensenova_u1.
    """
    out = np.multiply(v, np.float32(t_next) - np.float32(t), out=out)
    out += z
    return out


@dataclass(frozen=True, slots=True)
class Advanced:
    """What a step made.

    Attributes:
        z, v: the next latent and the combined velocity.
            They are good until the next step, which may write over them.
        seen: each tensor by its name in messages: (mean square, the tensor). A mean square that is
            not finite asks for a second look: values above 1e17 overflow it as well. `v` and the x0
            of `cond` are always there; others may be left out where v would show their NaN.
    """

    z: Any
    v: Any
    seen: dict[str, tuple[float, Any]]


class Stepper(Protocol):
    """Guidance and the Euler step, wherever the arrays are."""

    def start(self, z: F32) -> Any:
        """The first latent where the steps want it."""

    def host(self, value: Any) -> F32:
        """An array of the stepper as a NumPy array."""

    def step(
        self, z: Any, x0: Mapping[str, Any], index: int, t: np.float32, t_next: np.float32
    ) -> Advanced:
        """From z and the x0 of the step's branches to the next z."""


class NumpyStepper:
    """The step in NumPy, in host memory.

    It allocates with its first step; later ones write over the arrays of those before.
    """

    def __init__(self, g: guide.Guidance, t_eps: float) -> None:
        self._guidance, self._t_eps = g, t_eps
        self._rooms: dict[str, F32] = {}

    def start(self, z: F32) -> F32:
        """A copy of z, since the second step writes over it."""
        self._rooms.clear()
        return z.copy()

    def host(self, value: F32) -> F32:
        """The array itself."""
        return value

    def step(
        self, z: F32, x0: Mapping[str, F32], index: int, t: np.float32, t_next: np.float32
    ) -> Advanced:
        """One step; see `Stepper`.

        Raises:
            InputError: an x0 has another shape or dtype than z.
        """
        for name, x in x0.items():
            if x.shape != z.shape or x.dtype != np.float32:
                raise InputError(
                    f"step {index}: tensor x0 of branch {name}",
                    found=f"{x.dtype} {list(x.shape)}",
                    expected=f"float32 {list(z.shape)}",
                )
        # overflow is refused by name afterwards; NumPy's warning would only come before it
        with np.errstate(over="ignore", invalid="ignore"):
            speeds = {n: velocity(x, z, t, self._t_eps, self._room(n, z)) for n, x in x0.items()}
            out = self._room("combined", z)
            v = guide.combine(self._guidance, speeds, t, index, out)
            z_next = advance(z, v, t, t_next, self._room("z", z))
            self._rooms["z"] = z
            # a NaN or an infinity of another x0, or of z, is one of v too, unless v was set to zero
            seen = {"x0 of branch cond": x0["cond"], "v": v}
            squares = {name: _mean_square(x) for name, x in seen.items()}
            if not squares["v"] or not all(map(math.isfinite, squares.values())):
                seen = {**{f"x0 of branch {n}": x for n, x in x0.items()}, "v": v, "z": z_next}
                squares = {name: _mean_square(x) for name, x in seen.items()}
        return Advanced(z_next, v, {name: (squares[name], x) for name, x in seen.items()})

    def _room(self, name: str, like: F32) -> F32:
        if name not in self._rooms:
            self._rooms[name] = np.empty_like(like)
        return self._rooms[name]


def sample(
    z: F32,
    t: F32,
    model: Model,
    guidance: guide.Guidance | None = None,
    *,
    t_eps: float = T_EPS,
    stepper: Stepper | None = None,
    on_step: Callable[[Step], None] | None = None,
    trace: Trace | None = None,
) -> F32:
    """Runs all steps of the schedule t and returns the last z, float32 [B, 3, H, W].

    Args:
        z: first latent, noise times noise scale, float32 [B, 3, H, W].
        t: schedule of `schedule.timesteps`, float32 [n + 1].
        model: predicts x0 for the branches it is asked for, and for no other; z and x0 are arrays
            of the stepper.
        guidance: None runs `cond` alone.
        t_eps: floor of 1 - t in the velocity, above 0.
        stepper: made for the same guidance and t_eps; None steps in NumPy.
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
    s = stepper or NumpyStepper(g, t_eps)
    at = s.start(require_finite(z, "before step 0: tensor z"))
    if trace is not None:
        trace.z.append(z.copy())
    for k in range(len(t) - 1):
        started = time.perf_counter()
        names = guide.branches_at(g, t[k])
        x0 = model(at, t[k], k, names)
        made = s.step(at, {n: x0[n] for n in names}, k, t[k], t[k + 1])
        rms = _checked(made, s.host, k)
        at = made.z
        if trace is not None:
            trace.z.append(s.host(at).copy())
            trace.v.append(s.host(made.v).copy())
        if on_step is not None:
            seconds = round(time.perf_counter() - started, 6)
            rms_x0 = rms["x0 of branch cond"]
            on_step(Step(k, float(t[k]), float(t[k + 1]), rms_x0, rms["v"], seconds))
    return s.host(at)


def _mean_square(x: F32) -> float:
    """Mean of x^2: sums of ROW squares in float32, added up in float64; one cheap pass."""
    flat = x.reshape(-1)
    whole = flat.size - flat.size % ROW
    rows, rest = flat[:whole].reshape(-1, ROW), flat[whole:].astype(np.float64)
    total = float(np.einsum("ij,ij->i", rows, rows).sum(dtype=np.float64) + rest @ rest)
    return total / max(x.size, 1)


def _checked(made: Advanced, host: Callable[[Any], F32], k: int) -> dict[str, float]:
    """Root mean square of each tensor of a step; refuses one with a NaN or an infinity."""
    found = {}
    for name, (square, tensor) in made.seen.items():
        if not math.isfinite(square):
            where = f"after step {k}" if name == "z" else f"step {k}"
            x = require_finite(host(tensor), f"{where}: tensor {name}").reshape(-1)
            square = float(np.einsum("i,i->", x, x, dtype=np.float64)) / max(x.size, 1)
        found[name] = math.sqrt(square)
    return found


def require_finite(x: F32, what: str) -> F32:
    """The array itself.

    Raises:
        InputError: it has a NaN or an infinity; says how many.
    """
    bad = x.size - int(np.isfinite(x).sum())
    if bad:
        raise InputError(
            what,
            found=f"{bad} of {x.size} values NaN or infinite",
            expected="finite values",
            hint="a float16 generation branch overflows; export it as bfloat16 or float32",
        )
    return x
