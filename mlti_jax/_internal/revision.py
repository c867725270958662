"""The revision of the code that this process runs."""

from __future__ import annotations

import functools
import hashlib
import pathlib
import subprocess

_PACKAGE = pathlib.Path(__file__).parents[1]


@functools.cache
def revision(package: pathlib.Path = _PACKAGE) -> str | None:
    """Return the git revision of a package's checkout; None if it is in none.

    An installed package may be inside of another project's checkout, which does not
    track its files. If tracked files of the package have changed since the commit, a
    digest of the changes is added: `ba28a9a1b2c3, with local changes (1f2e3d4c)`.

    Cached, since a process keeps the code that it has imported.

    Args:
      package: folder of the package.
    """

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(package), *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=10,
            check=True,
        )
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")
        commit = git("rev-parse", "--short=12", "HEAD")
        changes = git("diff", "--no-ext-diff", "--no-color", "HEAD", "--", ".")
    except (OSError, subprocess.SubprocessError):
        return None
    if not changes:
        return commit
    digest = hashlib.sha256(changes.encode()).hexdigest()[:8]
    return f"{commit}, with local changes ({digest})"
