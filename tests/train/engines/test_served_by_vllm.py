"""``--engine vllm-server`` with vLLM: run by scripts/test_vllm.sh in an environment that has it, skipped elsewhere."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from policies import random_policy
from vllm_stand_in import (
    LIMIT,
    RANK,
    adapted_policy,
    flat,
    merged,
    move_adapters,
    options,
    text,
    until,
    weights_of,
)

from tstar_train.distributed import SingleProcess
from tstar_train.engines.base import EngineFailed
from tstar_train.engines.check import sync_engine
from tstar_train.engines.local import LocalEngine
from tstar_train.engines.vllm_server import VLLMServerEngine
from tstar_train.engines.vllm_serving import Client, NoAnswerError

pytest.importorskip("vllm", reason="vLLM is not installed; scripts/test_vllm.sh makes an environment with it")


@pytest.fixture
def adapted():
    return adapted_policy()


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


def test_scores_are_the_local_engines_also_where_the_cache_holds_the_continuation(policy, synced):
    context = text(70)
    sample = synced.generate([context], ["long"], max_tokens=100)[0]
    tails = [[sample.ids, sample.ids[:64], text(9, 4), []]]
    theirs = flat(LocalEngine(policy).logprobs([context], tails))
    for _ in range(2):
        assert flat(synced.logprobs([context], tails)) == pytest.approx(theirs, abs=2e-3)


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


def test_limits_are_the_local_engines(synced):
    assert synced.limit == LIMIT and len(synced.generate([text(LIMIT - 3)], ["s"], max_tokens=9)[0].ids) <= 3
    assert synced.logprobs([text(LIMIT - 4)], [[text(4)]])[0][0] < 0


def test_samples_follow_adapters_also_after_the_server_is_killed(adapted, asking, tmp_path):
    engine = asking(adapted, options(rank=RANK), tmp_path)
    given = [text(20), text(70, 3), text(70)], ["a", "b", "c"]
    found = []
    for seed in (0, 1, 2):
        if seed:  # the first adapters change nothing, as at the start of a run
            move_adapters(adapted, seed)
        sync_engine(adapted, engine, merged(adapted))
        for _ in range(2):  # from the prompts, and from the cache of these adapters
            samples = engine.generate(*given, max_tokens=24)
            for context, sample in zip(given[0], samples, strict=True):
                assert largest_gap(adapted, context, sample) < 1e-4
        found.append([sample.ids for sample in samples])
        tails = [[samples[0].ids, samples[0].ids[:9], []], [text(9, 4)], [text(3, 5)]]
        theirs = flat(LocalEngine(adapted).logprobs(given[0], tails))
        assert flat(engine.logprobs(given[0], tails)) == pytest.approx(theirs, abs=2e-3)
    assert found[0] != found[1] != found[2]
    [server] = [
        pid
        for pid in children(os.getpid())
        if str(tmp_path).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    os.kill(server, signal.SIGKILL)
    again = engine.generate(*given, max_tokens=24)
    assert [sample.ids for sample in again] == found[2] and largest_gap(adapted, given[0][0], again[0]) < 1e-4
    move_adapters(adapted, 3)
    sync_engine(adapted, engine, merged(adapted))
    log = (tmp_path / "server" / "log.txt").read_text()
    assert log.count("Application startup complete") == 2
    assert log.count("Loaded new LoRA adapter") == 5 and log.count("Removed LoRA adapter") == 3


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
    ours, theirs = ([json.loads(line) for line in lines_of(tmp_path / name)] for name in ("killed", "plain"))
    assert len(ours) == len(theirs) == 3
    for one, other in zip(ours, theirs, strict=True):
        assert 0 < one["logprob_difference_max"] < 1e-3
        # The same samples; requests meet in other batches, which shows in the last digits.
        assert one["tokens_sampled"] == other["tokens_sampled"] and one["success"] == other["success"]
        for name in ("reward", "entropy", "gradient_norm", "tree_nodes_after", "response_tokens"):
            wanted = other.get(name)  # None where there was nothing to measure
            assert one.get(name) == (wanted and pytest.approx(wanted, rel=1e-3, abs=1e-5)), name
    log = (tmp_path / "killed" / "server" / "log.txt").read_text()
    assert log.count("Application startup complete") == 2
    assert not list((tmp_path / "killed" / "server").glob("weights-*"))


def test_the_server_ends_with_a_run_that_is_killed(tmp_path):
    run = started(tmp_path / "run")
    until(lambda: len(lines_of(tmp_path / "run")) == 1, 400)
    servers = [pid for pid in children(run.pid) if b"serve_vllm" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    workers = [inner for pid in servers for inner in children(pid)]
    run.kill()
    run.wait()
    run.stdout.close()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in servers + workers), 60)


@pytest.mark.parametrize("more", [[], ["--lora.rank", "4"]])
def test_two_ranks_ask_one_server(tmp_path, more):
    run = started(tmp_path / "run", "--processes", "2", "--iterations", "1", *more)
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
