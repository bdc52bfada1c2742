"""penstock doctor: CPU features, versions, what is missing and the command that adds it."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import sys
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, distribution, requires, version
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from penstock import __version__
from penstock.datasets.cifar import SHA256, data_folder
from penstock.errors import CompileError
from penstock.zoo import available

_FEATURES = (
    "avx",
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512_vnni",
    "amx_tile",
    "neon",
)
# What each optional package is for, by the extra that brings it.
_OPTIONAL = {
    "onnx": ("onnx", "penstock export, ps.export_onnx"),
    "onnxruntime": ("onnx", "penstock bench --against onnxruntime"),
    "openvino": ("compare", "penstock bench --against openvino"),
    "timm": ("timm", "gating timm's models"),
    "tensorboard": ("tensorboard", "training curves in TensorBoard"),
}

_IN_A_SOURCE_TREE = (
    "torch",
    "numpy",
    "safetensors",
    "rich",
    "tyro",
    "accelerate",
    "pillow",
    "matplotlib",
    "jinja2",
)


@dataclass(frozen=True)
class Options:
    """Say what this machine has, what is missing, and the command that adds it."""

    json: bool = False


@dataclass(frozen=True)
class Finding:
    """One thing looked at. `needed`: not just for an extra; `remedy`: what adds it."""

    section: str
    name: str
    present: bool
    found: str
    needed: bool = True
    remedy: str = ""


def run(options: Options) -> int:
    findings = examine()
    broken = [finding for finding in findings if finding.needed and not finding.present]
    if options.json:
        print(json.dumps({"healthy": not broken, "findings": [asdict(finding) for finding in findings]}))
        return 1 if broken else 0
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    console.print(_table(findings))
    missing = [finding for finding in findings if not finding.present and finding.remedy]
    for finding in sorted(missing, key=lambda finding: not finding.needed):
        kind = "missing" if finding.needed else "optional"
        console.print(f"{kind}: {finding.name}; {finding.remedy}", markup=False, soft_wrap=True)
    console.print("something needed is missing" if broken else "everything needed is here")
    return 1 if broken else 0


def examine() -> list[Finding]:
    """Look at everything; nothing is imported that is optional."""
    return [*_machine(), *_engine(), *_packages(), *_extras(), *_data()]


def _machine() -> list[Finding]:
    model, flags = _processor()
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    features = [feature for feature in _FEATURES if feature in flags]
    return [
        Finding("machine", "system", True, f"{platform.system()} {platform.release()}, {platform.machine()}"),
        Finding("machine", "processor", True, model),
        Finding("machine", "features", True, " ".join(features) or "none that matters here"),
        Finding(
            "machine",
            "cores",
            True,
            f"{usable} of {os.cpu_count()} usable; PyTorch runs {torch.get_num_threads()} threads",
        ),
        Finding("machine", "memory", True, _memory()),
    ]


def _processor() -> tuple[str, set[str]]:
    """The model's name and the flags, as Linux tells them; PyTorch's word elsewhere."""
    file = Path("/proc/cpuinfo")
    text = file.read_text() if file.exists() else ""
    name = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    known = set(flags.group(1).split()) if flags else {torch.backends.cpu.get_cpu_capability().lower()}
    if "asimd" in known:
        known.add("neon")
    return (name.group(1) if name else platform.processor() or "unknown"), known


def _memory() -> str:
    try:
        pages, free = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_AVPHYS_PAGES")
        size = os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return "unknown"
    return f"{pages * size / 2**30:.1f} GiB, {free * size / 2**30:.1f} GiB free"


def _engine() -> list[Finding]:
    from penstock.engine import available_isas, chosen_isa, fma_peak_gflops

    try:
        sets, chosen = available_isas(), chosen_isa()
    except CompileError as error:
        return [Finding("engine", "native module", False, "absent or misled", remedy=str(error))]
    peak = fma_peak_gflops(chosen)
    return [
        Finding("engine", "native module", True, f"instruction sets {', '.join(sets)}; in use: {chosen}"),
        Finding("engine", "one core", True, f"{peak:.0f} GFLOPS in multiply-adds, measured just now"),
    ]


def _packages() -> list[Finding]:
    found = [
        Finding("packages", "python", True, f"{platform.python_version()} at {sys.prefix}"),
        Finding("packages", "penstock", True, __version__),
    ]
    for name in _required():
        installed = _version(name)
        remedy = "" if installed else f"run: pip install {name}"
        found.append(Finding("packages", name, bool(installed), installed or "not installed", True, remedy))
    compiler = shutil.which("g++") or shutil.which("clang++") or ""
    remedy = "" if compiler else "install g++ to build from source or to use torch.compile"
    found.append(Finding("packages", "C++ compiler", bool(compiler), compiler or "none", False, remedy))
    return found


def _required() -> list[str]:
    """The names of what pip installs with penstock; those of a source tree if it is not installed."""
    try:
        listed = requires("penstock") or []
    except PackageNotFoundError:
        listed = list(_IN_A_SOURCE_TREE)
    return [re.split(r"[\s<>=!~;\[]", line)[0] for line in listed if "extra ==" not in line]


def _extras() -> list[Finding]:
    found = []
    for name, (extra, purpose) in _OPTIONAL.items():
        installed = _version(name)
        remedy = "" if installed else f"for {purpose} run: pip install 'penstock[{extra}]'"
        found.append(Finding("extras", name, bool(installed), installed or "not installed", False, remedy))
    return found


def _version(name: str) -> str:
    try:
        distribution(name)
        return version(name)
    except PackageNotFoundError:
        return ""


def _data() -> list[Finding]:
    folder = data_folder() / "cifar10"
    here = [key for key in SHA256 if (folder / f"{key}.npy").is_file()]
    whole = len(here) == len(SHA256)
    said = str(folder) if whole else f"{len(here)} of {len(SHA256)} files in {folder}"
    remedy = "" if whole else "run: penstock data cifar10"
    names = available()
    shipped = ", ".join(names) or "none"
    return [
        Finding("data", "CIFAR-10", whole, said, False, remedy),
        Finding(
            "data",
            "shipped checkpoints",
            bool(names),
            shipped,
            False,
            "" if names else "install penstock again",
        ),
    ]


def _table(findings: list[Finding]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    for _ in range(3):
        table.add_column(overflow="fold")
    section = ""
    for finding in findings:
        head = "" if finding.section == section else finding.section
        section = finding.section
        mark = "yes" if finding.present else "MISSING" if finding.needed else "no"
        table.add_row(head, finding.name, mark, finding.found)
    return table
