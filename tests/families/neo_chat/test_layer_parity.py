"""Each layer of the graphs against the NumPy reference, to 2e-5 (COMPONENT says why)."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load_file

from ntool.lib.families.neo_chat import backbone, heads, vision
from ntool.lib.graph import layers as graph_layers
from ntool.lib.graph.builder import FLOAT

from . import reference as R
from . import reference_layers as L
from .golden_cases import COMPONENT, DATA, HEAD, Case, close, load_case
from .graph_session import config_of, run_piece

DENSE = ["dense-conv", "dense-mlp"]
SUFFIXES = [backbone.UNDERSTANDING, backbone.GENERATION]


@pytest.fixture(params=DENSE)
def any_dense(request: pytest.FixtureRequest) -> Case:
    return load_case(request.param)


def draw(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_activations_and_sinusoid_meet_the_common_goldens(dense: Case) -> None:
    golden = load_file(DATA / "common" / "activations.safetensors")
    gelu, silu = run_piece(
        dense, lambda g, c, i: [g.Gelu(i["x"]), graph_layers.silu(g, i["x"])], {"x": golden["x"]}
    )
    close(gelu, golden["gelu"], 1e-6)
    close(silu, golden["silu"], 1e-6)
    golden = load_file(DATA / "common" / "sinusoid.safetensors")
    (code,) = run_piece(dense, lambda g, c, i: [vision.sinusoid(g, i["t"])], {"t": golden["t"]})
    # arguments reach 100, where one float32 ulp is 8e-6
    close(code, golden["sinusoid"], 1e-5)


@pytest.mark.parametrize(("width", "base"), [(64, 5e6), (32, 1e4), (8, 100.0), (4, 1e7)])
def test_rotary_frequencies(width: int, base: float) -> None:
    # one rounding of a power in either program
    np.testing.assert_allclose(
        graph_layers.inverse_frequencies(width, base), L.inverse_frequencies(width, base), rtol=3e-7
    )


def test_rms_norm(any_dense: Case) -> None:
    D = config_of(any_dense).llm.D
    x = draw(1, 5, D) * 3
    name = "language_model.model.norm"
    (found,) = run_piece(
        any_dense, lambda g, c, i: [graph_layers.rms_norm(g, i["x"], name, c.llm.eps)], {"x": x}
    )
    close(found, L.rms_norm(x, any_dense.w[f"{name}.weight"], 1e-6), COMPONENT)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_norm_and_rotation_of_heads(any_dense: Case, suffix: str) -> None:
    c = config_of(any_dense).llm
    x = draw(2, 2, c.H, 7, c.hd)
    positions = np.array([[0, 1, 2, 3, 3, 3, 900], [0, 0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 1, 0, 0]])
    at = "language_model.model.layers.1.self_attn."

    def build(g, config, i):
        batch = g.Shape(i["x"], start=0, end=1)
        tables, _ = backbone.axes(g, i["p"], config.llm, FLOAT, batch)
        scope = g.at(at.removesuffix("."))
        return [backbone.place(scope, i["x"], f"q_norm{suffix}", config.llm, tables)]

    (found,) = run_piece(any_dense, build, {"x": x, "p": positions}, {"x": ["B", c.H, "S", c.hd]})
    norms = [any_dense.w[f"{at}q_norm{hw}{suffix}.weight"] for hw in ("", "_hw")]
    close(
        found,
        L.norm_and_rotate(x, *norms, positions, any_dense.config["llm_config"]),
        COMPONENT,
    )


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("mask", [True, False])
def test_layer_with_a_past(any_dense: Case, suffix: str, mask: bool) -> None:
    c = config_of(any_dense).llm
    B, S, P = 2, 6, 5
    x = draw(3, B, S, c.D)
    past = draw(4, B, c.KV, P, c.hd), draw(5, B, c.KV, P, c.hd)
    positions = np.array([[5, 6, 6, 6, 6, 7], [0, 0, 0, 1, 1, 0], [0, 0, 1, 0, 1, 0]])

    def build(g, config, i):
        rows, r = graph_layers.rows_of(g, i["x"])
        tables, t = backbone.axes(g, i["p"], config.llm, FLOAT, r.batch)
        seen = g.Shape(i["k"], start=2, end=3)
        bias = graph_layers.block_causal_bias(g, t, seen) if mask else None
        scope = g.at("language_model.model.layers.2")
        out = backbone.layer(scope, rows, (i["k"], i["v"]), suffix, config.llm, tables, r, bias)
        return [graph_layers.unrows(g, out[0], r, [config.llm.D]), *out[1:]]

    cached = ["batch", c.KV, "past", c.hd]
    dims = {"x": ["batch", "S", c.D], "p": [3, "S"], "k": cached, "v": cached}
    feeds = {"x": x, "p": positions, "k": past[0], "v": past[1]}
    found, k, v = run_piece(any_dense, build, feeds, dims)
    new = L.block_causal(positions[0]) if mask else np.ones((S, S), bool)
    allowed = np.concatenate([np.ones((S, P), bool), new], axis=1)
    wanted, (wk, wv) = L.backbone_layer(
        any_dense.w, any_dense.config["llm_config"], 2, suffix, x, positions, past, allowed
    )
    close(found, wanted, COMPONENT)
    close(k, wk, COMPONENT)
    close(v, wv, COMPONENT)


def test_gated_mlp(any_dense: Case) -> None:
    c = config_of(any_dense).llm
    x = draw(6, 9, c.D)
    at = "language_model.model.layers.0.mlp_mot_gen"
    (found,) = run_piece(
        any_dense,
        lambda g, config, i: [graph_layers.gated_mlp(g.at(at), i["x"], config.llm.I)],
        {"x": x},
    )
    close(found, L.dense_mlp(any_dense.w, f"{at}.", x), COMPONENT)


@pytest.mark.parametrize("grids", [[(4, 6)], [(2, 2), (6, 2), (2, 8)]])
def test_vision_tower_of_several_pictures(any_dense: Case, grids: list[tuple[int, int]]) -> None:
    c = config_of(any_dense)
    pixels = draw(7, sum(h * w for h, w in grids), 3 * c.P * c.P)
    grid_hw = np.array(grids, np.int64)

    def build(g, config, i):
        source, x, y = vision.token_order(g, i["grid_hw"], config)
        rows = g.Gather(i["pixels"], source, axis=0)
        return [vision.tower(g.at("vision_model"), rows, x, y, config)]

    dims = {"pixels": ["patches", 3 * c.P * c.P], "grid_hw": ["images", 2]}
    (found,) = run_piece(any_dense, build, {"pixels": pixels, "grid_hw": grid_hw}, dims)
    close(
        found, R.vision_tower(any_dense.w, any_dense.config, R.VISION, pixels, grid_hw), COMPONENT
    )


@pytest.mark.parametrize("size", [(64, 32), (32, 96)])
def test_generation_tower_of_a_batch(any_dense: Case, size: tuple[int, int]) -> None:
    z = draw(8, 2, 3, *size)

    def build(g, config, i):
        rows, x, y, _ = vision.patchify(g, i["z"], config)
        return [vision.tower(g.at("fm_modules.vision_model_mot_gen"), rows, x, y, config)]

    (found,) = run_piece(any_dense, build, {"z": z}, {"z": ["B", 3, "H", "W"]})
    rows = np.concatenate([R.patchify(picture) for picture in z])
    grid = np.array([[size[0] // 16, size[1] // 16]] * 2)
    close(found, R.vision_tower(any_dense.w, any_dense.config, R.VISION_GEN, rows, grid), COMPONENT)


@pytest.mark.parametrize("name", ["timestep_embedder", "noise_scale_embedder"])
@pytest.mark.parametrize("value", [0.0, 0.3, 1.0])
def test_scalar_embedder(any_dense: Case, name: str, value: float) -> None:
    (found,) = run_piece(
        any_dense,
        lambda g, c, i: [vision.scalar_embedder(g.at(f"fm_modules.{name}"), i["v"], c, FLOAT)],
        {"v": np.array([value], np.float32)},
    )
    close(found, R.scalar_embedder(any_dense.w, name, value), COMPONENT)


@pytest.mark.parametrize("grid", [(2, 3), (3, 1)])
def test_pixel_head(any_dense: Case, grid: tuple[int, int]) -> None:
    c = config_of(any_dense)
    th, tw = grid
    hidden = draw(9, 2, th * tw, c.llm.D)

    def build(g, config, i):
        rows, r = graph_layers.rows_of(g, i["h"])
        scope = g.at("fm_modules.fm_head")
        if config.pixel_head:
            c1 = any_dense.w["fm_modules.fm_head.conv1.weight"].shape[0]
            return [heads.conv_decoder(scope, rows, r, i["grid"], config, c1)]
        width = any_dense.w["fm_modules.fm_head.0.weight"].shape[0]
        return [heads.mlp_head(scope, rows, r, i["grid"], config, width)]

    feeds = {"h": hidden, "grid": np.array(grid)}
    (found,) = run_piece(any_dense, build, feeds, {"h": ["B", "L", c.llm.D]})
    close(found, R.pixel_head(any_dense.w, any_dense.config, hidden, th, tw), HEAD)
