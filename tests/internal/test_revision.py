"""The revision of a checkout, compared with git itself."""

import subprocess

import pytest

from mlti_jax._internal.revision import revision


@pytest.fixture
def checkout(tmp_path):
    """A repository with a package; returns a function that runs git in it."""

    def git(*arguments):
        identity = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("a = 1\n")
    (tmp_path / "notes.md").write_text("a\n")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "one")
    return git


def of(folder):
    revision.cache_clear()
    return revision(folder / "package")


def test_revision_and_its_mark(checkout, tmp_path):
    commit = checkout("rev-parse", "HEAD")[:12]
    assert of(tmp_path) == commit
    # Neither other files nor new ones are code that runs.
    (tmp_path / "notes.md").write_text("b\n")
    (tmp_path / "package" / "new.py").write_text("")
    assert of(tmp_path) == commit
    module = tmp_path / "package" / "__init__.py"
    module.write_text("a = 2\n")
    changed = of(tmp_path)
    assert changed.startswith(f"{commit}, with local changes (")
    module.write_text("a = 3\n")
    assert of(tmp_path) != changed
    module.write_text("a = 2\n")
    assert of(tmp_path) == changed
    checkout("commit", "-qam", "two")
    assert of(tmp_path) == checkout("rev-parse", "HEAD")[:12] != commit


def test_a_process_keeps_its_revision(checkout, tmp_path):
    before = of(tmp_path)
    (tmp_path / "package" / "__init__.py").write_text("a = 2\n")
    assert revision(tmp_path / "package") == before


def test_no_revision_outside_of_a_checkout(checkout, tmp_path):
    installed = tmp_path / "lib" / "package"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("")  # not tracked
    assert of(tmp_path / "lib") is None
    assert of(tmp_path / "missing") is None
