"""Dense networks in the runtimes that are installed: a network in, {runtime: function of a batch} out.

All use the same number of threads, and each says the precision that it computes in:

    torch, torch.compile, onnxruntime, openvino     float32
    openvino-installed                              whatever OpenVINO takes by itself: bfloat16 where the
                                                    processor has it, else float32
    onnxruntime-int8, openvino-int8                 int8, quantised here from calibration images

A runtime that is not installed is left out; one that cannot take the network is left out too, and `problems`
says why.
"""

from __future__ import annotations

import copy
import importlib.util
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from penstock.errors import InputError
from penstock.exporting import export_onnx
from penstock.exporting.onnx.run import onnx_session
from penstock.measuring.int8 import openvino_core, quantise_for_onnxruntime, quantise_for_openvino
from penstock.native import ISA_VARIABLE

FLOAT32 = ("torch", "torch.compile", "onnxruntime", "openvino")
INSTALLED = "openvino-installed"
INT8 = ("onnxruntime-int8", "openvino-int8")
ALL = (*FLOAT32, INSTALLED, *INT8)
RUNTIMES = ("torch", "onnxruntime", "openvino")
_MOST_THREADS = 1024  # as the engine; torch ends the process where the system refuses so many

_PACKAGES = {
    "torch.compile": ("torch",),
    INSTALLED: ("openvino",),
    "onnxruntime-int8": ("onnxruntime",),
    "openvino-int8": ("openvino", "nncf"),
}
# Our name of an instruction set → what oneDNN (OpenVINO, torch) and ATen (torch) call it.
_HOLD = {"baseline": ("SSE41", "default"), "avx2": ("AVX2", "avx2"), "avx512": ("AVX512_CORE", "avx512")}


@dataclass(frozen=True)
class Runtime:
    """A network made ready: call it on a batch of images.

    `isa`: the widest instruction set of its convolutions, where the runtime tells. `agreement`: of an int8
    network, the share of the calibration images whose first class is the float network's.
    """

    name: str
    precision: str
    run: Callable[[Tensor], object] = field(repr=False)
    isa: str = ""
    agreement: float | None = None

    def __call__(self, x: Tensor) -> object:
        return self.run(x)


@dataclass(frozen=True)
class Runtimes:
    """`run`: the ones that work; `problems`: why the others do not."""

    run: dict[str, Runtime] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)


def runtime_names(text: str) -> list[str]:
    """What `--against` names: runtimes with commas between, `int8` for every int8 one.

    OpenVINO held to float32 never stands alone: what users get, OpenVINO as it installs, comes with it.

    >>> runtime_names("torch,openvino,int8")
    ['torch', 'openvino', 'openvino-installed', 'onnxruntime-int8', 'openvino-int8']
    """
    several = {"int8": INT8, "openvino": ("openvino", INSTALLED)}
    names: list[str] = []
    for name in (part.strip() for part in text.split(",")):
        if name and name not in (*ALL, "int8"):
            raise InputError(f"--against: there is no {name!r}; there are: {', '.join((*ALL, 'int8'))}")
        names += several.get(name, (name,) if name else ())
    return list(dict.fromkeys(names))


def hold_instruction_set(isa: str) -> None:
    """Keep this process to an instruction set: the engine, OpenVINO, torch's convolutions, torch.compile.

    Call it before any of them runs. ONNX Runtime chooses its kernels by the processor alone and has no
    switch: it stays as wide as it is.
    """
    if isa not in _HOLD:
        raise InputError(f"--isa {isa!r}: expected one of {', '.join(_HOLD)}")
    onednn, aten = _HOLD[isa]
    os.environ |= {ISA_VARIABLE: isa, "ONEDNN_MAX_CPU_ISA": onednn, "ATEN_CPU_CAPABILITY": aten}


def dense_runtimes(
    network: nn.Module,
    example: Tensor,
    names: Sequence[str] = RUNTIMES,
    threads: int = 1,
    calibration: Tensor | None = None,
    folder: Path | None = None,
) -> Runtimes:
    """Prepare `network` (in evaluation mode, without gates) for every runtime of `names`.

    example: (1, channel, height, width); calibration: (n, …), preprocessed, for those in int8. folder: where
    exported and quantised networks are kept and found again, so that the same network is ready at once. Sets
    torch's own thread count, which is one for the whole process.
    """
    if not 1 <= threads <= _MOST_THREADS:
        raise InputError(f"threads: expected 1 to {_MOST_THREADS}, got {threads}")
    found = Runtimes()
    torch.set_num_threads(threads)
    network.eval()
    with tempfile.TemporaryDirectory() as passing, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = (folder or Path(passing)) / "dense.onnx"
        path.parent.mkdir(parents=True, exist_ok=True)
        for name in names:
            missing = [one for one in _PACKAGES.get(name, (name,)) if importlib.util.find_spec(one) is None]
            if missing:
                remedy = "'penstock[compare]'" if name in ALL else missing[0]
                found.problems[name] = f"not installed; run: pip install {remedy}"
                continue
            if name in INT8 and (calibration is None or not len(calibration)):
                found.problems[name] = "int8 needs calibration images, and there are none"
                continue
            try:
                if not name.startswith("torch") and not path.exists():
                    export_onnx(network, path, example)
                images = example if calibration is None else calibration
                made = _PREPARE[name](name, network, path, threads, images)
                if name in INT8:
                    assert calibration is not None
                    made = replace(made, agreement=same_classes(network, made, calibration))
                found.run[name] = made
            # A foreign runtime may fail in any way; the comparison goes on with the others.
            except Exception as error:
                found.problems[name] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    torch.set_num_threads(threads)
    return found


def same_classes(network: nn.Module, run: Callable[[Tensor], object], images: Tensor) -> float:
    """The share of the images (n, …) for which both have the largest logit in the same place."""
    with torch.no_grad():
        expected = [network(image).flatten(1).argmax(1) for image in images.split(1)]
    found = [torch.as_tensor(run(image)).flatten(1).argmax(1) for image in images.split(1)]
    return float((torch.cat(expected) == torch.cat(found)).double().mean())


def _torch(name: str, network: nn.Module, path: Path, threads: int, images: Tensor) -> Runtime:
    """Eager, norms folded, channels last; or compiled besides."""
    eager = _fold_norms(network).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    chosen = torch.compile(eager) if name == "torch.compile" else eager

    def run(x: Tensor) -> object:
        with torch.inference_mode():
            return chosen(x.contiguous(memory_format=torch.channels_last))

    run(images[:1])
    return Runtime(name, "float32", run)


def _fold_norms(dense: nn.Module) -> nn.Module:
    from torch.fx.experimental.optimization import fuse

    try:
        return fuse(copy.deepcopy(dense))
    except Exception:  # not traceable by plain fx: eager runs it as it is
        return copy.deepcopy(dense)


def _onnxruntime(name: str, network: nn.Module, path: Path, threads: int, images: Tensor) -> Runtime:
    int8 = name in INT8
    session = onnx_session(quantise_for_onnxruntime(path, images) if int8 else path, threads)
    entry = session.get_inputs()[0].name
    return Runtime(name, "int8" if int8 else "float32", lambda x: session.run(None, {entry: x.numpy()})[0])


def _openvino(name: str, network: nn.Module, path: Path, threads: int, images: Tensor) -> Runtime:
    settings: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    if name == "openvino":  # else it may take bfloat16, which no other float runtime here does
        settings["INFERENCE_PRECISION_HINT"] = "f32"
    model = quantise_for_openvino(path, images) if name in INT8 else path
    compiled = openvino_core().compile_model(str(model), "CPU", settings)
    request = compiled.create_infer_request()
    said = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    precision = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}.get(said, said)
    return Runtime(
        name,
        "int8" if name in INT8 else precision,
        lambda x: request.infer([x.numpy()])[0],
        _instruction_set(compiled),
    )


def _instruction_set(compiled: Any) -> str:
    """The widest set that OpenVINO names among its convolutions' kernels, as in "jit_avx2_FP32"."""
    kinds = [
        node.get_rt_info()["primitiveType"].astype(str)
        for node in compiled.get_runtime_model().get_ordered_ops()
        if node.get_rt_info()["layerType"].astype(str) == "Convolution"
    ]
    sets = {found for kind in kinds for found in re.findall(r"avx512|avx2|avx|sse\d+", kind)}
    return next((one for one in ("avx512", "avx2", "avx") if one in sets), min(sets, default=""))


_PREPARE: dict[str, Callable[[str, nn.Module, Path, int, Tensor], Runtime]] = {
    "torch": _torch,
    "torch.compile": _torch,
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
    INSTALLED: _openvino,
    "onnxruntime-int8": _onnxruntime,
    "openvino-int8": _openvino,
}
