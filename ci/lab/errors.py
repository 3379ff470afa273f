"""The lab's one error: its message says what is wrong and what to do."""


class LabError(Exception):
    """The lab cannot do what was asked."""
