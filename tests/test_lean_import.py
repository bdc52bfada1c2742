"""`import penstock` stays light, and optional packages stay optional; each case in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap

OPTIONAL = ["onnx", "onnxruntime", "openvino", "timm", "torchvision", "tensorboard"]
HEAVY = [*OPTIONAL, "matplotlib", "accelerate", "torch_pruning", "tyro", "rich", "jinja2", "PIL"]


def run(code: str) -> str:
    process = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)], capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.strip()


def test_importing_penstock_loads_no_heavy_package() -> None:
    # Without -W error: what torch itself warns about on import is not ours.
    code = f"import sys, penstock; print([name for name in {HEAVY} if name in sys.modules])"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "[]"


def test_the_method_works_where_no_optional_package_is_installed() -> None:
    out = run(
        f"""
        import sys

        class Absent:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] in {OPTIONAL}:
                    raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

        sys.meta_path.insert(0, Absent())
        import torch
        import penstock as ps

        x = torch.randn(2, 3, 32, 32)
        gated = ps.add_gates(ps.zoo.m_cifarnet(), x, density=0.5)
        assert len(ps.explain(gated).gated) == 8
        assert round(ps.account(gated, x, convention="paper").saving, 2) == 3.93
        gated(x)
        ps.saliency_penalty(gated)
        ps.remove_unused(gated, x)
        ps.save, ps.load, ps.set_density, ps.errors, ps.datasets, ps.export_onnx
        try:
            ps.export_onnx(gated, "unused.onnx", x)
        except ps.PenstockError as error:
            assert isinstance(error, ImportError)
            print(error)
        """
    )
    assert "pip install 'penstock[" in out
