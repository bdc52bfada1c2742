"""The page: pictures and tables in, one HTML text out that needs no network and no other file."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

import penstock
from penstock.files import write_atomically
from penstock.reporting.figures.style import to_svg
from penstock.reporting.tables import Table

_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Picture:
    """One figure as the page carries it."""

    svg: Markup
    caption: str = ""


@dataclass(frozen=True)
class Card:
    """One number that matters."""

    title: str
    value: str
    detail: str = ""


@dataclass(frozen=True)
class TradeOff:
    """Accuracy against MACs by one convention, or against milliseconds, for wide and for narrow screens."""

    convention: str
    words: str
    wide: Picture
    narrow: Picture


@dataclass(frozen=True)
class NetworkPart:
    """What the page says about one network."""

    id: str
    title: str
    lead: str
    measured: Table | None = None
    spread: tuple[Picture, ...] = ()
    skipping: tuple[Picture, ...] = ()
    history: tuple[Picture, ...] = ()
    excitation: tuple[Picture, ...] = ()


@dataclass(frozen=True)
class TablePart:
    """A table that `penstock reproduce` made, with its plots."""

    id: str
    title: str
    table: Table
    pictures: tuple[Picture, ...] = ()


@dataclass(frozen=True)
class Page:
    """All that is on the page; what is empty is left out."""

    title: str
    lead: str
    runs: Table
    points: Table
    stopped: Table
    machine: str = ""
    cards: tuple[Card, ...] = ()
    notes: tuple[str, ...] = ()
    empty: str = ""
    tradeoffs: tuple[TradeOff, ...] = ()
    latency: TradeOff | None = None
    reproduced: tuple[TablePart, ...] = ()
    progress: tuple[Picture, ...] = ()
    stopped_progress: tuple[Picture, ...] = ()
    layer_costs: Table | None = None
    memory: Table | None = None
    networks: tuple[NetworkPart, ...] = ()
    footer: str = field(default="")


def picture(figure: Figure, name: str, alt: str, caption: str = "") -> Picture:
    """A figure made ready for the page; `name` must be unique there."""
    return Picture(Markup(to_svg(figure, identifier(name), alt)), caption)  # our own SVG, texts escaped


def identifier(name: str) -> str:
    """A name as an id that HTML and CSS both take.

    >>> identifier("runs/fbs d=0.5")
    'runs-fbs-d-0-5'
    """
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-") or "x"


def render(page: Page) -> str:
    """The whole HTML text."""
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    sections = [
        {"id": id_, "title": title}
        for id_, title, there in (
            ("tradeoff", "Accuracy against cost", bool(page.tradeoffs or page.latency)),
            *((part.id, part.table.name, True) for part in page.reproduced),
            ("runs", "Runs", bool(page.runs.rows or page.stopped.rows)),
            ("costs", "Layers", page.layer_costs is not None),
            *((network.id, network.title, True) for network in page.networks),
        )
        if there
    ]
    return environment.get_template("report.html.j2").render(
        page=page,
        sections=sections,
        version=penstock.__version__,
        css=Markup((_TEMPLATES / "report.css").read_text(encoding="utf-8")),
        js=Markup((_TEMPLATES / "report.js").read_text(encoding="utf-8")),
    )


def write_page(page: Page, path: str | Path) -> Path:
    """Write the page whole or not at all; returns where it is."""
    path = Path(path)
    write_atomically(path, render(page).encode())
    return path
