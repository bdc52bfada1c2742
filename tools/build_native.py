"""Builds the native module in place: `python tools/build_native.py` → runtime/src/penstock_runtime/.

For work in the source tree; `pip install ./runtime` builds the same module through scikit-build-core.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    build = _ROOT / "build" / "in_place"
    tools = Path(sys.executable).parent
    cmake = str(tools / "cmake") if (tools / "cmake").exists() else "cmake"
    environment = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    configure = [
        cmake,
        "-S",
        str(_ROOT),
        "-B",
        str(build),
        "-G",
        "Ninja",
        f"-DPython_EXECUTABLE={sys.executable}",
    ]
    for command in (configure, [cmake, "--build", str(build), "--parallel"]):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.stderr.write(done.stdout + done.stderr)
            return done.returncode
        if "warning:" in done.stdout:
            sys.stderr.write(done.stdout)
    for built in build.glob("_native*.so"):
        # Copied beside its final place and renamed: a process that has the old module loaded keeps it.
        target = _ROOT / "runtime" / "src" / "penstock_runtime" / built.name
        fresh = target.with_suffix(".new")
        shutil.copy2(built, fresh)
        fresh.replace(target)
        print(target.relative_to(_ROOT))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
