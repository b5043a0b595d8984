"""One module for each question set."""
