"""A server under a step of load: 2.5 times what density 1 can carry, with and without the controller.

    python benchmarks/serving.py                        # the step
    python benchmarks/serving.py --soak 30              # 30 minutes at 80% load instead: errors and memory

Load comes from this process over loopback, open loop: requests leave at random times (Poisson) whether or not
earlier ones were answered, and latency counts from the time they were due. Prints figures and keeps the
timeline by machine and commit (benchmarks/kept.py), with a picture beside it. Two cores are enough: one for
the server's worker, one for HTTP and the load.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from kept import RESULTS, add
from load import Load, Reply, infer_request, p95, run, serve_network, stop

import penstock as ps
import penstock_runtime as pr
from penstock.measuring.contest import random_gates
from penstock.reporting.figures.serving import serving_figure
from penstock.reporting.figures.style import save_figure
from penstock.surgery import add_gates


@dataclass(frozen=True)
class Options:
    """Hold a target under a step of load."""

    networks: str = "m_cifarnet,resnet18"
    before: float = 5.0
    """Seconds of light load (a fifth of what density 1 carries)."""
    step: float = 12.0
    """Seconds at 2.5 times what density 1 carries."""
    after: float = 25.0
    """Seconds of light load again."""
    soak: float = 0.0
    """Minutes of steady load instead of the step."""
    load: float = 0.8
    """The soak's share of what one thread then carries at density 1."""
    out: Path = RESULTS


def write_network(name: str, folder: Path) -> Path:
    """The shipped any-density M-CifarNet, or a ResNet-18 with random winners, compiled."""
    path = folder / f"{name}.penstock"
    if name == "m_cifarnet":
        network = ps.zoo.pretrained("m_cifarnet-cifar10-any")
        example = torch.zeros(1, 3, 32, 32)
    else:
        example = torch.zeros(1, 3, 224, 224)
        network = add_gates(getattr(ps.zoo, name)().eval(), example)
        random_gates(network, torch.randn(4, 3, 224, 224, generator=torch.Generator().manual_seed(0)))
    ps.compile(network, example).save(path)
    return path


def cost(file: Path) -> tuple[int, float]:
    """The side of a network's images, and the median milliseconds of one at density 1."""
    engine = pr.load(file)
    image = np.zeros((1, *engine.input_shape), np.float32)
    return engine.input_shape[1], engine.profile(image, density=1.0, repeats=50).median_milliseconds


def contest(name: str, file: Path, options: Options) -> dict[str, Any]:
    """The step with the controller, and at density 1."""
    side, alone = cost(file)
    target = 20.0 if alone < 5 else 100.0
    carried = 1000 / alone
    phases = [(options.before, 0.2 * carried), (options.step, 2.5 * carried), (options.after, 0.2 * carried)]
    found: dict[str, Any] = {"network": name, "milliseconds": alone, "target": target, "phases": phases}
    found["runs"] = {}
    for label, density in (("controller", "0.2..1.0"), ("fixed at 1", "1.0..1.0")):
        process, port = serve_network(file, target, density)
        load = Load(port, infer_request(name, side))
        mine = phases if label == "controller" else phases[:2]
        replies = run(load.run(mine))
        stop(process)
        begin, end = options.before, options.before + options.step
        settled = [r for r in replies if begin + 5 <= r.due < end and r.status == 200]
        back = [r.due - end for r in replies if r.due >= end and r.density >= 0.999]
        found["runs"][label] = {
            "requests": len(replies),
            "answered": sum(r.status == 200 for r in replies),
            "refused": sum(r.status == 503 for r in replies),
            "retried": load.retried,
            "lost": sum(r.status not in (200, 503) for r in replies),
            "p95_before": p95([r for r in replies if r.due < begin]),
            "p95_from_5_s_into_the_step": p95(settled),
            "density_in_the_step": float(np.mean([r.density for r in settled])) if settled else None,
            "seconds_back_to_ceiling": min(back) if back else None,
            "timeline": timeline(replies),
        }
    return found


def timeline(replies: list[Reply], width: float = 0.5) -> list[tuple[float, float, float, float]]:
    """(seconds, requests a second, p95, mean density) of every half second."""
    rows = []
    for number in range(int(max(reply.due for reply in replies) / width) + 1):
        part = [r for r in replies if number * width <= r.due < (number + 1) * width]
        good = [r for r in part if r.status == 200]
        density = float(np.mean([r.density for r in good])) if good else 0.0
        rows.append((number * width, len(part) / width, p95(good), density))
    return rows


def soak(name: str, file: Path, options: Options) -> dict[str, Any]:
    """Steady load for a long time: errors, and the server's memory every ten seconds.

    What one thread carries is measured again before every minute, so that the share stays what it says while
    other programs come and go.
    """
    side, alone = cost(file)
    process, port = serve_network(file, 20.0 if alone < 5 else 100.0, "0.2..1.0")
    megabytes: list[tuple[float, float]] = []
    minutes: list[dict[str, float]] = []
    statuses: dict[int, int] = {}
    begin = time.perf_counter()
    while (left := 60 * options.soak - 60 * len(minutes)) > 0:
        rate = options.load * carried_now(file, 2.0)
        load = Load(port, infer_request(name, side))
        watched = watch(load.run([(min(60.0, left), rate)], len(minutes), forgive=1.0), process.pid, begin)
        replies, found = run(watched)
        megabytes += found
        for reply in replies:
            statuses[reply.status] = statuses.get(reply.status, 0) + 1
        density = float(np.mean([reply.density for reply in replies]))
        row = {"requests_a_second": rate, "p95": p95(replies), "density": density, "retried": load.retried}
        minutes.append(row)
        print(f"{len(minutes)} min: {megabytes[-1][1]:.1f} MB, {statuses}, {row}", flush=True)
    stop(process)
    return {"network": name, "statuses": statuses, "minutes": minutes, "megabytes": megabytes}


async def watch(
    work: Coroutine[Any, Any, list[Reply]], pid: int, begin: float
) -> tuple[list[Reply], list[tuple[float, float]]]:
    """Do the work; besides, (minutes from the beginning, memory of a process in MB) every ten seconds."""
    found = []

    async def sample() -> None:
        while True:
            await asyncio.sleep(10)
            found.append(((time.perf_counter() - begin) / 60, resident(pid)))

    sampling = asyncio.create_task(sample())
    replies = await work
    sampling.cancel()
    return replies, found


def carried_now(file: Path, seconds: float = 5.0) -> float:
    """Images a second that one thread carries at density 1, beside whatever else the machine does now."""
    engine = pr.load(file)
    image = np.zeros((1, *engine.input_shape), np.float32)
    begin, count = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        engine(image, density=1.0)
        count += 1
    return count / seconds


def resident(pid: int) -> float:
    """Memory of a process in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


def main(options: Options) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in options.networks.split(","):
            file = write_network(name, Path(folder))
            if options.soak:
                add("soak", [soak(name, file, options)], "network", options.out)
                continue
            found = contest(name, file, options)
            for label, one in found["runs"].items():
                shown = {key: value for key, value in one.items() if key != "timeline"}
                print(name, label, json.dumps(shown), flush=True)
            kept = add("serving", [found], "network", options.out)
            picture = serving_figure(found["runs"], found["target"])
            save_figure(picture, kept.with_name(f"{kept.stem}-{name}.png"))


if __name__ == "__main__":
    main(tyro.cli(Options))
