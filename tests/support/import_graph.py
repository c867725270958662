"""The project's import graph, read from source with `ast`."""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Iterator, Mapping

ROOT = pathlib.Path(__file__).parents[2]

Graph = Mapping[str, frozenset[str]]


def modules(package: str) -> dict[str, pathlib.Path]:
    """All modules of a package by dotted name."""
    found = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
        found[".".join(parts)] = path
    return found


def import_graph(*packages: str) -> Graph:
    """Map each module to the modules of these packages that it imports.

    Imports inside functions and under `TYPE_CHECKING` count. So do string literals
    that name a module, because `importlib.import_module` takes them.
    """
    paths = {
        name: path for package in packages for name, path in modules(package).items()
    }
    return {
        name: frozenset(
            _resolve(target, paths) for target in _targets(name, path, paths)
        )
        - {name, ""}
        for name, path in paths.items()
    }


def _targets(
    name: str, path: pathlib.Path, paths: Mapping[str, pathlib.Path]
) -> Iterator[str]:
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parent = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parent, *filter(None, [node.module])])
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and node.value in paths:
            yield node.value


def _resolve(target: str, paths: Mapping[str, pathlib.Path]) -> str:
    """The module that holds `target`, or an empty string if it is a library's."""
    while target and target not in paths:
        target = target.rpartition(".")[0]
    return target


def cycles(graph: Graph) -> list[list[str]]:
    """Groups of modules that import each other (strongly connected components)."""
    reachable = {name: _reachable(graph, name) for name in graph}
    groups = {
        frozenset(other for other in reachable[name] if name in reachable[other])
        for name in graph
    }
    return sorted(sorted(group) for group in groups if group)


def _reachable(graph: Graph, start: str) -> set[str]:
    seen: set[str] = set()
    stack = [start]
    while stack:
        for name in graph[stack.pop()] - seen:
            seen.add(name)
            stack.append(name)
    return seen
