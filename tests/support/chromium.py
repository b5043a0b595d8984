"""A real headless Chromium for pages that are one file: opened in a width and colour scheme, with all it says and asks for on record."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
webdriver = pytest.importorskip(
    "selenium.webdriver", reason="selenium is not installed: pip install selenium"
)
if not CHROMIUM or not DRIVER:
    pytest.skip(
        "chromium or chromedriver is not installed: apt-get install chromium chromium-driver",
        allow_module_level=True,
    )

from selenium.webdriver.chrome.service import Service  # noqa: E402

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)


def start(profile: Path) -> Any:
    """A browser with an empty profile; call ``quit`` on it at the end."""
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=Service(DRIVER))


def show(driver: Any, page: Path, width: int = 1400, scheme: str = "light") -> None:
    """Open a page in a width and colour scheme."""
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    driver.get_log("browser")
    driver.get_log("performance")
    driver.get(page.as_uri())


def unlocked(page: Path) -> Path:
    """The same page without its content security policy: that is a second lock, and the first must hold without it."""
    found = page.with_name("unlocked.html")
    text = page.read_text(encoding="utf-8")
    found.write_text(re.sub(r"<meta http-equiv[^>]*>", "", text), encoding="utf-8")
    return found


def assert_quiet(driver: Any) -> None:
    """Nothing was said on the console, and no request left the page."""
    assert driver.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert asked and all(url.startswith(("file:", "data:")) for url in asked)
