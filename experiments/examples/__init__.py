"""Scripts that show parts of the package at work in other code."""
