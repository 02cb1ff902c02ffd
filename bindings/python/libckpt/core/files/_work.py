"""WorkFolders: folders that are being collected, and what is known of those that are captured.

    work/NAME/       being collected, hidden from every reader
    work/NAME.json   its facts, written once its capture is done: a later process can publish it
"""

import contextlib
import json
import os
import pathlib
import shutil
import tempfile

from libckpt.core.files._disk import replace_text, sync, sync_tree

PRIVATE = ".libckpt"  # The folder in a user's directory that is ours alone.


def make_or_aside(folder, exist_ok=False):
    """(the folder, None). Where it cannot be made, as when a file system has turned read-only:
    (one elsewhere, why). There a framework's save, in which ranks meet, can run to its end; its
    caller says that nothing comes of it, and removes that one's parent."""
    try:
        folder.mkdir(parents=True, exist_ok=exist_ok)
        return folder, None
    except OSError as error:
        aside = pathlib.Path(tempfile.mkdtemp(prefix="libckpt-"), folder.name)
        aside.mkdir()
        return aside, f"make {folder}: {error.strerror}"


class WorkFolders:
    def __init__(self, directory):
        self.directory = pathlib.Path(directory)

    def begin(self, name):
        """An empty folder."""
        folder = self.directory / name
        self.drop(name)
        folder.mkdir(parents=True)
        return folder

    def folder(self, name):
        return self.directory / name

    def sync(self, name):
        sync_tree(self.folder(name))
        sync(self.directory)

    def note(self, name, facts):
        replace_text(self.directory / f"{name}.json", json.dumps(facts))

    def noted(self):
        """(name, facts) of what was captured and not published, the newest first."""
        found = []
        if self.directory.is_dir():
            for path in self.directory.glob("[!.]*.json"):
                with contextlib.suppress(ValueError, OSError):
                    facts = json.loads(path.read_text())
                    found.append((path.stat().st_mtime_ns, path.stem, facts))
        return [(name, facts) for _, name, facts in sorted(found, reverse=True)]

    def drop(self, name):
        """The note first: a reader that finds one finds all of the folder."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.directory / f"{name}.json")
        shutil.rmtree(self.directory / name, ignore_errors=True)

    def drop_all(self):
        shutil.rmtree(self.directory, ignore_errors=True)
