"""Kinds of paths that storage has to serve alike."""

KINDS = ["local", "ram", "file"]


def place(kind, tmp_path, name):
    """A path of that kind that nothing else has."""
    return {
        "local": str(tmp_path / name),
        "ram": f"ram://{tmp_path.name}/{name}",
        "file": f"file://{tmp_path}/{name}",
    }[kind]
