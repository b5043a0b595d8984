"""What the option ``data`` means: one rule for all families."""

from pathlib import Path

import pytest

from tstar_envs.data.locate import PathLike, choose_tier
from tstar_envs.envs.alfworld.tasks import load_tasks
from tstar_envs.envs.search_qa.tasks import load_set
from tstar_envs.envs.webshop.tasks import find_tier


@pytest.mark.parametrize(
    ("data", "there", "tier"),
    [
        ("auto", True, "full"),
        ("auto", False, "mini"),
        ("mini", True, "mini"),
        ("full", False, "full"),
        ("", True, "path"),
        ("./mini", True, "path"),
        (Path("full"), True, "path"),
    ],
)
def test_the_tier_of_an_option(data: PathLike, there: bool, tier: str) -> None:
    asked = []

    def full_is_there() -> bool:
        asked.append("once")
        return there

    assert choose_tier(data, full_is_there) == tier
    assert len(asked) == (data == "auto"), "the published data are looked for only where it matters"


def test_auto_takes_what_each_family_calls_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TSTAR_DATA", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    folder = tmp_path / "search_qa"
    folder.mkdir()
    (folder / "corpus.jsonl").write_text('{"id": "1", "contents": "\\"Ann\\"\\nShe."}\n')
    assert load_set("hotpotqa", "auto").tier == "mini", "passages without questions"
    (folder / "hotpotqa.test.jsonl").write_text(
        '{"id": "a", "question": "Who?", "golden_answers": ["Ann"]}\n'
    )
    assert load_set("hotpotqa", "auto").tier == "full"
    assert load_set("hotpotqa", "mini").tier == load_set("musique", "auto").tier == "mini"
    assert find_tier("auto")[0] == "mini"
    (tmp_path / "webshop").mkdir()
    (tmp_path / "webshop" / "items_shuffle.json").write_text("[]")
    assert find_tier("auto") == ("full", tmp_path / "webshop")
    (tmp_path / "alfworld" / "json_2.1.1" / "train").mkdir(parents=True)
    assert load_tasks("all", "auto").tier == "mini", "a folder without games"
