"""ONNX export: a network in, a file in standard operators out, in which skipped channels are really skipped.

    export_onnx(gated, "r18.onnx", example)                    one image; a density input with a default
    export_onnx(gated, "r18.onnx", example, density=0.3)       the density fixed
    export_onnx(gated, "r18.onnx", example, skipping=False)    any batch; everything computed, losers zeroed

A network without gates is written as it is, which gives the dense model to compare with.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn

from penstock.errors import ExportError, SurgeryError, import_extra
from penstock.exporting.onnx.gates import Densities, Gates
from penstock.exporting.onnx.graph import OPSETS, GraphWriter
from penstock.exporting.onnx.lists import ChannelLists
from penstock.exporting.onnx.network import NetworkWriter
from penstock.files import write_atomically
from penstock.gating import check_density, gated_layers, is_gated
from penstock.surgery import trace

_LARGEST = 2**31 - 1  # protobuf's limit for one file
IMAGES, DENSITY, CHANNELS = "images", "density", "channels/"


@dataclass(frozen=True)
class OnnxFile:
    """What was written.

    density: the default of the density input, or the fixed density; None if the layers differ, or if there is
    neither.
    """

    path: Path
    bytes: int
    opset: int
    skipping: bool
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    gated_layers: int
    density: float | None


def export_onnx(
    network: nn.Module,
    path: str | os.PathLike[str],
    example: Tensor,
    *,
    skipping: bool = True,
    density: float | Literal["input", "own"] | None = None,
    static: bool = False,
    lists: bool = False,
    opset: int = 17,
) -> OnnxFile:
    """Write `network` in eval mode to `path`; nothing is written unless all of it can be.

    example: (batch, channel, height, width); its size becomes the input's, one image if `skipping`.
    density: None, a float input `density` whose default is what the network has now (0 asks for just that);
    "input", the same without a default, for runtimes that know no optional inputs (OpenVINO and
    onnxruntime-web); a number, fixed for all layers; "own", fixed as each layer has it now.
    static: every tensor gets a fixed length, which OpenVINO asks of weights: needs a fixed density, and a
    residual sum holds all its channels (its readers skip outputs only).
    lists: one more output a gated layer, ``channels/<layer>``: int64, the channels it computed,
    the most salient first.

    >>> import tempfile, torch, penstock as ps
    >>> gated = ps.zoo.pretrained("m_cifarnet-cifar10-d50")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     written = ps.export_onnx(gated, f"{folder}/net.onnx", torch.zeros(1, 3, 32, 32))
    >>> written.inputs, written.density
    (('images', 'density'), 0.5)
    """
    import_extra("onnx", "onnx")
    where = _check_path(path)
    fixed = _check_settings(network, example, skipping, density, static, opset)
    gated = is_gated(network)
    compact = skipping and gated
    traced = _trace(network, example, compact)
    writer = GraphWriter(opset)
    knob = DENSITY if density in (None, "input") and gated else None
    densities = Densities(writer, knob, fixed)
    gates = Gates(writer, ChannelLists(writer), densities, ranked=lists, shortens=not static)
    steps = NetworkWriter(traced, writer, gates, compact, unions=not static)
    found = steps.run(traced.graph, IMAGES)
    model, outputs = _assemble(network, traced, writer, gates, found, example, compact, density, lists)
    data = _checked(model, where)
    _write(where, data)
    own = {layer.density for _, layer in gated_layers(traced)}
    return OnnxFile(
        path=where,
        bytes=len(data),
        opset=opset,
        skipping=compact,
        inputs=tuple(value.name for value in model.graph.input),
        outputs=outputs,
        gated_layers=len(gates.winners),
        density=fixed if fixed and gated else next(iter(own)) if len(own) == 1 else None,
    )


def _check_path(path: str | os.PathLike[str]) -> Path:
    where = Path(path)
    if where.is_dir():
        raise ExportError(
            f"{where} is a folder; give the name of the file to write, for instance {where / 'net.onnx'}"
        )
    folder = where.parent
    if not folder.is_dir():
        raise ExportError(f"{where}: the folder {folder} does not exist; make it first")
    if not os.access(folder, os.W_OK) or (where.exists() and not os.access(where, os.W_OK)):
        raise ExportError(f"{where} cannot be written; choose another place or change its permissions")
    return where


def _check_settings(
    network: nn.Module, example: Tensor, skipping: bool, density: float | str | None, static: bool, opset: int
) -> float | None:
    """Refuse what cannot work; returns the fixed density if a number was given."""
    if not isinstance(network, nn.Module):
        raise ExportError(f"network: expected a torch.nn.Module, got {type(network).__name__}")
    if isinstance(opset, bool) or not isinstance(opset, int) or not OPSETS[0] <= opset <= OPSETS[1]:
        raise ExportError(f"opset: expected {OPSETS[0]} to {OPSETS[1]}, got {opset!r}")
    gated = is_gated(network)
    if isinstance(example, Tensor) and example.ndim == 4 and skipping and gated and example.shape[0] != 1:
        raise ExportError(
            f"example: the skipping form takes one image at a time and the example has {example.shape[0]}; "
            "give example[:1], or skipping=False for a network of any batch"
        )
    if static and gated and skipping and density in (None, "input"):
        raise ExportError(
            "static=True needs a fixed density: give density=0.5, for instance, or density='own'"
        )
    for name, tensor in network.named_parameters():
        if tensor.dtype != torch.float32:
            raise ExportError(
                f"{name!r} is {tensor.dtype}; only float32 networks are written, try network.float()"
            )
    if isinstance(density, str):
        if density not in ("input", "own"):
            raise ExportError(f"density: expected a number, None, 'input' or 'own', got {density!r}")
        return None
    return None if density is None else check_density(density)


def _trace(network: nn.Module, example: Tensor, compact: bool) -> fx.GraphModule:
    """The traced network in eval mode.

    For any batch two images are run, so that no axis of length 1 passes for the batch.
    """
    wanted = example
    if isinstance(example, Tensor) and example.ndim == 4 and not compact:
        wanted = torch.cat([example[:1], example[:1]])
    try:
        traced = trace(network, wanted)
    except SurgeryError as error:
        raise ExportError(f"{type(network).__name__} cannot be exported: {error}") from error
    return traced.eval()


def _assemble(
    network: nn.Module,
    traced: fx.GraphModule,
    writer: GraphWriter,
    gates: Gates,
    found: list[tuple[str, Any]],
    example: Tensor,
    compact: bool,
    density: float | str | None,
    lists: bool,
) -> tuple[Any, tuple[str, ...]]:
    helper, proto = writer.onnx.helper, writer.onnx.TensorProto
    batch: int | str = 1 if compact else "batch"
    inputs = [helper.make_tensor_value_info(IMAGES, proto.FLOAT, [batch, *example.shape[1:]])]
    layers = dict(gated_layers(traced))
    if gates.densities.given is not None:
        inputs.append(helper.make_tensor_value_info(DENSITY, proto.FLOAT, []))
        if density is None:
            own = {layer.density for layer in layers.values()}
            default = torch.tensor(next(iter(own)) if len(own) == 1 else 0.0)
            writer.constants.append(writer.onnx.numpy_helper.from_array(default.numpy(), DENSITY))
    outputs = []
    for name, value in found:
        writer.nodes.append(helper.make_node("Identity", [value.name], [name], name=name))
        outputs.append(helper.make_tensor_value_info(name, proto.FLOAT, [batch, *value.shape[1:]]))
    for layer, winners in gates.winners.items() if lists else ():
        writer.nodes.append(
            helper.make_node("Identity", [winners], [CHANNELS + layer], name=CHANNELS + layer)
        )
        shape = ["winners"] if compact else ["batch", "winners"]
        outputs.append(helper.make_tensor_value_info(CHANNELS + layer, proto.INT64, _own(shape, layer)))
    writer.metadata = {
        "penstock.skipping": json.dumps(compact),
        "penstock.layers": json.dumps(
            {
                name: {"channels": layers[name].conv.out_channels, "density": layers[name].density}
                for name in gates.winners
            }
        ),
    }
    return writer.model(inputs, outputs, type(network).__name__), tuple(output.name for output in outputs)


def _own(shape: list[str], layer: str) -> list[str]:
    """Each layer has its own number of winners, so its own symbol."""
    return [f"{axis} of {layer}" if axis == "winners" else axis for axis in shape]


def _checked(model: Any, where: Path) -> bytes:
    """The model's bytes, once onnx.checker has nothing against them."""
    onnx = import_extra("onnx", "onnx")
    if model.ByteSize() > _LARGEST:
        raise ExportError(
            f"{where}: the model takes {model.ByteSize():,} bytes and one ONNX file holds {_LARGEST:,}"
        )
    data: bytes = model.SerializeToString()
    try:
        onnx.checker.check_model(data, full_check=True)
    except Exception as error:  # what the checker raises differs by release
        raise ExportError(
            f"{where}: the graph does not pass onnx.checker, please report this: {error}"
        ) from error
    return data


def _write(where: Path, data: bytes) -> None:
    try:
        write_atomically(where, data)
    except OSError as error:
        raise ExportError(str(error)) from error
