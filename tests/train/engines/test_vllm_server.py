"""``--engine vllm-server``: options, failures of a server, and the real one (scripts/test_vllm.sh, skipped without vLLM)."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from loopback import QuietHandler, listening
from policies import random_policy
from rich.console import Console
from vllm_stand_in import serving

from tstar_envs import MissingExtra, UnknownOption, find_entry
from tstar_train.__main__ import main
from tstar_train.config import Config, ServerConfig
from tstar_train.config_check import check
from tstar_train.distributed import SingleProcess
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
from tstar_train.learner.base import tied
from tstar_train.policy.model import load_policy
from tstar_train.presets import tiny
from tstar_train.run import train

needs_vllm = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None,
    reason="vLLM is not installed; scripts/test_vllm.sh makes an environment with it",
)
LIMIT = 400
BASE = tiny(find_entry("sokoban-easy"))


def options(minutes=10.0, **server):
    rollout = dataclasses.replace(BASE.rollout, context_tokens=LIMIT, max_sequences=16)
    return dataclasses.replace(
        BASE, engine="vllm-server", server=ServerConfig(**server), rollout=rollout, timeout_minutes=minutes
    )


def weights_of(policy):
    return [
        (name, tensor) for name, tensor in policy.model.state_dict().items() if not tied(policy.model, name)
    ]


def text(length, start=0):
    return [(5 + 29 * (start + n)) % 1000 for n in range(length)]


def flat(scores):
    return [value for group in scores for value in group]


@pytest.fixture(scope="module")
def policy():
    return random_policy(0)


@pytest.fixture
def other():
    return random_policy(1)


@pytest.fixture
def asking():
    """Make engines, and close them."""
    made = []

    def engine(policy, config, out=None):
        made.append(VLLMServerEngine(policy, config, SingleProcess(), out))
        return made[-1]

    yield engine
    for each in made:
        each.close()


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
        ("vllm-server", {"transfer": "rdma"}, r"--engine\.transfer must be one of auto, disk, ipc, nccl"),
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
            options(minutes=0.1, url=served.url), iterations=3, checkpoint_every=1, tstar=False
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


# ---------------------------------------------------------------------- the process


def process(code, log):
    return ServerProcess(lambda: [sys.executable, "-c", code], dict(os.environ), log)


def until(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


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


# ---------------------------------------------------------------------- vLLM itself


@pytest.fixture(scope="module")
def real(policy, tmp_path_factory):
    engine = VLLMServerEngine(policy, options(), SingleProcess(), tmp_path_factory.mktemp("run"))
    yield engine
    engine.close()


@pytest.fixture
def synced(policy, real):
    sync_engine(policy, real, weights_of(policy))
    return real


def largest_gap(policy, context, sample, temperature=1.0):
    with torch.no_grad():
        logits = policy.model(torch.tensor([context + sample.ids])).logits[0, len(context) - 1 : -1]
    theirs = torch.log_softmax(logits / temperature, dim=-1)
    return float(
        (theirs.gather(-1, torch.tensor(sample.ids)[:, None])[:, 0] - torch.tensor(sample.logprobs))
        .abs()
        .max()
    )


@needs_vllm
@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
def test_log_probabilities_of_samples_are_the_policys(policy, synced, temperature):
    contexts, seeds = [text(20), text(70, 3)], list("abcd")
    samples = synced.generate(contexts, seeds, max_tokens=24, temperature=temperature, copies=2)
    for number, sample in enumerate(samples):
        assert largest_gap(policy, contexts[number // 2], sample, temperature or 1.0) < 1e-4
    again = synced.generate(contexts, seeds, max_tokens=24, temperature=temperature, copies=2)
    assert [s.ids for s in again] == [s.ids for s in samples]
    if temperature:
        assert samples[0].ids != samples[1].ids
    else:
        local = LocalEngine(policy).generate(contexts, ["a", "b"], max_tokens=24, temperature=0.0)
        assert [s.ids for s in samples[::2]] == [s.ids for s in local]


@needs_vllm
def test_scores_are_the_local_engines_also_where_the_cache_holds_the_continuation(policy, synced):
    context = text(70)
    sample = synced.generate([context], ["long"], max_tokens=100)[0]
    tails = [[sample.ids, sample.ids[:64], text(9, 4), []]]
    theirs = flat(LocalEngine(policy).logprobs([context], tails))
    for _ in range(2):
        assert flat(synced.logprobs([context], tails)) == pytest.approx(theirs, abs=2e-3)


@needs_vllm
def test_every_matrix_that_changes_arrives(policy, synced):
    """The tied output matrix too, which a packed copy would hold back."""
    changed = random_policy(0)
    for name, parameter in changed.model.named_parameters():
        if parameter.dim() == 1:
            continue
        with torch.no_grad():
            parameter.mul_(1.1)
        synced.sync(weights_of(changed))
        [sample] = synced.generate([text(30)], [name], max_tokens=8)
        assert largest_gap(changed, text(30), sample) < 1e-4, name


@needs_vllm
def test_limits_are_the_local_engines(synced):
    assert synced.limit == LIMIT and len(synced.generate([text(LIMIT - 3)], ["s"], max_tokens=9)[0].ids) <= 3
    assert synced.logprobs([text(LIMIT - 4)], [[text(4)]])[0][0] < 0


SMALL = (
    "--env sokoban-easy --iterations 3 --checkpoint-every 1 --rollout.tasks-per-iteration 2 --rollout.group-size 4 "
    "--evaluation.tasks 2 --evaluation.samples 1 --optim.num-minibatches 1 --engine vllm-server"
).split()


def started(out, *more):
    command = [sys.executable, "-m", "tstar_train", *SMALL, "--out", str(out), *more]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finished(run):
    said = run.communicate(timeout=500)[0]
    assert run.returncode == 0, said[-3000:]


def lines_of(out):
    path = out / "metrics.jsonl"
    return path.read_text().splitlines() if path.exists() else []


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@needs_vllm
def test_a_run_whose_server_is_killed_once_goes_on_as_the_undisturbed_one(tmp_path):
    plain = started(tmp_path / "plain")
    finished(plain)
    disturbed = started(tmp_path / "killed")
    until(lambda: len(lines_of(tmp_path / "killed")) == 1, 400)
    [server] = [
        pid for pid in children(disturbed.pid) if b"serve_vllm" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    os.kill(server, signal.SIGKILL)
    finished(disturbed)
    assert lines_of(tmp_path / "killed") == lines_of(tmp_path / "plain")
    for line in lines_of(tmp_path / "killed"):
        assert 0 < json.loads(line)["logprob_difference_max"] < 1e-3
    log = (tmp_path / "killed" / "server" / "log.txt").read_text()
    assert log.count("Application startup complete") == 2
    assert not list((tmp_path / "killed" / "server").glob("weights-*"))


@needs_vllm
def test_the_server_ends_with_a_run_that_is_killed(tmp_path):
    run = started(tmp_path / "run")
    until(lambda: len(lines_of(tmp_path / "run")) == 1, 400)
    servers = [pid for pid in children(run.pid) if b"serve_vllm" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    workers = [inner for pid in servers for inner in children(pid)]
    run.kill()
    run.wait()
    run.stdout.close()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in servers + workers), 60)


@needs_vllm
def test_two_ranks_ask_one_server(tmp_path):
    run = started(tmp_path / "run", "--processes", "2", "--iterations", "1")
    finished(run)
    [metrics] = map(json.loads, lines_of(tmp_path / "run"))
    assert 0 < metrics["logprob_difference_max"] < 1e-3 and metrics["gradient_norm"] > 0


def given_server(policy, folder, port, log):
    """The command of docs/llm.md, for vLLM's CPU build."""
    policy.model.save_pretrained(folder)
    command = [
        sys.executable,
        "-m",
        "tstar_train.engines.serve_vllm",
        str(folder),
        "--port",
        str(port),
        "--host",
        "127.0.0.1",
    ]
    command += (
        "--dtype float32 --max-model-len 401 --logprobs-mode processed_logprobs --skip-tokenizer-init".split()
    )
    command += "--enable-scale-out --enable-prompt-tokens-details --generation-config vllm --enforce-eager --block-size 32".split()
    more = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    with log.open("ab") as output:
        return subprocess.Popen(
            command, env={**os.environ, **more}, stdout=output, stderr=output, start_new_session=True
        )


@pytest.fixture
def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def well(port):
    client = Client(f"http://127.0.0.1:{port}", 5.0, 1)

    def answers():
        try:
            client.ask("GET", "/health")
        except NoAnswerError:
            return False
        return True

    return answers


@needs_vllm
def test_a_given_server_is_killed_and_started_again_by_its_owner(policy, other, asking, tmp_path, free_port):
    def serve():
        return given_server(other, tmp_path / "model", free_port, tmp_path / "log.txt")

    given = [text(20), text(70, 3)], ["a", "b"]
    server = serve()
    try:
        until(well(free_port), 300)
        engine = asking(policy, options(url=f"http://127.0.0.1:{free_port}"), tmp_path / "run")
        sync_engine(policy, engine, weights_of(policy))
        before = engine.generate(*given, max_tokens=16)
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        found = []
        asks = threading.Thread(target=lambda: found.extend(engine.generate(*given, max_tokens=16)))
        asks.start()
        server = serve()
        asks.join(300)
        assert [s.ids for s in found] == [s.ids for s in before]
        assert largest_gap(policy, given[0][0], found[0]) < 1e-4
        shorter = random_policy(0)
        shorter.model.resize_token_embeddings(1100)
        with pytest.raises(
            EngineFailed, match="serves a larger vocabulary than random, which has 1,100 tokens"
        ):
            asking(shorter, options(url=f"http://127.0.0.1:{free_port}"), tmp_path / "wrong").sync(
                weights_of(shorter)
            )
        deeper = dataclasses.replace(options(url=f"http://127.0.0.1:{free_port}"))
        deeper = dataclasses.replace(deeper, rollout=dataclasses.replace(deeper.rollout, context_tokens=800))
        with pytest.raises(EngineFailed, match="--max-model-len 401, and this run needs 801"):
            asking(policy, deeper, tmp_path / "wrong").sync(weights_of(policy))
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
