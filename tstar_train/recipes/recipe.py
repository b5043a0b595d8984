"""What a recipe says, a dataclass for each table of its file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from tstar_train.config import Config, RolloutConfig
from tstar_train.ranges import FROM_0, FROM_1, Range
from tstar_train.recipes.warm_start import WarmStartRecipe


@dataclass(frozen=True)
class EnvRecipe:
    """The table [env]: how a policy sees an environment, the same in its warm start, in training and as an agent.

    What holds in training alone (a shorter horizon, further options) is in [train], what is practised before it in [warm_start].
    The defaults are those of a run, for models that have no recipe.

    Attributes:
        plays: the environments whose built-in policy this is, by short name.
        options: of the environment (``Config.env_options``).
        context: ``concat`` or ``step`` (see ``rollout.transcript``).
        history: turns kept by ``step``.
        max_tokens: longest reply, in tokens.
    """

    plays: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    context: Literal["concat", "step"] = RolloutConfig.context
    history: Annotated[int, FROM_0] = RolloutConfig.history
    max_tokens: Annotated[int, FROM_1] = RolloutConfig.max_tokens


@dataclass(frozen=True)
class TokenizerRecipe:
    """The table [tokenizer]; see ``train_tokenizer``.

    Attributes:
        vocabulary: size, special tokens included and ``words`` not.
        rows: how many demonstrations it is trained on; more where words are many and each is rare.
        symbols: regular expression of characters that are always a token of their own.
        units: regular expressions of texts that are words whatever they are made of.
        words: texts that are always one token.
    """

    vocabulary: Annotated[int, Range(258)]  # a token for each byte and the two special ones
    rows: Annotated[int, FROM_1]
    symbols: str = ""
    units: tuple[str, ...] = ()
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class ModelRecipe:
    """The table [model]: what a new policy's weights begin as; the architecture is the same for all (``policy.model.tiny_config``).

    Attributes:
        rope_base: of the rotary position embedding; larger where the context is longer.
        look_back: distances at which attention heads look at the start, per layer; see ``policy.look_back``.
        copying: whether heads start by copying; see ``policy.copy_heads``.
    """

    rope_base: Annotated[float, Range(1, open_low=True)]
    look_back: tuple[tuple[Annotated[int, FROM_1], ...], ...] = ()
    copying: bool = False


@dataclass(frozen=True)
class Recipe:
    """A built-in policy.

    Attributes:
        name: of the file and of the folder with its weights.
        env, tokenizer, model, warm_start: the tables of those names.
        train: the options of a training run under the command line's names (``[train.rollout] tasks = 16`` is ``--rollout.tasks 16``),
            the paper's where no file says otherwise. Those that [env] or the user says are not yet in it: see ``presets.tiny``.
    """

    name: str
    env: EnvRecipe
    tokenizer: TokenizerRecipe
    model: ModelRecipe
    warm_start: WarmStartRecipe
    train: Config
