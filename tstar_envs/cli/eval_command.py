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
    """Evaluate an agent: success rate with a 95 % interval, failures by cause, and cost.

    With --out every episode is appended to a file as it ends. The same command again resumes: finished episodes in the file are
    kept, those that ended in an error are played again. More --tasks or --samples extend a file; other settings are refused.
    """

    env: str | None = None
    """Environment id or short name, for example tstar/HotpotQA or hotpotqa."""
    agent: str
    """Agent to evaluate: random, oracle, oracle:KIND, human, tiny (the built-in policy), tiny:PATH (a trained policy), module:object (an
    agent, class, factory or function), 'command:PROGRAM ARGUMENTS' (a program that speaks JSON Lines); with --model: chat, direct, react,
    reflexion or search-o1."""
    split: str = "test"
    """Split that the tasks come from: train, valid or test (some environments have only test)."""
    suite: str | None = None
    """Instead of --env: play all environments of this suite on the tasks of the panel; paper: those of the T-STAR paper's tables. --out is
    then a folder."""
    panel: str | None = None
    """Play the fixed test tasks of this panel (v1), so that results can be compared with other people's."""
    tasks: int | None = None
    """Play only the first N tasks of the split or panel; default: all."""
    samples: int = 1
    """Episodes per task."""
    seed: int = 0
    """Seed of the agent's sampling."""
    temperature: float | None = None
    """Sampling temperature of the agent, 0 is greedy; default: the agent's own (tiny: 1, a model behind an endpoint: 0)."""
    model: str | None = None
    """Name of the model at the endpoint, for agents that use one."""
    base_url: str | None = None
    """Base URL of the OpenAI-compatible endpoint, for example http://localhost:8000/v1; default: the environment variable OPENAI_BASE_URL,
    or OpenAI's address. The API key is read from OPENAI_API_KEY."""
    concurrency: int | None = None
    """Episodes to play at the same time; default: 8 for agents that use an endpoint, else 1."""
    max_tokens: int = ChatOptions.max_tokens
    """Maximum length of a model's answer in tokens."""
    context_tokens: int = ChatOptions.context_tokens
    """Maximum length of a request in tokens. The oldest turns are left out first; the rules, the task and the last turn are always kept."""
    tools: bool = False
    """With --agent chat: let the model act by tool calls (search, click, move, ...) instead of writing actions as text."""
    timeout: float = Endpoint.timeout
    """Seconds to wait for an answer of a model or program."""
    retries: int = Endpoint.retries
    """How many times a request is sent again after status 429 or 5xx, a broken connection, a timeout or an unreadable answer."""
    request: tyro.conf.UseAppendAction[Annotated[tuple[str, ...], _KEY_VALUE]] = ()
    """Additional field of every request, its value as JSON, for example reasoning_effort=low; null leaves a field out, as in
    temperature=null; may be repeated."""
    prices: Path | None = None
    """TOML file with prices per million tokens, in the form of tstar_envs/bench/prices.toml, which is the default."""
    dry_run: bool = False
    """Only estimate the requests, tokens and cost of the evaluation; nothing is sent."""
    progress: bool = False
    """Also measure the progress of each episode: the fraction of the expert's way to the goal that is done at its end; 0 if the goal cannot
    be reached any more."""
    out: Path | None = None
    """JSON Lines file to append the episodes to; FILE.config.json beside it holds the settings. With --suite: a folder, with one file per
    environment."""
    options_of: str | None = None
    """Play under the environment options that this agent asks for, for example tiny: agents are comparable only under equal options."""
    option: tyro.conf.UseAppendAction[Annotated[tuple[str, ...], _KEY_VALUE]] = ()
    """Option of the environment, for example topk=1 or retriever=http://127.0.0.1:8000; may be repeated."""
