"""Base images: `debian:<suite>` made from Debian's packages, and digests of registry references."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit, urlunsplit

from builder.errors import EngineError
from builder.processes import hold_interrupts, stream

REPOSITORY = "torchproof-base/debian"
BASE_LABEL = "io.torchproof.base"

_SUITE = re.compile(r"[a-z][a-z0-9-]*")
_LIMIT_S = 1800.0  # 40 s on two cores with a near mirror, see the note in docs/architecture.md
_DAY_S = 86_400

# What differs between two runs, or tells about the machine that made the base. Folders are emptied, files removed.
_EMPTIED = ("var/log", "var/cache/apt", "var/cache/ldconfig", "var/lib/apt/lists", "run", "tmp", "var/tmp", "dev")
# Empty files, not missing ones: the engine mounts its own over the first three, and if it had to make them first, each
# RUN would leave a new time on /etc, so that no such layer could ever be equal to another.
_BLANKED = ("etc/hostname", "etc/hosts", "etc/resolv.conf", "etc/machine-id")
_OLD_COPIES = (
    "var/cache/debconf/*-old",
    "var/lib/dpkg/*-old",
    "etc/passwd-",
    "etc/group-",
    "etc/shadow-",
    "etc/gshadow-",
)

_APT_CONF = """\
// written by torchproof: translations only fill layers
Acquire::Languages "none";
"""
_DPKG_CONF = (
    "# written by torchproof: a build that is cut off is thrown away, so nothing needs a sync\nforce-unsafe-io\n"
)
# Debian's own way to say that package installs start no services (invoke-rc.d(8)).
_POLICY = "#!/bin/sh\nexit 101\n"


class BaseStore(Protocol):
    """The part of an engine that bases are made with."""

    def has_image(self, reference: str) -> bool: ...

    def import_root(self, root: Path, reference: str, *, labels: Mapping[str, str]) -> None: ...

    def pull(self, reference: str) -> None: ...

    def registry_digest(self, reference: str) -> str: ...


def resolve_reference_digest(reference: str, engine: BaseStore) -> str:
    """`name@sha256:...` for what the tag points to now; EngineError when the registry is silent or has no such."""
    if "@" in reference:
        return reference
    # A colon after the last slash is a tag; before it, the port of a registry.
    tagged = reference if ":" in reference.rpartition("/")[2] else f"{reference}:latest"
    return f"{tagged.rpartition(':')[0]}@{engine.registry_digest(tagged)}"


def ensure_debian_base(
    suite: str,
    engine: BaseStore,
    cache_dir: Path,
    on_line: Callable[[str], None],
    *,
    environ: Mapping[str, str],
    mirror: str | None = None,
) -> str:
    """A local image of this suite: the one that is there, or made by debootstrap, or Debian's own from its registry."""
    if not _SUITE.fullmatch(suite):
        raise ValueError(f"not the name of a Debian suite: {suite!r}")
    made, registry = f"{REPOSITORY}:{suite}", f"debian:{suite}"
    if engine.has_image(made):
        return made
    cache_dir.mkdir(parents=True, exist_ok=True)
    with _one_at_a_time(cache_dir / f"debian-{suite}.lock"):
        if engine.has_image(made):
            return made
        why_not = _why_no_debootstrap(environ)
        if why_not is None:
            why_not = _make(suite, made, engine, cache_dir, on_line, environ=environ, mirror=mirror)
            if why_not is None:
                return made
            on_line(why_not)
    if engine.has_image(registry):
        return registry
    try:
        engine.pull(registry)
    except EngineError as error:
        raise EngineError(
            "no-debian-base",
            f"no base image for `{registry}` can be had",
            because=(why_not, f"the registry gives no image `{registry}` either: {error.because[-1]}"),
            hint="run as root with `debootstrap` installed, or name a base that is on this machine (`docker images`)",
            detail=error.detail,
        ) from error
    return registry


def _why_no_debootstrap(environ: Mapping[str, str]) -> str | None:
    # Users other than root have no sbin on PATH, and root may have lost it in `su`.
    if _find("debootstrap", environ) is None:
        return "`debootstrap` is not installed"
    if os.geteuid() != 0:
        return "`debootstrap` needs root"
    return None


def _find(command: str, environ: Mapping[str, str]) -> str | None:
    return shutil.which(command, path=f"{environ.get('PATH', '')}:/usr/sbin:/sbin")


@contextmanager
def _one_at_a_time(lock: Path) -> Iterator[None]:
    """Two runs that want the same base make it once."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _work_folder(parent: Path) -> Iterator[Path]:
    work = Path(tempfile.mkdtemp(prefix="debootstrap-", dir=parent))
    try:
        yield work
    finally:
        with hold_interrupts():
            mounts = mounted_below(work, Path("/proc/self/mounts").read_text(encoding="utf-8"))
            for mount in mounts:
                subprocess.run(["umount", "--lazy", mount], check=False, capture_output=True)
            # Deleting through a mount would delete the machine's own /dev or /sys.
            if not mounted_below(work, Path("/proc/self/mounts").read_text(encoding="utf-8")):
                shutil.rmtree(work, ignore_errors=True)


def mounted_below(folder: Path, mounts: str) -> list[str]:
    """Mount points inside `folder`, the innermost first; `mounts` is the text of /proc/self/mounts."""
    points = [line.split(" ")[1].replace("\\040", " ") for line in mounts.splitlines() if " " in line]
    return sorted((point for point in points if Path(point).is_relative_to(folder)), key=len, reverse=True)


def _make(
    suite: str,
    reference: str,
    engine: BaseStore,
    cache_dir: Path,
    on_line: Callable[[str], None],
    *,
    environ: Mapping[str, str],
    mirror: str | None,
) -> str | None:
    """None when the image is there, else why debootstrap did not make it."""
    mirror = mirror or apt_mirror(_apt_sources(Path("/etc/apt")))
    with _work_folder(cache_dir) as work:
        root, tar = work / "root", work / "root.tar"
        command = [_find("debootstrap", environ) or "debootstrap", "--variant=minbase", suite, str(root)]
        if mirror:
            command.append(mirror)
        # In a mount namespace of its own: what debootstrap mounts is gone with it, also when it is killed.
        argv = ["unshare", "--mount", "--propagation", "private", *command]
        env = {**environ, "LC_ALL": "C.UTF-8", "PATH": f"{environ.get('PATH', '')}:/usr/sbin:/sbin"}
        last: list[str] = []

        def note(line: str) -> None:
            last[:] = [*last[-4:], line]
            on_line(line)

        try:
            status = stream(argv, cwd=work, env=env, on_line=note, limit_s=_LIMIT_S)
        except FileNotFoundError as error:
            return f"`{error.filename}` is not installed, and debootstrap needs it"
        if status != 0:
            what = "did not end in time" if status is None else f"ended with status {status}"
            return f"`debootstrap {suite}` {what}: {' / '.join(last[-2:])}"
        epoch = release_time(root / "var/lib/apt/lists")
        clean(root, epoch=epoch)
        dress(root, apt_sources(suite, _without_credentials(mirror or _mirror_used(root)), exists=_is_served))
        status = stream(_tar_argv(root, tar, epoch), cwd=work, env=env, on_line=note, limit_s=_LIMIT_S)
        if status != 0:
            return f"the base cannot be packed: {' / '.join(last[-2:])}"
        on_line(f"importing {reference}")
        engine.import_root(
            tar,
            reference,
            labels={BASE_LABEL: f"debian:{suite}", "org.opencontainers.image.title": f"debian {suite}, minbase"},
        )
    return None


def _tar_argv(root: Path, tar: Path, epoch: int) -> list[str]:
    # Plain pax headers hold the process number of tar and the times of access and change.
    fixed = ["--pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime"]
    fixed += ["--sort=name", f"--mtime=@{epoch}", "--clamp-mtime", "--numeric-owner", "--one-file-system"]
    return ["tar", "--create", f"--file={tar}", f"--directory={root}", "--xattrs", "--format=pax", *fixed, "."]


def release_time(lists: Path) -> int:
    """When the suite's Release file was made: newer files are given this time, so equal packages give equal bytes."""
    for path in sorted(lists.glob("*Release")):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("Date:"):
                return int(parsedate_to_datetime(line.partition(":")[2].strip()).timestamp())
    raise EngineError("engine-refused", f"debootstrap left no Release file with a date in {lists}")


def clean(root: Path, *, epoch: int) -> None:
    """Leave nothing that depends on when and where the base was made."""
    for folder in _EMPTIED:
        for entry in (root / folder).iterdir() if (root / folder).is_dir() else ():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
    for name in _BLANKED:
        (root / name).unlink(missing_ok=True)  # may be a link to somewhere else
        (root / name).touch(mode=0o644)
    (root / "var/lib/dbus/machine-id").unlink(missing_ok=True)
    for pattern in _OLD_COPIES:
        for path in root.glob(pattern):
            path.unlink()
    # apt wants both.
    for folder in ("var/cache/apt/archives/partial", "var/lib/apt/lists/partial"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    locks = root / "run/lock"  # /var/lock points to it
    locks.mkdir(parents=True, exist_ok=True)
    locks.chmod(0o1777)
    shadow = root / "etc/shadow"
    if shadow.exists():
        rows = [row.split(":") for row in shadow.read_text(encoding="utf-8").splitlines()]
        for row in rows:
            row[2] = str(epoch // _DAY_S)  # the day of the last change of a password that nobody has
        shadow.write_text("".join(":".join(row) + "\n" for row in rows), encoding="utf-8")


def dress(root: Path, sources: str) -> None:
    """What an image needs beyond a fresh system: complete package sources, and no services started by installs."""
    (root / "etc/apt/sources.list").write_text(sources, encoding="utf-8")
    (root / "etc/apt/apt.conf.d/90torchproof").write_text(_APT_CONF, encoding="utf-8")
    (root / "etc/dpkg/dpkg.cfg.d/torchproof").write_text(_DPKG_CONF, encoding="utf-8")
    policy = root / "usr/sbin/policy-rc.d"
    policy.write_text(_POLICY, encoding="utf-8")
    policy.chmod(0o755)


def apt_sources(suite: str, mirror: str, *, exists: Callable[[str], bool]) -> str:
    """A sources.list with the updates and security suites that the mirror really serves."""
    mirror = mirror.rstrip("/")
    # Up to Debian 10 the security suite was called buster/updates, since then bullseye-security.
    candidates = [(mirror, f"{suite}-updates")]
    candidates += [(f"{mirror}-security", name) for name in (f"{suite}-security", f"{suite}/updates")]
    lines = [f"deb {mirror} {suite} main"]
    lines += [f"deb {url} {name} main" for url, name in candidates if exists(f"{url}/dists/{name}/Release")]
    return "\n".join(lines) + "\n"


def _is_served(url: str) -> bool:
    """Asked with wget, which debootstrap needs anyway."""
    argv = ["wget", "--quiet", "--spider", "--tries=2", "--timeout=20", url]
    return subprocess.run(argv, check=False, capture_output=True).returncode == 0


def _mirror_used(root: Path) -> str:
    return apt_mirror([(root / "etc/apt/sources.list").read_text(encoding="utf-8")]) or ""


def _apt_sources(folder: Path) -> list[str]:
    paths = [*sorted((folder / "sources.list.d").glob("*.sources")), folder / "sources.list"]
    paths += sorted((folder / "sources.list.d").glob("*.list"))
    return [path.read_text(encoding="utf-8", errors="replace") for path in paths if path.is_file()]


def apt_mirror(sources: Sequence[str]) -> str | None:
    """The Debian mirror that a machine uses, from the texts of its apt sources; None on other systems."""
    for text in sources:
        for line in text.splitlines():
            field, _, rest = line.strip().partition(" ")
            if field not in ("URIs:", "deb"):
                continue
            for word in rest.split():
                if re.fullmatch(r"https?://\S+/debian/?", word):
                    return word.rstrip("/")
    return None


def _without_credentials(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
