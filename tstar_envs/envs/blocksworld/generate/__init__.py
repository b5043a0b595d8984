"""Makes problems and recognises equal ones; nothing that plays loads it.

``python -m tstar_envs.envs.blocksworld.generate --out FOLDER`` writes the shipped problems, the same bytes everywhere.
"""
