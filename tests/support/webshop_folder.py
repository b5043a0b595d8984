"""A folder of the original's files, opened as an environment, and a place for what is built from it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tstar_envs.envs.webshop.env import WebShopEnv

PRODUCT: dict[str, Any] = {
    "asin": "B01",
    "name": "Red Mug",
    "category": "garden",
    "query": "Mugs ",
    "product_category": "Home › Mugs",
    "pricing": "$5.00 - $9.00",
    "full_description": "A mug.",
    "small_description": ["Big"],
    "images": ["x"],
    "customization_options": {
        "Color": [{"value": "Red/Blue"}, {"value": "features"}],
        "Style": [{"value": "red | blue"}],
    },
}


@pytest.fixture(scope="module", autouse=True)
def own_stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What these tests build does not stay on the machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TSTAR_DATA", str(tmp_path_factory.mktemp("data")))
        yield


def open_folder(folder: Path, products: Any, **files: Any) -> WebShopEnv:
    text = products if isinstance(products, str) else json.dumps(products, indent=0)
    (folder / "items_shuffle.json").write_text(text, encoding="utf-8", errors="surrogatepass")
    goal = {
        "asin": "B01",
        "query": "mugs",
        "name": "Red Mug",
        "product_category": "Home › Mugs",
        "instruction_text": "a mug",
        "attributes": ["big"],
        "price_upper": 10.0,
        "goal_options": [],
    }
    for name, content in {"goals": [goal], **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return WebShopEnv(data=str(folder))
