"""The border to C++: programs with a number changed are refused, or run within bounds; never a crash."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.engine.networks import cases

from penstock.engine import build_program, chosen_isa
from penstock.engine.encode import FORMAT, Program
from penstock.engine.native import native

_ODD = (-1, 0, 1, 2, 16, 255, 65536, 2**30, 2**31, 2**32, 2**62, -(2**62), 2**63 - 1, -(2**63))


def changed(program: Program, chance: random.Random) -> Program:
    """The program with one to three of its numbers changed."""
    for _ in range(chance.randint(1, 3)):
        name = chance.choice(("tensors", "tensors", "ops", "ops", "ops", "args", "scalars", "weights"))
        array = getattr(program, name).copy()
        if array.size == 0:
            continue
        place = chance.randrange(array.size)
        old = array.flat[place]
        if array.dtype == np.int64:
            near = int(old) + chance.choice((-16, -2, -1, 1, 2, 16))
            near = (near + 2**63) % 2**64 - 2**63  # a number that was changed before may lie at the very end
            array.flat[place] = chance.choice((near, chance.choice(_ODD)))
        elif chance.random() < 0.2 and name == "weights":
            array = array[: chance.randrange(array.size)]
        else:
            array.flat[place] = chance.choice((np.nan, np.inf, -np.inf, 1e30, 0.0))
        program = replace(program, **{name: array})
    return program


def survives(program: Program, threads: int = 1) -> bool:
    """True if it ran; False if it was refused."""
    module = native()
    try:
        engine = module.Engine(
            FORMAT, program.tensors, program.ops, program.scalars, program.args, program.weights,
            len(program.layers), len(program.gated), chosen_isa(), threads,
        )  # fmt: skip
    except module.ProgramError:
        return False
    _, *size = program.tensors[0, :4].tolist()
    values = int(np.prod(program.result_shape))
    winners = np.array([(c + 1) // 2 for c in engine.knob_channels], np.int32)
    try:
        engine.run(np.ones((1, *size), np.float32), winners, np.empty((1, values), np.float32))
    except ValueError:
        return False  # another input or result size than the names beside the program say
    return True


def attack(case_count: int, mutations: int) -> None:
    @settings(max_examples=case_count, suppress_health_check=list(HealthCheck))
    @given(cases(), st.integers(0, 2**31))
    def run(case: object, seed: int) -> None:
        _, program = build_program(case.network, case.images)  # type: ignore[attr-defined]
        assert survives(program)
        chance = random.Random(seed)
        for _ in range(mutations):
            survives(changed(program, chance))

    run()


def test_a_changed_program_is_refused_or_runs() -> None:
    attack(10, 30)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_hundred_thousand_changed_programs_are_refused_or_run() -> None:
    attack(200, 500)


def test_a_foreign_format_and_wrong_array_shapes_are_refused() -> None:
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3))
    _, p = build_program(network, torch.zeros(1, 3, 8, 8))
    module = native()
    with pytest.raises(module.ProgramError, match="format 99"):
        module.Engine(99, p.tensors, p.ops, p.scalars, p.args, p.weights, 1, 0, chosen_isa(), 1)
    with pytest.raises(ValueError, match="number of fields"):
        module.Engine(
            FORMAT, p.tensors[:, :5].copy(), p.ops, p.scalars, p.args, p.weights, 1, 0, chosen_isa(), 1
        )
    with pytest.raises(ValueError, match="scalars"):
        module.Engine(
            FORMAT, p.tensors, p.ops, p.scalars[:1].copy(), p.args, p.weights, 1, 0, chosen_isa(), 1
        )
