"""Digests of the engine's outputs, to show that a change of the kernels changed no bit.

    python tools/digests.py before.json      # in the tree before the change
    python tools/digests.py after.json before.json

Every shipped checkpoint, and networks of the zoo with random gates, at several densities, with one thread and
two, on every instruction set of this machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

import penstock as ps
from penstock import zoo
from penstock.measuring.contest import random_gates
from penstock.native import ISA_VARIABLE, available_isas

DENSITIES = (1.0, 0.5, 0.2)


def networks() -> dict[str, tuple[nn.Module, Tensor]]:
    """Names → network and a batch of three images."""
    found: dict[str, tuple[nn.Module, Tensor]] = {}
    for name in zoo.available():
        torch.manual_seed(0)
        found[name] = (zoo.pretrained(name), torch.randn(3, 3, 32, 32))
    for name, size in (("resnet18", 64), ("m_cifarnet", 32)):
        torch.manual_seed(0)
        images = torch.randn(3, 3, size, size)
        found[name] = (random_gates(ps.add_gates(getattr(zoo, name)().eval(), images), images), images)
    return found


def digests() -> dict[str, str]:
    made: dict[str, str] = {}
    for name, (network, images) in networks().items():
        for isa in available_isas():
            os.environ[ISA_VARIABLE] = isa
            for threads in (1, 2):
                engine = ps.compile(network, images, threads=threads)
                for density in DENSITIES if engine.gated else DENSITIES[:1]:
                    out = engine(images.numpy(), density=density if engine.gated else None)
                    key = f"{name} {isa} threads={threads} density={density}"
                    made[key] = hashlib.sha256(out.tobytes()).hexdigest()[:16]
    return made


def main(arguments: list[str]) -> int:
    if not 1 <= len(arguments) <= 2:
        print(__doc__)
        return 2
    made = digests()
    Path(arguments[0]).write_text(json.dumps(made, indent=1))
    if len(arguments) == 1:
        print(f"{len(made)} digests written")
        return 0
    before = json.loads(Path(arguments[1]).read_text())
    differ = [key for key in before if made.get(key) != before[key]]
    print(f"{len(before)} digests, {len(differ)} differ", *differ[:20], sep="\n")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
