"""Registers the environments of ``lamps``, as a user's module registers those of his own."""

from lamps_environment import BROKEN, Lamps, NoExpert, Raises, entry_of

from tstar_envs import register

for _cls in (Lamps, NoExpert, Raises, *BROKEN):
    register(entry_of(_cls))
