"""The tables of DLPack's exchange API in kernels/run/exchange.h have the layout of the official header."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
OFFICIAL = Path(torch.__file__).parent / "include" / "ATen" / "dlpack.h"
# Ours, and the official header's, field by field.
FIELDS = {
    ("DlTensor", "DLTensor"): {
        "data": "data", "device_type": "device.device_type", "device_id": "device.device_id", "rank": "ndim",
        "type_code": "dtype.code", "type_bits": "dtype.bits", "type_lanes": "dtype.lanes", "shape": "shape",
        "strides": "strides", "byte_offset": "byte_offset",
    },
    ("DlManaged", "DLManagedTensorVersioned"): {
        "major": "version.major", "minor": "version.minor", "context": "manager_ctx", "deleter": "deleter",
        "flags": "flags", "tensor": "dl_tensor",
    },
    ("DlExchange", "DLPackExchangeAPI"): {
        "major": "header.version.major", "minor": "header.version.minor", "previous": "header.prev_api",
        "allocate": "managed_tensor_allocator", "managed_from": "managed_tensor_from_py_object_no_sync",
        "managed_to": "managed_tensor_to_py_object_no_sync", "view": "dltensor_from_py_object_no_sync",
        "current_stream": "current_work_stream",
    },
}  # fmt: skip


def test_every_field_lies_where_the_official_header_has_it(tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None or not OFFICIAL.exists() or "DLPackExchangeAPI" not in OFFICIAL.read_text():
        pytest.skip("needs g++ and a torch whose dlpack.h has the exchange API")
    lines = [
        "#include <cstddef>",
        f'#include "{OFFICIAL}"',
        '#include "run/exchange.h"',
        "using namespace penstock;",
    ]
    for (ours, theirs), fields in FIELDS.items():
        lines.append(f"static_assert(sizeof({ours}) == sizeof({theirs}));")
        for own, official in fields.items():
            lines.append(f"static_assert(offsetof({ours}, {own}) == offsetof({theirs}, {official}));")
            same = f"sizeof((({ours}*)nullptr)->{own}) == sizeof((({theirs}*)nullptr)->{official})"
            lines.append(f"static_assert({same});")
    lines.append(
        "static_assert(kDlCpu == kDLCPU && kDlFloat == kDLFloat && kDlMajor == DLPACK_MAJOR_VERSION);"
    )
    source = tmp_path / "layout.cpp"
    source.write_text("\n".join(lines) + "\n")
    include = [f"-I{ROOT / 'kernels'}", f"-I{sysconfig.get_path('include')}"]
    command = [compiler, "-std=c++17", "-fsyntax-only", "-Wno-invalid-offsetof", *include, str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
