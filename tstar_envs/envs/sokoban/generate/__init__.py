"""Makes levels and proves how long they are; nothing that plays loads it.

``python -m tstar_envs.envs.sokoban.generate --out FOLDER`` writes the shipped levels, the same bytes everywhere.
"""
