"""The pages in a real browser, opened from disk with the network off; each is loaded once, and reloaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from report_runs import NASTY, attack, audit, evidence, study, write_run
from test_evidence import evidence as similar

from exhume.report.page import draw

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("chromium")]
Open = Callable[..., Any]
LONG = "unbroken" * 30
WIDE = {"width": 1280, "height": 900}

WHOLE = {
    "releases": [
        {
            "kind": "weights",
            "name": "the trained weights",
            "word": "leaks",
            "sentence": "38 of 40 records came back.",
            "detail": "",
            "fix": "noise",
        },
        {
            "kind": "update",
            "name": "the updates of clients",
            "word": "not audited",
            "sentence": NASTY,
            "detail": NASTY,
        },
    ],
    "fixes": [
        {
            "id": "private-100",
            "release": "the trained weights",
            "words": "private training, noise multiplier 0.73, clip 3.9 (epsilon 100)",
            "short": "private-100",
            "guarantee": "epsilon about 100 at delta 1e-5",
            "tried": True,
            "verdict": "no leak found",
            "outcome": "0 of 40 records recovered, accuracy 78.7 → 77.9",
        },
        {
            "id": "int8",
            "release": "the updates of clients",
            "words": NASTY,
            "short": NASTY,
            "guarantee": "none",
            "tried": False,
            "outcome": "not tried: no time",
        },
    ],
    "plan": [
        {
            "id": "a",
            "name": "Closed form",
            "release": "the trained weights",
            "threat": "sees the weights",
            "estimated_seconds": 3.0,
            "run": True,
        },
        {
            "id": "b",
            "name": "Another one",
            "release": "the updates of clients",
            "threat": NASTY,
            "estimated_seconds": 180.0,
            "run": False,
            "why": "it would take about 3 min, " * 5,
        },
    ],
}


NAMED = {"title": f"Title {LONG}", "classes": [LONG, "one", "two"], "victim": {LONG: LONG}}
RUNS = {  # result and evidence of every page
    "images": lambda: (audit(), evidence()),
    "two images": lambda: (audit(), evidence(2)),
    "long images": lambda: (audit(**NAMED), evidence(30)),
    "long vectors": lambda: (audit(**NAMED), evidence(30, (40,))),
    "long study": lambda: (
        study(attacks=[attack(), attack(name=LONG, notes=[LONG])]),
        evidence(30),
    ),
    "long redacted": lambda: (audit(**NAMED), evidence(30)),
    "hostile": lambda: (
        audit(
            title=NASTY, classes=[NASTY, "one", "two"], attacks=[attack(name=NASTY, notes=[NASTY])]
        ),
        evidence(30),
    ),
    "similar": lambda: (
        audit(attacks=[attack(ranked_by="ssim", metrics={"good": 16.0}, baselines=[])]),
        similar(),
    ),
    "whole": lambda: (audit(**WHOLE), evidence()),
}


class Opened:
    """A page that was opened, with everything that it asked for and complained of."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        self.wrong: list[str] = []
        self.asked: list[str] = []
        self.path = path
        self.page = browser.new_context(offline=True, viewport=WIDE, **options).new_page()
        self.page.set_default_timeout(60_000)  # of a busy machine; what is waited for is an event
        self.page.on("console", lambda message: self.wrong.append(message.text))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("dialog", self._dismissed)
        self.page.on("request", lambda request: self.asked.append(request.url))

    def _dismissed(self, dialog: Any) -> None:
        self.wrong.append(dialog.message)
        dialog.dismiss()

    def afresh(self) -> Any:
        """The page as nobody has touched it."""
        self.page.set_viewport_size(WIDE)
        self.page.emulate_media(media="screen", color_scheme="light")
        self.page.goto(self.path.as_uri())
        return self.page

    def check(self) -> None:
        assert not self.wrong
        own = (self.path.as_uri(), "data:image/png")
        assert not [url for url in self.asked if not url.startswith(own)]


@pytest.fixture(scope="module")
def pages(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    opened: dict[str, Opened] = {}

    def page(name: str, **options: Any) -> Opened:
        key = f"{name} {options}"
        if key not in opened:
            folder = tmp_path_factory.mktemp("page") / "run"
            run = write_run(folder, *RUNS[name](), config=f'p = "{LONG}"')
            opened[key] = Opened(browser, draw(run, redact="redacted" in name), **options)
        return opened[key]

    yield page
    for one in opened.values():
        one.page.context.close()


@pytest.fixture
def open_page(pages: Open) -> Iterator[Open]:
    """Opens a page by its name; at the end insists that it asked for nothing else and did not complain."""
    used: list[Opened] = []

    def open_page(name: str, **options: Any) -> Any:
        used.append(pages(name, **options))
        return used[-1].afresh()

    yield open_page
    for one in used:
        one.check()


def shown(page: Any, field: str) -> list[float]:
    found = page.eval_on_selector_all(
        ".card:not([hidden])", f"cards => cards.map(card => Number(card.dataset.{field}))"
    )
    return [float(value) for value in found]


def focused_rank(page: Any) -> int:
    return int(page.evaluate("document.activeElement.closest('.card').dataset.rank"))


def await_focus(page: Any, rank: int) -> None:
    """The browser says that a dialog has closed only after it has closed: then the page moves the focus."""
    page.wait_for_function(
        "rank => document.activeElement.closest('.card')?.dataset.rank == rank", arg=rank
    )


def overflow(page: Any) -> int:
    return int(page.evaluate("document.documentElement.scrollWidth - innerWidth"))


def test_sorting_reorders_and_filtering_narrows(open_page: Open) -> None:
    page = open_page("images")
    assert shown(page, "rank") == list(range(1, 25))
    assert page.locator("[data-count]").inner_text() == "24 of 200 cards"
    expected = {"error-falling": ("rank", -1), "mse": ("mse", 1), "label": ("label", 1)}
    for order, (field, sign) in {**expected, "confidence": ("confidence", -1)}.items():
        page.select_option("[data-sort]", order)
        values = [sign * v for v in shown(page, field)]
        assert values == sorted(values)
    page.click("[data-all]")
    assert len(shown(page, "mse")) == 200
    page.select_option("[data-filter]", label="two")
    assert set(shown(page, "label")) == {2.0}
    assert page.locator("[data-count]").inner_text() == f"{len(shown(page, 'mse'))} cards"
    page.select_option("[data-sort]", "error")
    values = shown(page, "rank")
    assert values == sorted(values)
    assert 20 < len(values) < 200


def test_the_keyboard_reaches_every_card(open_page: Open) -> None:
    page = open_page("images")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.focus("[data-filter]")
    page.keyboard.press("Tab")
    assert focused_rank(page) == 1
    page.keyboard.press("ArrowRight")
    assert focused_rank(page) == 2
    page.keyboard.press("ArrowDown")
    columns = focused_rank(page) - 2
    assert columns >= 2
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowLeft")
    assert focused_rank(page) == 1
    page.keyboard.press("End")
    assert focused_rank(page) == 24
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"

    page.keyboard.press("Enter")
    title = page.locator("#enlarged-title")
    assert title.inner_text() == "Target of rank 24"
    assert page.locator("dialog img:visible").count() == 4
    page.keyboard.press("ArrowRight")
    assert title.inner_text() == "Target of rank 25"
    page.click("text=Previous")
    page.click("dialog >> text=Next")
    page.keyboard.press("Escape")
    assert not page.locator("dialog").is_visible()
    await_focus(page, 25)  # beyond the first cards: the gallery has opened up
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('.card')") is None


def test_the_dialog_stops_at_both_ends(open_page: Open) -> None:
    page = open_page("two images")
    page.click(".open >> nth=0")
    assert page.locator('[data-step="-1"]').is_disabled()
    page.keyboard.press("ArrowLeft")
    page.click('[data-step="1"]')
    assert page.locator("#enlarged-title").inner_text() == "Target of rank 2"
    assert page.locator('[data-step="1"]').is_disabled()
    page.click("[data-close]")
    await_focus(page, 2)


def test_it_works_without_scripts(open_page: Open) -> None:
    page = open_page("images", java_script_enabled=False)
    assert page.locator(".card:visible").count() == 200
    assert not page.locator("[data-sort]").is_visible()
    first = page.locator(".card").first
    assert first.get_attribute("data-rank") == "1"


@pytest.mark.parametrize("kind", ["images", "vectors", "study", "redacted"])
def test_the_page_never_scrolls_sideways(open_page: Open, kind: str) -> None:
    page = open_page(f"long {kind}")
    page.eval_on_selector_all("details", "all => all.forEach(one => one.open = true)")
    for width in (1280, 375):
        page.set_viewport_size({"width": width, "height": 800})
        assert overflow(page) <= 0
        if kind != "redacted":
            page.locator(".open").first.click()
            assert overflow(page) <= 0
            box = page.locator("dialog").bounding_box()
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= width
            page.click("[data-close]")


def luminance(page: Any, selector: str, name: str) -> float:
    colour = page.eval_on_selector(selector, f"e => getComputedStyle(e).{name}")
    channels = [int(part) / 255 for part in colour.split("(")[1].rstrip(")").split(",")[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_text_is_legible_in_every_scheme(open_page: Open) -> None:
    page = open_page("two images")
    for media, scheme in (("screen", "light"), ("screen", "dark"), ("print", "dark")):
        page.emulate_media(media=media, color_scheme=scheme)
        bright = luminance(page, "body", "backgroundColor") > 0.5
        assert bright == (scheme == "light" or media == "print")
        grounds = {
            "h1": "body",
            ".intro": "body",
            ".word": ".verdict",
            ".detail": ".verdict",
            ".banner p": ".banner",
            ".beside": ".tile",
            ".card dt": ".card",
            ".ratio": ".card",
        }
        for text, ground in grounds.items():
            pair = luminance(page, text, "color"), luminance(page, ground, "backgroundColor")
            contrast = (max(pair) + 0.05) / (min(pair) + 0.05)
            assert contrast >= 4.5, (media, scheme, text)


def test_hostile_text_stays_text(open_page: Open) -> None:
    page = open_page("hostile")
    assert page.locator("h1").inner_text() == NASTY
    assert NASTY in page.locator("[data-filter]").inner_text()
    page.click(".open >> nth=0")
    assert page.locator("img[src=x]").count() == 0


def test_pictures_decode_and_small_ones_keep_their_pixels(open_page: Open) -> None:
    page = open_page("images")
    sizes = page.eval_on_selector_all(
        ".card:not([hidden]) img",
        "all => Promise.all(all.map(i => i.decode().then(() => i.naturalWidth)))",
    )
    assert set(sizes) == {6}
    assert (
        page.eval_on_selector(".card img", "i => getComputedStyle(i).imageRendering") == "pixelated"
    )
    assert all(page.eval_on_selector_all(".card img", "all => all.map(i => i.alt.length > 10)"))


def test_a_page_of_similar_images(open_page: Open) -> None:
    """Cards by SSIM, pairs around the threshold, the scatter: all there, at any width."""
    page = open_page("similar")
    assert shown(page, "rank") == list(range(1, 25))
    page.select_option("[data-sort]", "error-falling")
    assert shown(page, "rank")[:2] == [30, 29]
    assert page.locator(".sides li").count() == 8 + 8 + 4
    assert page.locator(".sides img").first.bounding_box()["width"] > 30
    assert page.locator("svg[aria-label^='SSIM against margin']").is_visible()
    page.set_viewport_size({"width": 360, "height": 700})
    assert overflow(page) <= 0


def test_plan_and_fixes_fit_the_screen(open_page: Open) -> None:
    page = open_page("whole")
    for width in (1280, 360):
        page.set_viewport_size({"width": width, "height": 800})
        assert overflow(page) <= 0
        for title in (
            "At a glance",
            "What stops it",
            "What was tried, and what was left out",
        ):
            assert page.get_by_role("heading", name=title).is_visible()
        assert page.get_by_text("0 of 40 records recovered").is_visible()
    table = page.get_by_role("region", name="Fixes that were tried")
    # a line for each cell instead of columns
    assert int(table.evaluate("box => box.scrollWidth - box.clientWidth")) <= 0
