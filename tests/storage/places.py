"""Kinds of paths that storage has to serve alike, and those who come to one at once."""

from txl_tf.errors import OutputExistsError

KINDS = ["local", "ram", "file"]


def place(kind, tmp_path, name):
    """A path of that kind that nothing else has."""
    return {
        "local": str(tmp_path / name),
        "ram": f"ram://{tmp_path.name}/{name}",
        "file": f"file://{tmp_path}/{name}",
    }[kind]


class Turns:
    """Counts how many are inside of what only one may enter; `enter` makes the context."""

    def __init__(self, enter):
        self._enter = enter
        self._inside = []
        self.most_at_once = self.done = 0

    def try_one(self):
        """Enters and leaves, or is told that another is inside."""
        try:
            with self._enter():
                self._inside.append(1)
                self.most_at_once = max(self.most_at_once, len(self._inside))
                self._inside.pop()
                self.done += 1
        except OutputExistsError:
            pass
