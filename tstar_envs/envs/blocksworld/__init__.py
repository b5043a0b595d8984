"""Blocksworld: rearrange towers of named blocks with one hand.

With an optimal planner for its PDDL.
Reader and planner are imported lazily: episodes need neither.
"""

from __future__ import annotations

__all__ = ["domain_pddl", "plan"]


def plan(pddl_problem_text: str) -> list[str]:
    """Compute an optimal plan for a Blocksworld problem in PDDL.

    >>> plan('''(define (problem two) (:domain blocksworld-4ops) (:objects a b)
    ...   (:init (ontable a) (on b a) (clear b) (handempty))
    ...   (:goal (on a b)))''')
    ['unstack b a', 'put-down b', 'pick-up a', 'stack a b']

    Args:
        pddl_problem_text: a problem of the 4-operator domain (``domain_pddl``), in plain or mystery words. The goal may be partial.

    Returns:
        Operators in compact form (``unstack a b`` for PDDL's ``(unstack a b)``) with the names of the problem. Empty if the
        goal holds already. No plan has fewer operators.

    Raises:
        BadData: the text is not such a problem; the message says why.
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
    """Get the PDDL domain of ``plan``'s problems, in plain or mystery words.

    >>> domain_pddl().split()[:3]
    ['(define', '(domain', 'blocksworld-4ops)']
    """
    from tstar_envs.envs.blocksworld.files import write_domain
    from tstar_envs.envs.blocksworld.language import MYSTERY, PLAIN

    return write_domain(MYSTERY if mystery else PLAIN)
