"""ALFWorld: household tasks in text, on rules of this project that answer word for word as ALFWorld's own engine does."""
