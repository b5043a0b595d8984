"""Level files as they are in the world: many ways to write one level, what stands between levels, and what cannot be played."""

import re
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tstar_envs import BadData, MissingData, UnknownOption, UnknownTask
from tstar_envs.envs.sokoban import parse_level, print_level, solve
from tstar_envs.envs.sokoban.env import SokobanEnv
from tstar_envs.envs.sokoban.level_files import split_levels
from tstar_envs.envs.sokoban.solver import LOST, Assignment
from tstar_envs.envs.sokoban.tasks import load_path, load_shipped

LEVEL = """\
  ######
###    #
#.*$ @ #
#  #####
####"""
OTHER = """\
#####
#+ $#
#  *#
#####"""
BAD = "#####\n#@$ #\n#####"
FIELDS = [print_level(*parse_level(text)) for text in (LEVEL, OTHER)]


def slc(*levels: str, head: str = '<?xml version="1.0" encoding="UTF-8"?>') -> str:
    body = "".join(
        f'<Level Id="x" Width="9"><!-- one -->{"".join(f"<L>{row}</L>" for row in level.splitlines())}</Level>\n'
        for level in levels
    )
    collection = f'<LevelCollection Copyright="&#169; J">\n{body}</LevelCollection>'
    return f"{head}\n<SokobanLevels><Title>#@$.# &amp; more</Title>\n{collection}</SokobanLevels>"


def letters(level: str) -> str:
    return level.translate(str.maketrans("@$.+*", "pboPB"))


def with_x_walls(level: str) -> str:
    return level.translate(str.maketrans("#$*", "X*&"))


def packed(level: str, end: str) -> str:
    return end.join(
        re.sub(r"(.)\1+", lambda run: f"{len(run[0])}{run[1]}", row.replace(" ", "-"))
        for row in level.splitlines()
    )


def read(folder: Path, content: str | bytes, name: str = "levels.txt", skip_bad: bool = False) -> list[str]:
    """The levels of a file, as they are printed."""
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    found = load_path(folder / name, skip_bad=skip_bad)
    levels = map(found.task, found.by_split["test"])
    return [print_level(level.room, level.start) for level in levels]


@pytest.mark.parametrize(
    "content",
    [
        f"{LEVEL}\n\n{OTHER}",
        f"; 1\n\n{LEVEL}\n; 2\n{OTHER}\n",
        f"Title: First #1\nAuthor: #J#\n\n{LEVEL}\nComment: #. $ are nice\n\n{OTHER}\nSolution: lUrrDD",
        f"#1\n{LEVEL}\n#2\n{OTHER}",
        f"## 1 ##\n\n{LEVEL}\n\n## 2 ##\n\n{OTHER}\n\n## end ##",
        f"##############\n# Our levels #\n##############\n\n{LEVEL}\n\n#### 2 ####\n\n{OTHER}",
        f"{LEVEL}\n--------\n{OTHER}\n-\n",
        f"{LEVEL}\n   \n{OTHER}\n\t\n",
        f"{LEVEL}\r\n\r\n{OTHER}".replace("\n", "\r\n").replace("\r\r", "\r"),
        f"{LEVEL}\n\n{OTHER}".replace("\n", "\r"),
        f"\ufeff{LEVEL}\n\n{OTHER}",
        f"{LEVEL.replace(' ', '-')}\n\n{OTHER.replace(' ', '_')}",
        f"{letters(LEVEL)}\n\n{letters(OTHER)}",
        f"Maze: 1\nSize X: 8\n\n{with_x_walls(LEVEL)}\n*************\nMaze: 2\n\n{OTHER}",
        f"{packed(LEVEL, '|')}\n{packed(OTHER, '|')}|\n",
        f"{packed(LEVEL, '|')}\n\n{packed(OTHER, chr(10))}\n",
        f"{packed(LEVEL, '|').replace('-', ' ')}\n{packed(OTHER, '|').replace('-', ' ')}",
        f"<pre>\n{LEVEL}\n</pre>\n\n{OTHER}\n",
        f"{LEVEL}\nComment:\n#####\n#@$  <- push it\nComment-End:\n{OTHER}",
        f"Comment: no end\n{LEVEL}\ncomment:\n\n  #@$.#\n\nCOMMENT_END\n\n{OTHER}\nComment:\n",
        f"100000 #\n{LEVEL}\n# 20000 #\n\n{OTHER}",
        f"Andr\u00e9 wrote\n\n{LEVEL}\n\n{OTHER}".encode("latin-1"),
    ],
)
def test_two_levels_in_many_forms(tmp_path: Path, content: str | bytes) -> None:
    assert read(tmp_path, content) == FIELDS


@pytest.mark.parametrize(
    "content",
    [
        slc(LEVEL, OTHER),
        slc(LEVEL, OTHER, head=""),
        "\ufeff" + slc(LEVEL, OTHER),
        slc(LEVEL, OTHER, head='<?xml version="1.0" encoding="ISO-8859-1"?>')
        .replace("more", "\u00e9")
        .encode("latin-1"),
        slc(LEVEL, OTHER, head='<?xml version="1.0"?>\n<!DOCTYPE SokobanLevels SYSTEM "SokobanLev.dtd">'),
        slc(LEVEL, OTHER).replace("\n", "\r\n"),
        slc(LEVEL, OTHER).replace("<L>####</L>", "<L><![CDATA[####]]></L>"),
        slc(LEVEL, OTHER).replace("Level", "LEVEL").replace("<L>", "<l>").replace("</L>", "</l>"),
        slc(LEVEL, OTHER, head="<!-- made by hand -->"),
        slc(LEVEL, OTHER, head='<?xml version="1.0" encoding="UTF-16"?>').encode("utf-16"),
    ],
)
def test_collections_in_xml(tmp_path: Path, content: str | bytes) -> None:
    assert read(tmp_path, content, "levels.slc") == FIELDS


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (slc(LEVEL)[:-20], "not well-formed XML"),
        (slc(LEVEL, head='<!DOCTYPE x [<!ENTITY row "####">]>'), "defines an entity"),
        (slc(LEVEL, head='<?xml version="1.0" encoding="klingon"?>'), "XML"),
        (slc(LEVEL, BAD), "line 5: a level needs at least one box"),
        (slc(LEVEL.replace("@", "~")), r"holds '~'; valid symbols"),
        ('<?xml version="1.0"?><gpx><trk/></gpx>', "XML without a Level element"),
    ],
)
def test_collections_that_cannot_be_read(tmp_path: Path, content: str, said: str) -> None:
    with pytest.raises(BadData) as caught:
        read(tmp_path, content, "levels.slc")
    assert str(caught.value).startswith(str(tmp_path / "levels.slc")) and said in str(caught.value)


@pytest.mark.parametrize("count", ["99999", "0" * 50 + "70000", "9" * 5000])
def test_a_packed_level_with_an_absurd_count_is_a_fault(tmp_path: Path, count: str) -> None:
    """Not a title: the level would be missing without a word."""
    with pytest.raises(BadData, match=r"line 6: a run-length encoded row of .* cells; TSTAR_MAX_LEVEL_CELLS"):
        read(tmp_path, f"{LEVEL}\n{count}#|#@$.#|5#\n{OTHER}")


def test_all_faults_are_listed_and_the_rest_is_usable(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(f"{LEVEL}\n\n{BAD}\n\n#####\n#  *#\n#####\n\n######\n#@*  #\n######\n")
    (tmp_path / "b.xsb").write_text(f"#####\n#@\t$.#\n#####\n\n{OTHER}\n")
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "c.slc").write_text("<SokobanLevels><Level>")
    (tmp_path / "d.sok").write_bytes(b"\0")
    with pytest.raises(BadData) as caught:
        SokobanEnv(levels=tmp_path)
    said = str(caught.value)
    assert (
        "5 of 8 levels cannot be used; skip_bad=True leaves out what cannot be used and keeps 3 levels"
        in said
    )
    for place in (
        "a.txt, line 7: ",
        "a.txt, line 11: ",
        "b.xsb, line 2: a level row holds '\\t'",
        "d.sok: not a text",
        "train/c.slc, line 1: ",
    ):
        assert f"\n  {tmp_path}/{place}" in said, said
    env = SokobanEnv(levels=tmp_path, skip_bad=True)
    assert env.task_ids() == ("a.txt:0", "a.txt:3", "b.xsb:1"), "levels keep their numbers"
    assert (
        env.left_out.count == 5 and "5 left out" in str(env.left_out) and env.solved_at_start == ("a.txt:3",)
    )
    with pytest.raises(UnknownOption, match="skip_bad must be True or False"):
        SokobanEnv(levels=tmp_path, skip_bad=1)  # type: ignore[arg-type]
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "only.txt").write_text(f"{BAD}\n\n{BAD}\n")
    with pytest.raises(BadData, match="2 of 2 levels cannot be used\n"):
        SokobanEnv(levels=tmp_path / "bad", skip_bad=True)


def test_a_level_that_is_solved_ends_with_the_first_move(tmp_path: Path) -> None:
    (tmp_path / "solved.xsb").write_text("#######\n#@ * *#\n#######\n")
    for several in (False, True):
        env = SokobanEnv(levels=tmp_path, multi_action=several)
        _, info = env.reset()
        assert info["optimal_length"] == 0 and "success" in info
        assert not env.step("jump")[2], "what is no move ends nothing"
        _, reward, terminated, _, info = env.step(env.oracle() or "")
        assert reward == 1 and terminated and info["success"]
    assert solve("#######\n#@ * *#\n#######") == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "just words\n",
        "#####\n#####\n",
        "# heading #\n\n## another ##\n",
        "1. #first\n2. #second\n",
        "....\n",
    ],
)
def test_prose_holds_no_level(tmp_path: Path, text: str) -> None:
    with pytest.raises(MissingData, match="no level in it"):
        read(tmp_path, text)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_shipped_levels_come_back_from_every_form(data: st.DataObject) -> None:
    """Whatever way each of several levels is written, they are the same levels."""
    shipped = load_shipped("hard")
    texts = [
        print_level(level.room, level.start)
        for level in (shipped.task(shipped.by_split["test"][number]) for number in range(40))
    ]
    chosen = data.draw(st.lists(st.sampled_from(texts), min_size=1, max_size=4))
    forms = (
        str,
        lambda t: t.replace(" ", "-"),
        letters,
        with_x_walls,
        lambda t: packed(t, "|"),
        lambda t: packed(t, "\n"),
    )
    written = [data.draw(st.sampled_from(forms))(text) for text in chosen]
    between = data.draw(
        st.sampled_from(["\n\n", "\n; next\n\n", "\n\nLevel 7\n", "\n   \n", "\n\n# by bob #\n"])
    )
    found = list(split_levels(between.join(written).splitlines(keepends=True)))
    assert [print_level(*parse_level(level.text)) for level in found] == chosen


COSTS = st.dictionaries(
    st.integers(0, 9),
    st.dictionaries(st.integers(20, 25), st.integers(0, 30), max_size=6),
    min_size=1,
    max_size=7,
)


@settings(max_examples=150, deadline=None)
@given(COSTS, st.lists(st.sets(st.integers(0, 9), min_size=1, max_size=5), min_size=1, max_size=4))
def test_the_assignment_is_the_best_of_all(costs: dict[int, dict[int, int]], layouts: list[set[int]]) -> None:
    """Against every permutation; one object is asked for several layouts, as a search does, since it keeps prices."""
    assign = Assignment({cell: tuple(row.items()) for cell, row in costs.items()})
    wanted = sorted({cell for row in costs.values() for cell in row})
    for boxes in layouts:
        ways = (
            sum(costs.get(box, {}).get(cell, LOST) for box, cell in zip(boxes, chosen, strict=True))
            for chosen in permutations(wanted, len(boxes))
        )
        best = min(ways, default=LOST)
        assert assign(sum(1 << box for box in boxes)) == (best if best < LOST else LOST)


OBSERVED = str.maketrans(" .$*@+", "_OX\u221aPS")


@settings(max_examples=25, deadline=None)
@given(number=st.integers(0, 300))
def test_levels_as_the_environment_shows_them_come_back(
    number: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    env = SokobanEnv(observation="grid", split="train", difficulty="hard")
    shown, _ = env.reset(options={"task": number})
    level = env.level_text()
    assert set(shown) <= set("#_OX\u221aPS\n"), "the symbols of an observation"
    folder = tmp_path_factory.mktemp("shown")
    found = read(folder, f"one\n\n{shown}\n\n{shown.replace('_', ' ')}\n")
    assert [print_level(*parse_level(text)) for text in found] == [print_level(*parse_level(level))] * 2


def test_sokosolve_collections_and_ragens_levels(tmp_path: Path) -> None:
    rows = ("~#####~", "##P.O##", "#.X.X.#", "#O.$..#", "##...##", "~#####~")
    maps = f"<Maps><Map MapID='M2'>{''.join(f'<Row>{row}</Row>' for row in rows)}</Map></Maps>"
    text = f"<?xml version='1.0'?><SokobanLibrary><Puzzles><Puzzle>{maps}</Puzzle></Puzzles></SokobanLibrary>"
    wanted = " ##### \n##@ .##\n# $ $ #\n#. *  #\n##   ##\n ##### "
    (found,) = read(tmp_path, text, "a.ssx")
    assert parse_level(found) == parse_level(wanted)
    assert read(tmp_path, "######\n#_P_##\n#_X_O#\n######\n") == ["######\n# @ ##\n# $ .#\n######"]
    assert SokobanEnv(levels=tmp_path / "a.ssx").task_ids()


def test_an_empty_split_by_path_says_where_its_levels_belong(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("#####\n#@$.#\n#####\n")
    with pytest.raises(UnknownTask, match="files below a folder train/ .* are of this split"):
        SokobanEnv(levels=tmp_path, split="train").reset(seed=0)
    (tmp_path / "two.txt").write_text("#####\n#@$*#\n###\n")
    with pytest.raises(BadData, match="keeps 1 level[^s]"):
        SokobanEnv(levels=tmp_path)
