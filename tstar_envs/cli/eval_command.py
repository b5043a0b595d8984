"""The command line of ``eval``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from tstar_envs.bench.agents.chat import ChatOptions
from tstar_envs.bench.agents.endpoint import Endpoint

_KEY_VALUE = tyro.conf.arg(metavar="KEY=VALUE")


@dataclass(frozen=True, kw_only=True)
class EvalCommand:
    """Evaluate an agent: success with a 95 % interval, why it failed where it did, and what that cost.

    With --out every episode is appended to a file as it ends. The same command again resumes: episodes in the file are not
    played twice, those that ended in an error are. More --tasks or --samples extend a file; other settings are refused.
    """

    env: str | None = None
    """Environment id or short name, for example tstar/HotpotQA or hotpotqa."""
    agent: str
    """random, oracle, oracle:KIND, human, tiny, tiny:PATH (a trained policy), module:object (an agent, a class or factory, or a function),
    'command:PROGRAM ARGUMENTS' (JSON lines); and with --model: chat, direct, react, reflexion, search-o1."""
    split: str = "test"
    """train, valid or test (some environments have test alone)."""
    suite: str | None = None
    """Instead of --env: play all environments of a suite on the tasks of the panel. paper is the table of the paper; --out is a folder."""
    panel: str | None = None
    """Play the fixed test tasks of this panel (v1), so that results can be compared with those of others."""
    tasks: int | None = None
    """Play the first N tasks of the split, or of the panel; default: all."""
    samples: int = 1
    """Episodes per task."""
    seed: int = 0
    """Of the agent's sampling."""
    temperature: float | None = None
    """Of the agent's sampling, 0 is greedy; default: the agent's own (tiny: 1, a model behind an endpoint: 0)."""
    model: str | None = None
    """Agents that talk to an endpoint: name of the model, as the endpoint calls it."""
    base_url: str | None = None
    """Of the OpenAI-compatible endpoint, for example http://localhost:8000/v1; default: OPENAI_BASE_URL, or OpenAI's. The key is
    OPENAI_API_KEY."""
    concurrency: int | None = None
    """Episodes to play at the same time; default: 8 for agents that talk to an endpoint, else 1."""
    max_tokens: int = ChatOptions.max_tokens
    """Longest answer of a model."""
    context_tokens: int = ChatOptions.context_tokens
    """Bound on the messages of a request; the oldest turns are left out first, the rules, the task and the last turn never."""
    tools: bool = False
    """Let the model act by calling typed tools (search, click, move, ...) instead of writing an action. Of --agent chat."""
    timeout: float = Endpoint.timeout
    """Seconds for an answer, of a model or of a program."""
    retries: int = Endpoint.retries
    """How often a request is sent again that met 429, 5xx, a broken connection, no answer in time or one that cannot be read."""
    request: tyro.conf.UseAppendAction[Annotated[tuple[str, ...], _KEY_VALUE]] = ()
    """Further field of each request, its value as JSON (reasoning_effort=low); null leaves a field out (temperature=null)."""
    prices: Path | None = None
    """TOML file of prices for a million tokens; default: the shipped table (tstar_envs/bench/prices.toml shows the form)."""
    dry_run: bool = False
    """Play nothing: tell how many requests and tokens it will take, and what they cost."""
    progress: bool = False
    """Also tell how far each episode came: the expert's share of the way to the goal that is behind it, 0 for what is lost."""
    out: Path | None = None
    """JSON-lines file for the episodes; FILE.config.json beside it holds the settings. With --suite a folder, one file for each."""
    options_of: str | None = None
    """Play with the options that this agent wishes (for example tiny), whoever plays: agents are comparable only under the same."""
    option: tyro.conf.UseAppendAction[Annotated[tuple[str, ...], _KEY_VALUE]] = ()
    """Option of the environment, for example topk=1 or retriever=http://127.0.0.1:8000; may be repeated."""
