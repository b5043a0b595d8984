"""The page of results in a real headless Chromium: no word of a model becomes code; widths, dark mode, keyboard, side by side."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chromium import assert_quiet, show, unlocked
from page_files import HOSTILE, LONG, episode, step, tasks, write
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from tstar_envs.evaluation.cost import PriceTable
from tstar_envs.evaluation.report import write_report

NO_PRICES = PriceTable("USD", "", {})


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two agents that part at the 30th step, a third with attempts, samples and another set of tasks, progress and requests."""
    folder = tmp_path_factory.mktemp("plain")
    same = [f"move {n}" for n in range(29)]
    a = [
        replace(e, steps=[step(x) for x in [*same, "left", "win"]])
        for e in tasks(12, 9, agent="a", extra={"progress": 0.7})
    ]
    b = [
        replace(e, steps=[step(x, thought=f"I {x}.") for x in [*same, "right"]])
        for e in tasks(12, 3, agent="b")
    ]
    earlier = {
        "reward": 0.0,
        "success": False,
        "ended": "truncated",
        "steps": [{"thought": "", "action": "jump", "observation": "no"}],
    }
    asked = [
        {
            "purpose": "reflect",
            "seconds": 2.0,
            "step": 1,
            "input_tokens": 900,
            "output_tokens": 20,
            "text": "Do not jump.",
        }
    ]
    c = [
        replace(
            e,
            sample=sample,
            steps=[step("fly", valid=False), step("", reply="I give up")],
            attempts=[earlier],
            calls=asked,
        )
        for e in tasks(6, 0, agent="c")
        for sample in (0, 1)
    ]
    paths = [write(folder / f"{name}.jsonl", those) for name, those in (("a", a), ("b", b), ("c", c))]
    return write_report(paths, folder / "page.html", NO_PRICES).path


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page in which every text that a file can hold is hostile, or 100,000 characters long."""
    folder = tmp_path_factory.mktemp("hostile")
    paths = []
    for name, words in (("one", HOSTILE), ("two", LONG), ("three", HOSTILE + LONG)):
        steps = [step(words, words, thought=words, reply=words + "!"), step(words, words, valid=False)]
        steps[1].invalid_reason = words
        those = [
            episode(
                "shared" + HOSTILE,
                n == 0,
                agent=name + words,
                steps=steps,
                instruction=words,
                first_observation=words,
                sample=n,
                rules_version=words,
                extra={"progress": 0.5},
            )
            if n < 2
            else episode(
                words,
                agent=name + words,
                steps=[],
                ended="error",
                error=f"EndpointError: {words}",
                rules_version=words,
            )
            for n in range(3)
        ]
        reflect = {"purpose": "reflect", "seconds": 1.0, "step": 0, "text": words}
        refine = {"purpose": words[:80], "seconds": 1.0, "step": 0, "text": words}
        attempt = {
            "reward": 0.0,
            "success": False,
            "ended": words,
            "steps": [{"thought": words, "action": words, "observation": words}],
        }
        those[0] = replace(those[0], calls=[reflect, refine], attempts=[attempt])
        settings = {"agent_settings": {"model": words[:200], "request": {words[:90]: words}}, "note": words}
        paths.append(write(folder / f"{name}.jsonl", those, {words[:50]: words}, **settings))
    return write_report(paths, folder / "page.html", NO_PRICES, title=HOSTILE).path


def open_everything(driver: Any) -> None:
    """Every fold, and every choice of the part that shows two agents side by side."""
    driver.execute_script("""
        const select = (id) => document.getElementById(id);
        const values = (id) => [...select(id).options].map((option) => option.value);
        const choose = (id, value) => { select(id).value = value; select(id).dispatchEvent(new Event("change")); };
        for (const details of document.querySelectorAll("details")) details.open = true;
        for (const setting of values("setting")) {
            choose("setting", setting);
            for (const task of values("task")) {
                choose("task", task);
                for (const side of ["a", "b"]) for (const agent of values(`agent-${side}`)) {
                    choose(`agent-${side}`, agent);
                    for (const sample of values(`sample-${side}`)) {
                        choose(`sample-${side}`, sample);
                        for (const attempt of values(`attempt-${side}`)) choose(`attempt-${side}`, attempt);
                    }
                }
            }
        }
    """)


@pytest.mark.parametrize("locked", [True, False], ids=["with its policy", "with escaping alone"])
def test_words_stay_text(driver: Any, hostile: Path, locked: bool) -> None:
    show(driver, hostile if locked else unlocked(hostile))
    open_everything(driver)
    assert driver.execute_script("return window.hacked") is None
    assert driver.find_elements(By.TAG_NAME, "img") == []
    assert len(driver.find_elements(By.TAG_NAME, "script")) == 2
    words = driver.execute_script("return document.body.textContent.replace(/<script type=.*/s, '')")
    assert not re.search("[\x00\x1b\u202a-\u202e\u2066-\u2069\ud800-\udfff]", words)
    assert (
        "</script><script>window.hacked=1</script>" in words
        and "{{ 7*7 }}" in words
        and "more characters)" in words
    )
    assert_quiet(driver)


def test_the_policy_blocks_what_the_escaping_would_let_through(driver: Any, page: Path) -> None:
    """A page as it would be if text got out as markup: script, handler, style, picture and frame must all be dead."""
    broken = page.with_name("broken.html")
    attack = (
        "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'><style>h1 { display: none }</style>"
        "<p id=styled style='color: rgb(1, 2, 3)'>p</p><iframe src='data:text/html,<script>parent.hacked = 3</script>'></iframe>"
        "<img src='http://127.0.0.1:9/x.png'>"
    )
    broken.write_text(
        page.read_text(encoding="utf-8").replace("<main", attack + "<main", 1), encoding="utf-8"
    )
    show(driver, broken)
    assert driver.execute_script("return window.hacked") is None
    assert driver.find_element(By.TAG_NAME, "h1").is_displayed()
    colour = "return getComputedStyle(document.getElementById('styled')).color"
    assert driver.execute_script(colour) != "rgb(1, 2, 3)"
    refused = [entry["message"] for entry in driver.get_log("browser")]
    for directive in ("script-src", "style-src", "img-src", "default-src"):
        assert any("Content Security Policy" in message and directive in message for message in refused), (
            directive
        )


def test_the_policy_names_the_script_and_style_that_are_there(page: Path) -> None:
    html = page.read_text(encoding="utf-8")
    for tag in ("script", "style"):
        source = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        assert len(source) == 1
        digest = base64.b64encode(hashlib.sha256(source[0].encode()).digest()).decode()
        assert f"{tag}-src &#39;sha256-{digest}&#39;" in html


def test_side_by_side_marks_and_shows_where_they_part(driver: Any, page: Path) -> None:
    show(driver, page)
    assert driver.find_element(By.ID, "parting").text == "They part at step 30: A “left”, B “right”."
    assert driver.execute_script("return window.scrollY") == 0, "the page itself stays where it is"
    (parted,) = driver.find_elements(By.CSS_SELECTOR, ".parted")
    assert parted.find_element(By.TAG_NAME, "h3").text == "Step 30 here they part"
    inside = """
        const box = document.getElementById("walk").getBoundingClientRect(), row = arguments[0].getBoundingClientRect();
        return document.getElementById("walk").scrollTop > 1000 && row.top >= box.top - 1 && row.bottom <= box.bottom + 1;
    """
    assert driver.execute_script(inside, parted), "the box shows the whole step"
    left, right = (cell.text for cell in parted.find_elements(By.CSS_SELECTOR, ".cell"))
    assert "left" in left and "right" in right and "I right." in right
    rows = driver.find_elements(By.CSS_SELECTOR, "#steps > li")
    assert len(rows) == 32 and "End: ✓ solved reward 1.000, terminated after 31 steps" in rows[31].text
    assert "End:" in rows[30].text, "the other's end stands where it ended"
    assert_quiet(driver)


def test_attempts_samples_and_reflections(driver: Any, page: Path) -> None:
    show(driver, page)
    Select(driver.find_element(By.ID, "agent-b")).select_by_visible_text("c")
    shown = driver.find_element(By.ID, "outcome-b").text
    assert "✗ the replies did not parse" in shown, "one of its two replies held no action"
    assert "After attempt 1 it noted for itself: Do not jump." in shown
    steps = driver.find_element(By.ID, "steps").text
    assert "invalid: not possible" in steps and "I give up" in steps
    attempt = Select(driver.find_element(By.ID, "attempt-b"))
    assert [option.text for option in attempt.options] == [
        "1",
        "2 (the result)",
    ] and attempt.first_selected_option.text == "2 (the result)"
    attempt.select_by_visible_text("1")
    assert (
        "jump" in driver.find_element(By.ID, "steps").text
        and "noted for itself" not in driver.find_element(By.ID, "outcome-b").text
    )
    assert [option.text for option in Select(driver.find_element(By.ID, "sample-b")).options] == ["0", "1"]
    assert not driver.find_element(By.ID, "sample-a").is_displayed()
    Select(driver.find_element(By.ID, "agent-a")).select_by_visible_text("c")
    Select(driver.find_element(By.ID, "attempt-b")).select_by_visible_text("2 (the result)")
    assert driver.find_element(By.ID, "parting").text == "Both sides show the same episode."
    Select(driver.find_element(By.ID, "sample-b")).select_by_visible_text("1")
    assert driver.find_element(By.ID, "parting").text == "They do the same at every step."
    assert not driver.find_element(By.ID, "to-parting").is_displayed()
    assert_quiet(driver)


def test_keyboard_alone(driver: Any, page: Path) -> None:
    show(driver, page)
    press = lambda *keys: ActionChains(driver).send_keys(*keys).perform()  # noqa: E731
    active = lambda: driver.execute_script("return document.activeElement")  # noqa: E731
    press(Keys.TAB)
    assert active().text == "To the content" and active().is_displayed()
    outline = driver.execute_script("return getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid", "the focus is seen"
    seen = []
    for _ in range(80):
        press(Keys.TAB)
        seen.append(
            active().get_attribute("id")
            or active().get_attribute("href")
            or active().get_attribute("aria-label")
        )
        if seen[-1] == "walk":
            break
    order = [
        seen.index(name) for name in ("setting", "task", "next", "agent-a", "agent-b", "to-parting", "walk")
    ]
    assert order == sorted(order) and "All figures of each agent" in seen
    before = driver.execute_script("return document.getElementById('walk').scrollTop")
    press(Keys.HOME)
    moved = "return document.getElementById('walk').scrollTop"
    for _ in range(50):  # scrolling is smooth
        if driver.execute_script(moved) < before:
            break
    ActionChains(driver).key_down(Keys.SHIFT).send_keys(Keys.TAB).key_up(Keys.SHIFT).send_keys(
        Keys.ENTER
    ).perform()
    assert "parted" in active().get_attribute("class")
    task = Select(driver.find_element(By.ID, "task")).first_selected_option.text
    driver.execute_script("document.getElementById('next').focus()")
    press(Keys.SPACE)
    assert Select(driver.find_element(By.ID, "task")).first_selected_option.text != task
    driver.execute_script("document.getElementById('agent-b').focus()")
    press(Keys.ARROW_DOWN)
    assert Select(driver.find_element(By.ID, "agent-b")).first_selected_option.text == "c"
    assert_quiet(driver)


@pytest.mark.parametrize("width", [320, 640, 1400])
def test_no_sideways_scrolling(driver: Any, hostile: Path, page: Path, width: int) -> None:
    for one in (hostile, page):
        show(driver, one, width)
        open_everything(driver)
        assert driver.execute_script("return document.documentElement.scrollWidth") <= width
        assert driver.execute_script("""
            return [...document.querySelectorAll("table")].every((table) => table.closest(".box"));
        """)


LUMINANCE = """
    const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const luminance = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
        .reduce((sum, v, k) => sum + v * [0.2126, 0.7152, 0.0722][k], 0);
    const behind = (node) => {
        for (; node; node = node.parentElement) {
            const found = channels(getComputedStyle(node).backgroundColor);
            if (found.length === 3 || found[3] === 1) return found;
        }
        return [255, 255, 255];
    };
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const poor = new Set();
    while (walker.nextNode()) {
        const node = walker.currentNode.parentElement;
        if (!walker.currentNode.textContent.trim() || node.disabled) continue;
        if (["SCRIPT", "STYLE", "NOSCRIPT"].includes(node.tagName) || !node.checkVisibility()) continue;
        const style = getComputedStyle(node);
        const ink = channels(node.closest("svg") ? style.fill : style.color);
        const [light, dark] = [luminance(ink), luminance(behind(node))].sort((x, y) => y - x);
        const ratio = (light + 0.05) / (dark + 0.05);
        if (ratio < 4.5) poor.add(`${node.tagName}.${node.className.baseVal ?? node.className} ${ratio.toFixed(2)}`);
    }
    return [[...poor], behind(document.body)];
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(driver: Any, page: Path, scheme: str) -> None:
    show(driver, page, scheme=scheme)
    driver.execute_script("for (const details of document.querySelectorAll('details')) details.open = true")
    poor, paper = driver.execute_script(LUMINANCE)
    assert poor == [] and (max(paper) < 60 if scheme == "dark" else min(paper) > 200)


def test_figures_are_those_of_the_files(driver: Any, page: Path) -> None:
    show(driver, page)
    rows = driver.find_elements(By.CSS_SELECTOR, "#leaderboard .sticky tr")
    shown = [
        [cell.text.split("\n")[0] for cell in row.find_elements(By.CSS_SELECTOR, "th, td")] for row in rows
    ]
    assert shown == [
        ["Tasks", "a", "b", "c"],
        ["Sokoban-easy [A]", "75.0", "25.0", "–"],
        ["Sokoban-easy [B]", "–", "–", "0.0"],
    ]
    assert "was not played on the same tasks by all" in driver.find_element(By.CSS_SELECTOR, ".notice").text
    data = json.loads(driver.find_element(By.ID, "data").get_attribute("textContent"))
    kept = sum(len(one["episodes"]) for setting in data["settings"] for one in setting["tasks"])
    assert f"The page holds {kept} of 36 episodes" in driver.find_element(By.ID, "side").text


def test_print_shows_what_boxes_hide(driver: Any, page: Path) -> None:
    show(driver, page)
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        hidden = "return getComputedStyle(document.querySelector(arguments[0])).display === 'none'"
        assert driver.execute_script(hidden, "nav") and driver.execute_script(hidden, ".controls")
        cut = "const box = document.getElementById('walk'); return box.scrollHeight - box.clientHeight"
        assert driver.execute_script(cut) <= 1
    finally:
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_nothing_kept(driver: Any, tmp_path: Path) -> None:
    written = write_report(
        [write(tmp_path / "a.jsonl", tasks(3, 1))], tmp_path / "p.html", NO_PRICES, episodes=0
    )
    show(driver, written.path)
    assert "holds no episodes step by step" in driver.find_element(By.ID, "side").text
    assert_quiet(driver)
