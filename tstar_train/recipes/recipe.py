"""Recipes of the built-in policies: their data classes and the TOML reader."""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import tomllib
from collections.abc import Collection, Mapping, Sequence
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
        mistake: share of turns with a suboptimal action instead of the expert's; they are not imitated.
        no_thought: share of turns whose reply is the action alone.
        contrast: share of turns that also give a contrast prompt.
        wordings: number of paraphrases of each thought.
        kept: fraction of the rows used for training. If a row is a turn, neighbouring rows are similar, and a smaller fraction covers more
            tasks in the same time.
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
        steps: number of updates.
        batch: number of rows per update.
        matrix_rate: peak learning rate of Muon on the weight matrices.
        other_rate: peak learning rate of AdamW on embeddings, norms and biases.
        decay: share of the steps over which the rates fall linearly to zero at the end.
        warmup: number of warmup steps.
        processes: number of data-parallel processes, each with its own ``batch`` rows; gradients are averaged.
        rows: rows to train on: demonstrations of an oracle, by its kind (``TextEnv.oracle``), or quotes (``warmstart.copy_task_rows``).
        alike: key by which rows of similar length are batched to save padding: length of the whole ``row``, or of the ``context`` alone,
            without the imitated part. Use ``context`` if a row is a turn: by ``row``, all turns without a thought would fill separate
            batches, whose steps train guessing of actions (docs/results/planning_settings.md).
        held: size of the shuffle buffer, so that successive turns of a level do not share a batch; 0 does not shuffle.
        seconds: CPU seconds of the schedule, which then replace ``steps``; None uses ``steps``. Only ``steps`` is exactly reproducible.

    Raises:
        ValueError: ``held`` is negative; ``seconds`` is not positive, or is combined with several processes, which would end after
            different steps.
    """

    steps: Annotated[int, FROM_0] = 20_000
    batch: Annotated[int, FROM_1] = 8
    matrix_rate: Annotated[float, FROM_0] = 0.02
    other_rate: Annotated[float, FROM_0] = 3e-3
    decay: Annotated[float, SHARE] = 0.7
    warmup: Annotated[int, FROM_1] = 100
    processes: Annotated[int, FROM_1] = 1
    rows: Literal["expert", "search", "quotes"] = "expert"
    alike: Literal["row", "context"] = "row"
    held: int = 0
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.held < 0:
            raise ValueError(
                f"held={self.held}: give the number of rows in the shuffle buffer, or 0 not to shuffle"
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
        """Return the multiplier of the peak rates at a step that begins after ``spent`` CPU seconds; 0 or less after the end."""
        end, at = (self.steps, step) if self.seconds is None else (self.seconds, spent)
        start = end * (1 - self.decay)
        return min(1.0, (step + 1) / self.warmup, (end - at) / max(1.0, end - start))


@dataclass(frozen=True)
class WarmStartRecipe:
    """The table [warm_start]: imitation training of a policy.

    Attributes:
        demonstrations: variations of the demonstrations.
        stages: schedules, in order.
        mix: weights of the practice environments, by short name; empty for the warm start's own environment.
        begins_with: built-in policy whose tokenizer and weights to start from, "" for new ones.
    """

    demonstrations: DemonstrationStyle
    stages: tuple[ImitationSchedule, ...]
    mix: dict[str, Annotated[float, ABOVE_0]] = field(default_factory=dict)
    begins_with: str = ""


@dataclass(frozen=True)
class EnvRecipe:
    """The table [env]: a policy's environment and context options, used in warm start, training and evaluation.

    Options for training only (a shorter horizon, further options) are in [train], the practice environments in [warm_start]. The defaults
    are those of a run and apply to models without a recipe.

    Attributes:
        plays: short names of the environments that use this policy.
        options: environment options (``Config.env_options``).
        context: ``concat`` or ``step`` (see ``rollout.player.Transcript``).
        history: number of turns kept by ``step``.
        max_tokens: maximum reply length in tokens.
        plays_beside: short names of environments of other policies that this one plays too, in a run on several environments.
    """

    plays: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    context: Literal["concat", "step"] = RolloutConfig.context
    history: Annotated[int, FROM_0] = RolloutConfig.history
    max_tokens: Annotated[int, FROM_1] = RolloutConfig.max_tokens
    plays_beside: tuple[str, ...] = ()


@dataclass(frozen=True)
class TokenizerRecipe:
    """The table [tokenizer]; see ``train_tokenizer``.

    Attributes:
        vocabulary: vocabulary size, with special tokens and without ``words``.
        rows: number of demonstrations to train on; a larger vocabulary of rare words needs more.
        symbols: regular expression of characters that are always single tokens.
        units: regular expressions of words that are not split between letters and digits.
        words: texts that are always single tokens.
    """

    vocabulary: Annotated[int, Range(258)]  # 256 bytes and two special tokens
    rows: Annotated[int, FROM_1]
    symbols: str = ""
    units: tuple[str, ...] = ()
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class ModelRecipe:
    """The table [model]: initialization of a new policy; all have the same architecture (``policy.model.tiny_config``).

    Attributes:
        rope_base: base of the rotary position embedding; longer contexts need a larger one.
        look_back: initial attention distances of heads, per layer; see ``policy.model.set_induction_heads``.
        copying: True to initialize copying heads; see ``policy.model.copy_heads``.
    """

    rope_base: Annotated[float, Range(1, open_low=True)]
    look_back: tuple[tuple[Annotated[int, FROM_1], ...], ...] = ()
    copying: bool = False


@dataclass(frozen=True)
class Recipe:
    """A built-in policy.

    Attributes:
        name: name of the file and of the weights' folder.
        env, tokenizer, model, warm_start: the tables of those names.
        train: options of a training run with the command line's names (``[train.rollout] group_size = 16`` is
            ``--rollout.group-size 16``); the defaults are the paper's. Options of [env] and of the user are added later (``presets.tiny``).
    """

    name: str
    env: EnvRecipe
    tokenizer: TokenizerRecipe
    model: ModelRecipe
    warm_start: WarmStartRecipe
    train: Config


# Options of a run that are not allowed in [train], and where they belong.
_ELSEWHERE = {
    "train.env": "plays in [env] names the environments",
    "train.model": "the user names it (--model)",
    "train.mix": "the user names the environments (--env ENV:WEIGHT)",
    "train.mix_options": "the user gives them (--env-option ENV:KEY=VALUE)",
    "train.env_options": "write options in [env], which warm start and agent use too",
    "train.rollout.context": "write context in [env], which warm start and agent use too",
    "train.rollout.history": "write history in [env], which warm start and agent use too",
    "train.rollout.max_tokens": "write max_tokens in [env], which warm start and agent use too",
}


class _Place(NamedTuple):
    """Dotted key of a value in a file, for error messages."""

    path: Path
    name: str = ""

    def at(self, key: str) -> _Place:
        return _Place(self.path, f"{self.name}.{key}" if self.name else key)

    def wrong(self, what: str) -> BadData:
        return BadData(f"{self.path}: {self.name}{' ' if self.name else ''}{what}")


def policy_names(folder: Path) -> list[str]:
    """List the policies with a recipe in a folder, in alphabetical order."""
    return sorted(path.stem for path in folder.glob("*.toml") if not path.name.startswith("_"))


def read_recipe(path: Path) -> Recipe:
    """Read a recipe and the recipes that it extends.

    Raises:
        MissingData: the file does not exist.
        BadData: the file, or one that it extends, is not valid.
    """
    return _recipe_of_values({"name": path.stem, **_values_of(path, ())}, _Place(path))


def recipe_record(recipe: Recipe) -> dict[str, Any]:
    """Convert a recipe to JSON values, as a policy's ``config.json`` keeps it; ``recipe_from_record`` reads them."""
    record: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(recipe)))
    for name in _ELSEWHERE:
        *tables, key = name.split(".")
        table = record
        for inner in tables:
            table = table[inner]
        del table[key]
    return record


def recipe_from_record(record: dict[str, Any], path: Path) -> Recipe:
    """Read a record of ``recipe_record``.

    Args:
        record: JSON values.
        path: file that holds them, for messages.

    Raises:
        BadData: it is not a recipe of this version.
    """
    rest = {key: value for key, value in record.items() if key != "name"}
    return _recipe_of_values(
        {"name": str(record.get("name")), **_checked(Recipe, rest, _Place(path))}, _Place(path)
    )


def _recipe_of_values(values: dict[str, Any], place: _Place) -> Recipe:
    """Make a recipe from checked values, and check what its parts say of one another."""
    if "train" in values:
        values["train"]["env"] = ""  # set by the user later
    recipe: Recipe = _built(Recipe, values, place)
    start = recipe.warm_start.begins_with
    if start and start not in (known := policy_names(FOLDER)):
        raise place.at("warm_start.begins_with").wrong(f"names no policy: {_guess(start, known)}")
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
    below = path.with_name(f"{base}.toml") if base in names else FOLDER / f"{base}.toml"
    packaged = sorted(file.stem for file in FOLDER.glob("*.toml") if file != path)
    if base not in (valid := sorted({*names, *packaged})):
        raise place.wrong(f"names no other recipe in its folder or the package: {_guess(base, valid)}")
    if below in above:
        raise place.wrong(f"is circular: {' extends '.join(p.stem for p in (*above, path, below))}")
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
        del hints["name"]  # the name comes from the file name
    valid = [key for key in hints if place.at(key).name not in _ELSEWHERE]
    for key in given:
        if key not in hints:
            raise place.wrong(f"has no key {key!r}: {_guess(key, valid)}")
        if key not in valid:
            raise place.at(key).wrong(
                f"is not allowed here: {_ELSEWHERE[place.at(key).name]}; valid: {', '.join(valid)}"
            )
    return {key: _value(hints[key], value, place.at(key)) for key, value in given.items()}


def _value(hint: Any, given: Any, place: _Place) -> Any:
    if get_origin(hint) is Annotated and dataclasses.is_dataclass(get_args(hint)[0]):
        hint = get_args(hint)[0]  # with another name on the command line
    if dataclasses.is_dataclass(hint):
        return _checked(hint, given, place)
    if get_origin(hint) is tuple:
        return _sequence(get_args(hint)[0], given, place)
    if not is_a(given, hint):
        raise place.wrong(f"must be {expected(hint)}, got {given!r:.100}")
    if get_origin(hint) is dict and get_args(hint)[1] is not Any:
        return {key: _value(get_args(hint)[1], value, place.at(key)) for key, value in given.items()}
    if not place.name.startswith("train."):  # ``config_check`` checks those numbers
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
    """Merge tables with fixed keys key by key; a list, or a mapping with free keys, replaces the base's as a whole."""
    hints = get_type_hints(table_type)
    inner = {key for key in own if key in base and dataclasses.is_dataclass(hints[key])}
    return {**base, **own, **{key: _merged(hints[key], base[key], own[key]) for key in inner}}


def _built(table_type: Any, values: Mapping[str, Any], place: _Place) -> Any:
    """Make a dataclass from checked values."""
    hints, arguments = get_type_hints(table_type), dict(values)
    for each in dataclasses.fields(table_type):
        table = dataclasses.is_dataclass(hints[each.name])
        if each.name in values and table:
            arguments[each.name] = _built(hints[each.name], values[each.name], place.at(each.name))
        if each.name not in values and each.default is each.default_factory is dataclasses.MISSING:
            raise place.wrong(f"has no {'table' if table else 'key'} {each.name!r}, which is required")
    try:
        return table_type(**arguments)
    except ValueError as error:
        raise place.wrong(f"is not valid: {error}") from error


def _guess(given: object, names: Collection[str]) -> str:
    """Format a suggestion: the nearest name, if any, and all valid ones."""
    near = difflib.get_close_matches(str(given), names, n=1)
    return f"{f'did you mean {near[0]}? ' if near else ''}valid: {', '.join(names) or 'none'}"


FOLDER = Path(__file__).parent
OWN = "_own"  # recipe of environments that have none


@cache
def load_recipe(policy: str) -> Recipe:
    """Load the recipe of a built-in policy.

    Raises:
        MissingData: there is no recipe of this name; the message lists the valid ones.
        BadData: the file is not valid.
    """
    return read_recipe(FOLDER / f"{policy}.toml")


def in_package(recipe: Recipe) -> bool:
    """Check whether the package has this recipe under its name."""
    return recipe.name in policy_names(FOLDER) and load_recipe(recipe.name) == recipe


def policy_name(entry: EnvEntry) -> str:
    """Return the name of an environment's built-in policy; by default its family's, which may not exist."""
    return _players().get(entry.name, entry.family)


def shared_policy(entries: Sequence[EnvEntry]) -> str | None:
    """Return the name of the built-in policy that plays all of some environments; None if there is none."""
    if len(entries) == 1:
        return policy_name(entries[0])
    for policy in policy_names(FOLDER):
        seen = load_recipe(policy).env
        if {entry.name for entry in entries} <= {*seen.plays, *seen.plays_beside}:
            return policy
    return None


def built_in_policy(config: Config) -> str:
    """Return the name of the built-in policy of a run; it may not exist (see ``policy_name``)."""
    entries = [find_entry(env) for env in config.environments]
    return shared_policy(entries) or policy_name(entries[0])


def recipe_of(entry: EnvEntry) -> Recipe:
    """Load the recipe of the policy that plays an environment; a general one if it has none."""
    name = policy_name(entry)
    if name in policy_names(FOLDER):
        return load_recipe(name)
    return dataclasses.replace(load_recipe(OWN), name=entry.family)


@cache
def _players() -> dict[str, str]:
    """Map each environment's short name to its policy."""
    found: dict[str, str] = {}
    for policy in policy_names(FOLDER):
        for env in load_recipe(policy).env.plays:
            name = find_entry(env).name
            if name in found:
                raise BadData(
                    f"{FOLDER}: {found[name]}.toml and {policy}.toml both play {name}: remove it from one of their plays"
                )
            found[name] = policy
    return found
