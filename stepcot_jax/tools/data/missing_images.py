"""Messages about missing images, with the option that makes the files unnecessary."""

import re

_MISSING = re.compile(r"no image '|does not exist below the data root|cannot be copied \(No such file")


def name_option(message: str, *, purpose: str) -> str:
    """Return a message, with the option `--images=none` named if the message is about a missing image.

    >>> name_option("row 2: no image 'a.png'", purpose="checks the records alone")
    "row 2: no image 'a.png'; --images=none checks the records alone"
    """
    return f"{message}; --images=none {purpose}" if _MISSING.search(message) else message
