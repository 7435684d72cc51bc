"""The page of zoo-app in a browser shows what its panels compute, is readable, and fetches nothing from elsewhere."""

import os
import re
import shutil
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

import modeling
from elmo_gpt_bert.explorer import __main__ as app
from elmo_gpt_bert.explorer.panels import Panels
from tests.support.analysis_sample import TEXT
from tests.support.pairs_sample import write_bert, write_bilm, write_gpt
from tests.tools.test_explorer import write_tagger


SENTENCE = "is the plot not a dull film ?"
TABS = ("Context", "Probability", "Entities", "Attention")
WAIT, PAUSE = 120_000, 200  # milliseconds; a busy machine is slow

# The lowest contrast of the text of an element to the colour behind it, as WCAG defines it, over what is visible.
CONTRAST = """() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
  const paint = (colors) => { canvas.fillStyle = "white"; canvas.fillRect(0, 0, 1, 1);
    for (const color of colors) { canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1); }
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3); };
  const light = (rgb) => rgb.map((v) => v / 255).map((v) => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  let lowest = [99, ""];
  for (const element of document.querySelectorAll("[class^=ex-], [class^=ex-] *")) {
    const has_text = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!has_text || !element.checkVisibility()) continue;
    const behind = [];
    for (let node = element; node; node = node.parentElement) behind.unshift(getComputedStyle(node).backgroundColor);
    const ground = paint(behind), text = paint([...behind, getComputedStyle(element).color]);
    const [low, high] = [light(ground), light(text)].sort((a, b) => a - b);
    const ratio = (high + .05) / (low + .05);
    if (ratio < lowest[0]) lowest = [ratio, element.outerHTML.slice(0, 200)];
  }
  return lowest;
}"""
# The elements of the results whose text is wider than they are.
CUT_OFF = """() => [...document.querySelectorAll("[class^=ex-]:not(.ex-scroll), [class^=ex-]:not(.ex-scroll) span")]
  .filter((element) => element.checkVisibility() && element.scrollWidth > element.clientWidth + 1
    && getComputedStyle(element).display !== "inline")
  .map((element) => element.outerHTML.slice(0, 200))"""

# Waits for a number of frames.
FRAMES = """(count) => new Promise((done) => {
  const next = () => count-- ? requestAnimationFrame(next) : done();
  next();
})"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no browser: apt-get install chromium")
    sandbox = ["--no-sandbox"] * (os.getuid() == 0)  # Chromium's sandbox refuses root
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=sandbox)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Tiny models, all with random weights, and an index."""
    folder = tmp_path_factory.mktemp("models")
    for write in (write_bilm, write_gpt, write_bert):
        write(folder)
    write_tagger(folder / "tagger", ["O", "B-PER", "I-PER", "B-WORK", "I-WORK"])
    (folder / "index.txt").write_text(TEXT, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def url(folder) -> Iterator[str]:
    """The address of the page, which is served until the last test."""
    models = ["--elmo", f"{folder}/elmo", "--gpt", f"{folder}/gpt", "--bert", f"{folder}/bert"]
    models += ["--ner", f"{folder}/tagger"]
    page = app.start(app.parse([*models, "--index_file", f"{folder}/index.txt"]))
    yield page.local_url
    page.close()


@pytest.fixture
def panels(folder) -> Panels:
    """What the page should show."""
    modeling.register()
    return Panels({family: f"{folder}/{family.lower()}" for family in ("ELMo", "GPT", "BERT")}, None)


@pytest.fixture(params=["light", "dark"])
def theme(request) -> str:
    return request.param


@pytest.fixture
def page(url, browser) -> Iterator[Page]:
    page = open_page(browser, url, "light")
    yield page
    page.close()


def open_page(browser: Browser, url: str, theme: str, width: int = 1440) -> Page:
    """The page with the tests' sentence; `page.requests` are the addresses that it asked for."""
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.set_default_timeout(WAIT)
    expect.set_options(timeout=WAIT)
    page.requests = []
    page.on("request", lambda request: page.requests.append(request.url))
    page.goto(f"{url}?__theme={theme}")
    wait_for_boxes(page)
    page.get_by_label("Sentence", exact=True).fill(SENTENCE)
    page.get_by_label("film", exact=True).wait_for()
    return page


def open_tab(page: Page, number: int) -> None:
    page.get_by_role("tab", name=TABS[number], exact=True).click()
    wait_for_boxes(page)


def wait_for_boxes(page: Page) -> None:
    """Waits until what is written in a box of the open tab stays there.

    Gradio sets the first value of a box a second time, one or two frames after the box appears. Nobody types so soon,
    but a test does.
    """
    page.get_by_role("tabpanel").get_by_role("button").last.wait_for()
    page.evaluate(FRAMES, 30)


def set_number(page: Page, name: str, number: int) -> None:
    """Types a number beside a slider, again if Gradio sets the first value after it, and the slider follows."""
    box = page.get_by_label(re.compile(f"number input for {name}"))
    for _ in range(10):
        box.fill(str(number))
        box.press("Tab")
        page.evaluate(FRAMES, 30)
        if box.input_value() == str(number):
            break
    expect(page.get_by_label(re.compile(f"range slider for {name}"))).to_have_value(str(number))


def assert_shown(page: Page, name: str, html: str) -> None:
    """The element comes to show the text of the HTML, which the panels computed."""
    expected, shown = squeezed(unescape(re.sub("<[^>]*>", " ", html))), ""
    for _ in range(WAIT // PAUSE):
        shown = squeezed(page.locator(f"#{name}").text_content())
        if expected in shown:
            return
        page.wait_for_timeout(PAUSE)
    assert shown == expected


def squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


def fill_everything(page: Page) -> None:
    """Uses all tabs, and waits for their results."""
    page.get_by_label("film", exact=True).check()
    for tab, button, shown in [
        (0, "Find neighbours", "#neighbours"),
        (1, "Compute probabilities", "#scores"),
        (2, "Find entities", "#entities"),
        (3, "Show GPT's attention", "#gpt-attention"),
        (3, "Show BERT's attention", "#bert-attention"),
    ]:
        open_tab(page, tab)
        if tab == 1:
            page.get_by_label("Second sentence").fill("the film is good .")
        page.get_by_role("button", name=button).click()
        page.locator(f"{shown} [class^=ex-]").first.wait_for()
        expect(page.locator(f"{shown} .ex-error")).to_have_count(0)


def test_the_first_page_and_each_tab_show_a_result_before_anything_is_clicked(url, browser, panels, folder):
    page = browser.new_page()
    page.goto(url)
    assert_shown(page, "neighbours", panels.neighbours(app.SENTENCE, app.WORD, False, f"{folder}/index.txt"))
    open_tab(page, 1)
    assert_shown(page, "scores", panels.scores(app.SENTENCE, app.SECOND))
    open_tab(page, 3)
    assert_shown(page, "bert-attention", panels.attention("BERT", app.SENTENCE, 3, 0, False))
    page.get_by_label("Also show [CLS] and [SEP]").check()
    assert_shown(page, "bert-attention", panels.attention("BERT", app.SENTENCE, 3, 0, True))
    page.close()


def test_a_phone_shows_all_tabs(url, browser):
    page = open_page(browser, url, "light", width=390)
    for tab in TABS:
        expect(page.get_by_role("tab", name=tab, exact=True)).to_be_in_viewport()
    page.close()


def test_of_two_words_chosen_at_once_the_last_is_shown(page, panels, folder):
    page.evaluate("names => names.forEach((name) => document.querySelector(`[value='${name}']`).click())", ["3", "7"])
    assert_shown(page, "neighbours", panels.neighbours(SENTENCE, 7, False, f"{folder}/index.txt"))


def test_one_layer_is_open_at_a_time(page, panels, folder):
    page.get_by_label("film", exact=True).check()
    assert_shown(page, "neighbours", panels.neighbours(SENTENCE, 7, False, f"{folder}/index.txt"))
    layers = page.locator("#neighbours .ex-card").last.locator("details")
    expect(layers.last).to_have_attribute("open", "")
    layers.first.locator("summary").click()
    expect(layers.first).to_have_attribute("open", "")
    expect(page.locator("#neighbours .ex-card").last.locator("details[open]")).to_have_count(1)


def test_words_of_two_sentences_stand_side_by_side(page, panels):
    open_tab(page, 1)
    second = "is the plot an unusually good film ?"
    page.get_by_label("Second sentence").fill(second)
    page.get_by_role("button", name="Compute probabilities").click()
    assert_shown(page, "scores", panels.scores(SENTENCE, second))
    expect(page.get_by_text("Prefers")).to_have_count(3)
    tops = "pair => [...pair.children].map(of => [...of.children].map(bar => bar.getBoundingClientRect().top))"
    for pair in page.locator("#scores .ex-pair").all():
        one, other = pair.evaluate(tops)
        assert len(one) > 7 and one[:8] == other[:8]


def test_neighbours_are_those_of_the_chosen_word_and_index(page, panels, folder):
    page.get_by_label("film", exact=True).check()
    page.get_by_role("button", name="Find neighbours").click()
    assert_shown(page, "neighbours", panels.neighbours(SENTENCE, 7, False, f"{folder}/index.txt"))
    page.get_by_label("Only other occurrences of this word").check()
    (folder / "mine.txt").write_text("A film about films .\nThe film is dull .", encoding="utf-8")
    page.get_by_label("Index: a text file of sentences").fill(f"{folder}/mine.txt")
    page.get_by_role("button", name="Find neighbours").click()
    assert_shown(page, "neighbours", panels.neighbours(SENTENCE, 7, True, f"{folder}/mine.txt"))


def test_bars_and_the_preferred_sentence_are_those_of_the_panels(page, panels):
    open_tab(page, 1)
    second = page.get_by_label("Second sentence")
    second.fill("the film is good .")
    page.get_by_role("button", name="Compute probabilities").click()
    assert_shown(page, "scores", panels.scores(SENTENCE, "the film is good ."))
    expect(page.get_by_text(re.compile("Prefers the (first|second) sentence"))).to_have_count(3)
    second.fill("")
    page.get_by_role("button", name="Compute probabilities").click()
    assert_shown(page, "scores", panels.scores(SENTENCE, ""))
    expect(page.get_by_text("Prefers")).to_have_count(0)


def test_entities_are_those_of_the_fine_tuned_folder(page, panels, folder):
    open_tab(page, 2)
    page.get_by_label("Sentence with names").fill(SENTENCE)
    page.get_by_role("button", name="Find entities").click()
    assert_shown(page, "entities", panels.entities(SENTENCE, f"{folder}/tagger"))


def test_tables_have_lines_below_their_rows_and_nowhere_else(page):
    open_tab(page, 2)
    page.get_by_role("button", name="Find entities").click()
    row = page.locator("#entities .ex-table tr").last
    row.wait_for()
    sides = ("Top", "Right", "Bottom", "Left")
    widths = f"(element) => {[*sides]}.map((side) => getComputedStyle(element)[`border${{side}}Width`])"
    assert row.evaluate(widths) == ["0px"] * 4
    assert row.locator("td").first.evaluate(widths) == ["0px", "0px", "1px", "0px"]


def test_attention_is_that_of_the_chosen_layer_and_head(page, panels):
    open_tab(page, 3)
    expect(page.get_by_text("have no attention")).to_be_visible()
    for family in ("GPT", "BERT"):
        for part, number in (("layer", 1), ("head", 2)):
            set_number(page, f"{family}: {part}", number)
        page.get_by_role("button", name=f"Show {family}'s attention").click()
        expected = [
            unescape(text) for text in re.findall('title="([^"]*)"', panels.attention(family, SENTENCE, 1, 2, False))
        ]
        shown = f"#{family.lower()}-attention td"
        page.wait_for_function(
            "([shown, last]) => [...document.querySelectorAll(shown)].at(-1)?.title === last",
            arg=[shown, expected[-1]],
        )
        titles = page.eval_on_selector_all(shown, "cells => cells.map((cell) => cell.title)")
        assert titles == expected


def test_mistakes_are_sentences_in_the_page(page, folder):
    open_tab(page, 2)
    for mistake, message in [
        (f"{folder}/gpt", "did not train: name a folder that run_ner.py trained"),
        ("/nowhere", "/nowhere: no such folder"),
        ("", "No model is named"),
    ]:
        page.get_by_label("Folder that run_ner.py trained").fill(mistake)
        page.get_by_role("button", name="Find entities").click()
        expect(page.locator("#entities [role=alert]")).to_contain_text(message)
    open_tab(page, 0)
    page.get_by_label("Index: a text file of sentences").fill("/nowhere.txt")
    page.get_by_label("film", exact=True).check()
    page.get_by_role("button", name="Find neighbours").click()
    expect(page.locator("#neighbours [role=alert]")).to_contain_text("/nowhere.txt: no such file")
    page.get_by_label("Sentence", exact=True).fill("  ")
    page.get_by_label("film", exact=True).wait_for(state="detached")
    page.get_by_role("button", name="Find neighbours").click()
    expect(page.locator("#neighbours [role=alert]")).to_have_text("The sentence is empty: write a few words.")
    assert "Traceback" not in page.content()


def test_everything_is_readable_and_nothing_is_cut_off_or_fetched_from_elsewhere(url, browser, theme):
    page = open_page(browser, url, theme)
    fill_everything(page)
    for tab in range(len(TABS)):
        open_tab(page, tab)
        ratio, element = page.evaluate(CONTRAST)
        assert ratio >= 4.5, (TABS[tab], element)
        for width in (390, 1440):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate(CUT_OFF) == [], (TABS[tab], width)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (TABS[tab], width)
    hosts = {address.split("/")[2] for address in page.requests if address.startswith("http")}
    assert hosts == {url.split("/")[2]}
    assert page.evaluate("fetch('https://example.org/').then(() => true, () => false)") is False
    page.close()


def test_a_page_for_the_network_reads_only_what_the_command_named(folder, monkeypatch):
    readable, index = [], f"{folder}/index.txt"
    monkeypatch.setattr(app, "build", lambda panels, args: readable.append(panels.readable) or Mock())
    for address in ("127.0.0.1", "localhost", "::1", "0.0.0.0"):
        app.start(app.parse(["--ner", "tagger", "--index_file", index, "--server_name", address]))
    assert readable == [None, None, None, {"tagger", index}]


def test_the_server_listens_on_the_local_address_only_and_says_nothing_to_others(url):
    port = int(url.rstrip("/").rpartition(":")[2])
    listening = [each.laddr for each in psutil.Process().net_connections() if each.status == psutil.CONN_LISTEN]
    assert {address.ip for address in listening if address.port == port} == {"127.0.0.1"}
    assert os.environ["GRADIO_ANALYTICS_ENABLED"] == "False"
