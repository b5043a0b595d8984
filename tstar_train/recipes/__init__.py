"""Recipes of the built-in policies (one TOML file each: model, observations, training), and their reader.

A file has the tables of ``recipe.Recipe``. It may extend another file (``extends``), whose values are its defaults. Files whose name starts
with ``_`` are only for extension and make no policy. ``recipe.recipe_of`` finds the recipe of an environment.
"""
