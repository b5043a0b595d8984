"""Files by path that would hang, fill the memory or end in a traceback: each is refused in one sentence, in time, or passed over."""

import gzip
import os
import socket
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from tstar_envs import BadData, MissingData, SolverLimit, TStarError, UnknownOption
from tstar_envs.data.files import (
    FILES,
    LEVEL_CELLS,
    LEVEL_LINES,
    PROBLEM_BYTES,
    PROBLEM_OBJECTS,
    TEXT_BYTES,
    read_bytes,
    read_lines,
)
from tstar_envs.envs.blocksworld import plan
from tstar_envs.envs.blocksworld.env import BlocksworldEnv
from tstar_envs.envs.sokoban import solve
from tstar_envs.envs.sokoban.env import SokobanEnv

LEVEL = "#####\n#@$.#\n#####\n"
PROBLEM = "(define (problem p) (:domain d) (:objects a b) (:init (ontable a) (on b a) (clear b) (handempty)) (:goal (on a b)))"
FAMILIES = (
    pytest.param(SokobanEnv, "levels", ".xsb", LEVEL, id="sokoban"),
    pytest.param(BlocksworldEnv, "problems", ".pddl", PROBLEM, id="blocksworld"),
)


@pytest.fixture(autouse=True)
def in_time() -> Any:
    begun = monotonic()
    yield
    assert monotonic() - begun < 20


@pytest.mark.parametrize(("env", "option", "ending", "good"), FAMILIES)
def test_what_only_looks_like_a_file_is_passed_over_in_a_folder(
    tmp_path: Path, env: Callable[..., Any], option: str, ending: str, good: str
) -> None:
    (tmp_path / f"good{ending.upper()}").write_text(good)
    (tmp_path / f"folder{ending}").mkdir()
    os.mkfifo(tmp_path / f"pipe{ending}")
    (tmp_path / f"nowhere{ending}").symlink_to(tmp_path / "absent")
    (tmp_path / f"itself{ending}").symlink_to(tmp_path / f"itself{ending}")
    (tmp_path / f"zero{ending}").symlink_to("/dev/zero")
    (tmp_path / "round").symlink_to(tmp_path, target_is_directory=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(tmp_path / f"s{ending}"))
        assert len(env(**{option: tmp_path}).task_ids()) == 1


ODD = [
    "/dev/zero",
    "/dev/random",
    "/dev/stdin",
    "\0",
    "a\0b",
    "x" * 5000,
    "/".join("ab" * 3000),
    "~no-such-user/x",
    "\ud800",
    "/proc/self/mem",
]


@pytest.mark.parametrize(("env", "option", "ending", "good"), FAMILIES)
def test_odd_paths_are_one_sentence(
    tmp_path: Path, env: Callable[..., Any], option: str, ending: str, good: str
) -> None:
    os.mkfifo(tmp_path / f"pipe{ending}")
    for path in (*ODD, tmp_path / f"pipe{ending}", tmp_path / "absent", "/proc/kmsg"):
        for name in (option, "data"):
            with pytest.raises(TStarError) as caught:
                env(**{name: path})
            assert "\n" not in str(caught.value) and len(str(caught.value)) < 600
            str(caught.value).encode()  # and a terminal can show it
    for wrong in (3, b"levels", True, ["a"]):
        with pytest.raises(UnknownOption, match=f"{option} must be a path"):
            env(**{option: wrong})
    for name in (option, "data"):
        with pytest.raises(UnknownOption, match=f"{name}='' is not a path"):
            env(**{name: ""})


@pytest.mark.parametrize(("env", "option", "ending", "good"), FAMILIES)
def test_a_name_that_is_not_utf_8(
    tmp_path: Path, env: Callable[..., Any], option: str, ending: str, good: str
) -> None:
    (tmp_path / f"good{ending}").write_text(good)
    with open(os.fsencode(tmp_path) + b"/Andr\xe9" + ending.encode(), "w") as handle:
        handle.write(good)
    with pytest.raises(BadData, match=r"Andr\\udce9.*its name is not UTF-8; rename it"):
        env(**{option: tmp_path})
    found = env(**{option: tmp_path}, skip_bad=True)
    assert len(found.task_ids()) == 1 and "its name is not UTF-8" in str(found.left_out)
    str(found.left_out).encode()


@pytest.mark.parametrize(("env", "option", "ending", "good"), FAMILIES)
def test_archives(tmp_path: Path, env: Callable[..., Any], option: str, ending: str, good: str) -> None:
    path = tmp_path / f"a{ending}.gz"
    path.write_bytes(gzip.compress(good.encode()))
    assert env(**{option: path}).reset()[1]["task_id"]
    path.write_bytes(gzip.compress(b"\n" * (TEXT_BYTES.default + 1), 1))
    with pytest.raises(BadData, match=r"\(unpacked\): more than [\d,]+ bytes .* set TSTAR_MAX_") as caught:
        env(**{option: path})
    assert str(caught.value).count(str(path)) == 1
    for damaged in (
        gzip.compress(good.encode() * 50)[:-9],
        b"\x1f\x8b",
        b"no archive",
        gzip.compress(b"x" * 99)[:12] + b"\xff" * 30,
    ):
        path.write_bytes(damaged)
        with pytest.raises(BadData, match=r"a damaged archive"):
            env(**{option: path})


@pytest.mark.parametrize(
    ("content", "limit", "value", "said"),
    [
        (("#" * 60 + "\n") * 60, LEVEL_CELLS, 3000, None),
        (LEVEL + "\n" * 300, LEVEL_LINES, 200, "more than 200 lines in one file of levels"),
        (
            f"; long\n{'#' * 120}\n#@$.{' ' * 115}#\n{'#' * 120}\n",
            LEVEL_CELLS,
            350,
            "line 2: more than 350 cells in one level",
        ),
        (
            "500#|#@$.#|5#\n",
            LEVEL_CELLS,
            400,
            "a run-length encoded row of 512 cells; TSTAR_MAX_LEVEL_CELLS allows more",
        ),
        (LEVEL * 1 + "\n" + "x" * 4000, TEXT_BYTES, 3000, "more than 3,000 bytes in one text file"),
        ("#####\n" + "#   #\n" * 700 + "#@$.#\n#####\n", LEVEL_CELLS, 3400, "more than 3,400 cells"),
    ],
)
def test_limits_of_levels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, limit: Any, value: int, said: str | None
) -> None:
    path = tmp_path / "l.txt"
    path.write_text(content)
    monkeypatch.setenv(limit.variable, str(value))
    with pytest.raises(MissingData if said is None else BadData) as caught:
        SokobanEnv(levels=path)
    if said is not None:
        assert said in str(caught.value) and limit.variable in str(caught.value)
        monkeypatch.setenv(limit.variable, str(10 * value))
        assert SokobanEnv(levels=path).task_ids()


@pytest.mark.parametrize(
    ("content", "limit", "value"),
    [
        (PROBLEM + ";" * 5000, PROBLEM_BYTES, 4000),
        (PROBLEM.replace("a b)", f"a b {' '.join(f'c{n}' for n in range(30))})"), PROBLEM_OBJECTS, 20),
    ],
)
def test_limits_of_problems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, limit: Any, value: int
) -> None:
    path = tmp_path / "p.pddl"
    path.write_text(content)
    monkeypatch.setenv(limit.variable, str(value))
    with pytest.raises(BadData, match=limit.variable):
        BlocksworldEnv(problems=path)


def test_limits_of_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(12):
        (tmp_path / f"{number}.xsb").write_text(LEVEL)
    monkeypatch.setenv(FILES.variable, "10")
    with pytest.raises(BadData, match=FILES.variable):
        SokobanEnv(levels=tmp_path)
    monkeypatch.setenv(FILES.variable, "ten")
    with pytest.raises(UnknownOption, match=FILES.variable):
        SokobanEnv(levels=tmp_path)


MANY = " ".join(f"b{number}" for number in range(200_000))


@pytest.mark.parametrize(
    "text",
    [
        PROBLEM.replace("a b)", f"a b {MANY})"),
        PROBLEM.replace("a b)", f"a b {'1' * 10_000})"),
        PROBLEM.replace("(:init", f"(:init (= (total-cost) {'1' * 10_000})"),
        PROBLEM.replace("(:init", f"(:init {'(ontable a)' * 20_000}"),
        PROBLEM.replace("(on a b)", f"(and {'(on a b)' * 20_000})"),
        PROBLEM.replace("(on a b)", "(and " * 50_000 + "(on a b)" + ")" * 50_000),
        "(" * 100_000,
        ")" * 300_000,
        "(define (problem p) " + "(:x y)" * 50_000,
        ";" * 3_000_000,
        " " * 3_000_000,
        PROBLEM.replace(" a", " " + "a" * 1_000_000),
        "(define (domain" * 50_000,
    ],
)
def test_large_problems_take_no_long_time(tmp_path: Path, text: str) -> None:
    begun = monotonic()
    (tmp_path / "p.pddl").write_text(text)
    try:
        assert plan(text) and BlocksworldEnv(problems=tmp_path / "p.pddl").task_ids()
    except BadData as error:
        assert len(str(error)) < 500
    assert monotonic() - begun < 6


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(["#" * 2000, *["#" + " " * 1998 + "#"] * 1998, "#" * 2000]),
        "#" * 3_000_000,
        "#" + "@$. " * 500_000 + "#",
        "9" * 10_000 + "#|#@$.#|5#",
        "9999#9999 " * 3000 + "#",
        "|" * 500_000 + "#",
        "#|" * 300_000,
        "1 " * 500_000,
        "#@$.#\n" * 50_000,
        "#@$.#\n\n" * 15_000,
        "# @ $ . x y # \t" * 100_000,
        "<?xml version='1.0'?>" + "<a>" * 200_000,
        "<SokobanLevels><Level>" + "<L>#@$.#</L>" * 50_000,
        "-" * 1_000_000 + "\n" + "_\n" * 100_000,
    ],
)
def test_large_levels_take_no_long_time(tmp_path: Path, text: str) -> None:
    begun = monotonic()
    (tmp_path / "l.txt").write_text(text)
    with pytest.raises((BadData, MissingData)) as caught:
        SokobanEnv(levels=tmp_path / "l.txt")
    assert len(str(caught.value)) < 20_000
    assert monotonic() - begun < 6


def wide(side: int, row: str) -> str:
    """A hall whose lowest row begins with ``row``."""
    edge, inner = "#" * side, "#" + " " * (side - 2) + "#"
    return "\n".join([edge, *[inner] * (side - 3), f"#{row}{' ' * (side - 2 - len(row))}#", edge])


def test_the_expert_keeps_to_its_bound_in_a_wide_hall(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LEVEL_CELLS.variable, "1000000")
    (tmp_path / "near.txt").write_text(wide(200, "@$."))
    near = SokobanEnv(levels=tmp_path / "near.txt", horizon=5)
    near.reset()
    assert near.step(near.oracle() or "")[1] == 1
    (tmp_path / "wide.txt").write_text(wide(600, "@ $" + " " * 500 + "."))
    for ask in ("oracle", "progress"):
        env = SokobanEnv(levels=tmp_path / "wide.txt", horizon=5, solver_seconds=0.3)
        env.reset()
        begun = monotonic()
        with pytest.raises(SolverLimit, match=r"after 0\.3 seconds.*raise solver_seconds"):
            getattr(env, ask)()
        assert monotonic() - begun < 3
    for wrong in (0, -1, float("nan"), True, "1"):
        with pytest.raises(UnknownOption, match="solver_seconds must be a number above 0"):
            solve(LEVEL, solver_seconds=wrong)  # type: ignore[arg-type]


def test_the_planner_keeps_to_its_bound(tmp_path: Path) -> None:
    """Towers of which the planner cannot find an optimal plan in any time."""
    names = [f"b{number}" for number in range(90)]
    towers = [names[start : start + 9] for start in range(0, 90, 9)]
    facts = [
        fact for tower in towers for fact in (f"(ontable {tower[0]})", f"(clear {tower[-1]})", *pairs(tower))
    ]
    shuffled = sorted(names, key=lambda name: (int(name[1:]) * 37) % 90)
    text = (
        f"(define (problem p) (:domain d) (:objects {' '.join(names)}) (:init (handempty) {' '.join(facts)})"
        + (f"(:goal (and {' '.join(pairs(shuffled))})))")
    )
    (tmp_path / "p.pddl").write_text(text)
    env = BlocksworldEnv(problems=tmp_path, solver_seconds=0.3)
    begun = monotonic()
    env.reset()
    with pytest.raises(SolverLimit, match="solver_seconds"):
        env.oracle()
    assert monotonic() - begun < 4
    assert env.step("unstack b8 b7")[4]["action_valid"], "it can be played all the same"


def pairs(tower: list[str]) -> list[str]:
    return [f"(on {upper} {lower})" for lower, upper in pairwise(tower)]


def test_files_that_wait_for_ever() -> None:
    """Regular by name, and reading them may block."""
    for path in ("/proc/kmsg", "/proc/self/clear_refs", "/proc/sysrq-trigger"):
        if Path(path).exists():
            try:
                read_bytes(path)
                list(read_lines(path))
            except BadData as error:
                assert path in str(error)
