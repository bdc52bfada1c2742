"""Files written in bad faith: a CheckpointError, and no memory or time that the file does not account for."""

from __future__ import annotations

import copy
import json
import random
import struct
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import penstock as ps
from penstock.errors import CheckpointError
from penstock.exporting import read_notes
from penstock.exporting.container import write_container
from penstock.gating import set_levels


class Small(nn.Module):
    """A residual sum and a linear layer, in a few hundred values."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.block = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        return self.head((x + self.bn(self.block(x)).relu()).mean((2, 3)))


def parts_of(file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    with safetensors.safe_open(file, framework="pt") as opened:
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        return json.loads(opened.metadata()["penstock"])["network"], tensors


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("hostile") / "good.safetensors"
    torch.manual_seed(0)
    gated = ps.add_gates(Small(), torch.randn(1, 3, 8, 8), 0.5)
    set_levels(gated, (0.3, 0.5, 1.0))
    gated.preprocess = ps.datasets.Preprocess()
    ps.save(gated, file, notes={"top1": 90.5, "name": "good"})
    return file


def with_metadata(good: Path, target: Path, text: str) -> Path:
    safetensors.torch.save_file(parts_of(good)[1], target, {"penstock": text})
    return target


NESTED = 100_000


@pytest.mark.parametrize(
    "text",
    [
        '{"format": 1, "network": ' + "[" * NESTED + "]" * NESTED + ', "sha256": ""}',
        '{"format": ' + "9" * 5000 + "}",
        '{"format": 1, "network": {"notes": {"top1": NaN}}, "sha256": ""}',
        '{"format": 1, "network": {"notes": {"top1": 1e999}}, "sha256": ""}',
        '{"format": 1, "network": {"notes": {"name": "\\ud800"}}, "sha256": ""}',
        '{"format": true, "network": {}, "sha256": ""}',
        "[1]",
        "null",
        '{"format": 1, "format": 1, "network": {}, "sha256": ""}',
        '{"format": 1, "network": {"notes": {"top1": 1, "top1": 2}}, "sha256": ""}',
    ],
    ids=["deep", "digits", "nan", "infinity", "surrogate", "version", "list", "null", "twice", "twice, deep"],
)
def test_a_description_that_no_writer_makes_is_a_checkpoint_error(
    good: Path, tmp_path: Path, text: str
) -> None:
    file = with_metadata(good, tmp_path / "file.safetensors", text)
    for read in (lambda: ps.load(file, Small()), lambda: read_notes(file)):
        with pytest.raises(CheckpointError, match=r"file\.safetensors"):
            read()


@pytest.mark.parametrize("kind", [torch.bool, torch.int8, torch.complex64])
def test_weights_of_a_strange_type_are_a_checkpoint_error(
    good: Path, tmp_path: Path, kind: torch.dtype
) -> None:
    description, tensors = parts_of(good)
    tensors["head.weight"] = tensors["head.weight"].to(kind)
    write_container(tmp_path / "file.safetensors", tensors, description)
    with pytest.raises(CheckpointError, match=rf"'head.weight' is {kind} in the file and torch.float32"):
        ps.load(tmp_path / "file.safetensors", Small())


@pytest.mark.parametrize(
    ("library", "name"), [("timm", "hf-hub:some/net"), ("timm", ""), ("torchvision", "get_model")]
)
def test_a_name_that_a_library_does_not_list_is_a_checkpoint_error(
    good: Path, tmp_path: Path, library: str, name: str
) -> None:
    description, tensors = parts_of(good)
    description["definition"] = {"library": library, "name": name, "arguments": {}}
    write_container(tmp_path / "file.safetensors", tensors, description)
    with pytest.raises(CheckpointError, match=rf"file\.safetensors: .*{library} has no such network"):
        ps.load(tmp_path / "file.safetensors")


def test_levels_that_the_tensors_do_not_account_for_are_refused(good: Path, tmp_path: Path) -> None:
    description, tensors = parts_of(good)
    name = next(iter(description["gates"]))
    description["gates"][name]["levels"] = [(1 + at) / 100_000 for at in range(100_000)]
    write_container(tmp_path / "file.safetensors", tensors, description)
    with pytest.raises(CheckpointError, match=f"{name}.*100000 levels, and tensors for another number"):
        ps.load(tmp_path / "file.safetensors", Small())


def test_a_huge_image_or_a_huge_network_takes_no_memory(tmp_path: Path) -> None:
    """Each in a process that may take 1 GB more than it has after its imports."""
    source = Path(ps.zoo.__file__).parent / "checkpoints"
    for name, change in (("d50", {"input_shape": [3, 8000, 8000]}), ("ns", {"arguments": 10**9})):
        description, tensors = parts_of(source / f"m_cifarnet-cifar10-{name}.safetensors")
        if "arguments" in change:
            description["definition"]["arguments"]["classes"] = change["arguments"]
        else:
            description |= change
        write_container(tmp_path / f"{name}.safetensors", tensors, description)
    code = f"""
        import resource, re, torch, penstock as ps
        from penstock.zoo import pretrained
        pretrained("m_cifarnet-cifar10-ns-fbs")
        taken = int(re.search(r"VmSize:\\s*(\\d+)", open("/proc/self/status").read()).group(1)) << 10
        resource.setrlimit(resource.RLIMIT_AS, (taken + (1 << 30),) * 2)
        x = torch.randn(2, 3, 32, 32)
        for name in ("d50", "ns"):
            loaded = ps.load(f"{tmp_path}/{{name}}.safetensors")
            assert torch.equal(loaded(x), pretrained(f"m_cifarnet-cifar10-{{name}}")(x)), name
        """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_what_is_converted_without_values_has_them_all_in_the_end(tmp_path: Path) -> None:
    """A network of the user's own, traced at a size that is not run when it is loaded."""
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 5, 3, stride=9))
    dense.register_buffer("own", torch.ones(3), persistent=False)
    gated = ps.add_gates(dense, torch.randn(1, 3, 300, 300), 0.5).eval()
    ps.save(gated, tmp_path / "file.safetensors")
    for kind in (torch.float32, torch.float64):
        loaded = ps.load(tmp_path / "file.safetensors", dense.to(kind))
        assert not any(tensor.is_meta for tensor in (*loaded.parameters(), *loaded.buffers()))
        assert {parameter.dtype for parameter in loaded.parameters()} == {kind}
        x = torch.randn(1, 3, 50, 50)
        torch.testing.assert_close(loaded(x.to(kind)).float(), gated(x), rtol=1e-4, atol=1e-5)


STRANGE: list[Any] = [
    None, True, -1, 0, 2**70, 1.5, -0.0, 1e300, "", "x" * 300, "l1", "\ud800", [], {}, [[]], {"": None},
    [3, 8000, 8000], [3, 2**19, 2**19], [0.1, 0.2], {"density": 0.5, "summary": "l2", "levels": [0.1, 1]},
    {"zoo": "m_cifarnet", "arguments": {}}, {"import": "os:getcwd"}, {"library": "timm", "name": "resnet18"},
    {"library": "torchvision", "name": "x"}, float("nan"),
]  # fmt: skip
KINDS = [torch.float64, torch.float16, torch.int64, torch.bool, torch.uint8, torch.complex64, torch.bfloat16]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path to everything inside plain data."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, one in inside for place in places(one, (*path, key)))]


def change_description(chance: random.Random, description: dict[str, Any]) -> None:
    path = chance.choice(places(description)[1:])
    owner: Any = description
    for key in path[:-1]:
        owner = owner[key]
    what = chance.randrange(4)
    if what == 0:
        del owner[path[-1]]
    elif what == 1 and isinstance(owner, dict):
        owner[chance.choice(["", "conv1", "stem.conv", "\x00", "gates"])] = owner.pop(path[-1])
    else:
        owner[path[-1]] = copy.deepcopy(chance.choice(STRANGE))


def change_tensors(chance: random.Random, tensors: dict[str, Tensor]) -> None:
    name = chance.choice(sorted(tensors))
    what = chance.randrange(5)
    if what == 0:
        before = tensors[name].real if tensors[name].is_complex() else tensors[name]
        tensors[name] = before.to(chance.choice(KINDS))
    elif what == 1:
        tensors[name] = torch.zeros([chance.randrange(4) for _ in range(chance.randrange(5))])
    elif what == 2:
        tensors[chance.choice(["x", f"{name}.x", ""])] = tensors.pop(name)
    elif what == 3:
        del tensors[name]
    else:
        wrong = float("nan") if tensors[name].is_floating_point() else 1
        tensors[name] = torch.full_like(tensors[name], wrong)


def signed_again(chance: random.Random, good: Path, target: Path) -> bool:
    """The checksum of a forger is right; False if not even a forger could write it."""
    description, tensors = parts_of(good)
    for _ in range(chance.choice([1, 1, 2, 4])):
        if chance.random() < 0.3 and tensors:
            change_tensors(chance, tensors)
        elif len(description):
            change_description(chance, description)
    try:
        write_container(target, tensors, description)
    except ValueError:  # NaN or half a character: JSON's own writers refuse it
        return False
    return True


def damaged(chance: random.Random, good: Path, target: Path) -> bool:
    """Bytes flipped, cut out, doubled, or the header's length changed."""
    content = bytearray(good.read_bytes())
    for _ in range(chance.choice([1, 1, 3, 20])):
        at = chance.randrange(len(content))
        what = chance.randrange(5)
        if what < 2:
            content[at] ^= 1 << chance.randrange(8)
        elif what == 2:
            del content[at : at + chance.randrange(1, 50)]
        elif what == 3:
            content[at:at] = content[at : at + chance.randrange(1, 50)]
        else:
            length = chance.choice([0, 1, 2**63, len(content), chance.randrange(4096)])
            content[:8] = struct.pack("<Q", length)
        if not content:
            break
    target.write_bytes(bytes(content))
    return True


def mutate(good: Path, folder: Path, count: int, seed: int) -> dict[str, int]:
    chance = random.Random(seed)
    file = folder / "mutated.safetensors"
    ways: list[Callable[[random.Random, Path, Path], bool]] = [signed_again, damaged]
    seen = {"loaded": 0, "refused": 0}
    while sum(seen.values()) < count:
        if not chance.choice(ways)(chance, good, file):
            continue
        try:
            ps.load(file, Small() if chance.random() < 0.9 else None)
            seen["loaded"] += 1
        except CheckpointError:
            seen["refused"] += 1
    return seen


def test_mutated_files_load_or_are_refused_and_nothing_else(good: Path, tmp_path: Path) -> None:
    seen = mutate(good, tmp_path, 400, seed=0)
    assert seen["refused"] > 200
    assert seen["loaded"] > 5  # some changes are harmless: the notes, a density


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(1, 21))
def test_a_hundred_thousand_mutations(good: Path, tmp_path: Path, seed: int) -> None:
    assert mutate(good, tmp_path, 5_000, seed)["refused"] > 2_500
