"""Recipes of the built-in policies (one TOML file each: model, observations, training), and their reader.

A file has the tables of ``recipe.Recipe`` and may name another one that it ``extends``: what it does not say is as there. Files whose
name begins with ``_`` are no policies, only there to be extended. ``built_in`` finds the recipe of an environment.
"""
