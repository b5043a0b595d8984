"""WebShop environment: buy the product that an instruction asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from tstar_envs.core import TextEnv
from tstar_envs.data.locate import PathLike, Published
from tstar_envs.envs.webshop import expert, pages, rules, text
from tstar_envs.envs.webshop.catalogue import SEARCH_LIMIT
from tstar_envs.envs.webshop.pages import PAGE_SIZE, State
from tstar_envs.envs.webshop.shop import Shop, Task
from tstar_envs.envs.webshop.tasks import find_tier, load_shop, published_products, survey_mini
from tstar_envs.errors import MissingExtra, UnknownOption
from tstar_envs.outcome import Outcome
from tstar_envs.tools import tool
from tstar_envs.utils import StableRandom, canonical, check_option, is_whole


class WebShopEnv(TextEnv[Task, State]):
    r"""## Description
    The agent gets an instruction, searches a shop, opens products, reads their pages, chooses options and buys. Pages,
    actions and score are those of princeton-nlp/WebShop; no Java, spaCy model or web server is needed.

    ## Action space
    A string. ``search[keywords]`` works on every page, ``click[button]`` on the buttons of the page. The argument is
    lower-cased. ReAct replies, tags and bare actions are parsed (``tstar_envs.react``); with ``text`` and ``text_rich`` the action
    itself must have the exact form of the original. Anything else is a no-op that costs a step.

    ## Observation
    A string. ``observation="text"`` is exactly the original's text, ``"text_rich"`` its form with marked buttons.
    ``"text_options"`` (default) is ours. It is shorter and also shows the chosen options and the opened and read pages.
    After an invalid action the first two repeat the page, as the original does; ours explains the error, and so do they with
    ``explain_invalid``.

    ## Rewards
    The original's score in [0, 1] after the purchase, 0 before. Success is a score of 1.

    ## Starting state
    The search page with the instruction.

    ## Episode end
    Terminated by ``click[buy now]``; truncated after ``horizon`` steps.

    ## Information
    The keys of every environment (``tstar_envs.TextEnv``). ``admissible_actions`` are the page's clicks, ``search_available``
    is True if a search bar is shown, ``tagger`` names the tagger of the titles' nouns. After the purchase also
    ``reward_parts`` (the original's sub-scores, and the tagger) and ``bought`` (ASIN and options).

    ## Arguments
    ``data``: "auto", "mini", "full" or a folder of the original's files.
    ``skip_bad``: True skips unusable products and goals of a folder and counts them in ``left_out``; False refuses them.
    ``observation``: "text_options", "text" or "text_rich".
    ``seed_prices``: seed of drawn prices and limits, 0 by default.
    ``page_size``: products per results page, 1 to 50; 10 as in the original.
    ``split``, ``horizon``, ``prompt_style``, ``render_mode``: as in every environment.
    ``env.unwrapped.shop`` is the opened shop: products, search and tasks.

    ## Tags
    Searching, opening a product, choosing an option, returning to the search page and buying modify the state. Going back
    from a product does so only if options are lost. Turning pages and reading do not. State keys ignore the order of options and
    differences between queries that text analysis removes.

    ## Registered ids
    ``tstar/WebShop``

    ## Prompt example
    ``Thought: I search for floor lamp.\nAction: search[floor lamp]``

    ## Example
    >>> import gymnasium as gym
    >>> import tstar_envs
    >>> env = gym.make("tstar/WebShop", data="mini")
    >>> instruction, info = env.reset(seed=0)
    >>> observation, reward, terminated, truncated, info = env.step("search[floor lamp]")
    >>> len(info["admissible_actions"]) > 10
    True

    ## Rules version history
    1: first version. 2: ``text_options`` says which products of the page were opened and which pages of the product were read.
    3: replies are parsed as in every family (``tstar_envs.react``): nothing inside a closed thought counts, ``<answer>`` holds an
    action, and with ``text_options`` case, white space and text around an action are ignored.
    4: more replies are parsed as intended: thoughts in other models' marks and thoughts that were cut off are not
    counted; boxes, quotes, headings, JSON after prose, roles, invented observations and calls of tools are stripped or parsed.
    """

    tools = (
        tool(
            "search",
            "Search for products; works where the page has a search button.",
            "search[{query}]",
            query="keywords",
        ),
        tool(
            "click",
            "Click something that the page shows.",
            "click[{target}]",
            target="a button, a product's code, or an option value",
        ),
    )
    answers = False
    longest_observation = 200_000

    def __init__(
        self,
        *,
        data: PathLike = "auto",
        skip_bad: bool = False,
        observation: str = "text_options",
        seed_prices: int = 0,
        page_size: int = PAGE_SIZE,
        shop: Shop | None = None,
        **options: Any,
    ) -> None:
        """See the class. ``shop`` replaces the files with a shop in memory."""
        super().__init__(**options)
        check_option("observation", observation, text.OBSERVATIONS)
        if not is_whole(seed_prices):
            raise UnknownOption(f"seed_prices must be a whole number, got {seed_prices!r}")
        if not is_whole(page_size) or not 1 <= page_size <= SEARCH_LIMIT:
            raise UnknownOption(
                f"page_size must be a whole number from 1 to {SEARCH_LIMIT}, got {page_size!r}"
            )
        if find_spec("rapidfuzz") is None:
            raise MissingExtra("WebShop's score", "rapidfuzz", "webshop")
        self.shop = shop or load_shop(data, seed_prices, skip_bad)
        self.exact_replies = observation != text.TEXT_OPTIONS  # the other forms reproduce the original
        self._conditions = rules.Conditions(self.shop, observation, self.exact_replies)
        self._page_size = page_size
        self.tier, self.left_out = self.shop.tier, self.shop.left_out

    @classmethod
    def survey(
        cls, *, data: PathLike = "auto", seed_prices: int = 0, **options: Any
    ) -> tuple[str, dict[str, int]]:
        """See ``TextEnv``; for the shipped data only the goals are read."""
        if find_tier(data)[0] == "mini":
            return "mini", survey_mini()
        shop = load_shop(data, seed_prices)
        return shop.tier, {split: len(ids) for split, ids in shop.by_split.items()}

    @classmethod
    def published(cls, **options: Any) -> tuple[Published, ...]:
        """See ``TextEnv``."""
        return (published_products(),)

    def task_ids(self, split: str | None = None) -> Sequence[str]:
        """See ``TextEnv``."""
        return self.shop.by_split[self._check_split(split or self.split)]

    def _load_task(self, task_id: str) -> tuple[Task, str]:
        task = self.shop.task(task_id)
        return task, task.split

    def _start(self, task: Task) -> tuple[State, str]:
        state = State(page_size=self._page_size)
        return state, self._conditions.page(task, state)

    def _task_content(self, task: Task) -> str:
        return canonical((task.goal, task.nouns, task.instruction))

    def _snapshot_content(self, task: Task) -> str:
        return f"{self._task_content(task)}\0{len(self.shop.catalogue)}"

    def world_digest(self) -> str:
        """See ``TextEnv``: the digest of products, prices and tagger."""
        return self.shop.catalogue.digest()

    def _instruction(self, task: Task) -> str:
        return task.instruction

    def _reset_extra(self, task: Task, state: State) -> Mapping[str, Any]:
        return self._conditions.extra(state)

    def _admissible(self, task: Task, state: State) -> Sequence[str]:
        return pages.admissible(self.shop.catalogue, state)

    def _apply(self, task: Task, state: State, action: str) -> Outcome[State]:
        return rules.apply(task, state, action, self._conditions)

    def _state_fingerprint(self, task: Task, state: State) -> str:
        return state.key()

    def _oracle_step(self, task: Task, state: State, paraphrase: int) -> tuple[str, str] | None:
        return expert.next_step(self.shop.catalogue, task, state, paraphrase)

    def _suboptimal_action(self, task: Task, state: State, rng: StableRandom) -> tuple[str, str]:
        return expert.mistake(self.shop.catalogue, task, state, rng)

    @classmethod
    def practice(cls, seed: int | str, **options: Any) -> WebShopEnv:
        """Create an environment with a new small shop of train-split families, without shipped products or goals."""
        from tstar_envs.envs.webshop.generate import practice_shop

        return cls(shop=practice_shop(seed), **{"split": "train", **options})

    def _distance(self, task: Task, state: State) -> float | None:
        if state.page == "done":
            return 0.0 if rules.score_of(self.shop.catalogue, task, state).total == 1.0 else None
        return expert.distance(self.shop.catalogue, task, state)

    def modifies_state(self, action: str) -> bool:
        """Check whether an action may modify the state.

        True for well-formed searches and clicks except page turns and reading.
        """
        parsed = pages.parse_action(action) if self.exact_replies else pages.read_action(action, {})
        return not parsed.problem and not (parsed.name == "click" and parsed.argument in pages.READING)

    def prompt(self, style: str | None = None) -> str:
        """See ``TextEnv``."""
        return text.prompt(self._check_style(style), self.horizon)
