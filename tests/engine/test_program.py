"""The border to C++: programs with a number changed are refused, or run within bounds; never a crash."""

from __future__ import annotations

import contextlib
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.engine.networks import cases

from penstock.engine import Engine, build_program
from penstock.engine.schema import names, number, op_fields, row
from penstock.engine.steps import AFTER_CONV, FUNCTIONS
from penstock.errors import CompileError, FileError, InputError
from penstock.gating.summaries import SUMMARIES
from penstock.native import native
from penstock_runtime.file import Image, pack
from penstock_runtime.program import Program

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


def image_of(program: Program) -> Image:
    """The compiled file of a program; its checksum is right, whatever its numbers are."""
    return pack({"gates/densities": np.full(len(program.gated), 0.5), **program.sections()})


def survives(program: Program, threads: int = 1) -> bool:
    """True if it ran; False if it was refused."""
    try:
        engine = Engine(image_of(program), threads)
    except FileError:
        return False
    with contextlib.suppress(InputError):  # a number that is not finite is met as it runs
        engine(np.ones((1, *engine.input_shape), np.float32))
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
    _, program = build_program(network, torch.zeros(1, 3, 8, 8))
    assert survives(program)
    for change, words in (
        ({"format": 99}, "format 99"),
        ({"tensors": program.tensors[:, :5]}, "width"),
        ({"scalars": program.scalars[:1]}, "width"),
        ({"weights": program.weights.astype(np.float64)}, "element type"),
        ({"layers": ()}, "layer"),
        ({"op_names": program.op_names[1:]}, "one string for each operation"),
        ({"result_shape": (4, 6, 7)}, "result/shape"),
    ):
        with pytest.raises(FileError, match=words):
            Engine(image_of(replace(program, **change)))


def test_every_name_of_this_side_has_a_number_on_the_other() -> None:
    assert set(names("Activation")) == AFTER_CONV
    assert set(names("Function")) == FUNCTIONS
    assert set(names("Summary")) == set(SUMMARIES)
    assert len(names("OpField")) + len(names("ConvField")) == op_fields()
    assert native().ALGORITHMS[0] == "automatic"
    assert len(set(native().ALGORITHMS)) == len(native().ALGORITHMS)


def test_a_field_too_many_or_too_few_and_an_unknown_name_are_refused() -> None:
    fields = dict.fromkeys(names("AffineField"), 0)
    with pytest.raises(CompileError, match=r"AffineField.*\['shift'\]"):
        row("AffineField", {name: value for name, value in fields.items() if name != "shift"})
    with pytest.raises(CompileError, match=r"AffineField.*\['tilt'\]"):
        row("AffineField", fields | {"tilt": 2})
    with pytest.raises(CompileError, match="no Function 'gauss', it has none, relu"):
        number("Function", "gauss")
    with pytest.raises(CompileError, match="no list 'Dream'"):
        names("Dream")
