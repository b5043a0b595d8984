"""The table [warm_start]: how the expert's demonstrations vary, and how long and how fast they are imitated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from tstar_train.ranges import ABOVE_0, ABOVE_0_TO_1, FROM_0, FROM_1, SHARE


@dataclass(frozen=True)
class DemonstrationStyle:
    """What makes demonstrations varied.

    Attributes:
        mistake: share of turns at which something else is done than the expert does (and not imitated).
        no_thought: share of turns whose reply is the action alone.
        contrast: share of turns also written as a contrast prompt.
        wordings: how many wordings of each thought there are.
        kept: share of the rows that are learnt from. Where a row is a turn, neighbours are much the same, and for the same time a
            smaller share shows more tasks.
    """

    mistake: Annotated[float, SHARE]
    no_thought: Annotated[float, SHARE]
    contrast: Annotated[float, SHARE]
    wordings: Annotated[int, FROM_1]
    kept: Annotated[float, ABOVE_0_TO_1]


@dataclass(frozen=True)
class ImitationSchedule:
    """How long and how fast.

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
        mix: environments that are practised, by short name, with how often; empty for the one that the warm start is asked for.
        begins_with: the built-in policy from whose tokenizer and weights it goes on, "" for new ones.
    """

    demonstrations: DemonstrationStyle
    stages: tuple[ImitationSchedule, ...]
    mix: dict[str, Annotated[float, ABOVE_0]] = field(default_factory=dict)
    begins_with: str = ""
