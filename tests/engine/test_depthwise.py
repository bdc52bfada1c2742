"""Lists through depthwise convolutions: the engine against the masked network, and what it computes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.engine.agreement import assert_agreement
from tests.engine.networks import Case
from tests.engine.separable import separable_cases

import penstock.engine as engines

_RELAXED = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]


@settings(max_examples=60, suppress_health_check=_RELAXED)
@given(separable_cases())
def test_constants_behind_depthwise_convolutions_equal_the_masked_network(case: Case) -> None:
    engine = engines.compile(case.network, case.images)
    assert_agreement(case.network, engine, case.images, case.text)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@settings(max_examples=2000, suppress_health_check=_RELAXED, derandomize=False)
@given(separable_cases())
def test_two_thousand_networks_with_depthwise_convolutions_equal_the_masked_network(case: Case) -> None:
    engine = engines.compile(case.network, case.images)
    assert_agreement(case.network, engine, case.images, case.text)


@settings(max_examples=12, suppress_health_check=_RELAXED)
@given(separable_cases(), st.sampled_from(engines.available_isas()), st.integers(2, 4))
def test_constants_are_the_same_on_every_instruction_set_and_thread_count(
    case: Case, isa: str, threads: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_ISA", isa)
        engine = engines.compile(case.network, case.images)
        many = engines.compile(case.network, case.images, threads=threads)
    assert_agreement(case.network, engine, case.images, case.text)
    np.testing.assert_array_equal(engine(case.images).numpy(), many(case.images).numpy())
