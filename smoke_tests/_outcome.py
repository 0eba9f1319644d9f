"""How one check can end, and who is to blame for an error."""

import os
import traceback

NOT_APPLICABLE = "not-applicable"


class Outcome(Exception):  # noqa: N818
    """How one check ended. It is an exception so that a check can end from any depth."""

    status = ""

    def __init__(self, code, message, measured=None, expected=None, tolerance=None, blame=None, **details):
        super().__init__(message)
        self.code = code
        self.message = message
        self.measured = measured
        self.expected = expected
        self.tolerance = tolerance
        self.blame = blame
        self.details = details


class Passed(Outcome):
    status = "passed"

    def __init__(self, message, **values):
        super().__init__(None, message, **values)


class Failed(Outcome):
    """`blame`: `image` (the default) or `host`, such as a driver that is too old."""

    status = "failed"

    def __init__(self, code, message, blame="image", **values):
        super().__init__(code, message, blame=blame, **values)


class NotChecked(Outcome):
    status = "not-checked"

    def __init__(self, reason, **values):
        super().__init__(None, reason, **values)


class NotApplicable(NotChecked):
    """There is nothing to check in this image, such as a package that the lock does not have.

    The code tells it from proof that is missing: only the latter keeps an image from its level.
    """

    def __init__(self, reason, **values):
        super().__init__(reason, **values)
        self.code = NOT_APPLICABLE


class Errored(Outcome):
    status = "errored"


def blame_stack(error, code, message, **values):
    """Failed, when `error` came out of the stack under test; `error` itself when it is a slip in the script.

    Errors raised in C have no frame of their own, so the kind of the error decides for those that end in our frames.
    """
    frame = traceback.extract_tb(error.__traceback__)[-1]
    in_script = os.path.dirname(os.path.abspath(frame.filename)) == os.path.dirname(os.path.abspath(__file__))
    slip = isinstance(error, (NameError, AttributeError, TypeError, LookupError, AssertionError))
    if isinstance(error, Outcome) or (in_script and slip):
        return error
    values["traceback"] = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return Failed(code, "{}: {}".format(message, one_line(error)), **values)


def one_line(error):
    text = " ".join(str(error).split())
    if len(text) > 400:
        text = text[:397] + "..."
    return "{}: {}".format(type(error).__name__, text) if text else type(error).__name__
