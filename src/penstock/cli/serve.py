"""penstock serve net.penstock --target-ms 20 --density 0.3..1.0: compiled networks behind HTTP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from penstock import __version__
from penstock.errors import DensityError, InputError, import_extra
from penstock.native import usable_cores

_DEMO = "m_cifarnet-cifar10-any"


@dataclass(frozen=True)
class Options:
    """Serve compiled networks over HTTP; density falls while requests pile up, so that latency holds."""

    files: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """Files that `penstock compile` wrote; each is served under its name without .penstock."""
    port: int = 8000
    host: str = "127.0.0.1"
    """The address to listen on; 0.0.0.0 takes requests from other machines too."""
    target_ms: float = 20.0
    """Milliseconds, waiting included, within which 95% of the requests are answered."""
    percentile: float = 95.0
    """Or another share of the requests."""
    density: str = "0.3..1.0"
    """The lowest and the highest density that a request may get."""
    workers: int = 0
    """Requests computed side by side; 0 takes one for each core."""
    max_mb: float = 16.0
    """The largest body that is taken."""
    body_seconds: float = 10.0
    """Seconds within which a request's body must have arrived."""
    demo: bool = False
    """Serve the shipped CIFAR-10 network."""
    json: bool = False
    """Print where the server listens as one JSON line, and log as JSON lines on stderr."""


def run(options: Options) -> int:
    for module in ("starlette", "uvicorn", "prometheus_client"):
        import_extra(module, "serve")
    from penstock.serving.app import make_app
    from penstock.serving.process import listen, log_to_stderr
    from penstock.serving.service import Served, Settings

    floor, ceiling = parse_range(options.density)
    if not 50 <= options.percentile < 100:
        raise InputError(f"--percentile: expected 50 up to 99.9, got {options.percentile:g}")
    if not options.target_ms > 0:
        raise InputError(f"--target-ms: expected milliseconds above 0, got {options.target_ms:g}")
    if not options.max_mb > 0 or not options.body_seconds > 0:
        given = f"{options.max_mb:g}, --body-seconds {options.body_seconds:g}"
        raise InputError(f"--max-mb {given}: expected both above 0")
    files = [*options.files, *([demo_file()] if options.demo else [])]
    if not files:
        raise InputError("no file to serve: name one that `penstock compile` wrote, or give --demo")
    settings = Settings(
        target=options.target_ms,
        floor=floor,
        ceiling=ceiling,
        percentile=options.percentile / 100,
        workers=options.workers or usable_cores(),
        most_bytes=int(options.max_mb * 2**20),
        timeout=options.body_seconds,
    )
    for path in files:
        if not path.is_file():
            raise InputError(
                f"{path}: there is no such file; `penstock compile MODEL --out {path}` makes one"
            )
    names = [path.stem for path in files]
    if len(set(names)) < len(names):
        raise InputError(
            f"two files have one name ({', '.join(names)}): models are told apart by it; rename one"
        )
    served = {path.stem: Served(path, settings) for path in files}
    log_to_stderr(options.json)
    say(options, served)
    listen(make_app(served, settings), options.host, options.port)
    return 0


def say(options: Options, names: Iterable[str]) -> None:
    """Where the server listens, and what it serves."""
    address = f"http://{options.host}:{options.port}/"
    if options.json:
        print(json.dumps({"address": address, "models": list(names)}), flush=True)
        return
    print(f"{address} serves {', '.join(names)}; Ctrl-C stops it", flush=True)


def parse_range(text: str) -> tuple[float, float]:
    """
    >>> parse_range("0.3..1.0")
    (0.3, 1.0)
    """
    low, _, high = text.partition("..")
    try:
        floor, ceiling = float(low), float(high or low)
    except ValueError:
        raise DensityError(f"--density: expected as in 0.3..1.0, got {text!r}") from None
    if not 0.0 < floor <= ceiling <= 1.0:
        raise DensityError(f"--density: expected 0 < lowest <= highest <= 1, got {text!r}")
    return floor, ceiling


def demo_file() -> Path:
    """The shipped network, compiled once into the user's cache by a process of its own: it needs PyTorch."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"
    path = cache / __version__ / f"{_DEMO}.penstock"
    if not path.exists():
        print(f"compiling {_DEMO} to {path}", file=sys.stderr, flush=True)
        command = [sys.executable, "-m", "penstock.cli.main", "compile", _DEMO, "--data", "sample"]
        subprocess.run([*command, "--out", str(path)], check=True)
    return path
