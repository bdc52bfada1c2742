"""Rules that the C++ sources keep, read from their text."""

from __future__ import annotations

import re
from pathlib import Path

_KERNELS = Path(__file__).resolve().parent.parent / "kernels"
_PREFETCH = re.compile(r"__builtin_prefetch|_mm_prefetch|__pld")
_PROCESSOR = re.compile(
    r"__builtin_cpu_is|made_by|\"(?:Zen|AMD|Ice Lake|Intel)|znver|GenuineIntel|AuthenticAMD"
)
# Headers without inline functions: others would be compiled for the set of the kernels, and linked anywhere.
_PLAIN_HEADERS = {"arm_neon.h", "cstddef", "cstdint", "cstring", "immintrin.h"}
# What GCC defines for -m flags; a pragma's target comes too late for the preprocessor in C++.
_TARGET_MACRO = re.compile(r"#.*\b__(?:SSE|AVX|FMA|ARM_FEATURE)\w*")
_LANES = re.compile(r"[lL]anes *(?:[=!]=|[<>]=?) *(?:4|8|16)\b")


def _sources() -> list[Path]:
    found = [path for path in _KERNELS.rglob("*") if path.suffix in {".h", ".c", ".cpp", ".inl", ".def"}]
    assert len(found) > 100
    return found


def test_no_source_is_longer_than_400_lines() -> None:
    long = {path.name: lines for path in _sources() if (lines := len(path.read_text().splitlines())) > 400}
    assert not long


def _places(pattern: re.Pattern[str]) -> set[str]:
    return {str(path.relative_to(_KERNELS)) for path in _sources() if pattern.search(path.read_text())}


def test_cache_lines_are_fetched_ahead_in_one_file_only() -> None:
    assert _places(_PREFETCH) == {"machine/prefetch.h"}, "call what machine/prefetch.h offers"


def test_only_the_table_of_machines_names_a_processor() -> None:
    # A comment may say where something was measured; code asks the machine's row.
    assert _places(_PROCESSOR) == {"machine/machine.cpp"}


def test_no_kernel_takes_a_number_of_lanes_for_an_instruction_set() -> None:
    assert not _places(_LANES), "ask kWideVectors, kRegisters or a row of the machine"


def test_no_source_asks_the_preprocessor_for_an_instruction_set() -> None:
    assert not _places(_TARGET_MACRO), "let machine/target_<name>.h define what differs"


def test_kernels_include_no_header_with_inline_functions() -> None:
    kernels = [path for path in _sources() if path.suffix == ".inl" or path.name.startswith(("vec", "codes"))]
    assert len(kernels) > 20
    found = {
        (path.name, name) for path in kernels for name in re.findall(r"#include <(.+?)>", path.read_text())
    }
    assert {pair for pair in found if pair[1] not in _PLAIN_HEADERS} == set()
