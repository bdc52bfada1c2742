"""docs/browser in real Chromium: PyTorch's answers, a working knob, and nothing from the network."""

from __future__ import annotations

import functools
import importlib.util
import json
import shutil
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import penstock as ps
from penstock.datasets.preprocess import Preprocess
from penstock.gating import gated_layers, winner_count

pytest.importorskip("onnx", reason="the page's network is written with onnx: pip install 'penstock[onnx]'")
webdriver = pytest.importorskip(
    "selenium.webdriver", reason="the page is driven with selenium: pip install selenium"
)

PAGE = Path(__file__).parents[2] / "docs" / "browser"
DENSITIES = (0.3, 0.5, 1.0)

pytestmark = [
    pytest.mark.skipif(shutil.which("npm") is None, reason="npm brings onnxruntime-web and is not installed"),
    pytest.mark.skipif(
        shutil.which("chromium") is None or shutil.which("chromedriver") is None,
        reason="the page is tested in Chromium; install chromium and chromedriver",
    ),
]


def _builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("browser_build", PAGE / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


def _serve(folder: Path) -> tuple[ThreadingHTTPServer, str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, f"http://127.0.0.1:{server.server_port}/index.html"


@pytest.fixture(scope="module")
def network() -> nn.Module:
    return _builder().untrained()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, network: nn.Module) -> Path:
    place = tmp_path_factory.mktemp("page")
    for name in ("index.html", "page.css", "page.js", "network.js"):
        shutil.copy(PAGE / name, place)
    shutil.copytree(PAGE / "samples", place / "samples")
    builder = _builder()
    builder.place_runtime(place)
    builder.place_network(place, network, "A network for the test.")
    return place


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    for flag in (
        "headless",
        "no-sandbox",
        "disable-gpu",
        "disable-quic",
        "no-first-run",
        "disable-background-networking",
        "disable-component-update",
        "disable-sync",
        "window-size=1280,900",
        "host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # the page must work without a network
        f"user-data-dir={tmp_path_factory.mktemp('profile')}",
    ):
        options.add_argument(f"--{flag}")
    options.binary_location = shutil.which("chromium") or ""
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    started.set_script_timeout(60)
    yield started
    started.quit()


@pytest.fixture(scope="module")
def page(folder: Path, driver: Any) -> Iterator[Any]:
    server, address = _serve(folder)
    driver.get(address)
    _wait(driver, "return window.penstock.shown !== null")
    yield driver
    server.shutdown()
    server.server_close()


def _wait(driver: Any, condition: str, seconds: float = 60) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(driver, seconds, poll_frequency=0.05).until(
        lambda browser: browser.execute_script(condition)
    )


def _shown(driver: Any) -> dict[str, Any]:
    return driver.execute_script("return window.penstock.shown")


def _ask(driver: Any, place: int, density: float) -> dict[str, Any]:
    """Choose a sample and a density as a user would, and wait for the answer."""
    driver.execute_script(
        """
        window.penstock.shown = null;
        const slider = document.getElementById("density");
        slider.value = arguments[1];
        slider.dispatchEvent(new Event("input"));
        """,
        place,
        str(density),
    )
    _wait(driver, "return window.penstock.shown !== null")
    radio = driver.find_elements("css selector", "#samples input")[place]
    if not radio.is_selected():
        driver.execute_script("window.penstock.shown = null; arguments[0].click()", radio)
        _wait(driver, "return window.penstock.shown !== null")
    return _shown(driver)


def _pixels(path: Path) -> torch.Tensor:
    return torch.from_numpy(np.array(Image.open(path).convert("RGB"))).permute(2, 0, 1)[None]


def _work(folder: Path, density: float) -> float:
    """The share of multiplications that a chain of layers does."""
    layers = json.loads((folder / "net" / "page.json").read_text())["layers"]
    share = {row["name"]: winner_count(density, row["channels"]) / row["channels"] for row in layers}
    done = sum(row["macs"] * share[row["name"]] * share.get(row["reads"], 1.0) for row in layers)
    return done / sum(row["macs"] for row in layers)


@pytest.mark.parametrize("density", DENSITIES)
def test_logits_and_channels_equal_pytorch(
    page: Any, folder: Path, network: nn.Module, density: float
) -> None:
    samples = sorted((folder / "samples").glob("*.png"))
    seen = set()
    for place in (0, 7):
        found = _ask(page, place, density)
        ps.set_density(network, density)
        with torch.no_grad():
            want = network(Preprocess()(_pixels(samples[place])))[0]
        assert found["density"] == density
        assert found["name"].endswith(samples[place].name)
        np.testing.assert_allclose(found["logits"], want.numpy(), atol=1e-4)
        for name, layer in gated_layers(network):
            assert layer.gains is not None
            winners = layer.gains[0].nonzero()[:, 0].tolist()
            assert set(winners) <= set(found["lists"][name])
            assert len(found["lists"][name]) == winner_count(density, layer.conv.out_channels)
        seen.add(tuple(sorted(found["lists"]["conv4"])))
    assert len(seen) == (1 if density == 1.0 else 2)


def test_the_slider_works_from_the_keyboard_and_shows_fewer_channels(page: Any, folder: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    _ask(page, 0, 0.5)
    before = len(page.find_elements("css selector", "#layers li:nth-child(3) i.on"))
    page.find_element("id", "density").send_keys(Keys.ARROW_LEFT * 4)
    _wait(page, "return window.penstock.shown.density === 0.3")
    assert page.find_element("id", "density-shown").text == "0.30"
    assert before == 64
    assert len(page.find_elements("css selector", "#layers li:nth-child(3) i.on")) == winner_count(0.3, 128)
    assert "39 of 128" in page.find_element("css selector", "#layers li:nth-child(3)").text
    assert page.find_element("id", "time").text.endswith("ms")
    assert page.find_element("id", "work").text == f"{100 * _work(folder, 0.3):.0f}%"


def test_an_uploaded_picture_is_classified_and_a_text_file_is_refused(page: Any, tmp_path: Path) -> None:
    picture, text = tmp_path / "mine.png", tmp_path / "notes.txt"
    Image.effect_mandelbrot((90, 60), (-2.0, -1.0, 1.0, 1.0), 30).convert("RGB").save(picture)
    text.write_text("no picture")
    page.find_element("id", "file").send_keys(str(picture))
    _wait(page, "return window.penstock.shown.name === 'mine.png'")
    assert "% sure" in page.find_element("id", "verdict").text
    page.find_element("id", "file").send_keys(str(text))
    _wait(page, "return document.getElementById('verdict').textContent.includes('notes.txt')")


def test_the_gain_is_measured_on_demand(page: Any) -> None:
    _ask(page, 0, 0.3)
    page.find_element("id", "compare").click()
    _wait(page, "return document.getElementById('race').textContent.includes('×')")
    assert "ms skipping" in page.find_element("id", "race").text


def test_every_control_has_a_name_and_a_phone_needs_no_sideways_scrolling(page: Any) -> None:
    for control in page.find_elements("css selector", "input, button, [role=img]"):
        assert control.accessible_name.strip(), control.get_attribute("outerHTML")
    page.set_window_size(500, 800)  # Chromium's smallest window; the phone's width is set in the page itself
    page.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 360, "height": 780, "deviceScaleFactor": 2, "mobile": True},
    )
    try:
        assert page.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_nothing_was_reported_on_the_console(page: Any) -> None:
    assert page.get_log("browser") == []


def test_a_page_without_its_network_says_what_to_run(driver: Any, folder: Path, tmp_path: Path) -> None:
    for name in ("index.html", "page.css", "page.js", "network.js"):
        shutil.copy(PAGE / name, tmp_path)
    shutil.copytree(folder / "ort", tmp_path / "ort")
    server, address = _serve(tmp_path)
    try:
        driver.get(address)
        _wait(driver, "return document.getElementById('about').className === 'alarm'")
        assert "docs/browser/build.py" in driver.find_element("id", "about").text
    finally:
        server.shutdown()
        server.server_close()
