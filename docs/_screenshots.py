"""Pictures of reports and of the site, drawn in chromium (playwright, of the extra `test`).

`python docs/_screenshots.py RUN` draws RUN/report.html with numbered marks, for the page that explains it, and writes
docs/figures/report-top.png, report-gallery.png and report-narrow.png. `RUN --page FILE` draws the page as it is.
Only runs on public data belong here. `--site site --out FOLDER` draws the five most important pages of the built
site, on a desk and on a telephone, and fails if one of them scrolls sideways.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

FIGURES = Path(__file__).parent / "figures"
CHROMIUM = shutil.which("chromium") or "chromium"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]
TOP = (
    ".banner",
    ".verdict .word",
    ".verdict .detail",
    ".tile",
    ".plan table, .stacked",
    ".setting",
)
ATTACK = (".attack .lineup", ".controls", ".card .open", ".card dl")
LOOKED_AT = ("index", "papers", "read-the-report", "update-networks", "tutorials/classifier")
WIDTHS = (1280, 390)
MARK = """([place, number]) => {
  const found = document.querySelector(place);
  if (!found) return false;
  const box = found.getBoundingClientRect(), mark = document.createElement("span");
  mark.textContent = number;
  Object.assign(mark.style, {
    position: "absolute", left: `${Math.max(4, box.left + scrollX - 34)}px`, top: `${box.top + scrollY}px`,
    width: "28px", height: "28px", borderRadius: "50%", background: "#0b5394", color: "#fff",
    font: "600 15px/28px system-ui, sans-serif", textAlign: "center", zIndex: 9,
  });
  document.body.append(mark);
  return true;
}"""


def annotated(report: Path, out: Path) -> list[Path]:
    """Write the pictures; which marks have nothing to stand at is an error."""
    out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1100, "height": 900}, bypass_csp=True)
        page.goto(report.resolve().as_uri())
        _mark(page, (*TOP, *ATTACK))
        attack = page.locator(".attack").first.bounding_box()
        assert attack is not None
        top = {"x": 0, "y": 0, "width": 1100, "height": attack["y"] - 20}
        below = {"x": 0, "y": attack["y"], "width": 1100, "height": 760}
        page.screenshot(path=out / "report-top.png", full_page=True, clip=top)
        page.screenshot(path=out / "report-gallery.png", full_page=True, clip=below)
        narrow = browser.new_page(viewport={"width": 390, "height": 1500}, color_scheme="dark")
        narrow.goto(report.resolve().as_uri())
        narrow.screenshot(path=out / "report-narrow.png")
        browser.close()
    return [out / f"report-{name}.png" for name in ("top", "gallery", "narrow")]


def plain(report: Path, file: Path, high: int) -> list[Path]:
    """The first so many pixels of the page."""
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1000, "height": high})
        page.goto(report.resolve().as_uri())
        page.screenshot(path=file)
        browser.close()
    Image.open(file).convert("RGB").quantize(128).save(file, optimize=True)
    return [file]


def looks(site: Path, out: Path) -> list[Path]:
    """The pages of the built site that people meet first, at two widths."""
    out.mkdir(parents=True, exist_ok=True)
    written = []
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for width in WIDTHS:
            page = browser.new_page(viewport={"width": width, "height": 900})
            for name in LOOKED_AT:
                page.goto((site / f"{name}.html").resolve().as_uri())
                if page.evaluate("document.documentElement.scrollWidth - innerWidth") > 0:
                    raise ValueError(f"{name}.html scrolls sideways at a width of {width} pixels")
                written.append(out / f"{name.replace('/', '-')}-{width}.png")
                page.screenshot(path=written[-1], full_page=True)
        browser.close()
    return written


def _mark(page: Page, places: tuple[str, ...]) -> None:
    for number, place in enumerate(places, 1):
        if not page.evaluate(MARK, [place, str(number)]):
            raise ValueError(f"the report has nothing at {place!r}, which mark {number} explains")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", nargs="?", type=Path)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--high", type=int, default=1500)
    parser.add_argument("--site", type=Path)
    parser.add_argument("--out", type=Path, default=FIGURES)
    given = parser.parse_args()
    if given.site:
        drawn = looks(given.site, given.out)
    elif given.page:
        drawn = plain(given.run / "report.html", given.page, given.high)
    else:
        drawn = annotated(given.run / "report.html", given.out)
    for path in drawn:
        print(path)
