"""Blocksworld: named blocks, one hand, towers to build and to take apart; and a public optimal planner for its PDDL.

Who only plays loads neither reader nor planner, so they are imported where they are called.
"""

from __future__ import annotations

__all__ = ["domain_pddl", "plan"]


def plan(pddl_problem_text: str) -> list[str]:
    """An optimal plan for a Blocksworld problem in PDDL.

    Args:
        pddl_problem_text: a problem of the 4-operator domain (``domain_pddl``), plain or in mystery words; the goal may be partial.

    Returns:
        Operators in compact form, ``unstack a b`` for PDDL's ``(unstack a b)``, with the names of the problem; empty if the
        goal holds already. No plan has fewer operators.

    Raises:
        BadData: the text is no such problem; the message says why.
    """
    from tstar_envs.envs.blocksworld.files import read_problem
    from tstar_envs.envs.blocksworld.solver import optimal_plan

    problem, vocabulary = read_problem(pddl_problem_text, "PDDL problem")
    names = problem.names
    return [
        vocabulary.action(operator.verb, *(names[block] for block in operator.arguments))
        for operator, _ in optimal_plan(problem.start, problem.goal)
    ]


def domain_pddl(mystery: bool = False) -> str:
    """The PDDL domain that ``plan`` reads problems of, in plain or in mystery words."""
    from tstar_envs.envs.blocksworld.files import write_domain
    from tstar_envs.envs.blocksworld.language import MYSTERY, PLAIN

    return write_domain(MYSTERY if mystery else PLAIN)
