"""Trained policies as agents for ``python -m tstar_envs eval``: the built-in one (``tiny``), or any checkpoint."""

from __future__ import annotations

from typing import Any

import torch

from tstar_envs import find_entry
from tstar_train.policy.model import ONE_THREAD_BELOW, Policy, load_policy
from tstar_train.presets import TINY_ENV_OPTIONS
from tstar_train.rollout.local import LocalEngine


class PolicyAgent:
    """Plays one episode at a time with the local engine.

    Args:
        policy: model and codec.
        prompt: the environment's rules, for codecs that show them.
        seed: of the samples.
        temperature: 0 is greedy.
        max_tokens: longest reply.
        env_options: options of the environment that the policy was trained with.
    """

    def __init__(
        self, policy: Policy, prompt: str, seed: int, temperature: float, max_tokens: int, env_options: dict[str, Any]
    ) -> None:
        self.env_options = env_options
        self._engine = LocalEngine(policy)
        self._codec = policy.codec
        self._prompt = prompt
        self._seed = seed
        self._temperature = temperature
        self._max_tokens = max_tokens
        self._context: list[int] = []
        self._reply: list[int] = []
        self._episode = ""
        self._turn = 0

    def reset(self, observation: str, info: dict[str, Any]) -> None:
        """A new episode; ``info["sample"]``, where the runner gives it, names the draw among those of one task."""
        self._engine.forget()
        self._episode = f"{info['task_id']}/{info.get('sample', 0)}"
        self._context = self._codec.start(self._prompt, observation)
        self._reply = []
        self._turn = 0

    def act(self, observation: str, info: dict[str, Any]) -> str:
        """The next reply."""
        if self._reply:
            ending = [] if self._reply[-1] == self._codec.end else [self._codec.end]
            self._context += [*self._reply, *ending, *self._codec.observation(observation)]
        seed = f"{self._seed}/{self._episode}/{self._turn}"
        sample = self._engine.generate(
            [self._context], [seed], max_tokens=self._max_tokens, temperature=self._temperature, keys=[0]
        )[0]
        self._reply = sample.ids
        self._turn += 1
        return self._codec.decode(sample.ids)


def load_agent(
    env_id: str, seed: int, temperature: float = 1.0, model: str = "tiny", max_tokens: int | None = None
) -> PolicyAgent:
    """An agent from the built-in weights, a checkpoint folder, or a Hugging Face model.

    Args:
        env_id: environment it will play.
        seed: of its samples.
        temperature: 0 is greedy.
        model: as for the trainer's ``--model``.
        max_tokens: longest reply; None: 64 for ``tiny``, else 512.
    """
    entry = find_entry(env_id)
    policy = load_policy(model, entry.family)
    if policy.parameters < ONE_THREAD_BELOW:
        torch.set_num_threads(1)
    options = dict(TINY_ENV_OPTIONS.get(entry.family, {})) if model == "tiny" else {}
    prompt = entry.load_class()(**{**entry.kwargs, **options}).prompt()
    return PolicyAgent(policy, prompt, seed, temperature, max_tokens or (64 if model == "tiny" else 512), options)
