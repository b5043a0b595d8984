"""Trained policies as agents for ``python -m tstar_envs eval``: ``tiny``, or ``tiny:PATH`` for a checkpoint or any model."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from tstar_envs import EnvEntry, ResetNeeded, TextEnv, UnknownOption, find_entry
from tstar_envs.redaction import HIDDEN
from tstar_train.config import Config
from tstar_train.engines.local import LocalEngine
from tstar_train.policy.chat import SearchR1Codec
from tstar_train.policy.files import imitated_form, is_tiny, recipe_of_policy
from tstar_train.policy.kv import ContextTooLong, position_limit
from tstar_train.policy.model import Policy, load_policy, set_threads
from tstar_train.recipes.recipe import EnvRecipe, policy_name
from tstar_train.rollout.player import Transcript

_ONE_AT_A_TIME = threading.Lock()  # model calls in parallel threads take longer than one after the other


class PolicyAgent:
    """Agent that plays one episode at a time with the local engine.

    If the context leaves no room for a reply, even without older turns, it returns empty replies until the episode ends.

    Args:
        policy: model and codec.
        prompt: the environment's rules, for codecs that use them.
        seed: seed of the samples.
        temperature: sampling temperature; 0 is greedy.
        max_tokens: maximum reply length in tokens.
        seen: context options of the policy, and the environment's options.

    Attributes:
        env_options: options that the environment must be made with.
        engine: engine that samples the replies.
    """

    def __init__(
        self, policy: Policy, prompt: str, seed: int, temperature: float, max_tokens: int, seen: EnvRecipe
    ) -> None:
        self.env_options = dict(seen.options)
        self._seen = seen
        self.engine = LocalEngine(policy)
        self._policy = policy
        self._codec = policy.codec
        self._prompt = prompt
        self._seed = seed
        self._temperature = temperature
        self._max_tokens = max_tokens
        self._transcript: Transcript | None = None
        self._reply: list[int] = []
        self._episode = ""
        self._turn = 0
        self._stuck = False

    def another(self) -> PolicyAgent:
        """Make an agent with the same weights, for another episode at the same time."""
        twin = PolicyAgent(
            self._policy, self._prompt, self._seed, self._temperature, self._max_tokens, self._seen
        )
        twin._codec = self._codec
        return twin

    def bind(self, env: TextEnv[Any, Any]) -> None:
        """Use the rules and the conversation format of an environment, which depend on its options."""
        self._prompt = env.prompt()
        own = self._policy.codec
        self._codec = (
            SearchR1Codec(self._policy.tokenizer, own.ends) if env.prompt_style == "search_r1" else own
        )

    def reset(self, observation: str, info: dict[str, Any]) -> None:
        """Start an episode; ``info["sample"]``, if given, is the index of this episode among those of its task."""
        self.engine.clear_cache()
        self._episode = f"{info['task_id']}/{info.get('sample', 0)}"
        seen = self._seen
        self._transcript = Transcript(
            self._codec, self._prompt, info["instruction"], observation, seen.context, seen.history
        )
        self._reply = []
        self._turn = 0
        self._stuck = False

    def act(self, observation: str, info: dict[str, Any]) -> str:
        """Sample the next reply of the policy.

        Raises:
            ResetNeeded: ``reset`` was not called.
            ContextTooLong: the rules and the first observation alone are too long for this model.
        """
        if self._transcript is None:
            raise ResetNeeded("the agent has no episode yet: call reset(observation, info) first")
        if self._stuck:
            return ""
        if self._reply:
            self._transcript.add(self._reply, observation)
        try:
            context = self._transcript.context(self.engine.limit - self._max_tokens)
        except ContextTooLong:
            if not self._turn:
                raise
            self._stuck = True
            return ""
        seed = f"{self._seed}/{self._episode}/{self._turn}"
        with _ONE_AT_A_TIME:
            sample = self.engine.generate(
                [context], [seed], max_tokens=self._max_tokens, temperature=self._temperature, keys=[0]
            )[0]
        self._reply = self._codec.closed(sample.ids)
        self._turn += 1
        return self._codec.decode(self._reply)


def environment_options(env_id: str, model: str = "tiny") -> dict[str, Any]:
    """Look up the environment options that a policy was trained with, without reading its weights.

    Args:
        env_id: environment id.
        model: ``tiny``, or a path or name as for ``load_agent``; a model that no run made has no options.
    """
    return dict(settings_seen(model, find_entry(env_id)).options)


def settings_seen(model: str, entry: EnvEntry) -> EnvRecipe:
    """Look up what a policy saw in training: a tiny policy's recipe, or the options of the run or imitation that made it.

    Args:
        model: ``tiny``, or a path or name as for ``load_agent``; one that nothing here made has the defaults.
        entry: the environment to play.

    Raises:
        BadData, UnknownOption: the run's ``config.json``, or the imitation's ``training.json``, cannot be read.
    """
    if is_tiny(model):
        return recipe_of_policy(model, entry).env
    path = Path(model).expanduser().absolute()
    for folder in (path.parent.parent, path.parent):  # RUN/checkpoints/NUMBER and RUN/best
        if (path / "state.json").is_file() and (folder / "config.json").is_file():
            config = Config.from_json(folder / "config.json")
            rollout = config.rollout
            kin = [env for env in config.environments if find_entry(env).family == entry.family]
            own = config.of(entry.id if entry.id in kin else kin[0]).env_options if kin else {}
            options = {k: v for k, v in own.items() if HIDDEN not in str(v)}
            return EnvRecipe((), options, rollout.context, rollout.history, rollout.max_tokens)
    return imitated_form(model, entry) or EnvRecipe()


def load_agent(
    env_id: str, seed: int, temperature: float = 1.0, model: str = "tiny", max_tokens: int | None = None
) -> PolicyAgent:
    """Load an agent from the built-in weights, a checkpoint folder, or a Hugging Face model.

    Args:
        env_id: id of the environment to play.
        seed: seed of the samples.
        temperature: sampling temperature; 0 is greedy.
        model: model name or path, as for the trainer's ``--model``.
        max_tokens: maximum reply length in tokens. None is that of a tiny policy's recipe, or of the run that a checkpoint belongs to; for
            other models the default of a run. At most a quarter of the model's limit.

    Raises:
        UnknownOption: the maximum reply length leaves no room for a context.

    Example:
        >>> import gymnasium, tstar_envs
        >>> agent = load_agent("tstar/Blocksworld-stack", seed=0, temperature=0)
        >>> env = gymnasium.make("tstar/Blocksworld-stack", **agent.env_options).unwrapped
        >>> agent.bind(env)
        >>> observation, info = env.reset(seed=0)
        >>> agent.reset(observation, info)
        >>> reply = agent.act(observation, info)
    """
    entry = find_entry(env_id)
    policy = load_policy(model, policy_name(entry))
    set_threads(policy)
    seen = settings_seen(model, entry)
    prompt = entry.load_class()(**{**entry.kwargs, **seen.options}).prompt()
    limit = position_limit(policy.model.config)
    longest = max_tokens or min(seen.max_tokens, max(1, limit // 4))
    if longest >= limit:
        raise UnknownOption(
            f"max_tokens={longest} leaves no room for a context: {model} takes {limit} tokens in total; try {limit // 4}"
        )
    return PolicyAgent(policy, prompt, seed, temperature, longest, seen)
