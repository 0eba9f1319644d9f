"""How `docker buildx bake` is called, and what its plain log says about a step that failed. Pure: runs nothing."""

from __future__ import annotations

import csv
import io
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from builder.engine import BuildPlan
from builder.errors import BuildError, EngineError, PackageIndexError, StaleLockError, TorchproofError

TAIL_LINES = 20

_VERTEX = re.compile(r"^#(?P<number>\d+) (?P<rest>.*)$")
_NAME = re.compile(r"^\[.*\] |^\[internal\]|^exporting ")
_TIMED = re.compile(r"^\d+\.\d+ ")
_PROCESS = re.compile(r'process "(?P<command>.*)" did not complete successfully: exit code: (?P<status>\d+)', re.DOTALL)

_DISK_FULL = re.compile(r"no space left on device|\bENOSPC\b|disk quota exceeded", re.IGNORECASE)
_HASHES = re.compile(r"hash mismatch for |do not match the hashes|HashMismatch|hashes are required", re.IGNORECASE)
_NETWORK = re.compile(
    r"error sending request for url|failed to fetch|failed to download|client error \(connect\)|dns error"
    r"|temporary failure (?:in name resolution|resolving)|could not resolve|name or service not known"
    r"|connection (?:refused|reset|timed out)|network is unreachable|max retries exceeded|tls handshake"
    r"|invalid peer certificate|certificate verify failed|unable to fetch some archives|failed to fetch http",
    re.IGNORECASE,
)
_CERTIFICATE = re.compile(r"invalid peer certificate|certificate verify failed|unknownissuer", re.IGNORECASE)
_REGISTRY = re.compile(r"failed to resolve source metadata for (?P<reference>\S+?):(?: |$)")
_NO_SUCH_IMAGE = re.compile(r": not found|pull access denied|manifest unknown|repository does not exist")
_KILLED = 137
_NO_PYTHON = 66  # what python.sh ends with


def bake_argv(plan: BuildPlan, *, builder: str, metadata_file: Path) -> list[str]:
    """Contexts and secrets are arguments: neither the rendered folder nor the bake file has to name them.

    A bake file must list no `secret` of its own: `--set` replaces the list, and an entry without `src` makes
    buildx 0.13 look for a file named like the secret.
    """
    argv = ["docker", "buildx", "--builder", builder, "bake", "--file", plan.bake_file]
    argv += ["--progress", "plain", "--metadata-file", str(metadata_file)]
    # An attestation holds times and build arguments: two equal builds would differ with it.
    argv += ["--provenance=false"]
    for name, source in sorted(plan.contexts.items()):
        argv += ["--set", f"*.contexts.{name}={source}"]
    for name, path in sorted(plan.secrets.items()):
        argv += ["--set", f"*.secrets={_csv_row(f'id={name}', f'src={path}')}"]
    return argv


def _csv_row(*fields: str) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow(fields)
    return out.getvalue()


class Fault(Enum):
    """What an install step can die of that is not its own doing."""

    DISK_FULL = "disk full"
    HASHES = "hashes"
    NETWORK = "network"


def fault_of(text: str) -> Fault | None:
    """Known by its words, in the order in which one causes the other: a full disk also breaks downloads."""
    for fault, pattern in ((Fault.DISK_FULL, _DISK_FULL), (Fault.HASHES, _HASHES), (Fault.NETWORK, _NETWORK)):
        if pattern.search(text):
            return fault
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class StepFailure:
    """`step` as the log names it; `command` and `exit_status` only when a RUN failed."""

    step: str
    message: str
    tail: tuple[str, ...]
    command: str | None = None
    exit_status: int | None = None


class BakeLog:
    """Reads the plain log line by line and remembers, for each step, its name and last lines."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._tails: dict[str, deque[str]] = {}
        self._errors: dict[str, str] = {}
        self._loose: deque[str] = deque(maxlen=TAIL_LINES)
        self.final: str | None = None

    def feed(self, line: str) -> None:
        match = _VERTEX.match(line)
        if not match:
            if line.startswith("ERROR: "):
                self.final = line.removeprefix("ERROR: ")
            if line.strip():
                self._loose.append(line)
            return
        number, rest = match["number"], match["rest"]
        if rest.startswith("ERROR: "):
            self._errors[number] = rest.removeprefix("ERROR: ")
        elif _TIMED.match(rest):
            self._tails.setdefault(number, deque(maxlen=TAIL_LINES)).append(rest.split(" ", 1)[1])
        elif number not in self._names and _NAME.match(rest):
            self._names[number] = rest

    def failure(self) -> StepFailure | None:
        """The first step that failed of itself: the steps stopped because of it are marked CANCELED, not ERROR."""
        for number, message in self._errors.items():
            if "context canceled" in message and len(self._errors) > 1:
                continue
            process = _PROCESS.search(message)
            return StepFailure(
                step=self._names.get(number, f"#{number}"),
                message=message,
                tail=tuple(self._tails.get(number, ())),
                command=process["command"].removeprefix("/bin/sh -c ") if process else None,
                exit_status=int(process["status"]) if process else None,
            )
        if self.final is not None:
            return StepFailure(step="the build definition", message=self.final, tail=tuple(self._loose))
        return None

    def last_lines(self) -> tuple[str, ...]:
        return tuple(self._loose)


def failure_error(log: BakeLog, *, status: int, images: Sequence[str], log_file: Path) -> TorchproofError:
    """The exception that fits a failed bake: the host's disk, the index, a lock that no longer holds, or the step."""
    failure = log.failure() or StepFailure(
        step="docker buildx bake", message=f"exit status {status}, without a word", tail=log.last_lines()
    )
    text = "\n".join([failure.message, *failure.tail, log.final or ""])
    what = f"{_listed(images)} cannot be built"
    detail = "\n".join(failure.tail[-TAIL_LINES:]) or failure.message
    where = f"the whole log is in {log_file}"
    step = f"step `{failure.step}` failed"
    if failure.exit_status is not None:
        step = f"`{_shortened(failure.command or '')}` ended with status {failure.exit_status} in step `{failure.step}`"

    fault = fault_of(text)
    if fault is Fault.DISK_FULL:
        return BuildError(
            "disk-full",
            what,
            because=(step, "the disk of the engine, or its temporary folder, is full"),
            hint="free space with `docker system df` and `docker builder prune`, or move the engine's data folder; "
            + where,
            detail=detail,
        )
    if failure.exit_status == _NO_PYTHON and (wanted := re.search(r"torchproof: uv cannot get Python (\S+)", text)):
        return no_managed_python(what, wanted[1], here="in the build", apt="the base", hint=where, detail=detail)
    registry = _REGISTRY.search(text)
    if registry:
        return base_image_error(registry["reference"], text, what=what, where=where)
    if fault is Fault.HASHES:
        return StaleLockError(
            "hash-mismatch",
            what,
            because=(step, "a downloaded file is not the one that the lock names"),
            hint="lock again, and look at why the index now serves other bytes; " + where,
            detail=detail,
        )
    if failure.exit_status is not None and fault is Fault.NETWORK:
        hint = "check the index settings and the network of the engine's containers"
        if _CERTIFICATE.search(text):
            hint = "give the certificates of this network to the build as a CA bundle"
        return PackageIndexError(
            "index-unreachable-in-build",
            what,
            because=(step, "a package could not be fetched from inside the build"),
            hint=f"{hint}; {where}",
            detail=detail,
        )
    because = [step]
    if failure.exit_status == _KILLED:
        because.append("status 137 is a process killed from outside, most often because memory ran out")
    elif failure.exit_status is None:
        because.append(failure.message)
    return BuildError("build-step-failed", what, because=because, detail=detail, hint=where)


def no_managed_python(
    what: str, python: str | None, *, here: str, apt: str, detail: str | None, hint: str = ""
) -> PackageIndexError:
    """Uv has no such Python, or cannot fetch it; the other places that it could come from."""
    return PackageIndexError(
        "python-unreachable",
        what,
        because=(f"its Python {python} is to be one of those that uv manages", f"uv cannot get it {here}"),
        hint=f"name a mirror in UV_PYTHON_INSTALL_MIRROR, or take Python from elsewhere: `provider: apt` ({apt}) or "
        f"`provider: conda`{'; ' if hint else ''}{hint}",
        detail=detail,
    )


def base_image_error(reference: str, text: str, *, what: str, where: str | None = None) -> EngineError:
    """Told apart: a registry that answers but has no such image, and one that does not answer."""
    name = _short_name(reference)
    # "no such host" is a registry that is not there, whatever else the text says is not found.
    unreachable = re.search(r"no such host|dial tcp|i/o timeout|tls:|x509|EOF|connection refused", text)
    tail = f"; {where}" if where else ""
    if _NO_SUCH_IMAGE.search(text) and not unreachable:
        return EngineError(
            "image-not-found",
            what,
            because=(f"there is no image `{name}` on this machine", "its registry answers that it has none either"),
            hint=f"check the name and the tag{tail}",
        )
    return EngineError(
        "registry-unreachable",
        what,
        because=(f"there is no image `{name}` on this machine", "its registry does not answer"),
        hint="use a base that is on this machine (`docker images`), or `debian:<suite>`, which is made from Debian's"
        f" packages{tail}",
        detail=text.strip().splitlines()[-1] if text.strip() else None,
    )


def _listed(images: Sequence[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in images[:3])
    return shown + (f" and {len(images) - 3} more" if len(images) > 3 else "")


def _shortened(command: str, limit: int = 160) -> str:
    command = " ".join(command.replace("\\n", " ").split())
    return command if len(command) <= limit else command[: limit - 3] + "..."


def image_ids(plan: BuildPlan) -> list[str]:
    return [target.image_id for target in plan.targets]


def digests_by_name(metadata: Mapping[str, object]) -> dict[str, str]:
    """Image name, without the default registry -> digest that the engine gave to what it just built."""
    found: dict[str, str] = {}
    for values in metadata.values():
        if isinstance(values, dict) and isinstance(values.get("containerimage.digest"), str):
            for name in str(values.get("image.name", "")).split(","):
                found[_short_name(name)] = values["containerimage.digest"]
    return found


def _short_name(reference: str) -> str:
    return reference.strip().removeprefix("docker.io/").removeprefix("library/")
