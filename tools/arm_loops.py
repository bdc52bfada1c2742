"""What the inner loops of the ARM kernels consist of, read from the compiled code with objdump.

A loop runs from the target of a backward branch to the branch. Of a function's loops the one with most
multiply-adds is the inner loop; a load or store relative to the stack pointer inside it would be a spilled
register.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

_LINE = re.compile(r"^\s+([0-9a-f]+):\s+(\S+)\s*(.*)$")
_BRANCH = re.compile(r"^(?:[^,]+,\s*)*([0-9a-f]+) <")


@dataclass(frozen=True)
class Loop:
    what: str
    function: str  # a pattern of its name with types, as c++filt prints it
    multiply: str  # a pattern of the multiply-add and its operands
    fewest: int  # of them in one turn


BY_ELEMENT = r"fmla\s.*\.s\[\d\]"
WORDS = r"smlal2?\s.*\.h\[\d\]"
LOOPS = (
    Loop("packed 1x1, 12 outputs x 8 pixels", r"neon::multiply_strip<12, 2, 1, false>", BY_ELEMENT, 24),
    Loop("packed 3x3, 12 outputs x 8 pixels", r"neon::multiply_strip<12, 2, 9, false>", BY_ELEMENT, 9 * 24),
    Loop("int8 words, 16 outputs x 5 pixels", r"int8_neon::multiply_words<4, 5>", WORDS, 160),
    Loop("int8 sdot, 16 outputs x 5 pixels", r"int8_neon_dot::multiply_bytes<4, 5>", r"sdot\s.*4b\[\d\]", 80),
    Loop("int8 usmmla, 16 outputs x 6 pixels", r"int8_neon_matrix::multiply_bytes<4, 6>", r"usmmla\s", 24),
)


def check_loop(library: Path, loop: Loop) -> bool:
    """Whether the inner loop has the multiply-adds it should and spills nothing; prints what it holds."""
    best: list[str] = []
    for body in _functions(library, loop.function):
        for turn in _loops(body):
            if _count(turn, loop.multiply) > _count(best, loop.multiply):
                best = turn
    found, spilled = _count(best, loop.multiply), _count(best, r"(ldr|str|ldp|stp)\s.*\[sp")
    kinds = Counter(line.split()[0] for line in best)
    listed = ", ".join(f"{n} {kind}" for kind, n in kinds.most_common())
    print(f"{loop.what}: {len(best)} instructions a turn: {listed}")
    good = found >= loop.fewest and spilled == 0
    if not good:
        print(f"  failed: {found} multiply-adds of at least {loop.fewest}; {spilled} spilled, expected none")
    return good


def _count(lines: list[str], pattern: str) -> int:
    return sum(re.match(pattern, line) is not None for line in lines)


def _functions(library: Path, pattern: str) -> list[list[tuple[int, str]]]:
    """The (address, instruction) lists of every function whose name matches."""
    command = ["aarch64-linux-gnu-objdump", "-d", "-C", "--no-show-raw-insn", str(library)]
    found: list[list[tuple[int, str]]] = []
    inside = False
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        if line.endswith(">:"):
            inside = re.search(pattern, line) is not None
            if inside:
                found.append([])
        elif inside and (match := _LINE.match(line)):
            found[-1].append((int(match[1], 16), f"{match[2]} {match[3]}"))
    return found


def _loops(body: list[tuple[int, str]]) -> list[list[str]]:
    """The innermost runs of instructions that end with a branch back to their first."""
    spans = []
    for address, text in body:
        name, _, operands = text.partition(" ")
        if name.startswith(("b.", "cb", "tb")) or name == "b":
            match = _BRANCH.match(operands)
            if match and int(match[1], 16) < address:
                spans.append((int(match[1], 16), address))
    inner = [s for s in spans if not any(t != s and s[0] <= t[0] and t[1] <= s[1] for t in spans)]
    return [[text for at, text in body if first <= at <= last] for first, last in inner]
