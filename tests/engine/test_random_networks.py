"""The engine against the masked PyTorch network, on networks nobody wrote."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.engine.agreement import assert_agreement
from tests.engine.networks import Case, cases

import penstock.engine as engines

_RELAXED = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]


def check(case: Case) -> None:
    engine = engines.compile(case.network, case.images)
    assert_agreement(case.network, engine, case.images, case.text)


@settings(max_examples=60, suppress_health_check=_RELAXED)
@given(cases())
def test_outputs_winners_and_counts_equal_the_masked_network(case: Case) -> None:
    check(case)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@settings(max_examples=2000, suppress_health_check=_RELAXED, derandomize=False)
@given(cases())
def test_two_thousand_random_networks_equal_the_masked_network(case: Case) -> None:
    check(case)


@settings(max_examples=15, suppress_health_check=_RELAXED)
@given(cases(), st.sampled_from(engines.available_isas()), st.integers(2, 4))
def test_instruction_sets_agree_and_threads_change_no_bit(case: Case, isa: str, threads: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_ISA", isa)
        engine = engines.compile(case.network, case.images)
        assert engine.isa == isa
        many = engines.compile(case.network, case.images, threads=threads)
        patch.setenv("PENSTOCK_ISA", "scalar")
        scalar = engines.compile(case.network, case.images)
    assert_agreement(case.network, engine, case.images, case.text)
    alone, shared = engine(case.images).numpy(), many(case.images).numpy()
    np.testing.assert_array_equal(alone, shared)
    for image in range(len(case.images)):
        np.testing.assert_array_equal(alone[image], many(case.images[image : image + 1]).numpy()[0])
    assert_agreement(case.network, scalar, case.images, case.text)
