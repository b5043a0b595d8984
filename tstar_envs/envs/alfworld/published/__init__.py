"""The published games: their files read and written, and the original engine, which plays them."""
