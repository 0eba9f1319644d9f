"""Everything torchproof raises on purpose.

    TorchproofError            exit 1   the tool broke
    ├── UsageError             exit 2   unreadable input, bad option
    │   └── SpecError                   a spec that does not say what it must
    ├── NothingSelectedError   exit 3   a selection that matches nothing
    ├── ConflictError          exit 4   facts that cannot hold together
    ├── StaleLockError         exit 5   a lock older than its spec, or bytes that do not match it
    ├── UnreachableError       exit 6   no engine, no index, no registry
    │   ├── EngineError
    │   └── PackageIndexError
    ├── BuildError             exit 7   a build step failed
    ├── CheckFailedError       exit 8   a check failed
    └── CheckNotRunError       exit 9   a required check was not run

A message has three parts (docs/errors.md): what cannot happen, the premises, a hint that was tried.
"""

from __future__ import annotations

from collections.abc import Sequence


class TorchproofError(Exception):
    """`code` is stable; `because` holds the premises in order, the conclusion last."""

    exit_status = 1

    def __init__(
        self,
        code: str,
        what: str,
        *,
        because: Sequence[str] = (),
        conclusion: str | None = None,
        hint: str | None = None,
        detail: str | None = None,
    ) -> None:
        super().__init__(what)
        self.code = code
        self.what = what
        self.because = tuple(because)
        self.conclusion = conclusion
        self.hint = hint
        self.detail = detail

    def __str__(self) -> str:
        """The whole message, as a terminal without colour shows it."""
        lines = [f"error[{self.code}]: {self.what}"]
        if self.because:
            lines.append("")
            lines.extend(
                f"  {'because' if number == 0 else 'and'} {premise}" for number, premise in enumerate(self.because)
            )
            if self.conclusion:
                lines[-1] += ","
                lines.append(f"  {self.conclusion}.")
        elif self.conclusion:
            lines += ["", f"  {self.conclusion}."]
        if self.detail:
            lines += ["", *(f"  | {line}" for line in self.detail.splitlines())]
        if self.hint:
            lines += ["", f"hint: {self.hint}"]
        return "\n".join(lines)


class UsageError(TorchproofError):
    exit_status = 2


class SpecError(UsageError):
    pass


class NothingSelectedError(TorchproofError):
    exit_status = 3


class ConflictError(TorchproofError):
    """Carries every conflict of every cell; its text is already joined."""

    exit_status = 4

    def __init__(self, text: str, *, code: str = "conflict") -> None:
        super().__init__(code, text)
        self.text = text

    def __str__(self) -> str:
        return self.text


class StaleLockError(TorchproofError):
    exit_status = 5


class UnreachableError(TorchproofError):
    exit_status = 6


class EngineError(UnreachableError):
    pass


class PackageIndexError(UnreachableError):
    pass


class BuildError(TorchproofError):
    exit_status = 7


class CheckFailedError(TorchproofError):
    exit_status = 8


class CheckNotRunError(TorchproofError):
    exit_status = 9
