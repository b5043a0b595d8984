"""Graphs of states and the table of credits in a real browser: loops with arrows, keyboard, narrow and dark, and a real run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from chromium import assert_quiet, show
from report_run import HOSTILE, make_run, with_forks
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select
from train_process import run as train

from tstar_train.policy.files import has_tiny
from tstar_train.report import write_report
from tstar_train.report.trees import CREDITS

SCREENS = [(1400, "light"), (1400, "dark"), (390, "dark"), (320, "light")]
# Ratio of the luminances of a thing's fill and of the page behind it (WCAG 2.2, 1.4.11 asks for 3).
CONTRAST = """
    const light = (colour) => {
        const [r, g, b] = colour.match(/[\\d.]+/g).map(Number).map((c) => c / 255)
            .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const pair = [getComputedStyle(arguments[0]).fill, getComputedStyle(document.body).backgroundColor].map(light);
    return (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(
        make_run(tmp_path_factory.mktemp("state") / "run", iterations=3, nodes="state", seed=4)
    )


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not has_tiny("sokoban"):
        pytest.skip("the package has no tiny weights for sokoban yet")
    folder = tmp_path_factory.mktemp("real")
    options = "--env sokoban-easy --iterations 1 --tree.nodes state --tree.credit transition --evaluation.tasks 2 --evaluation.samples 1"
    train(folder, *options.split(), "--processes", 1, "--out", folder / "run")
    return folder / "run" / "report.html"


def shown(driver: Any) -> dict[str, Any]:
    """The data of the tree that is drawn."""
    data = json.loads(driver.find_element(By.ID, "data").get_attribute("textContent"))
    tree: dict[str, Any] = data["trees"][int(driver.find_element(By.ID, "tree-task").get_attribute("value"))]
    return tree


def credits_table(driver: Any) -> list[list[float]]:
    """The figures of the table, one row per step."""
    rows = driver.find_elements(By.CSS_SELECTOR, "#tree-credits tbody tr")
    return [
        [float(c.text.replace("−", "-")) for c in row.find_elements(By.CSS_SELECTOR, ".credit span")]
        for row in rows
    ]


def reads_as_written(driver: Any, page: Path, width: int, scheme: str) -> None:
    """Everything that is asked of a graph's page, in one screen."""
    show(driver, page, width, scheme)
    tree = shown(driver)
    row = {node["id"]: node["row"] for node in tree["nodes"]}
    winding = [edge for edge in tree["edges"] if row[edge["target"]] - row[edge["source"]] != 1]
    back = [edge for edge in winding if row[edge["target"]] <= row[edge["source"]]]
    assert back, "the example has no loop"
    assert len(driver.find_elements(By.CSS_SELECTOR, "#tree-canvas .arrow")) == len(winding)
    arrows = driver.find_elements(By.CSS_SELECTOR, "#tree-canvas .arrow.back")
    assert len(arrows) == len(back)
    assert all(driver.execute_script(CONTRAST, arrow) >= 3 for arrow in arrows)
    assert "back to an earlier row" in driver.find_element(By.ID, "tree-legend").text

    nodes = {int(n.get_attribute("data-node")): n for n in driver.find_elements(By.CSS_SELECTOR, ".node")}
    assert set(nodes) == set(row)
    for node in tree["nodes"]:
        label, visits = nodes[node["id"]].get_attribute("aria-label"), len(node["members"])
        assert f"{visits} visit{'s' * (visits > 1)} by {len({i for i, _ in node['members']})} traj" in label
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width

    # By keyboard from the choice of the task into the drawing; the panel follows.
    driver.execute_script("document.getElementById('tree-task').focus()")
    ActionChains(driver).send_keys(Keys.TAB).perform()
    while (
        driver.execute_script("return document.activeElement.id") == "tree-canvas"
    ):  # where it scrolls, it is a stop of its own
        ActionChains(driver).send_keys(Keys.TAB).perform()
    ActionChains(driver).send_keys(Keys.ENTER).perform()
    assert driver.execute_script("return document.activeElement.classList.contains('chosen')")
    assert "The start" in driver.find_element(By.ID, "tree-panel").text

    picker = Select(driver.find_element(By.CSS_SELECTOR, "#tree-credits select"))
    for i in {0, len(tree["rewards"]) - 1}:
        picker.select_by_value(str(i))
        expected = [tree["credits"][name][i] for name in CREDITS]
        assert credits_table(driver) == [
            pytest.approx(step, abs=5.1e-3) for step in zip(*expected, strict=True)
        ]
    words = " ".join(driver.find_element(By.ID, "tree-credits").text.split())
    assert (
        "equal states at a depth stand for equal decisions" in words and "state, gain (this run's):" in words
    )
    boxes = driver.execute_script("""
        const outer = document.getElementById("tree-credits").getBoundingClientRect();
        return [...document.querySelectorAll("#tree-credits .credit, #tree-credits select")].every((cell) => {
            const box = cell.getBoundingClientRect();
            return box.width > 0 && box.left >= outer.left && box.right <= outer.right + 0.5;
        });""")
    assert boxes, "a part of the table is cut off"
    assert_quiet(driver)


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_a_graph_with_loops(driver: Any, report: Path, width: int, scheme: str) -> None:
    reads_as_written(driver, report, width, scheme)


@pytest.mark.slow
def test_a_real_run_by_state(driver: Any, real: Path) -> None:
    for width, scheme in SCREENS:
        reads_as_written(driver, real, width, scheme)


def test_a_row_of_the_table_leads_to_its_state_and_back(driver: Any, report: Path) -> None:
    show(driver, report, 390)
    tree = shown(driver)
    button = driver.find_elements(By.CSS_SELECTOR, "#tree-credits tbody th button")[1]
    trajectory = int(driver.find_element(By.CSS_SELECTOR, "#tree-credits select").get_attribute("value"))
    driver.execute_script("arguments[0].focus()", button)
    ActionChains(driver).send_keys(Keys.ENTER).perform()
    [node] = [n for n in tree["nodes"] if [trajectory, 1] in n["members"]]
    [chosen] = driver.find_elements(By.CSS_SELECTOR, ".node.chosen")
    assert int(chosen.get_attribute("data-node")) == node["id"]
    top = driver.execute_script("return document.getElementById('tree-panel').getBoundingClientRect().top")
    assert 0 <= top < 900  # on a narrow screen the panel stands above the table
    marked = driver.find_elements(By.CSS_SELECTOR, '#tree-credits tr[aria-current="true"] th')
    assert [int(m.text) for m in marked] == [t + 1 for i, t in node["members"] if i == trajectory]


def test_who_came_when_and_by_which_way(driver: Any, report: Path) -> None:
    show(driver, report)
    tree = shown(driver)
    node = max(tree["nodes"][1:], key=lambda n: len(n["members"]))
    driver.execute_script(
        "document.querySelector(`.node[data-node='${arguments[0]}']`).dispatchEvent(new MouseEvent('click'))",
        node["id"],
    )
    words = driver.find_element(By.ID, "tree-panel").get_attribute("textContent")
    assert "judged the same decision" not in words
    for i in {i for i, _ in node["members"]}:
        steps = [t + 1 for j, t in node["members"] if j == i]
        assert re.search(rf"\b{i} \((reward )?[\d.]+(\)?), steps? [\d, ]*{steps[0]}\b", words), (i, steps)
    # Each way on shows the action that was taken here, not one by which others came to the same state.
    ways = [button.text for button in driver.find_elements(By.CSS_SELECTOR, "#tree-panel .ways button")]
    onward = [edge for edge in tree["edges"] if edge["source"] == node["id"]]
    assert len(ways) == len(onward)
    by_id = {n["id"]: n for n in tree["nodes"]}
    for way, edge in zip(ways, onward, strict=True):
        target = by_id[edge["target"]]
        steps = [
            target["which"][k] for k, (i, t) in enumerate(target["members"]) if [i, t - 1] in node["members"]
        ]
        assert any(way.endswith(": " + (target["texts"][w][1] or "(no action)")) for w in steps if w >= 0)
        assert ("back to" in way) == (target["row"] < node["row"])


@pytest.fixture(scope="module")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("forked") / "run"
    return write_report(with_forks(make_run(folder, iterations=1, trees=1, nodes="state")))


@pytest.mark.parametrize(("width", "scheme"), [(1400, "dark"), (390, "light")])
def test_the_way_is_drawn_and_told(driver: Any, forked: Path, width: int, scheme: str) -> None:
    show(driver, forked, width, scheme)
    words = " ".join(driver.find_element(By.ID, "tree-way").text.split())
    assert (
        "The way: 3 steps from the start to reward 1.00. It is 1 step shorter than the best single episode "
        "(fork 5 of fork 4, counted from the start: 4 steps). "
        "Stitched: step 1 from episode 0, step 2 from fork 3 of episode 0, step 3 from episode 1. This run imitates it"
    ) in words
    rails = driver.find_elements(By.CSS_SELECTOR, "#tree-canvas .rail")
    badges = driver.find_elements(By.CSS_SELECTOR, "#tree-canvas .badge")
    assert len(rails) == 3 and sorted(badge.text for badge in badges) == ["1", "2", "3"]
    assert all(driver.execute_script(CONTRAST.replace(").fill", ").stroke"), rail) >= 3 for rail in rails)
    driver.execute_script("document.querySelector('#tree-way details').open = true")
    steps = driver.find_elements(By.CSS_SELECTOR, "#tree-way ol button")
    texts = [
        "go a (episode 0, its step 1)",
        "go z (fork 3 of episode 0, its step 2)",
        "go won (episode 1, its step 5)",
    ]
    assert [step.text for step in steps] == texts
    way = shown(driver)["way"]
    for step, node, number in zip(steps, way["nodes"], (1, 2, 3), strict=True):
        driver.execute_script("arguments[0].focus()", step)
        ActionChains(driver).send_keys(Keys.ENTER).perform()
        [chosen] = driver.find_elements(By.CSS_SELECTOR, ".node.chosen")
        assert int(chosen.get_attribute("data-node")) == node
        assert f"step {number} of the way leads here" in chosen.get_attribute("aria-label")
        assert f"step {number} of the way leads here" in driver.find_element(By.ID, "tree-panel").text
    assert "the way, its steps numbered" in driver.find_element(By.ID, "tree-legend").text
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width
    assert_quiet(driver)


def test_forks_are_marked_and_told(driver: Any, forked: Path) -> None:
    show(driver, forked)
    tree = shown(driver)
    begun = {node["id"]: sum(t == -1 for i, t in node["members"] if i >= 3) for node in tree["nodes"]}
    marked = {
        int(n.get_attribute("data-node"))
        for n in driver.find_elements(By.CSS_SELECTOR, ".node")
        if n.find_elements(By.CSS_SELECTOR, ".forks")
    }
    assert marked == {id for id, number in begun.items() if number} and len(marked) == 3
    alone = [edge for edge in tree["edges"] if all(i >= 3 for i in edge["trajectories"])]
    edges = driver.find_elements(By.CSS_SELECTOR, "#tree-canvas .edge.fork")
    assert len(edges) == len(alone) == 4
    plain = driver.find_element(By.CSS_SELECTOR, "#tree-canvas .edge:not(.fork):not(.worst):not(.back)")
    dashes = [e.value_of_css_property("stroke-dasharray") for e in (edges[0], plain)]
    assert dashes[0] != dashes[1] == "none"
    facts = [
        "fork 3 of episode 0: begins after step 1 with an action that nobody had tried, 1 step, stopped in a known state, "
        "expected reward 1.00",
        "fork 4 of episode 0: begins after step 2, 2 steps, ended with reward 0.00",
        "fork 5 of fork 4: begins after step 3, 1 step, ended with reward 1.00",
    ]
    about = driver.find_element(By.ID, "tree-forks")
    assert "3 forks: 1 stopped in a known state, 2 ended with rewards 0.00, 1.00" in about.text
    driver.execute_script("arguments[0].querySelector('details').open = true", about)
    buttons = about.find_elements(By.TAG_NAME, "button")
    assert [button.text for button in buttons] == facts
    # Under the pointer too, on the edge that it took.
    seen = driver.execute_script("""
        return [...document.querySelectorAll("#tree-canvas .touch")].map((touch) => {
            touch.dispatchEvent(new PointerEvent("pointermove", {clientX: 50, clientY: 50}));
            return document.getElementById("tooltip").textContent;
        });""")
    assert all(any(fact in words for words in seen) for fact in facts)
    assert any("step 2 of the way, from fork 3 of episode 0" in words for words in seen)
    # Its steps are in the table, numbered from the start of the episode; so is one that is no leaf at its end.
    buttons[0].click()
    credits = driver.find_element(By.ID, "tree-credits")
    assert "F" + facts[0][1:] in " ".join(credits.text.split())
    [row] = credits.find_elements(By.CSS_SELECTOR, "tbody tr")
    assert row.find_element(By.TAG_NAME, "th").text == "2" and "go z" in row.text
    panel = driver.find_element(By.ID, "tree-panel").text
    assert "1 fork stopped here" in panel and "fork 3 thinks of z" in panel
    assert "the group has forks" in credits.text and "before credits were kept" not in credits.text
    picker = Select(credits.find_element(By.TAG_NAME, "select"))
    assert [option.text for option in picker.options][2:4] == [
        "episode 2: reward 0.00, 2 steps",
        "fork 3 of episode 0: expected reward 1.00, 1 step",
    ]
    picker.select_by_value("2")  # cut off in a known state, which is no leaf
    driver.find_elements(By.CSS_SELECTOR, "#tree-credits tbody th button")[1].click()
    assert "State first met after step 1" in driver.find_element(By.ID, "tree-panel").text
    assert "rewards 0 1 0" in driver.find_element(By.ID, "tree-about").text
    assert_quiet(driver)


def test_words_of_ways_and_forks_stay_text(driver: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", iterations=1, trees=1, nodes="state")
    show(driver, write_report(with_forks(run, HOSTILE)), 390)
    driver.execute_script("for (const part of document.querySelectorAll('#trees details')) part.open = true")
    assert driver.find_element(By.CSS_SELECTOR, "#tree-way ol button").text.startswith("go a</script>")
    assert driver.execute_script("return window.hacked") is None
    assert driver.execute_script("return document.documentElement.scrollWidth") <= 390
    assert_quiet(driver)


def test_all_columns_of_a_tree_by_depth(driver: Any, tmp_path: Path) -> None:
    show(driver, write_report(make_run(tmp_path / "run", iterations=1, trees=1)))
    heads = [head.text for head in driver.find_elements(By.CSS_SELECTOR, "#tree-credits thead th")]
    assert heads == ["step", "action", "GRPO", "paper", "depth, gain", "state", "state, gain"]
    assert driver.find_elements(By.CSS_SELECTOR, "#tree-canvas .arrow") == []
    assert "paper (this run's):" in driver.find_element(By.ID, "tree-credits").text
    right = driver.execute_script("""
        return [...document.querySelectorAll("#tree-credits .credit svg")].map((bar) => bar.getBoundingClientRect().right)
            .every((edge) => edge <= document.getElementById("tree-credits").getBoundingClientRect().right);""")
    assert right
    assert_quiet(driver)


def test_a_run_from_before_says_so(driver: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", iterations=1, trees=1)
    record = json.loads((run / "trees" / "0001.json").read_text())
    for entry in record["trees"]:
        for name in ("by", "gamma", "credits"):
            del entry["tree"][name]
    (run / "trees" / "0001.json").write_text(json.dumps(record))
    show(driver, write_report(run))
    assert driver.find_elements(By.CSS_SELECTOR, ".node")
    assert "written before credits were kept" in driver.find_element(By.ID, "tree-credits").text
    assert_quiet(driver)


def test_words_in_the_table_stay_text(driver: Any, tmp_path: Path) -> None:
    show(
        driver,
        write_report(make_run(tmp_path / "run", iterations=1, trees=1, text=HOSTILE, nodes="state")),
        390,
    )
    assert driver.execute_script("return window.hacked") is None
    assert driver.find_elements(By.CSS_SELECTOR, "#tree-credits td.action")[0].text.startswith("search[")
    assert driver.execute_script("return document.documentElement.scrollWidth") <= 390
    assert_quiet(driver)
