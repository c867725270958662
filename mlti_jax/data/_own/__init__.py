"""Users' own data: arrays, image folders and tables as `Splits`.

Modules, from the bottom up: `labels` (settings), `files` (tables and images), `inputs`
(how raw data becomes samples), `splitting` (held-out tasks and pools), then the public
functions in `arrays`, `folders` and `tables`, and `dataset` for the command line.
"""
