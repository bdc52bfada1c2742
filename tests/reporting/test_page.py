"""The page in a real browser: it opens without an error, shows its plots, sorts its tables, fits a phone."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import pytest
from tests.reporting.pages import HOSTILE, whole_page

from penstock.reporting import (
    build_page,
    render,
    write_page,
)

from .browser import chromium, show


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("page")
    path = write_page(whole_page(), folder / "report.html")
    assert [file.name for file in folder.iterdir()] == ["report.html"]
    with chromium(folder / "profile") as browser:
        show(browser, 1200, 900)
        browser.get(path.as_uri())
        yield browser


def texts(browser: Any, table: str, column: int) -> list[str]:
    cells = f"#{table} tbody tr > :nth-child({column})"
    return browser.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map(c => c.textContent)", cells
    )


def press(browser: Any, selector: str) -> Any:
    """Click an element where it is sure not to lie below the bar on top."""
    element = browser.find_element("css selector", selector)
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    element.click()
    return element


def test_it_opens_without_a_console_message_and_asks_the_network_for_nothing(opened: Any) -> None:
    assert opened.title == "All runs · Penstock"
    assert opened.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in opened.get_log("performance")]
    sent = [e["params"] for e in events if e["method"] == "Network.requestWillBeSent"]
    asked = [one["request"]["url"] for one in sent if one["documentURL"].startswith("file:")]
    assert asked
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


def test_every_plot_is_there_visible_and_named_for_screen_readers(opened: Any) -> None:
    found = opened.execute_script(
        "return [...document.querySelectorAll('figure svg[role=img]')].map(s => "
        "[s.getAttribute('aria-label'), s.getBoundingClientRect().width, s.getBoundingClientRect().height])"
    )
    seen = [label for label, width, height in found if width > 200 and height > 100]
    for start in (
        "Accuracy against MACs. FBS: 90.60% at 41M, 91.50% at 80M. NS:",
        "Accuracy against milliseconds. fbs, float32: 90.60% at 0.700 ms (d = 0.5), 91.50% at 1.30 ms",
        "Accuracy and loss of fbs over 3 epochs, ending at 83.00%",
        "Heat map of layer first: 3 classes by 3 channels",
        "Heat map of layer second: 3 classes by 4 channels; on average 2.0 channels are computed",
        "Heat maps of layer second after epochs 1, 2, 3",
        "Images by their maximum in channel 0 of layer second",
        "Distribution of the maxima of the first 4 channels",
    ):
        assert any(label.startswith(start) for label in seen), start


def test_a_click_sorts_a_column_up_and_another_one_down(opened: Any) -> None:
    button = press(opened, "#points thead th:nth-child(3) button")
    assert texts(opened, "points", 3) == ["9.50", "87.50", "90.60", "91.37", "91.50"]
    assert button.find_element("xpath", "..").get_attribute("aria-sort") == "ascending"
    button.click()
    assert texts(opened, "points", 3) == ["91.50", "91.37", "90.60", "87.50", "9.50"]
    assert button.find_element("xpath", "..").get_attribute("aria-sort") == "descending"
    sorted_columns = opened.find_elements("css selector", "#points th:not([aria-sort=none])[aria-sort]")
    assert len(sorted_columns) == 1


def test_the_keyboard_alone_sorts_too_and_what_is_missing_stays_last(opened: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    opened.find_element("css selector", "#points thead th:nth-child(7) button").send_keys(Keys.TAB)
    focused = opened.switch_to.active_element
    assert focused.text.startswith("ms, float32")
    focused.send_keys(Keys.ENTER)
    assert texts(opened, "points", 8) == ["1.25", "–", "–", "–", "–"]
    focused.send_keys(Keys.SPACE)
    assert texts(opened, "points", 8)[0] == "1.25"
    said = opened.execute_script("return document.querySelector('#said').textContent")
    assert said == "ms, float32: sorted descending"


def test_footers_stay_below_whatever_is_sorted(opened: Any) -> None:
    press(opened, "#layers thead th:nth-child(3) button")
    rows = opened.execute_script(
        "return [...document.querySelectorAll('#layers tr')].map(r => r.cells[0].textContent)"
    )
    assert rows[-2:] == ["Total", "Saving"]


def test_the_other_way_of_counting_is_one_choice_away(opened: Any) -> None:
    press(opened, "input[value=paper]")
    shown = opened.execute_script(
        "return [...document.querySelectorAll('[data-chosen-by]')].map(f => [f.dataset.value, f.hidden])"
    )
    assert shown == [["executed", True], ["paper", False]]
    press(opened, "input[value=executed]")


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_nothing_sticks_out_at_any_width(opened: Any, width: int) -> None:
    show(opened, width, 800)
    inside, whole = opened.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert (inside, whole) == (width, width)
    show(opened, 1200, 900)


def test_colours_follow_the_users_preference_and_the_button_overrules_it(opened: Any) -> None:
    def colours() -> tuple[str, str]:
        return tuple(
            opened.execute_script(
                "return [getComputedStyle(document.body).backgroundColor,"
                "getComputedStyle(document.querySelector('figure svg text')).fill]"
            )
        )

    show(opened, 1200, 900, "light")
    light = colours()
    show(opened, 1200, 900, "dark")
    dark = colours()
    assert light[0] == "rgb(246, 247, 249)"
    assert dark[0] == "rgb(18, 22, 28)"
    assert light[1] != dark[1]  # the figures follow too
    button = press(opened, ".theme")
    assert button.text == "Theme: light"
    assert colours() == light
    button.click()
    show(opened, 1200, 900, "light")
    assert colours() == dark
    button.click()
    assert colours() == light


def box(browser: Any, selector: str) -> dict[str, float]:
    return browser.execute_script(
        "return document.querySelector(arguments[0]).getBoundingClientRect().toJSON()", selector
    )


def test_milliseconds_stand_beside_the_macs_with_dense_float32_and_int8_on_them(opened: Any) -> None:
    show(opened, 1280, 900)
    macs, clock = box(opened, "figure[data-value=executed]"), box(opened, "#latency")
    assert abs(macs["bottom"] - clock["bottom"]) < 5
    assert macs["right"] < clock["left"]
    label = opened.execute_script("return document.querySelector('#latency svg').ariaLabel")
    assert "Dense, dense float32 (openvino): 92.30% at 3.40 ms." in label
    assert "Dense, dense int8 (onnx): 92.10% at 1.00 ms." in label
    drawn = opened.execute_script("return document.querySelector('#latency svg').textContent")
    assert "dense int8 (onnx)" in drawn
    assert "milliseconds an image, measured" in drawn


def test_the_machine_stands_at_the_top_and_layers_have_milliseconds(opened: Any) -> None:
    machine = opened.find_element("css selector", "header.top .machine")
    assert machine.text == "AMD EPYC (Zen 3), 2 cores; torch 2.13.0"
    assert machine.location["y"] < 250
    assert texts(opened, "layers", 5) == ["–", "0.250"]


def test_stopped_runs_are_folded_away_and_open_on_a_click(opened: Any) -> None:
    assert texts(opened, "run-list", 1) == ["fbs"]
    assert texts(opened, "stopped-list", 1) == ["halted", HOSTILE]
    assert not opened.find_element("id", "stopped-list").is_displayed()
    press(opened, "#stopped summary")
    assert opened.find_element("id", "stopped-list").is_displayed()
    labels = opened.execute_script(
        "return [...document.querySelectorAll('#stopped svg')].map(s => s.getAttribute('aria-label'))"
    )
    assert [label.split(" over")[0] for label in labels] == ["Accuracy and loss of halted"]
    press(opened, "#stopped summary")


@pytest.mark.parametrize("width", [1280, 1440])
def test_no_table_is_cut_off_on_a_laptop(opened: Any, width: int) -> None:
    show(opened, width, 900)
    opened.execute_script("document.getElementById('stopped').open = true")
    cut = opened.execute_script(
        "return [...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1)"
        ".map(e => e.getAttribute('aria-labelledby'))"
    )
    opened.execute_script("document.getElementById('stopped').open = false")
    assert cut == []


def test_text_from_files_is_shown_as_text(opened: Any) -> None:
    assert HOSTILE in texts(opened, "stopped-list", 1)
    assert "line 2 is not whole JSON" in opened.find_element("css selector", ".notes").text


class _Outline(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if found.get("id"):
            self.ids.append(str(found["id"]))
        for key in ("href", "xlink:href", "src", "aria-labelledby"):
            if found.get(key):
                self.links.append(str(found[key]) if key != "aria-labelledby" else f"#{found[key]}")


def test_ids_are_unique_every_link_has_a_target_and_nothing_comes_from_elsewhere() -> None:
    text = render(whole_page())
    outline = _Outline()
    outline.feed(text)
    assert [name for name, count in Counter(outline.ids).items() if count > 1] == []
    for link in outline.links:
        assert link.startswith("data:") or link[1:] in outline.ids, link
    assert set(re.findall(r"https?://[^\s\"'<>]+", text)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }


def test_a_page_without_runs_says_how_to_make_one() -> None:
    text = render(build_page([], title="Nothing"))
    assert "There is no run here yet." in text
    assert "penstock train" in text
    assert "<table" not in text
