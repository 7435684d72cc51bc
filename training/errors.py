"""Mistakes that a user can mend. A command ends with their one line; other exceptions show where they were raised."""


class UserError(Exception):
    """Its message names the value, where it came from, and what helps."""


class FileError(UserError, OSError):
    """A file or folder that cannot be read or written."""
