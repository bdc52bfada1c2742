"""The native module, the choice of an instruction set, and what the system says of the processor."""

from __future__ import annotations

import importlib
import os
import re
from pathlib import Path
from typing import Any

from penstock_runtime.errors import CompileError

ISA_VARIABLE = "PENSTOCK_ISA"
_OTHER_NAMES = {"scalar": "baseline"}
_CPUINFO = Path("/proc/cpuinfo")


def native() -> Any:
    """The compiled module, or how to get it."""
    try:
        return importlib.import_module("penstock_runtime._native")
    except ImportError as error:
        raise CompileError(
            f"the native module is not built ({error}); run: pip install ./runtime (or, in a source tree, "
            "python tools/build_native.py)"
        ) from error


def available_isas() -> tuple[str, ...]:
    """The instruction sets that this machine can run, narrowest first.

    >>> available_isas()[0]
    'baseline'
    """
    return tuple(native().isa_names())


def chosen_isa() -> str:
    """The widest available set, or what the environment variable PENSTOCK_ISA asks for.

    >>> chosen_isa() in available_isas()
    True
    """
    available = available_isas()
    wanted = os.environ.get(ISA_VARIABLE, "").strip().lower()
    if not wanted:
        return available[-1]
    name = _OTHER_NAMES.get(wanted, wanted)
    if name not in available:
        raise CompileError(
            f"{ISA_VARIABLE}={wanted}: this machine has {', '.join(available)} (scalar means baseline); "
            "unset it to take the widest"
        )
    return name


def fma_peak_gflops(isa: str | None = None, seconds: float = 0.2) -> float:
    """What one core reaches in multiply-adds on registers, measured now."""
    return float(native().fma_peak_gflops(isa or chosen_isa(), seconds))


def usable_cores() -> int:
    """The cores this process may run on.

    >>> usable_cores() >= 1
    True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor_facts(text: str | None = None) -> dict[str, str]:
    """What Linux says of the first processor, by name; nothing elsewhere. text: another /proc/cpuinfo.

    >>> processor_facts("model name : EPYC")
    {'model name': 'EPYC'}
    """
    if text is None:
        text = _CPUINFO.read_text() if _CPUINFO.exists() else ""
    return dict(re.findall(r"^([^\t:\n]+?)\s*:[ \t]*(.*)$", text.split("\n\n")[0], re.MULTILINE))
