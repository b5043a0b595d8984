"""Save a cognitive tree of a run as an SVG file, as the run's report draws it (needs Chromium, chromedriver and selenium).

python scripts/draw_tree.py runs/RUN/report.html --iteration 12 --task 2 --out tree.svg
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import tyro

FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--window-size=1200,1000")
# The drawing takes its colours from the page's styles; on its own it has to carry them.
TAKE = """
const drawing = document.querySelector("svg[aria-label='cognitive tree'], svg[aria-label='graph of states']");
const names = ["fill", "fill-opacity", "stroke", "stroke-opacity", "stroke-width", "stroke-dasharray", "opacity", "font-size",
  "font-family", "font-weight", "text-anchor", "dominant-baseline", "paint-order", "stroke-linejoin"];
const copy = drawing.cloneNode(true);
const from = [...drawing.querySelectorAll("*")], to = [...copy.querySelectorAll("*")];
from.forEach((shape, place) => {
  const style = getComputedStyle(shape);
  for (const name of names) to[place].setAttribute(name, style.getPropertyValue(name));
  for (const name of ["class", "style", "tabindex", "role", "aria-label", "aria-pressed"]) to[place].removeAttribute(name);
});
copy.querySelectorAll("*").forEach((shape) => { if (getComputedStyle(shape).display === "none") shape.remove(); });
copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
const ground = document.createElementNS("http://www.w3.org/2000/svg", "rect");
for (const [name, value] of [["width", "100%"], ["height", "100%"], ["fill", "white"]]) ground.setAttribute(name, value);
copy.prepend(ground);
return new XMLSerializer().serializeToString(copy);
"""


@dataclass(frozen=True)
class Options:
    """Draw a tree."""

    report: tyro.conf.Positional[Path]
    """HTML report of a run."""
    out: Path
    """SVG file to write."""
    iteration: int = 1
    """Iteration, one of those that the report shows trees of."""
    task: int = 1
    """Number of the tree within the iteration, from 1."""


def main() -> None:
    options = tyro.cli(Options, description=__doc__)
    try:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service
    except ModuleNotFoundError:
        sys.exit("selenium is not installed: pip install selenium")
    if not shutil.which("chromium") or not shutil.which("chromedriver"):
        sys.exit("chromium or chromedriver is not installed: apt-get install chromium chromium-driver")
    if not options.report.is_file():
        sys.exit(f"{options.report}: no such file; name the report.html of a run")
    chosen = webdriver.ChromeOptions()
    chosen.binary_location = str(shutil.which("chromium"))
    with tempfile.TemporaryDirectory() as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            chosen.add_argument(flag)
        browser = webdriver.Chrome(options=chosen, service=Service(shutil.which("chromedriver")))
        try:
            browser.get(options.report.absolute().as_uri())
            iterations = browser.find_elements("css selector", "#tree-iteration option")
            shown = [entry.text for entry in iterations]
            if str(options.iteration) not in shown:
                sys.exit(
                    f"--iteration {options.iteration}: the report shows {', '.join(shown) or 'no trees'}"
                )
            iterations[shown.index(str(options.iteration))].click()
            trees = browser.find_elements("css selector", "#tree-task option")
            print("\n".join(f"{number} {entry.text}" for number, entry in enumerate(trees, start=1)))
            if not 1 <= options.task <= len(trees):
                sys.exit(f"--task {options.task}: the iteration has trees 1 to {len(trees)}")
            trees[options.task - 1].click()
            drawing = browser.execute_script(TAKE)
        finally:
            browser.quit()
    options.out.write_text(drawing + "\n")


if __name__ == "__main__":
    main()
