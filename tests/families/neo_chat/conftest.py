"""Fixtures: every tiny checkpoint in turn, or one of them."""

from __future__ import annotations

import pytest

from .golden_cases import CASES, Case, load_case


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return load_case(request.param)


@pytest.fixture
def dense() -> Case:
    return load_case("dense-conv")


@pytest.fixture
def moe() -> Case:
    return load_case("moe-mlp")
