"""Links in the documentation lead to files that exist, and the README's figures are the committed ones."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [
    path
    for pattern in ("*.md", "docs/*.md", "examples/*.md", "results/*.md")
    for path in sorted(ROOT.glob(pattern))
]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    local = [link for link in links if not link.startswith(("http:", "https:", "mailto:"))]
    assert [link for link in local if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_brackets_side_by_side_are_code_and_not_taken_for_links(page: Path) -> None:
    text = re.sub(r"(?ms)^```.*?^```|^ {4}.*?$|`[^`]*`", "", page.read_text(encoding="utf-8"))
    assert re.findall(r"\[[^\]]*\]\[[^\]]*\]", text) == []  # mkdocs would look for a page of that name


def test_every_equation_of_the_paper_stands_where_the_page_says() -> None:
    page = (ROOT / "docs" / "method.md").read_text(encoding="utf-8")
    named = re.findall(r"`(\w+/\w+\.py):(\d+)` `(\w+)`", page)
    assert len(named) >= 8
    for file, line, name in named:
        lines = (ROOT / "src" / "penstock" / file).read_text(encoding="utf-8").splitlines()
        near = lines[max(0, int(line) - 20) : int(line) + 20]  # small edits above it need not touch the page
        assert any(one.strip().startswith(f"def {name}(") for one in near), f"{file}:{line}: no {name}"


def test_every_file_on_the_way_of_a_tensor_exists() -> None:
    page = (ROOT / "docs" / "walk.md").read_text(encoding="utf-8")
    roots = (ROOT / "src" / "penstock", ROOT / "runtime" / "src", ROOT)
    named = set(re.findall(r"`((?:\w+/)+(?:\w+\.(?:py|cpp|h|md))?)`", page))
    assert len(named) >= 20
    assert [name for name in named if not any((root / name).exists() for root in roots)] == []


def test_every_name_on_the_way_of_a_tensor_is_defined_somewhere() -> None:
    page = (ROOT / "docs" / "walk.md").read_text(encoding="utf-8")
    spans = re.findall(
        r"`@?(?:\w+\.)*(\w+)(?:\([^`]*\))?`", re.sub(r"(?s)^```.*?^```", "", page, flags=re.MULTILINE)
    )
    example = {"bn1", "conv1", "image", "engine", "cpp"}  # names of the network and of the caller
    names = set(spans) - example
    assert len(names) >= 15
    folders = (ROOT / "src" / "penstock", ROOT / "runtime" / "src", ROOT / "kernels")
    sources = [p for folder in folders for p in folder.rglob("*") if p.suffix in {".py", ".cpp", ".h"}]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    defined = set(re.findall(r"(?m)^\s*(?:def|class) (\w+)|^([A-Z_]+) = ", text))
    found = {name for pair in defined for name in pair if name}
    found |= set(re.findall(r"(?m)^\S.*?[ *&](?:\w+::)*(\w+)\(", text))  # C++
    assert sorted(names - found) == []


def test_the_speeds_in_the_readme_are_the_committed_ones() -> None:
    folder = ROOT / "benchmarks" / "results" / "zen5"
    found = {
        row["network"]: {entry["name"]: entry["milliseconds"] for entry in row["entries"]}
        for name in ("networks-dae8c29", "families-dae8c29")
        for row in json.loads((folder / f"{name}.json").read_text())["results"]
    }
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    names = ("M-CifarNet", "ResNet-18", "ResNet-50", "MobileNetV2")
    networks = ("m_cifarnet", "resnet18", "resnet50", "mobilenetv2_100")
    for shown, network in zip(names, networks, strict=True):
        cells = next(line for line in readme.splitlines() if line.startswith(f"| {shown}")).split("|")[2:]
        times = [float(re.search(r"[\d.]+", cell)[0]) for cell in cells[:7]]  # type: ignore[index]
        runs = found[network]
        floats = min(runs[name] for name in ("onnxruntime", "openvino"))
        int8 = min(runs[name] for name in ("onnxruntime-int8", "openvino-int8"))
        gated, codes = runs["penstock d = 0.5"], runs["penstock int8 d = 0.5"]
        expected = [floats, runs["openvino-installed"], int8, gated, codes, floats / gated, int8 / codes]
        assert times == pytest.approx(expected, rel=0.012), shown
