"""Examples of the package in other code."""
