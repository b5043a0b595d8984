"""Public files of levels: XSB and Boxoban text in its many forms, and XML collections (``.slc``, SokoSolve's ``.ssx``)."""
