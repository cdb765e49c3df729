"""The exception of this package."""


class WarmrouteError(Exception):
    """The router refused a call, or failed.

    ``code`` is one of the codes of errors that the router sends over HTTP, such as ``conflict``; ``message`` says
    what is wrong and what was expected.
    """

    code: str
    message: str

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.message} ({self.code})"
