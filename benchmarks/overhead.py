"""What the server itself costs: beside a plain uvicorn that answers a constant, and beside the bare engine.

    python benchmarks/overhead.py

Short rounds of the engine alone, of the server and of the constant take turns, so that whatever slows the
machine down slows all three. `own` is the server's time a request less the engine's and less the constant's,
in the median round: *alone*, one request after the other; *busy*, four connections that ask again as soon as
they are answered, the time from one answer to the next (requests a second, turned round).

`engine, one of eight` is an image's share of a batch: what forming batches could gain.

Two networks take the same requests: `tiny`, two small convolutions, so that almost all time is the server's
own; and M-CifarNet, whose milliseconds vary by more than the server takes, and whose caches the server cools.
"""

from __future__ import annotations

import json
import socket
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import tyro
from kept import RESULTS, keep
from load import Load, infer_request, run, serve, serve_network, stop

import penstock as ps
import penstock_runtime as pr

CONSTANT = """
import sys, uvicorn
async def app(scope, receive, send):
    if scope["type"] != "http": return
    while (await receive()).get("more_body"): pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})
uvicorn.run(app, port=int(sys.argv[-1]), log_level="warning")
"""


@dataclass(frozen=True)
class Options:
    """Milliseconds that the server adds to a request of one image of 3x32x32."""

    rounds: int = 40
    requests: int = 40
    """Of one round, at each of the servers."""
    out: Path = RESULTS


def ask_alone(port: int, request: bytes, count: int) -> float:
    """The median milliseconds of one request after the other on one connection."""
    times = []
    with socket.create_connection(("127.0.0.1", port)) as line:
        stream = line.makefile("rb")
        for _ in range(count):
            before = time.perf_counter()
            line.sendall(request)
            size = 0
            while (said := stream.readline().strip().lower()) != b"":
                if said.startswith(b"content-length:"):
                    size = int(said.split(b":")[1])
            stream.read(size)
            times.append(1000 * (time.perf_counter() - before))
    return float(np.median(times))


def run_engine(engine: pr.Engine, image: np.ndarray, count: int) -> tuple[float, float]:
    """Milliseconds of one run: the median, and the mean of all."""
    times = []
    for _ in range(count):
        before = time.perf_counter()
        engine(image, density=1.0)
        times.append(1000 * (time.perf_counter() - before))
    return float(np.median(times)), float(np.mean(times))


def measure(file: Path, options: Options) -> dict[str, float]:
    engine = pr.load(file)
    image = np.random.default_rng(0).standard_normal((1, *engine.input_shape), np.float32)
    eight = np.repeat(image, 8, 0)
    request = infer_request(file.stem, engine.input_shape[1])
    server, port = serve_network(file, 20.0, "1.0")
    constant, other = serve([sys.executable, "-c", CONSTANT])
    rows: list[dict[str, float]] = []
    for number in range(options.rounds + 1):
        median, mean = run_engine(engine, image, options.requests)
        row = {"engine, alone": median, "engine, busy": mean}
        row["engine, one of eight"] = run_engine(engine, eight, options.requests // 8)[0] / 8
        for label, at in (("server", port), ("constant", other)):
            row[f"{label}, alone"] = ask_alone(at, request, options.requests)
            row[f"{label}, busy"] = run(Load(at, request).closed_loop(4, options.requests))
        for kind in ("alone", "busy"):
            row[f"own, {kind}"] = row[f"server, {kind}"] - row[f"engine, {kind}"] - row[f"constant, {kind}"]
        if number:  # the first round warms up
            rows.append(row)
    stop(server)
    stop(constant)
    found = {key: float(np.median([row[key] for row in rows])) for key in rows[0]}
    for kind in ("alone", "busy"):
        quarters = np.percentile([row[f"own, {kind}"] for row in rows], (25, 75))
        found[f"own, {kind}, lower quartile"], found[f"own, {kind}, upper quartile"] = map(float, quarters)
    return found


def write_networks(folder: Path) -> list[Path]:
    """The two networks, compiled."""
    example = torch.zeros(1, 3, 32, 32)
    layers = [torch.nn.Conv2d(3, 8, 3, stride=4), torch.nn.ReLU(), torch.nn.Conv2d(8, 16, 3, stride=4)]
    tiny = torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()).eval()
    networks = {
        "tiny": ps.add_gates(tiny, example),
        "m_cifarnet": ps.zoo.pretrained("m_cifarnet-cifar10-any"),
    }
    files = [folder / f"{name}.penstock" for name in networks]
    for file, network in zip(files, networks.values(), strict=True):
        ps.compile(network, example).save(file)
    return files


def main(options: Options) -> None:
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for file in write_networks(Path(folder)):
            results[file.stem] = measure(file, options)
            print(file.stem, "milliseconds a request:", json.dumps(results[file.stem], indent=1), flush=True)
    keep("overhead", results, options.out)


if __name__ == "__main__":
    main(tyro.cli(Options))
