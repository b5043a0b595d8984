"""A household game: its kinds, facts and names, its commands, and what they change."""
