"""What is drawn is what was given: the figures are read back from matplotlib and from their SVG."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from penstock.reporting.figures import (
    MILLISECONDS,
    Curve,
    CurvePoint,
    excitation_figure,
    history_figure,
    maxima_figure,
    progress_figure,
    save_figure,
    skipping_figure,
    to_svg,
    tradeoff_figure,
)
from penstock.reporting.figures.tradeoff import series_looks

FBS = Curve("FBS", (CurvePoint(80e6, 91.0), CurvePoint(40e6, 90.0), CurvePoint(20e6, 85.0)))
NS = Curve("NS", (CurvePoint(80e6, 88.0), CurvePoint(120e6, 90.0)))
COMPOSED = Curve("NS+FBS", (CurvePoint(60e6, 90.5),))


def test_labels_of_marks_lie_on_no_line_no_legend_and_no_other_label() -> None:
    floats = Curve("float32", (CurvePoint(0.25, 82), CurvePoint(0.54, 84), CurvePoint(1.59, 90)))
    codes = Curve("int8", (CurvePoint(0.13, 84), CurvePoint(0.21, 84), CurvePoint(0.62, 90)))
    marks = [
        CurvePoint(0.59, 88, "dense int8 (onnxruntime)"),
        CurvePoint(2.25, 88, "dense float32 (openvino)"),
    ]
    figure = tradeoff_figure([floats, codes], axis=MILLISECONDS, marks=marks, width=540, height=360)
    figure.draw_without_rendering()
    (axes,) = figure.axes
    boxes = [text.get_window_extent() for text in axes.texts]
    assert [text.get_text() for text in axes.texts] == [mark.label for mark in marks]
    assert not boxes[0].overlaps(boxes[1])
    legend = axes.get_legend()
    assert legend is not None
    for box in boxes:
        assert not box.overlaps(legend.get_window_extent())
        assert not any(
            line.get_path().transformed(axes.transData).intersects_bbox(box, filled=False)
            for line in axes.lines
        )


def test_the_legend_of_training_curves_lies_on_no_curve() -> None:
    history = [
        {"epoch": 1, "test_top1": 10.0, "train_top1": 88.0, "density": 1.0},
        {"epoch": 2, "test_top1": 11.0, "train_top1": 18.0, "density": 0.5},
    ]
    figure = progress_figure(history, title="fine")
    figure.draw_without_rendering()
    legend = figure.axes[0].get_legend()
    assert legend is not None
    box = legend.get_window_extent()
    assert not box.overlaps(figure.axes[0].title.get_window_extent())
    for axes in figure.axes:
        for line in axes.lines:
            assert not line.get_path().transformed(axes.transData).intersects_bbox(box, filled=False)


def drawn_map(figure: Figure, panel: int = 0) -> np.ndarray:
    return np.ma.filled(figure.axes[panel].images[0].get_array(), np.nan)


def stripes(figure: Figure, panel: int = 0) -> list[tuple[float, float]]:
    return [
        (patch.get_x() + 0.5, patch.get_width())
        for patch in figure.axes[panel].patches
        if isinstance(patch, Rectangle) and patch.get_hatch()
    ]


def test_the_tradeoff_has_one_line_a_method_from_cheap_to_dear_and_the_baseline_ringed() -> None:
    figure = tradeoff_figure([FBS, NS, COMPOSED], CurvePoint(174e6, 91.4))
    (axes,) = figure.axes
    lines = {line.get_label(): line for line in axes.lines}
    assert set(lines) == {"FBS", "NS", "NS+FBS"}
    assert lines["FBS"].get_xdata().tolist() == [20e6, 40e6, 80e6]
    assert lines["FBS"].get_ydata().tolist() == [85.0, 90.0, 91.0]
    ring = next(c for c in axes.collections if c.get_label() == "baseline")
    assert ring.get_offsets().tolist() == [[174e6, 91.4]]
    assert len(ring.get_facecolor()) == 0  # a ring, not a disc
    assert len({line.get_marker() for line in axes.lines}) == 3


def test_no_accuracy_above_a_hundred_percent_is_on_the_axis() -> None:
    (axes,) = tradeoff_figure([Curve("FBS", (CurvePoint(1e6, 100.0), CurvePoint(2e6, 100.0)))]).axes
    assert max(tick for tick in axes.get_yticks() if tick <= axes.get_ylim()[1]) == 100
    assert axes.get_ylim()[0] < 100


def test_a_method_keeps_its_look_whoever_else_is_there() -> None:
    assert series_looks(["NS"])["NS"] == series_looks(["FBS", "other", "NS"])["NS"]
    looks = series_looks(["FBS", "NS", "NS+FBS", "a", "b"])
    assert len(set(looks.values())) == 5


def test_a_heat_map_has_its_channels_reordered_and_the_never_used_striped() -> None:
    probability = np.array([[0.0, 1.0, 0.5, 1.0], [0.25, 1.0, 0.5, 1.0]])
    never, order = np.array([False, True, False, True]), np.array([1, 3, 2, 0])
    figure = skipping_figure(probability, never, order, ("cat", "dog"), title="conv4")
    shown = drawn_map(figure)
    assert np.isnan(shown[:, :2]).all()  # the stripes stand there instead
    assert shown[:, 2:].tolist() == [[0.5, 0.0], [0.5, 0.25]]
    assert stripes(figure) == [(0.0, 2)]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["cat", "dog"]
    assert "2 never" in figure.axes[0].get_xlabel()
    assert figure.axes[0].get_title(loc="left") == "conv4"


def test_a_thousand_classes_are_averaged_into_rows_that_can_be_seen() -> None:
    probability = np.zeros((1000, 3))
    probability[0] = 1.0  # one class of five in the first row
    probability[5:10] = np.nan  # a row whose classes have no images
    figure = skipping_figure(probability, np.zeros(3, bool), np.arange(3), [str(i) for i in range(1000)])
    shown = drawn_map(figure)
    assert shown.shape == (200, 3)
    assert shown[0].tolist() == [0.2, 0.2, 0.2]
    assert np.isnan(shown[1]).all()
    assert figure.axes[0].get_ylabel() == "1000 classes, 5 a row"


def test_the_history_keeps_one_order_and_stripes_each_epoch_for_itself() -> None:
    first = np.array([[0.0, 1.0, 0.5]])
    second = np.array([[1.0, 0.0, 0.5]])
    epochs = [(1, first, np.array([False, True, False])), (5, second, np.array([True, False, False]))]
    figure = history_figure(epochs, np.array([1, 2, 0]))
    assert np.isnan(drawn_map(figure, 0)[0, 0])
    assert drawn_map(figure, 0)[0, 1:].tolist() == [0.5, 0.0]
    assert drawn_map(figure, 1)[0, :2].tolist() == [0.0, 0.5]
    assert stripes(figure, 0) == [(0.0, 1)]
    assert stripes(figure, 1) == [(2.0, 1)]


def test_exciting_images_stand_in_order_with_their_numbers_below() -> None:
    images = [np.full((3, 4, 4), shade, dtype=np.uint8) for shade in (250, 200, 5, 9)]
    figure = excitation_figure(
        [(images[0], 5.426), (images[1], 3.297)], [(images[2], -0.229), (images[3], 0.052)]
    )
    assert [axes.get_xlabel() for axes in figure.axes] == ["5.426", "3.297", "-0.229", "0.052"]
    shades = [int(axes.images[0].get_array()[0, 0, 0]) for axes in figure.axes]
    assert shades == [250, 200, 5, 9]


def test_the_distribution_shows_the_first_twenty_channels_at_their_medians() -> None:
    values = np.arange(25)[None, :] + np.array([-1.0, 0.0, 1.0])[:, None]
    (axes,) = maxima_figure(values).figure.axes
    medians = [line.get_ydata() for line in axes.lines if line.get_linewidth() == 1.5]
    assert [float(y[0]) for y in medians] == list(range(20))


def test_progress_draws_both_accuracies_and_skips_what_is_no_number() -> None:
    history = [
        {"epoch": 1, "train_top1": 40.0, "test_top1": 50.0, "density": 1.0},
        {"epoch": 2, "train_top1": float("nan"), "test_top1": 60.0, "density": 0.5},
        {"epoch": 3, "train_top1": 45.0},
    ]
    axes, twin = progress_figure(history).axes
    lines = {line.get_label(): line.get_ydata() for line in axes.lines}
    assert list(lines["test"]) == [50.0, 60.0]
    assert list(lines["training"]) == [40.0, 45.0]
    assert list(twin.lines[0].get_ydata()) == [1.0, 0.5]


def test_svg_for_a_page_is_well_formed_follows_the_theme_and_keeps_its_ids_apart() -> None:
    figure = tradeoff_figure([FBS], CurvePoint(174e6, 91.4))
    one, other = to_svg(figure, "a", 'says "what" & <where>'), to_svg(figure, "b", "x")
    root = ET.fromstring(one)
    assert root.attrib["aria-label"] == 'says "what" & <where>'
    assert "var(--series-1, #0072b2)" in one
    assert "var(--ink, #1f2430)" in one
    assert "DejaVu" not in one
    ids = [set(re.findall(r'\bid="([^"]+)"', text)) for text in (one, other)]
    assert not ids[0] & ids[1]
    used = set(re.findall(r"url\(#([^)]+)\)", one)) | set(re.findall(r'href="#([^"]+)"', one))
    assert used <= ids[0]
    assert to_svg(tradeoff_figure([NS]), "a", "x") == to_svg(tradeoff_figure([NS]), "a", "x")


@pytest.mark.parametrize("suffix", ["svg", "png", "pdf"])
def test_a_figure_is_saved_as_its_suffix_says(tmp_path: Path, suffix: str) -> None:
    save_figure(tradeoff_figure([FBS]), tmp_path / f"figure.{suffix}")
    assert [path.name for path in tmp_path.iterdir()] == [f"figure.{suffix}"]
    head = (tmp_path / f"figure.{suffix}").read_bytes()[:5]
    assert head == {"svg": b"<?xml", "png": b"\x89PNG\r", "pdf": b"%PDF-"}[suffix]


def test_drawing_leaves_the_users_matplotlib_settings_alone() -> None:
    with mpl.rc_context({"font.size": 33.0}):
        figure = tradeoff_figure([FBS])
        to_svg(figure, "a", "x")
        assert mpl.rcParams["font.size"] == 33.0
    assert figure.axes[0].xaxis.label.get_fontsize() == 10
