"""Registers the environments of ``foreign_code`` when it is imported: for commands in processes of their own."""

from foreign_code import ENTRIES

from tstar_envs import register

for _entry in ENTRIES:
    register(_entry)
