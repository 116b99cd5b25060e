"""The site that `make docs` builds: it opens from a folder, searches there, and asks nobody else."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

SITE = Path(__file__).parents[1] / "site"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not (SITE / "index.html").exists(), reason="make docs builds the site"),
    pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium on the PATH"),
]


@pytest.fixture(scope="module")
def page():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        opened = browser.new_page()
        opened.asked = []
        opened.on("request", lambda request: opened.asked.append(request.url))
        yield opened
        browser.close()


def test_search_works_from_a_folder_and_no_request_leaves(page):
    page.goto((SITE / "tutorials" / "classifier.html").as_uri())
    page.get_by_role("textbox", name="Search").first.click()
    page.keyboard.type("stranger", delay=30)
    found = page.locator(".md-search-result__link")
    found.first.wait_for(timeout=30_000)
    assert found.count() > 2
    assert "stranger" in found.first.inner_text().lower()
    found.first.click()
    page.wait_for_load_state()
    assert page.asked
    assert not [url for url in page.asked if not url.startswith(("file:", "data:", "about:"))]


def test_formulas_are_drawn(page):
    page.goto((SITE / "informed-glm.html").as_uri())
    formula = page.locator("math[display=block]").first
    box = formula.bounding_box()
    assert box["height"] > 20  # a sum is taller than a line of text
    assert "$" not in page.locator("article").inner_text()


def test_no_page_names_another_place_to_load_from():
    loads = re.compile(r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=[\"']?https?:", re.DOTALL)
    for file in SITE.rglob("*.html"):
        found = [
            tag for tag in loads.findall(file.read_text(encoding="utf-8")) if "canonical" not in tag
        ]
        assert not found, f"{file}: {found[:3]}"
