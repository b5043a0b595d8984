"""Evaluating agents: who plays (``agents``), playing and resuming (``runner``, ``results``), and figures (``stats``)."""
