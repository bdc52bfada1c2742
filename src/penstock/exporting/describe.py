"""What a checkpoint says about its network besides the weights: plain data, read with suspicion.

definition    which call makes the dense network: {"zoo": name, "arguments": {…}}, {"library": "timm",
              "name": …, "arguments": {…}} or {"import": "module:callable"}; without one, only
              load(path, model) can read it
input_shape   (channel, height, width) the network was traced with
gates         {layer: density, summary, and the densities that have values of their own}
removal       what remove_unused or static pruning took away, if anything
reshapes      sizes that such a removal changed inside the network's own reshapes
preprocess    mean and std
ranges        how large each step's values become, for int8, and which layers stay in float32
half          tensors of the network in float32 that the file holds in float16
notes         free-form, by the user
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import fx, nn

from penstock.datasets.preprocess import Preprocess
from penstock.errors import CheckpointError
from penstock.exporting.libraries import LIBRARIES
from penstock.gating import SUMMARIES, check_density, check_levels, gated_layers
from penstock.quantizing import Ranges
from penstock.surgery import shape_of
from penstock.surgery.operators.sizes import names_sizes, write_sizes, written_sizes
from penstock.surgery.shrink import REPORT, Removal, Width

_IMPORT_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


@dataclass(frozen=True)
class GateRecord:
    """The gate of one layer."""

    density: float
    summary: str
    levels: tuple[float, ...] = ()


@dataclass(frozen=True)
class Description:
    """Everything but the weights."""

    definition: dict[str, Any] | None = None
    input_shape: tuple[int, ...] | None = None
    gates: dict[str, GateRecord] = field(default_factory=dict)
    removal: Removal | None = None
    reshapes: dict[str, list[int | None]] = field(default_factory=dict)
    preprocess: Preprocess | None = None
    ranges: Ranges | None = None
    half: tuple[str, ...] = ()
    notes: dict[str, Any] = field(default_factory=dict)
    written_by: str = ""


def describe(
    network: nn.Module, definition: str | None, notes: dict[str, Any], written_by: str
) -> Description:
    """What `network` says about itself. definition: "module:callable", for a network of the user's own."""
    known = getattr(network, "definition", None)
    if definition is not None:
        if not _IMPORT_PATH.fullmatch(definition):
            raise CheckpointError(
                f"definition: expected 'module:callable', for instance 'my.models:build', got {definition!r}"
            )
        known = {"import": definition}
    preprocess = getattr(network, "preprocess", None)
    if preprocess is not None and not isinstance(preprocess, Preprocess):
        raise CheckpointError(
            f"network.preprocess is a {type(preprocess).__name__}; only penstock.datasets.Preprocess travels "
            "with a checkpoint. Delete the attribute, or express it as a mean and a std"
        )
    ranges = getattr(network, "ranges", None)
    if ranges is not None and not isinstance(ranges, Ranges):
        raise CheckpointError(
            f"network.ranges is a {type(ranges).__name__}; expected what penstock.quantizing.calibrate makes"
        )
    removal = network.meta.get(REPORT) if isinstance(network, fx.GraphModule) else None
    return Description(
        definition=known,
        input_shape=_input_shape(network),
        gates={
            name: GateRecord(layer.density, layer.gate.summary, layer.levels)
            for name, layer in gated_layers(network)
        },
        removal=removal,
        reshapes=reshape_sizes(network) if removal is not None else {},
        preprocess=preprocess,
        ranges=ranges,
        notes=notes,
        written_by=written_by,
    )


def to_plain(description: Description) -> dict[str, Any]:
    """As JSON takes it."""
    return asdict(description)


def from_plain(plain: dict[str, Any], path: object) -> Description:
    """Back from JSON; every part is checked, since a file can say anything."""
    try:
        shape = plain.get("input_shape")
        preprocess = plain.get("preprocess")
        return Description(
            definition=_checked_definition(plain.get("definition")),
            input_shape=None if shape is None else tuple(_size(value) for value in shape),
            gates={str(name): _gate(record) for name, record in plain.get("gates", {}).items()},
            removal=_removal(plain.get("removal")),
            reshapes={
                str(node): [None if size is None else int(size) for size in sizes]
                for node, sizes in plain.get("reshapes", {}).items()
            },
            preprocess=None
            if preprocess is None
            else Preprocess(tuple(map(float, preprocess["mean"])), tuple(map(float, preprocess["std"]))),
            ranges=None if plain.get("ranges") is None else Ranges.from_json(plain["ranges"]),
            half=tuple(str(name) for name in plain.get("half", ())),
            notes=dict(plain.get("notes", {})),
            written_by=str(plain.get("written_by", "")),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"{path}: its description has a part that cannot be right ({error}); save the network again"
        ) from error


def reshape_sizes(network: nn.Module) -> dict[str, list[int | None]]:
    """{step: sizes} of every view and reshape with sizes written out; None stands for a computed size."""
    if not isinstance(network, fx.GraphModule):
        return {}
    return {
        node.name: [size if isinstance(size, int) else None for size in written_sizes(node)[0]]
        for node in _reshapes(network)
    }


def set_reshape_sizes(network: fx.GraphModule, recorded: dict[str, list[int | None]]) -> None:
    """Put the recorded sizes where `reshape_sizes` found them."""
    for node in _reshapes(network):
        sizes, packed = written_sizes(node)
        wanted = recorded.get(node.name, [])
        if len(wanted) == len(sizes):
            new = [size if want is None else want for size, want in zip(sizes, wanted, strict=True)]
            write_sizes(node, new, packed)
    network.recompile()


def _reshapes(network: fx.GraphModule) -> list[fx.Node]:
    return [node for node in network.graph.nodes if names_sizes(node)]


def _input_shape(network: nn.Module) -> tuple[int, ...] | None:
    if not isinstance(network, fx.GraphModule):
        return None
    entry = next((node for node in network.graph.nodes if node.op == "placeholder"), None)
    shape = None if entry is None or "shape" not in entry.meta else shape_of(entry)
    return None if shape is None else shape[1:]


def _checked_definition(given: Any) -> dict[str, Any] | None:
    if given is None:
        return None
    if "zoo" in given:
        arguments = dict(given.get("arguments", {}))
        if not all(isinstance(value, int | float | str | bool) for value in arguments.values()):
            raise ValueError(
                f"arguments of {given['zoo']!r}: expected plain numbers and text, got {arguments!r}"
            )
        return {"zoo": str(given["zoo"]), "arguments": arguments}
    if "library" in given:
        classes = dict(given.get("arguments", {})).get("classes")
        if given["library"] not in LIBRARIES or not (classes is None or type(classes) is int):
            raise ValueError(f"definition {given!r}")
        arguments = {} if classes is None else {"classes": classes}
        return {"library": given["library"], "name": str(given["name"]), "arguments": arguments}
    if not _IMPORT_PATH.fullmatch(given["import"]):
        raise ValueError(f"import path {given['import']!r}")
    return {"import": given["import"]}


def _gate(record: dict[str, Any]) -> GateRecord:
    if record["summary"] not in SUMMARIES:
        raise ValueError(f"summary {record['summary']!r}")
    levels = tuple(record.get("levels", ()))
    return GateRecord(
        check_density(record["density"]), record["summary"], check_levels(levels) if levels else ()
    )


def _removal(given: dict[str, Any] | None) -> Removal | None:
    if given is None:
        return None
    widths = tuple(Width(str(w["name"]), int(w["before"]), int(w["after"])) for w in given["layers"])
    counts = {key: int(value) for key, value in given.items() if key != "layers"}
    return Removal(layers=widths, **counts)


def _size(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 20:
        raise ValueError(f"input size {value!r}")
    return value
