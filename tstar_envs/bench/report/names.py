"""The name of an agent on the page: itself and its model, and where several files share them, the settings that distinguish the files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence

from tstar_envs.bench.report.read import Evaluation
from tstar_envs.bench.report.text import clean

MOST_NAME = 120
_APART = (
    "temperature",
    "seed",
    "max_tokens",
    "context_tokens",
    "tools",
    "request",
    "split",
    "tier",
    "rules_version",
)


def agent_names(evaluations: Sequence[Evaluation]) -> list[str]:
    """A name for each file's agent, such that no environment has two files of one name.

    Files of one agent and model share a name. Where an environment has several, what differs in their settings is added to the name
    of all of them; where nothing does, the folder, then the file.
    """
    plain = [clean(e.recorded.agent, MOST_NAME) for e in evaluations]
    names = list(plain)
    for name in dict.fromkeys(plain):
        places = [place for place, own in enumerate(plain) if own == name]
        for add in (_settings([evaluations[place] for place in places]), _folder, _file):
            if not _clash([evaluations[place] for place in places], [names[place] for place in places]):
                break
            for place in places:
                message = add(evaluations[place])
                names[place] = f"{plain[place]} ({clean(message, MOST_NAME)})" if message else plain[place]
    if _clash(evaluations, names):  # two folders with files of one name
        names = [
            f"{name} ({clean(str(e.path), MOST_NAME)})" for name, e in zip(plain, evaluations, strict=True)
        ]
    return names


def _clash(evaluations: Sequence[Evaluation], names: Sequence[str]) -> bool:
    return any(times > 1 for times in Counter(zip((e.env for e in evaluations), names, strict=True)).values())


def _settings(evaluations: Sequence[Evaluation]) -> Callable[[Evaluation], str]:
    """A function that names the settings in which several files of one agent and environment differ."""

    def flat(evaluation: Evaluation) -> dict[str, str]:
        chosen = evaluation.settings.get("agent_settings")
        facts = {
            **evaluation.settings,
            **(chosen if isinstance(chosen, dict) else {}),
            **evaluation.recorded.played_on,
        }
        return {name: json.dumps(facts.get(name)) for name in _APART}

    differ = [name for name in _APART if len({flat(evaluation)[name] for evaluation in evaluations}) > 1]
    return lambda evaluation: ", ".join(
        f"{name.replace('_', ' ')} {flat(evaluation)[name].strip(chr(34))}" for name in differ
    )


def _folder(evaluation: Evaluation) -> str:
    return evaluation.path.resolve().parent.name


def _file(evaluation: Evaluation) -> str:
    return evaluation.path.name.removesuffix(".jsonl")
