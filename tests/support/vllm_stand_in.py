"""The endpoints of vLLM's server that ``--engine vllm-server`` asks, over the local engine, for machines without vLLM.

The real server is tested by scripts/test_vllm.sh; this one shows what the engine makes of servers that fail.
"""

from __future__ import annotations

import dataclasses
import json
import time
from contextlib import contextmanager
from copy import deepcopy
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Lock
from urllib.parse import urlsplit

import torch
from loopback import QuietHandler, listening
from policies import random_policy
from safetensors.torch import load_file

from tstar_envs import find_entry
from tstar_train.config import LoraConfig, ServerConfig
from tstar_train.engines.local import LocalEngine
from tstar_train.learner.base import tied
from tstar_train.policy.lora import add_adapters, merged_weights
from tstar_train.presets import tiny

LIMIT = 400
RANK, ALPHA = 4, 8
BASE = tiny(find_entry("sokoban-easy"))


def options(minutes=10.0, rank=0, **server):
    rollout = dataclasses.replace(BASE.rollout, context_tokens=LIMIT, max_sequences=16)
    return dataclasses.replace(
        BASE,
        engine="vllm-server",
        server=ServerConfig(**server),
        rollout=rollout,
        timeout_minutes=minutes,
        lora=LoraConfig(rank, ALPHA),
    )


def adapted_policy(seed=0):
    """A random policy with adapters, which change nothing yet."""
    policy = random_policy(seed)
    add_adapters(policy.model, RANK, ALPHA)
    return policy


def move_adapters(policy, seed):
    """Give the adapters new values, large enough to change what is sampled."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if ".lora_B." in name:
                parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))


def merged(policy):
    return [(name, tensor) for name, tensor in merged_weights(policy.model) if not tied(policy.model, name)]


def weights_of(policy):
    return [
        (name, tensor) for name, tensor in policy.model.state_dict().items() if not tied(policy.model, name)
    ]


def text(length, start=0):
    return [(5 + 29 * (start + n)) % 1000 for n in range(length)]


def flat(scores):
    return [value for group in scores for value in group]


def until(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class Served:
    """State of one stand-in: its model, the version of its weights, and what is wrong with it."""

    def __init__(self, policy, max_model_len=401):
        self.start, self.requests = deepcopy(policy), []
        self.url, self.max_model_len, self.vocabulary = "", max_model_len, policy.model.config.vocab_size
        self.options = {"dtype": "torch.float32", "logprobs_mode": "processed_logprobs"}
        self.load_format, self.details = "auto", True
        self.lora, self.environment = None, {}  # what it says of --enable-lora, and of its variables
        self.bytes = []  # of each file of weights that it read
        self.script = []  # of what to do in place of the next answers: a status with a text, "restart", "drop"
        self.restart()

    def restart(self):
        """Forget all weights that came, as a process that starts again does."""
        self.policy, self.version = deepcopy(self.start), "default"
        self.engine, self.adapted = LocalEngine(self.policy), {}

    def answer(self, path, body):
        """Return (status, JSON) of a request."""
        if path == "/weight_info":
            return 200, {"weight_version": self.version}
        if path == "/v1/models":
            names = [{"id": name, "max_model_len": None} for name in self.adapted]
            return 200, {"data": [{"id": "base", "max_model_len": self.max_model_len}, *names]}
        if path == "/server_info":
            known = {"model_config": self.options, "load_config": {"load_format": self.load_format}}
            known |= {"weight_transfer_config": None, "lora_config": self.lora}
            return 200, {"vllm_config": known, "vllm_env": self.environment}
        if path == "/v1/load_lora_adapter":
            self.adapted[body["lora_name"]] = self.with_adapters(Path(body["lora_path"]))
            return 200, "Success: no JSON"
        if path == "/v1/unload_lora_adapter":
            del self.adapted[body["lora_name"]]
            return 200, "Success: no JSON"
        if path == "/collective_rpc":
            weights = self.read(Path(body["kwargs"]["weights_path"]) / "model.safetensors")
            try:
                self.policy.model.load_state_dict(weights, strict=False)
            except RuntimeError as error:
                return 500, {"error": {"message": str(error)}}
            self.engine.sync(())
            return 200, {"results": [None]}
        if path == "/update_weight_version":
            self.version = body["new_version"]
        if path == "/inference/v1/generate":
            name = body.get("model", "base")
            if name != "base" and name not in self.adapted:
                return 404, {"error": {"message": f"The model `{name}` does not exist."}}
            policy = self.policy if name == "base" else self.adapted[name]
            return self.generated(policy, body["token_ids"], body["sampling_params"])
        return 200, {"success": True}

    def read(self, file):
        self.bytes.append(file.stat().st_size)
        return load_file(file)

    def with_adapters(self, folder):
        """Return the policy with a peft folder's adapters added to its weights."""
        config, tensors = (
            json.loads((folder / "adapter_config.json").read_text()),
            self.read(folder / "adapter_model.safetensors"),
        )
        policy = deepcopy(self.policy)
        for name, low in tensors.items():
            if name.endswith(".lora_A.weight"):
                module = policy.model.get_submodule(name[len("base_model.model.") : -len(".lora_A.weight")])
                high = tensors[name.replace("lora_A", "lora_B")]
                module.weight.data += config["lora_alpha"] / config["r"] * high @ low
        return policy

    def generated(self, policy, ids, params):
        """Answer one request for tokens."""
        if any(token >= self.vocabulary for token in params.get("allowed_token_ids", [])):
            return 400, {"error": {"message": "allowed_token_ids contains out-of-vocab token id!"}}
        engine = self.engine if policy is self.policy else LocalEngine(policy)
        [sample] = engine.generate(
            [ids],
            [str(params.get("seed"))],
            max_tokens=params["max_tokens"],
            temperature=params.get("temperature", 1.0),
        )
        pairs = zip(sample.ids, sample.logprobs, strict=True)
        content = [{"token_id": token, "logprob": logprob} for token, logprob in pairs]
        scored = None
        if params.get("prompt_logprobs") is not None:
            with torch.no_grad():
                given = torch.tensor([ids])
                logprobs = torch.log_softmax(policy.model(given).logits[0, :-1], dim=-1)
            values = logprobs.gather(-1, given[0, 1:, None])[:, 0].tolist()
            scored = [None, *({str(t): {"logprob": v}} for t, v in zip(ids[1:], values, strict=True))]
        choice = {
            "token_ids": sample.ids,
            "finish_reason": "length",
            "logprobs": {"content": content} if params.get("logprobs") is not None else None,
            "weight_versions": [{"version": self.version, "start": 0, "end": len(sample.ids)}],
        }
        usage = {"prompt_tokens_details": {"cached_tokens": 0} if self.details else None}
        return 200, {"choices": [choice], "usage": usage, "prompt_logprobs": scored}


@contextmanager
def serving(policy, **options):
    """Serve a copy of a policy on loopback; gives its state, with the address."""
    served, lock = Served(policy, **options), Lock()

    class Handler(QuietHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            self.reply(None)

        def do_POST(self):
            length = int(self.headers.get("Content-Length", 0))
            self.reply(json.loads(self.rfile.read(length)) if length else None)

        def reply(self, body):
            path = urlsplit(self.path).path
            served.requests.append((path, dict(self.headers)))
            status, said = 0, None
            if path == "/inference/v1/generate" and served.script:
                done = served.script.pop(0)
                if done == "restart":
                    served.restart()
                elif done == "drop":
                    self.close_connection = True
                    return
                else:
                    status, said = done
            if not status:
                with lock:
                    status, said = served.answer(path, body)
            content = json.dumps(said).encode() if not isinstance(said, str) else said.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    assert issubclass(Handler, BaseHTTPRequestHandler)
    with listening(Handler) as url:
        served.url = url
        yield served
