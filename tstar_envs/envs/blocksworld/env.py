"""Blocksworld environment: rearrange towers of blocks with one hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tstar_envs.core import TextEnv
from tstar_envs.data.faults import check_skip_bad
from tstar_envs.data.locate import PathLike, chosen_path
from tstar_envs.data.tasks import LoadedTasks
from tstar_envs.envs.blocksworld import rules, text
from tstar_envs.envs.blocksworld.language import MYSTERY, NAMES, PLAIN, Vocabulary, read_words
from tstar_envs.envs.blocksworld.problem import SOLVER_SECONDS, Problem, State, Task, towers
from tstar_envs.envs.blocksworld.rules import TaskView, ViewOptions, view_of
from tstar_envs.envs.blocksworld.tasks import VARIANTS, load_shipped
from tstar_envs.errors import ResetNeeded, SolverLimit
from tstar_envs.horizon import check_seconds, warn_if_horizon_is_short
from tstar_envs.outcome import Outcome
from tstar_envs.tools import Tool, tool
from tstar_envs.utils import StableRandom, canonical, check_option


class BlocksworldEnv(TextEnv[TaskView, State]):
    r"""## Description
    Named blocks stand in towers on a table. One hand takes the top block of a tower and puts it on the table or on another
    tower, until every fact of the goal holds. The goal is partial: blocks that it does not mention may end anywhere. ``stack``
    starts from low towers and ends with one or two given towers. ``unstack`` starts from one or two high towers and ends with
    given towers of at most two blocks. There are 6 to 8 blocks; optimal plans have 10 to 20 operators, 14.2 on average in both
    variants.

    ## Action space
    A string: ``pick-up X``, ``put-down X``, ``stack X Y`` or ``unstack X Y``, in any case, or the same as a sentence ("unstack
    the red block from on top of the blue block"). With ``names="mystery"``: ``attack X``, ``succumb X``, ``overcome X Y``, ``feast X Y``.
    ReAct replies, tags (``<action>``, or RAGEN's ``<answer>``) and bare actions are parsed (``tstar_envs.react``), also forms such
    as ``(stack a b)`` and ``Stack(a, b)``. An operator with a failing precondition, or anything else, is a no-op that costs a step;
    the observation explains it and repeats the state.

    ## Observation
    A string: goal and state on reset, the state after every action. ``observation="natural"`` lists every fact as a clause,
    tower by tower from the top down, in PlanBench's words. ``"compact"`` is ``hand: red | towers: blue green / gold``: the held
    block, then the towers from bottom to top, in the problem's order of their bottom blocks. Its goal is
    ``goal: table blue red / green gold``, where ``table`` starts a tower that must stand on the table. With mystery names both
    forms list facts only, because towers would reveal the meaning.

    ## Rewards
    1 when the goal holds, 0 before.

    ## Starting state
    The problem's initial state; the hand is empty in all shipped problems. The goal of a problem by path may hold at the start.
    Its first legal operator ends the episode with success and changes nothing, and ``env.unwrapped.solved_at_start`` lists such
    problems.

    ## Episode end
    Terminated when the goal holds; truncated after ``horizon`` steps.

    ## Information
    The keys of every environment (``tstar_envs.TextEnv``). On reset also ``blocks`` and ``optimal_length``, the operators of a
    shortest plan (None if the planner gives up, for very many blocks).
    ``admissible_actions`` are the legal operators.

    ## Arguments
    ``variant``: "stack" or "unstack"; fixed by the id.
    ``observation``: "natural" or "compact".
    ``names``: "own" uses the problem's names of blocks, colours in all shipped problems; else "colours", "letters", or "mystery",
    which is letters with verbs and predicates that reveal nothing about blocks.
    ``problems``: a PDDL problem file, or a folder of them, instead of the shipped tasks; see ``files.load_path``.
    ``skip_bad``: False refuses a folder with unusable files and lists them all; True skips these files, and
    ``env.unwrapped.left_out`` tells how many and why.
    ``data``: "auto" or "mini" for the shipped tasks, or a path as for ``problems``; there is no full tier.
    ``split``, ``horizon``, ``prompt_style``, ``render_mode``: as in every environment.

    ## Tags
    Every legal operator modifies the state, with the canonical action as its effect key.

    ## Registered ids
    ``tstar/Blocksworld-stack``, ``tstar/Blocksworld-unstack``

    ## Prompt example
    ``Thought: Red must be on blue, but green is in the way, so I unstack green from red.\nAction: unstack green red``

    ## Example
    >>> import gymnasium as gym
    >>> import tstar_envs
    >>> env = gym.make("tstar/Blocksworld-stack")
    >>> goal_and_state, info = env.reset(seed=0)
    >>> observation, reward, terminated, truncated, info = env.step(info["admissible_actions"][0])
    >>> reward
    0.0

    ## Rules version history
    1: first version. 2: the natural text says that the hand is currently holding a block. 3: ``<answer>`` tags hold actions too, and
    brackets and commas between words are ignored; the expert says of a block that others must be on that it is, not that it goes
    aside, and in mystery words nothing that gives towers away. 4: replies are parsed as in every family (``tstar_envs.react``): nothing
    inside a closed thought counts.
    5: more replies are parsed as intended: thoughts in other models' marks and thoughts that were cut off are not
    counted; boxes, quotes, headings, JSON after prose, roles, invented observations and calls of tools are stripped or parsed.
    """

    tools: tuple[Tool, ...] = (
        tool("pick_up", "Take a clear block from the table.", "pick-up {block}", block="name of the block"),
        tool(
            "put_down",
            "Put the block that you hold on the table.",
            "put-down {block}",
            block="name of the block that you hold",
        ),
        tool(
            "stack",
            "Put the block that you hold on a clear one.",
            "stack {block} {onto}",
            block="that you hold",
            onto="a clear block",
        ),
        tool(
            "unstack",
            "Take a clear block off another.",
            "unstack {block} {off}",
            block="the upper one, clear",
            off="the lower one",
        ),
    )
    answers = False
    optimum_known = True

    def __init__(
        self,
        *,
        variant: str = "stack",
        observation: str = "natural",
        names: str = "own",
        data: PathLike = "auto",
        problems: PathLike | None = None,
        skip_bad: bool = False,
        solver_seconds: float = SOLVER_SECONDS,
        task_set: LoadedTasks[Task] | None = None,
        **options: Any,
    ) -> None:
        """See the class. ``task_set`` replaces the files with tasks in memory."""
        super().__init__(**options)
        check_option("variant", variant, VARIANTS)
        check_option("observation", observation, text.OBSERVATIONS)
        check_option("names", names, NAMES)
        if names == "mystery":  # it has other verbs
            self.tools = TextEnv.tools
        check_skip_bad(skip_bad)
        check_seconds(solver_seconds)
        self._view_options = ViewOptions(names, observation, float(solver_seconds))
        path = chosen_path(data, problems, "problems")
        option = "problems" if problems is not None else "data"
        if task_set is None and path is not None:
            from tstar_envs.envs.blocksworld.files import load_path

            task_set = load_path(path, option, skip_bad)
        self._set = task_set or load_shipped(variant)
        self.tier, self.left_out, self.solved_at_start = self._set.tier, self._set.left_out, self._set.solved
        if path is not None and options.get("horizon") is None:
            warn_if_horizon_is_short(self, path)

    def task_ids(self, split: str | None = None) -> Sequence[str]:
        """See ``TextEnv``."""
        return self._set.by_split[self._check_split(split or self.split)]

    def _load_task(self, task_id: str) -> tuple[TaskView, str]:
        task = self._set.task(task_id)
        return view_of(task, self._view_options), task.split

    def _start(self, view: TaskView) -> tuple[State, str]:
        state = view.task.problem.start
        return state, f"{view.goal_text}\n{view.observation(state)}"

    def _task_content(self, view: TaskView) -> str:
        problem = view.task.problem
        return canonical((problem.names, problem.start, problem.goal.facts))

    def _instruction(self, view: TaskView) -> str:
        return view.goal_text

    def _reset_extra(self, view: TaskView, state: State) -> Mapping[str, Any]:
        return {"blocks": len(state), "optimal_length": view.optimal_length}

    def _apply(self, view: TaskView, state: State, action: str) -> Outcome[State]:
        return rules.apply(view, state, action)

    def _admissible(self, view: TaskView, state: State) -> Sequence[str]:
        return view.admissible(state, towers(state))

    def _state_fingerprint(self, view: TaskView, state: State) -> str:
        return view.fingerprint(state)

    def _state_key(self, view: TaskView, state: State) -> str:
        return view.key(state)

    def _oracle_step(self, view: TaskView, state: State, paraphrase: int) -> tuple[str, str] | None:
        return view.expert.next_step(state, paraphrase)

    def _suboptimal_action(self, view: TaskView, state: State, rng: StableRandom) -> tuple[str, str]:
        return view.expert.mistake(state, rng)

    @classmethod
    def practice(cls, seed: int | str, *, variant: str | None = None, **options: Any) -> BlocksworldEnv:
        """Create an environment with new tasks, drawn like the shipped ones.

        None of them is a shipped valid or test task, up to renaming of blocks.

        Args:
            seed: seed of the tasks.
            variant: ``stack``, ``unstack``, or None for both in equal parts.
            **options: options of the environment.
        """
        from tstar_envs.envs.blocksworld.generate import practice_set

        check_option("variant", variant, (*VARIANTS, None))
        return cls(
            task_set=practice_set(seed, VARIANTS if variant is None else (variant,)),
            **{"split": "train", **options},
        )

    def least_steps(self, task_id: str, seconds: float) -> int | None:
        """See ``tstar_envs.horizon.reach``."""
        task = self._set.tasks[task_id]
        if task.optimal_length is not None:
            return task.optimal_length
        from tstar_envs.envs.blocksworld.solver import optimal_plan  # lazy: only needed for problems by path

        try:
            return len(optimal_plan(task.problem.start, task.problem.goal, seconds))
        except SolverLimit as error:
            return error.at_least

    def _distance(self, view: TaskView, state: State) -> float:
        return float(view.expert.distance(state))

    def modifies_state(self, action: str) -> bool:
        """Check whether an action may modify the state: true for every well-formed operator."""
        return read_words(action, self._vocabulary) is not None

    def prompt(self, style: str | None = None) -> str:
        """See ``TextEnv``."""
        style = self._check_style(style)
        return text.prompt(
            self._vocabulary,
            self._view_options.observation,
            style,
            None if self.horizon_varies else self.horizon,
        )

    def highlights(self, observation: str) -> list[tuple[int, int, str]]:
        """See ``TextEnv``: blocks that are named after a colour have it."""
        return text.highlights(observation, () if self._task is None else self._task.language.labels)

    def picture(self) -> str:
        """See ``TextEnv``: the towers, except with mystery names."""
        from tstar_envs.envs.blocksworld.text import picture

        view, state = self._running()
        return "" if self._vocabulary is MYSTERY else picture(state, view.language.labels)

    def problem_text(self) -> str:
        """Get the current task as a PDDL problem, with the names of this environment.

        Raises:
            ResetNeeded: ``reset`` was not called yet.
        """
        from tstar_envs.envs.blocksworld.files import write_problem

        if self._task is None:
            raise ResetNeeded(f"{self._name()} has no episode yet: call reset() first")
        problem = self._task.task.problem
        renamed = Problem(self._task.language.labels, problem.start, problem.goal)
        return write_problem(renamed, self._task_id, self._vocabulary)

    @property
    def _vocabulary(self) -> Vocabulary:
        return MYSTERY if self._view_options.names == "mystery" else PLAIN
