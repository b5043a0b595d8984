"""Recipes: how the built-in policies are made, read from TOML."""

from __future__ import annotations

import dataclasses
import difflib
import math
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from tstar_envs import BadData, EnvEntry, MissingData, UnknownOption, find_entry
from tstar_train.config import (
    ABOVE_0,
    ABOVE_0_TO_1,
    FROM_0,
    FROM_1,
    SHARE,
    Config,
    Range,
    RolloutConfig,
    range_of,
)
from tstar_train.config_check import check, expected, is_a


@dataclass(frozen=True)
class DemonstrationStyle:
    """Variations of demonstrations.

    Attributes:
        mistake: share of turns at which something else is done than the expert does (and not imitated).
        no_thought: share of turns whose reply is the action alone.
        contrast: share of turns also written as a contrast prompt.
        wordings: how many wordings of each thought there are.
        kept: fraction of the rows that are trained on. If a row is a turn, neighbours are much the same, and for the same time a
            smaller share shows more tasks.
    """

    mistake: Annotated[float, SHARE]
    no_thought: Annotated[float, SHARE]
    contrast: Annotated[float, SHARE]
    wordings: Annotated[int, FROM_1]
    kept: Annotated[float, ABOVE_0_TO_1]


@dataclass(frozen=True)
class ImitationSchedule:
    """Steps and learning rates of a stage.

    Attributes:
        steps: updates.
        batch: rows per update.
        matrix_rate: peak learning rate of Muon on the weight matrices.
        other_rate: peak learning rate of AdamW on embeddings, norms and biases.
        decay: share of the steps over which the rates fall linearly to zero at the end.
        warmup: steps over which they rise at the start.
        processes: how many processes share a step, each with ``batch`` rows of its own; their gradients are averaged.
        rows: what is imitated, the expert or plain quotes (``warmstart.quoting``).
        alike: what the rows of a batch have nearly the same length of, so that little is padded: the whole ``row``, or the ``context``
            alone, which is what is not imitated. Where a row is a turn take ``context``: by the whole row all turns without a thought
            come into batches of their own, whose steps go to guessing actions (docs/results/planning_settings.md).
        held: rows that wait in a pool, from which the next one is drawn at random, so that the turns of a level, which come one
            after another, do not share a batch; 0 takes them as they come.
        seconds: CPU seconds after which it ends, and with which the rates fall, instead of ``steps``; None for steps, which
            alone can be repeated exactly.

    Raises:
        ValueError: a negative ``held``; ``seconds`` that are not positive, or with several processes, which would end after different
            steps.
    """

    steps: Annotated[int, FROM_0] = 20_000
    batch: Annotated[int, FROM_1] = 8
    matrix_rate: Annotated[float, FROM_0] = 0.02
    other_rate: Annotated[float, FROM_0] = 3e-3
    decay: Annotated[float, SHARE] = 0.7
    warmup: Annotated[int, FROM_1] = 100
    processes: Annotated[int, FROM_1] = 1
    rows: Literal["expert", "quotes"] = "expert"
    alike: Literal["row", "context"] = "row"
    held: int = 0
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.held < 0:
            raise ValueError(
                f"held={self.held}: give the number of rows that wait in the pool, or 0 to take them as they come"
            )
        if self.seconds is not None and self.seconds <= 0:
            raise ValueError(
                f"seconds={self.seconds}: give a positive number of CPU seconds, or None to end after steps={self.steps}"
            )
        if self.seconds is not None and self.processes > 1:
            raise ValueError(
                f"seconds={self.seconds} with processes={self.processes}: use processes=1, or steps instead of seconds"
            )

    def rate(self, step: int, spent: float = 0.0) -> float:
        """Factor of the peak rates at a step that begins after ``spent`` CPU seconds; 0 or less where the schedule has ended."""
        end, at = (self.steps, step) if self.seconds is None else (self.seconds, spent)
        start = end * (1 - self.decay)
        return min(1.0, (step + 1) / self.warmup, (end - at) / max(1.0, end - start))


@dataclass(frozen=True)
class WarmStartRecipe:
    """The imitation that a policy is made by.

    Attributes:
        demonstrations: how they vary.
        stages: schedules, one after another.
        mix: environments of the demonstrations by short name, with weights; empty for the warm start's own.
        begins_with: the built-in policy from whose tokenizer and weights it goes on, "" for new ones.
    """

    demonstrations: DemonstrationStyle
    stages: tuple[ImitationSchedule, ...]
    mix: dict[str, Annotated[float, ABOVE_0]] = field(default_factory=dict)
    begins_with: str = ""


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
        train: the options of a training run under the command line's names (``[train.rollout] group_size = 16`` is
            ``--rollout.group-size 16``), the paper's where no file says otherwise. Options of [env] and of the user are added later
            (``presets.tiny``).
    """

    name: str
    env: EnvRecipe
    tokenizer: TokenizerRecipe
    model: ModelRecipe
    warm_start: WarmStartRecipe
    train: Config


# Options of a run that [train] does not take, and who says them.
_ELSEWHERE = {
    "train.env": "plays in [env] names the environments",
    "train.model": "the user names it (--model)",
    "train.env_options": "write options in [env], by which warm start and agent go too",
    "train.rollout.context": "write context in [env], by which warm start and agent go too",
    "train.rollout.history": "write history in [env], by which warm start and agent go too",
    "train.rollout.max_tokens": "write max_tokens in [env], by which warm start and agent go too",
}


class _Place(NamedTuple):
    """Format the dotted name of a value's key in a file."""

    path: Path
    name: str = ""

    def at(self, key: str) -> _Place:
        return _Place(self.path, f"{self.name}.{key}" if self.name else key)

    def wrong(self, what: str) -> BadData:
        return BadData(f"{self.path}: {self.name}{' ' if self.name else ''}{what}")


def policy_names(folder: Path) -> list[str]:
    """List the policies that a folder has recipes of, in alphabetical order."""
    return sorted(path.stem for path in folder.glob("*.toml") if not path.name.startswith("_"))


def read_recipe(path: Path) -> Recipe:
    """Read a recipe, with what it extends.

    Raises:
        MissingData: no such file.
        BadData: it cannot be used, or what it extends cannot.
    """
    place = _Place(path)
    values = {"name": path.stem, **_values_of(path, ())}
    if "train" in values:
        values["train"]["env"] = ""  # the user says it
    recipe: Recipe = _built(Recipe, values, place)
    start = recipe.warm_start.begins_with
    if start and start not in policy_names(path.parent):
        raise place.at("warm_start.begins_with").wrong(
            f"names no policy: {_guess(start, policy_names(path.parent))}"
        )
    if not recipe.warm_start.stages:
        raise place.at("warm_start.stages").wrong("is empty: give one [[warm_start.stages]] or more")
    for name, environments in (("env.plays", recipe.env.plays), ("warm_start.mix", recipe.warm_start.mix)):
        for env in environments:
            try:
                find_entry(env)
            except UnknownOption as error:
                raise place.at(name).wrong(f"names no environment: {error}") from error
    try:
        check(recipe.train)
    except UnknownOption as error:
        raise place.at("train").wrong(f"is not valid: {error}") from error
    return recipe


def _values_of(path: Path, above: tuple[Path, ...]) -> dict[str, Any]:
    """Read a file's checked values merged over those that it extends, tables as mappings."""
    table = _toml(path)
    base = table.pop("extends", None)
    own = _checked(Recipe, table, _Place(path))
    if base is None:
        return own
    place, names = (
        _Place(path, "extends"),
        sorted(file.stem for file in path.parent.glob("*.toml") if file != path),
    )
    if base not in names:
        raise place.wrong(f"names no other recipe in its folder: {_guess(base, names)}")
    below = path.with_name(f"{base}.toml")
    if below in above:
        raise place.wrong(
            f"goes round in a circle: {' extends '.join(p.stem for p in (*above, path, below))}"
        )
    return _merged(Recipe, _values_of(below, (*above, path)), own)


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise MissingData(f"no recipe {path}: {_guess(path.stem, policy_names(path.parent))}") from error
    except UnicodeDecodeError as error:
        raise BadData(f"{path}: is not UTF-8 ({error}): write it in that encoding") from error
    except tomllib.TOMLDecodeError as error:
        raise BadData(f"{path}: is not TOML: {error}") from error


def _checked(table_type: Any, given: Any, place: _Place) -> dict[str, Any]:
    """Read the values of a table by key, nested tables included."""
    if not isinstance(given, dict):
        raise place.wrong(f"must be a table, got {given!r:.100}")
    hints = get_type_hints(table_type, include_extras=True)  # ranges
    if table_type is Recipe:
        del hints["name"]  # the file's
    valid = [key for key in hints if place.at(key).name not in _ELSEWHERE]
    for key in given:
        if key not in hints:
            raise place.wrong(f"has no key {key!r}: {_guess(key, valid)}")
        if key not in valid:
            raise place.at(key).wrong(
                f"is not said here: {_ELSEWHERE[place.at(key).name]}; valid: {', '.join(valid)}"
            )
    return {key: _value(hints[key], value, place.at(key)) for key, value in given.items()}


def _value(hint: Any, given: Any, place: _Place) -> Any:
    if dataclasses.is_dataclass(hint):
        return _checked(hint, given, place)
    if get_origin(hint) is tuple:
        return _sequence(get_args(hint)[0], given, place)
    if not is_a(given, hint):
        raise place.wrong(f"must be {expected(hint)}, got {given!r:.100}")
    if get_origin(hint) is dict and get_args(hint)[1] is not Any:
        return {key: _value(get_args(hint)[1], value, place.at(key)) for key, value in given.items()}
    if not place.name.startswith("train."):  # whose numbers ``config_check`` knows
        valid = range_of(hint)
        if valid is not None and given not in valid:
            raise place.wrong(f"must be {valid}, got {given}")
        if isinstance(given, float) and not math.isfinite(given):
            raise place.wrong(f"must be a finite number, got {given}")
    plain = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    return float(given) if plain is float else given


def _sequence(hint: Any, given: Any, place: _Place) -> tuple[Any, ...]:
    if not isinstance(given, list):
        raise place.wrong(f"must be a list, got {given!r:.100}")
    if dataclasses.is_dataclass(hint):
        return tuple(_built(hint, _checked(hint, item, place), place) for item in given)
    return tuple(_value(hint, item, place) for item in given)


def _merged(table_type: Any, base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Tables of fixed keys are joined key by key; a list, or a mapping whose keys are free, takes the place of the other whole."""
    hints = get_type_hints(table_type)
    inner = {key for key in own if key in base and dataclasses.is_dataclass(hints[key])}
    return {**base, **own, **{key: _merged(hints[key], base[key], own[key]) for key in inner}}


def _built(table_type: Any, values: Mapping[str, Any], place: _Place) -> Any:
    """Make the dataclass of checked values."""
    hints, arguments = get_type_hints(table_type), dict(values)
    for each in dataclasses.fields(table_type):
        table = dataclasses.is_dataclass(hints[each.name])
        if each.name in values and table:
            arguments[each.name] = _built(hints[each.name], values[each.name], place.at(each.name))
        if each.name not in values and each.default is each.default_factory is dataclasses.MISSING:
            raise place.wrong(f"has no {'table' if table else 'key'} {each.name!r}, which it needs")
    try:
        return table_type(**arguments)
    except ValueError as error:
        raise place.wrong(f"is not valid: {error}") from error


def _guess(given: object, names: Collection[str]) -> str:
    """Format a suggestion: the nearest name, if any, and all valid ones."""
    near = difflib.get_close_matches(str(given), names, n=1)
    return f"{f'did you mean {near[0]}? ' if near else ''}valid: {', '.join(names) or 'none'}"


FOLDER = Path(__file__).parent


@cache
def load_recipe(policy: str) -> Recipe:
    """Load the recipe of a built-in policy.

    Raises:
        MissingData: there is none of this name; the message lists the valid ones.
        BadData: its file cannot be used.
    """
    return read_recipe(FOLDER / f"{policy}.toml")


def policy_name(entry: EnvEntry) -> str:
    """Return the name of an environment's built-in policy; by default its family's, which may not exist."""
    return _players().get(entry.name, entry.family)


def recipe_of(entry: EnvEntry) -> Recipe:
    """Load the recipe of the policy that plays an environment.

    Raises:
        MissingData: there is none.
    """
    return load_recipe(policy_name(entry))


@cache
def _players() -> dict[str, str]:
    """Map each environment's short name to its policy."""
    found: dict[str, str] = {}
    for policy in policy_names(FOLDER):
        for env in load_recipe(policy).env.plays:
            name = find_entry(env).name
            if name in found:
                raise BadData(
                    f"{FOLDER}: {found[name]}.toml and {policy}.toml both play {name}: take it from one of their plays"
                )
            found[name] = policy
    return found
