"""``--engine vllm-server``: options, and servers that fail, on a stand-in (test_served_by_vllm.py has vLLM itself)."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from loopback import QuietHandler, listening
from policies import random_policy
from rich.console import Console
from vllm_stand_in import (
    BASE,
    RANK,
    adapted_policy,
    flat,
    merged,
    move_adapters,
    options,
    serving,
    text,
    until,
    weights_of,
)

from tstar_envs import MissingExtra, UnknownOption
from tstar_train.__main__ import main
from tstar_train.config import Config, ServerConfig
from tstar_train.config_check import check
from tstar_train.distributed import SingleProcess, raise_on_any_rank
from tstar_train.engines import require_engine
from tstar_train.engines.base import EngineFailed
from tstar_train.engines.check import EngineMismatch, sync_engine
from tstar_train.engines.local import LocalEngine
from tstar_train.engines.vllm_server import VLLMServerEngine
from tstar_train.engines.vllm_serving import (
    KEY,
    Client,
    NoAnswerError,
    RefusedError,
    ServerProcess,
    transfer_of,
)
from tstar_train.finite import NotFinite
from tstar_train.policy.model import load_policy
from tstar_train.run import train

# ---------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("engine", "server", "said"),
    [
        (
            "local",
            {"url": "http://host:8000"},
            r"--engine\.url is for --engine vllm-server, got --engine local",
        ),
        ("vllm", {"tensor_parallel": 2}, r"--engine\.tensor-parallel is for --engine vllm-server"),
        (
            "vllm-server",
            {"url": "http://host:8000", "devices": "1"},
            r"--engine\.url names.*--engine\.devices.*leave one out",
        ),
        (
            "vllm-server",
            {"url": "http://host:8000", "tensor_parallel": 2},
            r"--engine\.tensor-parallel.*leave one out",
        ),
        ("vllm-server", {"url": "host:8000"}, r"--engine\.url must be the address.*'host:8000'"),
        ("vllm-server", {"url": "ftp://host"}, r"--engine\.url must be the address"),
        ("vllm-server", {"url": "http://host:8000/v1"}, r"without a path.*'http://host:8000/v1'"),
        ("vllm-server", {"url": "http://host:port"}, r"--engine\.url must be the address"),
        ("vllm-server", {"devices": "6, 7"}, r"--engine\.devices must be GPUs with commas.*'6, 7'"),
        (
            "vllm-server",
            {"devices": "6,7", "tensor_parallel": 4},
            r"tensor-parallel 4 needs as many.*names 2",
        ),
        (
            "vllm-server",
            {"tensor_parallel": 2},
            r"tensor-parallel 2 needs.*without --engine\.devices it has 1",
        ),
        ("vllm-server", {"tensor_parallel": 0}, r"--engine\.tensor-parallel must be 1 or more"),
        (
            "vllm-server",
            {"transfer": "rdma"},
            r"--engine\.transfer must be one of auto, disk, adapters, ipc, nccl",
        ),
    ],
)
def test_options_that_do_not_fit_are_named(engine, server, said):
    with pytest.raises(UnknownOption, match=said):
        check(dataclasses.replace(BASE, engine=engine, server=ServerConfig(**server)))


def test_a_password_in_the_url_is_refused_and_not_repeated():
    with pytest.raises(UnknownOption, match="VLLM_API_KEY") as caught:
        check(options(url="http://me:hunter22@host:8000"))
    assert "hunter22" not in str(caught.value)


@pytest.mark.parametrize(
    "server", [{}, {"url": "https://host"}, {"devices": "6,7"}, {"devices": "GPU-3a,MIG-b"}]
)
def test_options_that_fit(server):
    check(options(**server))


@pytest.mark.parametrize(
    ("device", "server", "way"),
    [
        ("cpu", {}, "disk"),
        ("cuda:0", {}, "ipc"),
        ("cuda:0", {"devices": "1"}, "nccl"),
        ("cuda:0", {"url": "http://host:8000"}, "disk"),
        ("cuda:0", {"url": "http://host:8000", "transfer": "nccl"}, "nccl"),
        ("cuda:0", {"devices": "1", "transfer": "disk"}, "disk"),
    ],
)
def test_the_way_of_the_weights(device, server, way):
    assert transfer_of(options(**server), device) == way
    adapted = transfer_of(options(rank=32, **server), device)
    assert adapted == ("adapters" if way == "disk" and "transfer" not in server else way)
    assert transfer_of(options(rank=1024, **server), device) == way  # vLLM takes no such rank


@pytest.mark.parametrize(
    ("device", "server", "said"),
    [
        ("cpu", {"transfer": "nccl"}, "copies weights between GPUs, and the policy is on cpu"),
        (
            "cuda:0",
            {"transfer": "nccl"},
            "does not reach a server on the trainer's GPU: give --engine.transfer ipc",
        ),
        ("cuda:0", {"transfer": "ipc", "devices": "1"}, "on GPUs of its own: give --engine.transfer nccl"),
        ("cpu", {"transfer": "adapters"}, "the policy has none: --lora.rank 0"),
        ("cpu", {"transfer": "adapters", "rank": 513}, "a rank of at most 512, got --lora.rank 513"),
    ],
)
def test_a_way_that_leads_nowhere_is_named(device, server, said):
    with pytest.raises(UnknownOption, match=said):
        transfer_of(options(**server), device)


def test_the_flags_stand_beside_engine_and_the_plan_names_the_server(capsys):
    given = "--env sokoban-easy --dry-run --engine vllm-server --engine.url http://host:8000 --engine.transfer disk"
    assert main(given.split()) == 0
    assert (
        "sampling: the vLLM server at http://host:8000; new weights go there by a checkpoint"
        in capsys.readouterr().out
    )


def test_a_run_of_before_reads_as_it_was(tmp_path):
    record = json.loads(BASE.to_json())
    assert record["engine"] == "local" and record.pop("server")
    (tmp_path / "config.json").write_text(json.dumps(record))
    assert Config.from_json(tmp_path / "config.json") == BASE
    now = options(url="http://host:8000")
    (tmp_path / "config.json").write_text(now.to_json())
    assert Config.from_json(tmp_path / "config.json") == now


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")
def test_only_a_server_of_the_runs_own_needs_vllm_here():
    with pytest.raises(MissingExtra, match="--engine vllm-server"):
        require_engine(options(), "cpu")
    require_engine(options(url="http://host:8000"), "cpu")


# ---------------------------------------------------------------------- HTTP


def test_the_client_tells_a_server_that_is_unwell_from_one_that_refuses(monkeypatch):
    seen = []

    class Handler(QuietHandler):
        def do_GET(self):
            seen.append(self.headers.get("Authorization"))
            status, body = {"/well": (200, b"[1]"), "/sick": (503, b"busy"), "/no": (404, b"?")}.get(
                self.path, (200, b"<html>")
            )
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    monkeypatch.setenv(KEY, "key-of-the-server-1")
    with listening(Handler) as url:
        client = Client(url, 5.0, 2)
        assert client.ask("GET", "/well") == [1] and seen == ["Bearer key-of-the-server-1"]
        with pytest.raises(NoAnswerError, match="/sick answered 503: busy"):
            client.ask("GET", "/sick")
        with pytest.raises(RefusedError, match="/no answered 404"):
            client.ask("GET", "/no")
        with pytest.raises(RefusedError, match="no JSON: <html>"):
            client.ask("GET", "/page")
    with pytest.raises(NoAnswerError, match="/well got no answer"):
        client.ask("GET", "/well")


def test_a_server_that_is_silent_too_long_gave_no_answer():
    class Handler(QuietHandler):
        def do_GET(self):
            time.sleep(0.6)

    with listening(Handler) as url, pytest.raises(NoAnswerError, match="ReadTimeoutError"):
        Client(url, 0.1, 1).ask("GET", "/")


def test_a_stand_in_samples_and_scores_as_the_local_engine(policy, other, asking, tmp_path):
    with serving(other) as served:
        engine = asking(policy, options(url=served.url), tmp_path)
        with pytest.raises(RuntimeError, match="call sync before"):
            engine.generate([text(5)], ["s"], max_tokens=2)
        sync_engine(policy, engine, weights_of(policy))
        contexts, tails = [text(9), text(12, 3)], [[text(3, 4), []], [text(2, 8)]]
        local = LocalEngine(policy)
        assert flat(engine.logprobs(contexts, tails)) == pytest.approx(
            flat(local.logprobs(contexts, tails)), abs=1e-4
        )
        ours = engine.generate(contexts, ["a", "b"], max_tokens=4, temperature=0.0)
        theirs = local.generate(contexts, ["a", "b"], max_tokens=4, temperature=0.0)
        assert [s.ids for s in ours] == [s.ids for s in theirs] and len(ours[0].logprobs) == 4
        assert [path.name for path in (tmp_path / "server").glob("weights-*")] == ["weights-000001"]
        sync_engine(other, engine, weights_of(other))
        assert [path.name for path in (tmp_path / "server").glob("weights-*")] == ["weights-000002"]
        engine.close()
        assert not list((tmp_path / "server").glob("weights-*"))


LORA = {"lora": {"max_lora_rank": 8}, "environment": {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": True}}


def test_adapters_alone_follow_the_frozen_weights_which_go_once(asking, tmp_path):
    policy = adapted_policy()
    with serving(random_policy(1)) as served:
        vars(served).update(LORA)
        engine = asking(policy, options(url=served.url, rank=RANK), tmp_path)
        given = [text(9), text(12, 3)], ["a", "b"]
        found = []
        for seed in (1, 2):
            move_adapters(policy, seed)
            sync_engine(policy, engine, merged(policy))
            found.append(engine.generate(*given, max_tokens=4))
            [[score]] = LocalEngine(policy).logprobs([text(9)], [[found[-1][0].ids]])
            assert sum(found[-1][0].logprobs) == pytest.approx(score, abs=1e-4)
        assert found[0] != found[1]
        whole, *adapters = served.bytes
        assert len(adapters) == 2 and max(adapters) < whole / 4
        assert [name.rpartition("/")[2] for name in served.adapted] == ["2"]
        assert sorted(path.name for path in (tmp_path / "server").iterdir() if path.is_dir()) == [
            "base",
            "weights-000002",
        ]
        served.script = ["restart"]  # it knows neither the adapters nor the weights under them
        assert engine.generate(*given, max_tokens=4) == found[1] and len(served.bytes) == 5
        engine.close()
        assert not [path for path in (tmp_path / "server").iterdir() if path.is_dir()]


@pytest.mark.parametrize("change", [{"lora": None}, {"lora": {"max_lora_rank": 1}}, {"environment": {}}])
def test_a_server_that_takes_no_adapters_is_named_and_may_have_whole_weights(asking, change):
    policy = adapted_policy()
    move_adapters(policy, 1)
    with serving(random_policy(1)) as served:
        vars(served).update({**LORA, **change})
        with pytest.raises(
            EngineFailed, match=r"takes? adapters of rank 4.*--max-lora-rank 8.*--engine\.transfer disk"
        ):
            asking(policy, options(url=served.url, rank=RANK)).sync(merged(policy))
        assert not served.bytes
        engine = asking(policy, options(url=served.url, rank=RANK, transfer="disk"))
        sync_engine(policy, engine, merged(policy))
        assert len(served.bytes) == 1 and not served.adapted


@pytest.mark.parametrize(
    "script", [["restart"], ["drop"], [(500, "EngineCore encountered an issue")], ["drop", "restart"]]
)
def test_a_server_that_comes_back_goes_on_with_the_same_samples(policy, other, asking, script):
    with serving(other) as served:
        engine = asking(policy, options(url=served.url))
        sync_engine(policy, engine, weights_of(policy))
        given = [text(9), text(12, 3)], ["a", "b"]
        before = engine.generate(*given, max_tokens=4)
        served.script = list(script)
        assert engine.generate(*given, max_tokens=4) == before and not served.script


def test_a_run_that_ends_waits_for_no_server_that_a_thread_still_asks(policy, asking):
    """With sampling ahead an error ends the run while its thread waits for a server; Python's exit would wait for that thread."""
    said = []

    def sample():
        try:
            engine.generate([text(9)], ["a"], max_tokens=4)
        except EngineFailed as error:
            said.append(str(error))

    with serving(policy) as served:
        engine = asking(policy, options(url=served.url))
        sync_engine(policy, engine, weights_of(policy))
        served.answer = lambda *_: (500, "unwell")
        sampling = threading.Thread(target=sample, daemon=True)
        sampling.start()
        until(engine._lock.locked)
        engine.close()
        sampling.join(10)
    assert said == ["the run has ended"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"vocabulary": 1000}, r"smaller vocabulary than random, which has 1,200 tokens"),
        ({"vocabulary": 1300}, r"larger vocabulary than random"),
        ({"max_model_len": 100}, r"--max-model-len 100, and this run needs 401"),
        (
            {"options": {"dtype": "torch.bfloat16", "logprobs_mode": "processed_logprobs"}},
            r"--dtype bfloat16, and.*float32",
        ),
        (
            {"options": {"dtype": "torch.float32", "logprobs_mode": "raw_logprobs"}},
            r"--logprobs-mode raw_logprobs",
        ),
        ({"load_format": "dummy"}, r"--load-format dummy"),
        ({"details": False}, r"--enable-prompt-tokens-details"),
        ({"options": {}}, r"answers in an unknown format"),
        (
            {"script": [(403, "Scale-out endpoints are disabled")]},
            r"VLLM_SERVER_DEV_MODE=1 and --enable-scale-out",
        ),
    ],
)
def test_a_server_that_does_not_fit_is_named_before_its_weights_are_replaced(policy, asking, change, said):
    with serving(policy) as served:
        vars(served).update(change)
        with pytest.raises(EngineFailed, match=rf"the sampling server at {served.url}.*{said}.*docs/llm\.md"):
            asking(policy, options(url=served.url)).sync(weights_of(policy))
        assert not any(path == "/collective_rpc" for path, _ in served.requests)


def test_weights_that_a_server_fails_to_load_are_named(policy, asking):
    with serving(policy) as served:
        answer = served.answer

        def failing(path, body):
            return (500, "shape mismatch") if path == "/collective_rpc" else answer(path, body)

        served.answer = failing
        with pytest.raises(
            EngineMismatch, match=r"failed to load the weights.*another model.*shape mismatch"
        ):
            asking(policy, options(0.2, url=served.url)).sync(weights_of(policy))


def test_prompts_whose_cached_part_is_no_number_are_scored_without_the_cache(policy, asking):
    refusal = (400, "Out of range float values are not JSON compliant")
    with serving(policy) as served:
        engine = asking(policy, options(0.2, url=served.url))
        engine.sync(weights_of(policy))
        [[expected]] = LocalEngine(policy).logprobs([text(6)], [[text(2, 9)]])
        served.script = [refusal]
        assert engine.logprobs([text(6)], [[text(2, 9)]])[0][0] == pytest.approx(expected, abs=1e-4)
        served.script = [refusal, refusal]
        with pytest.raises(NotFinite, match="its weights are broken"):
            engine.logprobs([text(6)], [[text(2, 9)]])


def test_a_server_without_the_routes_of_weights_is_named(policy, asking):
    class Handler(QuietHandler):
        def do_GET(self):
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()

    with (
        listening(Handler) as url,
        pytest.raises(EngineFailed, match="which weights.*VLLM_SERVER_DEV_MODE=1"),
    ):
        asking(policy, options(url=url)).sync(weights_of(policy))


def test_no_server_at_the_address_is_said_at_once(policy, asking):
    began = time.monotonic()
    with pytest.raises(EngineFailed, match=r"http://127\.0\.0\.1:9 does not answer.*start it"):
        asking(policy, options(url="http://127.0.0.1:9")).sync(weights_of(policy))
    assert time.monotonic() - began < 5


def test_a_server_that_stays_away_ends_the_run_which_stays_resumable(tmp_path):
    """It serves the start's measurement and one iteration; its address is in the message, and so is the way on."""
    with serving(load_policy("tiny", "sokoban"), max_model_len=1 << 20) as served:
        small = dataclasses.replace(
            options(minutes=0.06, url=served.url), iterations=3, checkpoint_every=1, tstar=False
        )
        rollout = dataclasses.replace(
            small.rollout, tasks_per_iteration=1, group_size=2, horizon=1, max_tokens=4, context_tokens=None
        )
        evaluation = dataclasses.replace(small.evaluation, tasks=1, samples=1, greedy=False)
        small = dataclasses.replace(small, rollout=rollout, evaluation=evaluation)

        def stop(number, metrics):
            served.script = [(503, "gone")] * 1_000
            served.answer = lambda path, body: (503, {"error": "gone"})

        with pytest.raises(EngineFailed) as caught:
            train(small, tmp_path / "run", Console(quiet=True), callback=stop)
    said = str(caught.value)
    assert served.url in said and "503" in said and "Start it again" in said
    assert "up to iteration 1 is saved" in said and "--resume" in said
    assert (tmp_path / "run" / "checkpoints" / "000001").is_dir()


# ---------------------------------------------------------------------- ranks


class Meeting(SingleProcess):
    """A communicator of ranks that are threads; calls that do not match end in a broken barrier."""

    def __init__(self, rank, size, places, barrier):
        self.rank, self.size, self._places, self._barrier = rank, size, places, barrier

    def _put(self, value):
        self._places[self.rank] = value
        self._barrier.wait()
        found = list(self._places)
        self._barrier.wait()
        return found

    def all_reduce(self, values):
        found = self._put(values.clone())
        assert len({value.shape for value in found}) == 1
        return values.copy_(sum(found))

    def gather(self, value):
        found = self._put(value)
        return [] if self.rank else found

    def broadcast(self, value):
        return self._put(value)[0]


def on_two_ranks(work):
    """Run ``work(world)`` as two ranks; what each returned or raised."""
    places, barrier, found = [None, None], threading.Barrier(2, timeout=20), {}

    def rank(number):
        try:
            found[number] = work(Meeting(number, 2, places, barrier))
        except Exception as error:  # compared by the test
            found[number] = error

    threads = [threading.Thread(target=rank, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found[0], found[1]


def ranks(policy, config, out, meanwhile=lambda world: None):
    """Two ranks of one run: synced as ``build`` does, then asked."""

    def work(world):
        engine = VLLMServerEngine(policy, config, world, None if world.rank else out)
        try:
            with raise_on_any_rank(world):
                meanwhile(world)
                engine.sync(weights_of(policy))
            return engine.generate([text(9)], ["a"], max_tokens=4)
        finally:
            engine.close()

    return on_two_ranks(work)


def test_two_ranks_ask_one_server_and_the_first_hands_over(policy, other, tmp_path):
    with serving(other) as served:
        first, second = ranks(policy, options(0.2, url=served.url), tmp_path)
        assert first == second and len(first[0].ids) == 4
        assert [path for path, _ in served.requests].count("/collective_rpc") == 1


def test_what_fails_on_one_rank_fails_on_all(policy, tmp_path):
    with serving(policy, max_model_len=100) as served:
        found = ranks(policy, options(0.2, url=served.url), tmp_path)
        assert [type(error) for error in found] == [EngineFailed] * 2 and "max-model-len 100" in str(found[1])

    def fails_on_the_second(world):
        if world.rank:
            raise EngineMismatch("the second rank's")

    with serving(policy) as served:
        found = ranks(policy, options(0.2, url=served.url), tmp_path, fails_on_the_second)
    assert [str(error) for error in found] == ["the second rank's"] * 2


# ---------------------------------------------------------------------- the process


def process(code, log):
    return ServerProcess(lambda: [sys.executable, "-c", code], dict(os.environ), log)


def test_a_process_that_dies_before_it_served_is_not_started_again(tmp_path):
    one = process("print('no such model'); raise SystemExit(3)", tmp_path / "log.txt")
    until(lambda: one.failure is not None)
    assert one.failure == "ended with exit code 3" and "no such model" in one.last_lines()
    one.end()


def running(group):
    """Whether any process of a group runs; one that has ended stays listed until its parent asks."""
    states = [path.read_text().rpartition(")")[2].split() for path in Path("/proc").glob("[0-9]*/stat")]
    return any(int(state[2]) == group and state[0] != "Z" for state in states)


def test_a_process_that_served_is_started_again_and_ended_with_its_children(tmp_path):
    sleeps = "import time; time.sleep(60)"
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', '{sleeps}']); print('up', flush=True); {sleeps}"
    one = process(code, tmp_path / "log.txt")
    one.served = True
    until(lambda: one.last_lines().count("up") == 1)
    first = one._process.pid
    os.kill(first, signal.SIGKILL)
    until(lambda: one.last_lines().count("up") == 2)
    second = one._process.pid
    one.end()
    until(lambda: not any(map(running, (first, second))))
