"""What questions are made of: look-ups, chains of facts, wordings and other forms of answers."""
