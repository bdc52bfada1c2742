"""What a pruning run leaves on disk besides its trainings: the plan, and every cut.

`plan.json` says what was asked for, so that a run is not resumed under another plan. A cut is
`cut.safetensors`: the smaller network's tensors, and as metadata what went and the digest of the network that
it was cut from. Searching for a cut may take minutes; reading it takes none.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor, nn

from penstock.errors import CheckpointError, TrainingError
from penstock.files import digest, write_atomically
from penstock.pruning.protocol import LayerCut, Pruned
from penstock.surgery import keep_channels

_FILE = "cut.safetensors"
_PLAIN = ("threshold", "channels_before", "channels_after", "weights_before", "weights_after", "left_alone")


def keep_cut(folder: Path, before: nn.Module, cut: Pruned) -> None:
    """Write the cut of `before` down."""
    said = {name: getattr(cut, name) for name in _PLAIN}
    said |= {"of": digest(before.state_dict()), "layers": [asdict(layer) for layer in cut.layers]}
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in cut.network.state_dict().items()}
    write_atomically(folder / _FILE, safetensors.torch.save(tensors, {"penstock-cut": json.dumps(said)}))


def read_cut(folder: Path, before: nn.Module, example: Tensor) -> Pruned | None:
    """The cut that `keep_cut` wrote down for this very network, or None."""
    path = folder / _FILE
    if not path.exists():
        return None
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            said: dict[str, Any] = json.loads((file.metadata() or {})["penstock-cut"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if said["of"] != digest(before.state_dict()):
            return None  # the network before it has changed since: the cut has to be made anew
        layers = tuple(LayerCut(**(layer | {"kept": tuple(layer["kept"])})) for layer in said["layers"])
        network = keep_channels(before, example, {layer.layer: layer.kept for layer in layers})
        network.load_state_dict(tensors)
    except (OSError, KeyError, TypeError, ValueError, RuntimeError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot be read as a cut ({error}); delete it to cut anew") from error
    return Pruned(network=network, layers=layers, **{name: said[name] for name in _PLAIN})


def check_plan(path: Path, plan: dict[str, Any]) -> None:
    """Write the plan down, or refuse to go on in a folder that was started with another one."""
    plan = json.loads(json.dumps(plan))
    if not path.exists():
        write_atomically(path, json.dumps(plan, indent=2).encode())
        return
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
        changed = [name for name, value in plan.items() if not _agree(before.get(name), value)]
    except (ValueError, AttributeError) as error:
        raise TrainingError(f"{path}: not the plan of a pruning run ({error}); use another folder") from error
    if changed:
        said = ", ".join(f"{name} was {before.get(name)!r} and is now {plan[name]!r}" for name in changed)
        raise TrainingError(f"{path}: the run was started with another plan ({said}); use another folder")


def _agree(before: Any, now: Any) -> bool:
    """Whether a value of the plan is what it was; what an older version did not write down is left out."""
    if isinstance(before, dict) and isinstance(now, dict):
        return all(_agree(before[name], value) for name, value in now.items() if name in before)
    return bool(before == now)
