"""penstock doctor: CPU features, versions, what is missing and the command that adds it."""

from __future__ import annotations

import importlib
import json
import os
import platform
import re
import shutil
import sys
import warnings
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, distribution, requires, version

import torch
from rich.console import Console
from rich.table import Table

from penstock import __version__
from penstock.datasets.cifar import SHA256
from penstock.errors import CompileError
from penstock.exporting.libraries import LIBRARIES, mend_torchvision
from penstock.files import data_folder
from penstock.measuring.machine import processor
from penstock.native import usable_cores
from penstock.reporting.terminal import WholeWords, print_table
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
    "nncf": ("compare", "penstock bench --against int8 in OpenVINO"),
    "timm": ("timm", "MODEL timm:NAME"),
    "torchvision": ("timm", "MODEL torchvision:NAME"),
    "tensorboard": ("tensorboard", "training curves in TensorBoard"),
    "starlette": ("serve", "penstock serve"),
    "uvicorn": ("serve", "penstock serve"),
    "prometheus-client": ("serve", "penstock serve, its /metrics"),
    "httptools": ("serve", "penstock serve, reads requests faster"),
    "uvloop": ("serve", "penstock serve, waits for requests faster"),
    "ray": ("ray", "penstock batch, Ray Serve"),
    "pyarrow": ("ray", "penstock batch, its parquet files"),
}

# Where a package's module is not its name with underscores for hyphens.
_MODULES = {"pillow": "PIL"}
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
    "tomli-w",
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
    console = Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else 120)
    print_table(console, _table(findings))
    missing = [finding for finding in findings if not finding.present and finding.remedy]
    for finding in sorted(missing, key=lambda finding: not finding.needed):
        kind = "missing" if finding.needed else "optional"
        console.print(f"{kind}: {finding.name}; {finding.remedy}", soft_wrap=True)
    console.print("something needed is missing" if broken else "everything needed is here")
    return 1 if broken else 0


def examine() -> list[Finding]:
    """Look at everything; what is installed is really imported."""
    return [*_machine(), *_engine(), *_packages(), *_extras(), *_data()]


def _machine() -> list[Finding]:
    here = processor()
    features = [feature for feature in _FEATURES if feature in here.flags]
    return [
        Finding("machine", "system", True, f"{platform.system()} {platform.release()}, {platform.machine()}"),
        Finding("machine", "processor", True, here.words),
        Finding("machine", "features", True, " ".join(features) or "none that matters here"),
        Finding(
            "machine",
            "cores",
            True,
            f"{usable_cores()} of {os.cpu_count()} usable; PyTorch runs {torch.get_num_threads()} threads",
        ),
        Finding("machine", "memory", True, _memory()),
    ]


def _memory() -> str:
    try:
        pages, free = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_AVPHYS_PAGES")
        size = os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return "unknown"
    return f"{pages * size / 2**30:.1f} GiB, {free * size / 2**30:.1f} GiB free"


def _engine() -> list[Finding]:
    from penstock.native import available_isas, chosen_isa, fma_peak_gflops, native

    try:
        sets, chosen = available_isas(), chosen_isa()
    except CompileError as error:
        return [Finding("engine", "native module", False, "absent or misled", remedy=str(error))]
    peak = fma_peak_gflops(chosen)
    return [
        Finding("engine", "native module", True, f"instruction sets {', '.join(sets)}; in use: {chosen}"),
        Finding("engine", "tuning", True, f"for {native().CORE} cores (kernels/machine/machine.cpp)"),
        Finding("engine", "one core", True, f"{peak:.0f} GFLOPS in multiply-adds, measured just now"),
    ]


def _packages() -> list[Finding]:
    found = [
        Finding("packages", "python", True, f"{platform.python_version()} at {sys.prefix}"),
        Finding("packages", "penstock", True, __version__),
    ]
    found += [_package("packages", name, f"run: pip install {name}") for name in _required()]
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
    return [
        _package("extras", name, f"for {purpose} run: pip install 'penstock[{extra}]'", needed=False)
        for name, (extra, purpose) in _OPTIONAL.items()
    ]


def _package(section: str, name: str, remedy: str, needed: bool = True) -> Finding:
    """Whether a package is installed, and really imports: one does not follow from the other."""
    try:
        distribution(name)
        installed = version(name)
    except PackageNotFoundError:
        return Finding(section, name, False, "not installed", needed, remedy)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            stand_ins = mend_torchvision() if name in LIBRARIES else []
            importlib.import_module(_MODULES.get(name, name.replace("-", "_")))
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        said = f"{installed}, but does not import: {type(error).__name__}: {reason}"
        return Finding(section, name, False, said, needed, f"{remedy} (again)")
    if stand_ins:
        installed += f"; torchvision's operators {', '.join(stand_ins)} are declared by Penstock"
    return Finding(section, name, True, installed, needed)


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
    table = WholeWords(box=None, show_header=False, pad_edge=False)
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
