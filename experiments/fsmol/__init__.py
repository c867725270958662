"""Evaluation of a finished run as FS-Mol does it; see `__main__`."""
