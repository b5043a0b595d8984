"""Makes problems and tells equal ones apart; nothing that plays loads it.

``python -m tstar_envs.envs.blocksworld.generate --out FOLDER`` writes the shipped problems, the same bytes everywhere.
"""
