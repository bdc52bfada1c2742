"""What was measured on: the processor, its instruction sets, and the versions of everything that ran.

A time without these says nothing, so results and reports carry them.
"""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import torch

from penstock.errors import CompileError
from penstock.native import native, processor_facts, usable_cores

_PACKAGES = ("penstock", "torch", "onnxruntime", "openvino", "nncf", "timm")


@dataclass(frozen=True)
class Processor:
    """`core` is the microarchitecture where it is known, else empty; `flags` as the system spells them."""

    name: str
    core: str
    flags: frozenset[str]

    @property
    def multiplies_bytes(self) -> bool:
        """Whether it adds products of bytes without saturating in 16 bits (VNNI, or ARM's dot product)."""
        return bool(self.flags & {"avx512_vnni", "avx_vnni", "asimddp"})

    @property
    def words(self) -> str:
        """In a few words: "AMD EPYC (Zen 3)"."""
        return f"{self.name} ({self.core})" if self.core and self.core not in self.name else self.name

    @property
    def slug(self) -> str:
        """A name for files: "zen3", "icelake", or the processor's own."""
        return re.sub(r"[^a-z0-9]+", "" if self.core else "-", (self.core or self.name).lower()).strip("-")


def processor(text: str | None = None) -> Processor:
    """This machine's, as Linux reports it, elsewhere as PyTorch does. text: another /proc/cpuinfo."""
    fields = processor_facts(text)
    listed = fields.get("flags") or fields.get("Features") or ""
    flags = set(listed.split()) or {torch.backends.cpu.get_cpu_capability().lower()}
    if "asimd" in flags:
        flags.add("neon")
    name = fields.get("model name") or platform.processor() or platform.machine() or "unknown"
    return Processor(name.strip(), _core(fields), frozenset(flags))


def _core(fields: dict[str, str]) -> str:
    try:
        # By number, for some virtual machines say no more than "AMD EPYC".
        family, model = int(fields["cpu family"]), int(fields["model"])
        return str(native().processor_name(fields.get("vendor_id", ""), family, model))
    except (KeyError, ValueError, CompileError):
        return ""


def versions() -> dict[str, str]:
    """Of Python and of every package that is measured, where it is installed."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def machine_words(isa: str = "") -> str:
    """One line for the top of a report: processor, cores, instruction set, versions."""
    cores = usable_cores()
    said = [processor().words, f"{cores} core{'' if cores == 1 else 's'}", *([isa] if isa else [])]
    return ", ".join(said) + "; " + ", ".join(f"{name} {number}" for name, number in versions().items())
