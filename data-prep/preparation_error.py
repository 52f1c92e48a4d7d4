"""The one exception a user sees."""


class PreparationError(Exception):
    """An error whose message is one sentence for the user: what is wrong and what to do."""
