"""A rank that is killed, stopped, loops or cannot be reached ends the run in time: named, with stacks and the last checkpoint."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import sys
import time

import pytest
from hosts import RUN, TORCHRUN, Hosts, Started, logged, require_same_run

MINUTES = 0.4  # an import takes ten seconds on a busy machine
SHORT = (
    (
        "--env hotpotqa --iterations 6 --checkpoint-every 1 --rollout.tasks-per-iteration 2 --rollout.group-size 2 "
        "--tree.nodes depth --tree.kl-samples 2 --evaluation.tasks 2 "
        f"--evaluation.samples 1 --evaluation.no-greedy --timeout-minutes {MINUTES} "
        "--no-checkpoint-beside --optim.zero-stage 2"  # what is saved is known, and DeepSpeed has backward passes of its own
    ).split()
)
# Beyond the time that is waited: asking all where they are, ending what is stopped, and torchrun's half minute before it kills.
LATER = 40
START = 240  # for imports, the first measurement and two iterations on a busy machine
OWN, ONE, TWO = "own processes", "torchrun", "two hosts"

CASES = [
    (OWN, 1, "sampling", "kill", ""),
    (OWN, 1, "sum", "stop", ""),
    (OWN, 0, "sampling", "stop", ""),
    (OWN, 0, "sampling", "kill", ""),
    (OWN, 0, "saving", "loop", ""),
    (OWN, 1, "sampling", "hold", ""),
    (OWN, 1, "backward", "stop", "deepspeed"),
    (OWN, 1, "sum", "stop", "deepspeed"),
    (ONE, 1, "sum", "kill", ""),
    (ONE, 1, "sampling", "stop", ""),
    (ONE, 0, "sampling", "loop", ""),
    (ONE, 1, "backward", "kill", "deepspeed"),
    (ONE, 0, "backward", "stop", "deepspeed"),
    (TWO, 1, "sum", "kill", ""),
    (TWO, 0, "sampling", "kill", ""),
    (TWO, 0, "sampling", "stop", ""),
    (TWO, 1, "backward", "loop", "deepspeed"),
]


@pytest.fixture(scope="module")
def hosts():
    made = Hosts()
    print(f"two hosts are {made.kind}")
    yield made
    made.close()


@pytest.fixture
def commands(hosts):
    def of(start, *program):
        if start == OWN:
            return [[sys.executable, *program, "--processes", 2]]
        if start == ONE:
            return [[sys.executable, *TORCHRUN, 2, *program]]
        return [hosts.torchrun(host, *program) for host in (0, 1)]

    return of


def wait_for(fault, started):
    deadline = time.monotonic() + START
    while not fault.exists() or not fault.read_text():
        assert time.monotonic() < deadline and started.processes[0].poll() is None, started.printed
        time.sleep(0.05)
    return time.monotonic()


def require_good_end(started, begun, out, rank, answered):
    """In time, with an exit code, and with a message that names rank, stacks and checkpoint; nothing still runs.

    Args:
        answered: ranks whose stacks must be printed.
    """
    codes = started.codes(60 * MINUTES + LATER - (time.monotonic() - begun))
    deadline = time.monotonic() + 25  # whose group is gone ends a little later
    while started.left() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not started.left() and all(codes), (codes, started.printed)
    printed = "\n".join(started.printed)
    messages = [
        line
        for line in printed.splitlines()
        if line.startswith("tstar_train: ") and "The stacks of rank" in line
    ]
    assert len(messages) == 1, printed
    [message] = messages
    assert f"rank {rank} (process " in message and re.search(
        r"gives no sign of life|has not come there|All have come there", message
    )
    assert re.search(rf"saved in {re.escape(str(out))}/checkpoints/000002[;.]", message)
    assert f"go on with: python -m tstar_train --resume {out}" in message
    [file] = out.glob("stacks-*.txt")
    assert str(file) in message
    stacks = file.read_text()
    for number in answered:
        assert f"rank {number}, " in stacks and f"rank {number}, " in printed
    # One that a dead rank does not make wait yet is still playing.
    assert any(place in stacks for place in ("in _wait", "in sample_groups", "backward"))
    return message


@pytest.mark.slow
@pytest.mark.parametrize(("start", "rank", "where", "how", "optimizer"), CASES)
def test_a_rank_that_fails_ends_the_run(start, rank, where, how, optimizer, commands, tmp_path):
    if optimizer and importlib.util.find_spec("deepspeed") is None:
        pytest.skip("deepspeed is not installed (extra deepspeed)")
    out, fault = tmp_path / "run", tmp_path / "fault"
    program = [
        "-m",
        "failing_rank",
        *SHORT,
        *(["--learner", optimizer] if optimizer else []),
        "--out",
        out,
    ]
    with Started(tmp_path, commands(start, *program), FAULT=f"{rank} {where} {how} {fault}") as started:
        begun = wait_for(fault, started)
        answered = {0, 1} if how == "loop" else {1 - rank}
        message = require_good_end(started, begun, out, rank, answered)
        if how == "loop":
            assert re.search(
                rf"rank {rank} \([^)]*\) (has not come there: it )?is at __main__:\d+, fail", message
            )
            assert "in fail" in next(out.glob("stacks-*.txt")).read_text()
        else:
            assert "gives no sign of life" in message
        if how == "hold":  # no thread of it can answer: its stacks are those that the signal dumps
            assert "Fatal Python error: Aborted" in started.printed[0]


@pytest.mark.slow
def test_hosts_whose_cable_is_pulled_both_end_the_run(hosts, tmp_path):
    if hosts.kind == "loopback":
        pytest.skip("needs network namespaces")
    out, fault = tmp_path / "run", tmp_path / "fault"
    program = ["-m", "failing_rank", *SHORT, "--iterations", 400, "--out", out]
    commands = [hosts.torchrun(host, *program) for host in (0, 1)]
    try:
        with Started(tmp_path, commands, FAULT=f"0 saving touch {fault}") as started:
            begun = wait_for(fault, started)
            hosts.cut()
            codes = started.codes(60 * MINUTES + LATER + 30 - (time.monotonic() - begun))
            assert all(codes), (codes, started.printed)
            for host, other in ((0, 1), (1, 0)):
                [message] = [
                    line for line in started.printed[host].splitlines() if line.startswith("tstar_train: ")
                ]
                assert (
                    f"rank {other}" in message
                    and "gives no sign of life" in message
                    and f"--resume {out}" in message
                )
                assert re.search(rf"saved in {re.escape(str(out))}/checkpoints/\d+[;.]", message)
                assert f"rank {host}, waiting in " in started.printed[host]
    finally:
        hosts.mend()


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_nobody_meets_says_where_it_looked(rank, tmp_path):
    """As by a scheduler that starts the ranks itself, here one of them, or with a wrong address."""
    port = 29618 + rank  # or the two cases would meet where they run side by side
    variables = {
        "RANK": rank,
        "WORLD_SIZE": 2,
        "LOCAL_RANK": 0,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    command = [sys.executable, "-m", "tstar_train", *SHORT, "--out", tmp_path / "run"]
    with Started(tmp_path, [command], **{name: str(value) for name, value in variables.items()}) as started:
        assert started.codes(60 * MINUTES * 2 + 60) == [2]
        [message] = [line for line in started.printed[0].splitlines() if line.startswith("tstar_train: ")]
        assert (
            f"rank {rank} of 2 did not meet the others at 127.0.0.1:{port} within {MINUTES} minutes"
            in message
        )
        assert (
            not started.left() and not (tmp_path / "run").exists() and "Traceback" not in started.printed[0]
        )


@pytest.mark.slow
def test_ranks_that_meet_but_cannot_connect_say_so(hosts, tmp_path):
    if hosts.kind == "loopback":
        pytest.skip("needs network namespaces")
    program = ["-m", "tstar_train", *SHORT, "--out", tmp_path / "run"]
    with Started(
        tmp_path, [hosts.torchrun(host, *program) for host in (0, 1)], GLOO_SOCKET_IFNAME="lo"
    ) as started:
        assert all(started.codes(60 * MINUTES * 2 + 60)), started.printed
        for (
            printed
        ) in started.printed:  # gloo lets the one that listens wait five times as long; it hears of the other
            [message] = [line for line in printed.splitlines() if line.startswith("tstar_train: ")]
            assert (
                "of 2 could not connect to the others" in message
                and "GLOO_SOCKET_IFNAME names (lo here)" in message
            )
        assert not started.left() and not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["torch", "deepspeed"])
def test_two_hosts_do_what_one_does_and_either_goes_on_with_it(optimizer, hosts, tmp_path):
    if optimizer == "deepspeed" and importlib.util.find_spec("deepspeed") is None:
        pytest.skip("deepspeed is not installed (extra deepspeed)")
    program = [*RUN, "--learner", optimizer]
    own, two, one = (tmp_path / name for name in ("own", "two", "one"))
    runs = [
        ([[sys.executable, *program, "--processes", 2, "--out", own]]),
        ([hosts.torchrun(host, *program, "--out", two) for host in (0, 1)]),
    ]
    for number, commands in enumerate(runs):
        with Started(tmp_path / str(number), commands) as started:
            assert not any(started.codes(300)), started.printed
    require_same_run(two, own)
    shutil.copytree(two, one)
    again = ["-m", "tstar_train", "--iterations", 4, "--resume"]
    with Started(tmp_path / "2", [[sys.executable, *TORCHRUN, 1, *again, one]]) as started:
        assert not any(started.codes(300)), started.printed
    assert len(logged(one)) == 4 and json.loads((one / "summary.json").read_text())["iterations"] == 4
    with Started(tmp_path / "3", [hosts.torchrun(host, *again, two) for host in (0, 1)]) as started:
        assert not any(started.codes(300)), started.printed
    assert logged(one)[:3] == logged(two)[:3]
