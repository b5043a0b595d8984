"""The report in a real browser: nothing in a model's words runs, nothing leaves the page, and everything can be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from chromium import assert_quiet, show, unlocked
from report_run import HOSTILE, make_run
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from tstar_train.report import write_report


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(
        make_run(tmp_path_factory.mktemp("plain") / "run", iterations=10, seed=4, validation=True)
    )


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(
        make_run(
            tmp_path_factory.mktemp("hostile") / "run",
            iterations=3,
            trees=2,
            text=HOSTILE,
            validation=True,
            several=True,
        )
    )


def open_everything(driver: Any) -> None:
    """Read all there is: every tree, every node, every episode."""
    driver.execute_script("""
        const iterations = document.getElementById("tree-iteration"), tasks = document.getElementById("tree-task");
        for (const i of [...iterations.options].map((option) => option.value)) {
            iterations.value = i;
            iterations.dispatchEvent(new Event("change"));
            for (const t of [...tasks.options].map((option) => option.value)) {
                tasks.value = t;
                tasks.dispatchEvent(new Event("change"));
                for (const node of document.querySelectorAll(".node")) {
                    node.dispatchEvent(new MouseEvent("click"));
                    node.dispatchEvent(new PointerEvent("pointermove", {clientX: 50, clientY: 50}));
                }
            }
        }
        const more = document.getElementById("episode-more");
        while (!more.hidden) more.click();
        for (const details of document.querySelectorAll("details")) details.open = true;
    """)
    built = (
        "return [...document.querySelectorAll('details')].every((details) => details.querySelector('.steps'))"
    )
    WebDriverWait(driver, 10).until(lambda d: d.execute_script(built))  # toggle events come later


def divergence(driver: Any) -> Any:
    """A divergent node that is not the one shown."""
    return driver.find_element(By.CSS_SELECTOR, '.node[aria-label*="divergence"]:not(.chosen)')


@pytest.mark.parametrize("locked", [True, False], ids=["with its policy", "with escaping alone"])
def test_words_stay_text(driver: Any, hostile: Path, locked: bool) -> None:
    show(driver, hostile if locked else unlocked(hostile))
    open_everything(driver)
    assert driver.execute_script("return window.hacked") is None
    assert driver.find_elements(By.TAG_NAME, "img") == []
    assert len(driver.find_elements(By.TAG_NAME, "script")) == 2
    for part in (
        "#tree-panel .thought",
        "#tree-about",
        "#episode-list .thought",
        "#episode-list .observation",
        "#grafts tbody tr",
    ):
        # The half surrogate pair in it cannot travel to this side; character for character otherwise, U+2028 included.
        words = driver.execute_script(
            "return document.querySelector(arguments[0]).textContent.replaceAll('\\ud800', '')", part
        )
        for piece in HOSTILE.split("\x00"):
            assert piece.replace("\ud800", "") in words.replace("\\ud800", ""), part
    assert_quiet(driver)


def test_click_on_a_divergence_shows_the_three_thoughts(driver: Any, report: Path) -> None:
    show(driver, report)
    node = divergence(driver)
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", node)
    node.click()
    assert "chosen" in node.get_attribute("class")
    panel = driver.find_element(By.ID, "tree-panel")
    assert "Divergence" in panel.text
    for part in ("failed", "succeeded", "grafted"):
        assert panel.find_element(By.CSS_SELECTOR, f".columns .{part} .thought").text
    assert "GRAFTED THOUGHT" in panel.find_element(By.CSS_SELECTOR, ".columns .grafted .thought").text
    assert_quiet(driver)


def test_keyboard_alone(driver: Any, report: Path) -> None:
    show(driver, report)
    node = divergence(driver)
    driver.execute_script("arguments[0].focus()", node)
    ActionChains(driver).send_keys(Keys.ENTER).perform()
    assert "chosen" in node.get_attribute("class")
    assert driver.execute_script("return document.activeElement === arguments[0]", node)
    chart = driver.find_element(By.CSS_SELECTOR, "svg[data-diagram]")
    driver.execute_script("arguments[0].focus()", chart)
    ActionChains(driver).send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT).perform()
    lines = driver.find_element(By.ID, "tooltip").text.splitlines()
    assert (
        lines[0] == "iteration 2"
        and lines[1].startswith("success: ")
        and lines[2].startswith("success, mean of 3: ")
    )


def test_every_node_says_what_the_file_says(driver: Any, report: Path) -> None:
    show(driver, report)
    iteration = Select(driver.find_element(By.ID, "tree-iteration")).first_selected_option.text
    task = driver.find_element(By.ID, "tree-task").get_attribute("value")
    data = json.loads(driver.find_element(By.ID, "data").get_attribute("textContent"))
    tree = data["trees"][int(task)]
    assert str(tree["iteration"]) == iteration
    drawn = {
        int(n.get_attribute("data-node")): n.text for n in driver.find_elements(By.CSS_SELECTOR, ".node")
    }
    assert set(drawn) == {node["id"] for node in tree["nodes"]}
    for node in tree["nodes"]:
        assert f"{node['value']:.2f}" in drawn[node["id"]]
        assert ("v+" in drawn[node["id"]]) == bool(node["bestOf"])


def test_graft_table_leads_to_its_tree(driver: Any, report: Path) -> None:
    show(driver, report)
    rows = driver.find_elements(By.CSS_SELECTOR, "#grafts tbody tr")
    row = rows[0]
    thought = row.find_element(By.CSS_SELECTOR, '[data-label="grafted thought"]').text
    driver.execute_script("arguments[0].click()", row.find_element(By.TAG_NAME, "button"))
    assert Select(driver.find_element(By.ID, "tree-iteration")).first_selected_option.text == "1"
    assert driver.find_element(By.CSS_SELECTOR, ".columns .grafted .thought").text == thought


def test_episode_filters(driver: Any, report: Path) -> None:
    show(driver, report)
    episodes = json.loads(driver.find_element(By.ID, "data").get_attribute("textContent"))["episodes"]
    counter = driver.find_element(By.ID, "episode-count")
    assert counter.text == f"{len(episodes)} of {len(episodes)}"
    Select(driver.find_element(By.ID, "episode-outcome")).select_by_value("yes")
    Select(driver.find_element(By.ID, "episode-kind")).select_by_value("bridge")
    driver.find_element(By.ID, "episode-search").send_keys("MARGAN kelwen")
    wanted = [
        e
        for e in episodes
        if e["success"]
        and e["kind"] == "bridge"
        and all(w in json.dumps(e).lower() for w in ("margan", "kelwen"))
    ]
    assert 0 < len(wanted) < len(episodes)
    assert counter.text.startswith(f"{len(wanted)} of")
    driver.find_element(By.CSS_SELECTOR, "#episode-list summary").click()
    steps = (By.CSS_SELECTOR, "#episode-list .steps li .thought")
    WebDriverWait(driver, 10).until(
        lambda d: d.find_elements(*steps)
    )  # the toggle event comes later than the click
    assert driver.find_element(*steps).text
    driver.find_element(By.ID, "episode-search").send_keys(" nosuchword")
    assert (
        counter.text.startswith("0 of")
        and driver.find_elements(By.CSS_SELECTOR, "#episode-list details") == []
    )


@pytest.mark.parametrize("width", [390, 760, 1400])
def test_no_sideways_scrolling(driver: Any, hostile: Path, width: int) -> None:
    show(driver, hostile, width)
    open_everything(driver)
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width


def test_empty_run(driver: Any, tmp_path: Path) -> None:
    show(driver, write_report(tmp_path))
    assert "There are no trees" in driver.find_element(By.ID, "trees").text
    assert_quiet(driver)
