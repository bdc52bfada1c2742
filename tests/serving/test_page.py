"""The server's page in real Chromium: an image is classified, the knob works, the server shows itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the server needs: pip install 'penstock[serve]'")

from tests.reporting.browser import chromium, show
from tests.serving.served import CLASSES, picture, server, write_network


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("page")
    network = write_network(folder / "small.penstock")
    (folder / "cat.png").write_bytes(picture())
    with chromium(folder / "profile") as browser, server(network) as (address, _):
        browser.get(address)
        assert not browser.find_element("id", "cost").is_displayed()  # nothing is known yet
        browser.find_element("id", "file").send_keys(str(folder / "cat.png"))
        yield browser


def until(check: Callable[[], Any]) -> Any:
    from selenium.webdriver.support.wait import WebDriverWait

    return WebDriverWait(None, 20, poll_frequency=0.05).until(lambda _: check())


def text(page: Any, name: str) -> str:
    found: str = page.find_element("id", name).text
    return found


def test_an_image_gets_classes_milliseconds_and_channels(page: Any) -> None:
    until(lambda: page.find_elements("css selector", "#classes li"))
    names = [row.text.split("\n")[0] for row in page.find_elements("css selector", "#classes li")]
    assert sorted(names) == sorted(CLASSES)
    assert text(page, "used") == "1.00"
    assert re.fullmatch(r"[\d.]+ ms", text(page, "took"))
    strips = page.find_elements("css selector", "#layers canvas")
    assert strips[0].get_attribute("aria-label").endswith("of 16 channels computed")


def test_the_slider_changes_what_is_computed_by_keyboard_too(page: Any) -> None:
    until(lambda: text(page, "used") == "1.00")
    slider = page.find_element("id", "density")
    slider.send_keys("\ue012" * 50)  # the left arrow, fifty hundredths
    until(lambda: text(page, "used") == "0.50")
    counts = [count.text for count in page.find_elements("css selector", "#layers .layer > span:last-child")]
    assert counts == ["8/16", "16/32"]
    page.find_element("id", "automatic").click()
    until(lambda: text(page, "used") == "1.00")


def test_the_server_shows_itself(page: Any) -> None:
    until(lambda: text(page, "target") == "20.0 ms")
    assert text(page, "accuracy") == "90.00% (nothing given away)"
    until(lambda: page.find_elements("css selector", "#chart polyline"))


@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (1280, "dark")])
def test_it_fits_phones_and_desktops_in_light_and_dark(page: Any, width: int, scheme: str) -> None:
    show(page, width, 800, scheme)
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    letters = "return document.querySelector('#chart text').getBoundingClientRect().height"
    assert page.execute_script(letters) >= 11
    colours = page.execute_script(
        "const s = getComputedStyle(document.body); return [s.color, s.backgroundColor].map(c => "
        "c.match(/[\\d.]+/g).slice(0, 3).reduce((a, b) => a + Number(b), 0))"
    )
    assert abs(colours[0] - colours[1]) > 400  # ink and paper differ in both


def test_nothing_comes_from_elsewhere_and_nothing_goes_wrong(page: Any) -> None:
    severe = [entry for entry in page.get_log("browser") if entry["level"] == "SEVERE"]
    assert severe == []
    names = page.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
    own = page.current_url
    assert all(name.startswith((own, "blob:", "data:")) for name in names)


def test_a_file_that_is_no_image_is_said_in_words(page: Any, tmp_path: Path) -> None:
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"nothing")
    page.find_element("id", "file").send_keys(str(bad))
    until(lambda: "cannot be read as an image" in text(page, "message"))
