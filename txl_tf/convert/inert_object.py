"""What stands for an object of a pickle: its description, never the object."""

import dataclasses
from typing import Any


@dataclasses.dataclass(eq=False)
class InertObject:
    """An object that a pickle asks for and that was not made.

    Attributes:
        kind: str. Module and name of the class, or of the function that would
            have made it.
        state: what the pickle says the object holds; `None` if nothing.
    """

    kind: str
    state: Any = None
