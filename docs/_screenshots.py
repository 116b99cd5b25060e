"""Pictures of a report with numbered marks, for the page that explains it.

`python docs/_screenshots.py RUN` draws RUN/report.html in chromium (playwright, of the extra `test`) and writes
docs/figures/report-top.png, report-gallery.png and report-narrow.png. Only runs on public data belong here.
"""

from __future__ import annotations

import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

FIGURES = Path(__file__).parent / "figures"
CHROMIUM = "/usr/bin/chromium"
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


def _mark(page: Page, places: tuple[str, ...]) -> None:
    for number, place in enumerate(places, 1):
        if not page.evaluate(MARK, [place, str(number)]):
            raise ValueError(f"the report has nothing at {place!r}, which mark {number} explains")


if __name__ == "__main__":
    for path in annotated(Path(sys.argv[1]) / "report.html", FIGURES):
        print(path)
