"""What lies in the layers of an image, also where a later layer hides it: read from the tar that `docker save` writes.

A check inside the image sees what is left at the end. A file that one step wrote and the next one removed is still in
the image that everyone pulls; only the layers show it. The tar is read once, as a stream: what is kept are the sizes
and the findings.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import IO, Any, Literal

Kind = Literal["secret", "certificate", "leftover"]

# Paths without a leading slash, as layers hold them. The same kinds as smoke_tests/_image_files.py looks for.
_LEFTOVERS = re.compile(
    r"^(?:root/\.cache/.+|home/[^/]+/\.cache/.+|(?:root|home/[^/]+)/(?:\.pip/.+|\.config/pip/.+)"
    r"|mnt/.+|layer(?:/.*)?|var/cache/uv/.+|var/cache/apt/archives/.+\.deb|var/lib/apt/lists/[^/]+_.+"
    r"|etc/pip\.conf|usr/local/bin/uv|(?:tmp|root|opt)/[^/]+\.whl|tmp/pip-.+)$"
)
_SECRETS = re.compile(
    r"^(?:run/secrets/.+|etc/ssl/private/.+"
    r"|(?:root|home/[^/]+)/(?:\.netrc|\.git-credentials|\.pypirc|\.docker/.+|\.aws/.+|\.config/gcloud/.+|\.kaggle/.+"
    r"|\.huggingface/token|\.cache/huggingface/token|\.ssh/id_[^/]*(?<!\.pub))"
    r"|(?:tmp|root|opt|srv|mnt(?:/.*)?|home/[^/]+)/[^/]+\.(?:key|p12|pfx))$"
)
_CERTIFICATES = re.compile(
    r"^(?:usr/local/share/ca-certificates/.+|(?:tmp|root|opt|srv|mnt(?:/.*)?|home/[^/]+)/[^/]+\.(?:pem|crt|cer))$"
)
_PASSWORD = re.compile(r"://[^/\s:@'\"]+:[^/\s@'\"]+@")
# A variable that is named like a secret and has a value; one that only names a file or another variable is none.
_TOKEN = re.compile(
    r"\b((?:[A-Z0-9]+_)*(?:TOKEN|SECRET|PASSWORD|PASSWD|API_KEY|ACCESS_KEY|SECRET_KEY))=(?!['\"]?(?:$|[\s/$'\"]))"
    r"['\"]?[^\s'\"]+"
)
_SETTINGS = re.compile(r"(?:^|/)(?:pip\.conf|uv\.toml|\.netrc|\.npmrc|\.condarc|environment)$|^[^/]*/?[^/]*/?\.env$")
_MOST_SETTINGS_BYTES = 2**20
_MOST_DOCUMENT_BYTES = 2**26
# tar ends with two blocks of zeros and is filled up to a record of twenty.
_MOST_PADDING_BYTES = 512 * 22
# `RUN |1 NAME=value /bin/sh -c make` and, of older builders, `/bin/sh -c #(nop) COPY x in /`.
_STEP = re.compile(r"^(RUN )?(?:\|\d+ .*?)?(?:/bin/sh -c )?(?:#\(nop\) +)?")


class UnreadableError(Exception):
    """The stream is no image, or breaks off before its end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """`where` is a path, or the text of the configuration with the secret itself left out."""

    kind: Kind
    where: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """`size_bytes` is of its files, unpacked. `step` is what made it, empty where the history does not tell."""

    digest: str
    size_bytes: int
    step: str = ""
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedImage:
    """`layers` from the base up. `unread`: why a layer could not be looked into, by its digest; such a layer is in
    `layers`, too, without findings. `findings` are those of the configuration: steps, variables, labels.
    """

    layers: tuple[Layer, ...]
    unread: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)


def read(stream: IO[bytes]) -> SavedImage:
    """Everything of one image; UnreadableError when the stream is not one whole image."""
    contents: dict[str, Layer | str] = {}
    documents: dict[str, Any] = {}
    links: dict[str, str] = {}
    try:
        with tarfile.open(fileobj=stream, mode="r|") as outer:
            for member in outer:
                if member.issym() or member.islnk():
                    links[member.name] = member.linkname  # the old format names a layer that two images share
                    continue
                content = outer.extractfile(member) if member.isfile() else None
                if content is None:
                    continue
                start = content.read(1)
                if start in (b"{", b"[") and member.size < _MOST_DOCUMENT_BYTES:
                    documents[member.name] = _document(start + content.read())
                else:
                    contents[member.name] = _layer(member.name, _Behind(start, content), member.size)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise UnreadableError(str(error)) from error
    return _put_together(contents, documents, links)


class _Behind(io.RawIOBase):
    """A stream of which the first byte was read already."""

    def __init__(self, start: bytes, rest: IO[bytes]) -> None:
        self._start, self._rest = start, rest

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if self._start:
            start, self._start = self._start, b""
            return start + self._rest.read(max(size - 1, 0) if size >= 0 else -1)
        return self._rest.read(size)


def _document(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return None


def _put_together(
    contents: Mapping[str, Layer | str], documents: Mapping[str, Any], links: Mapping[str, str]
) -> SavedImage:
    manifest = documents.get("manifest.json")
    if not isinstance(manifest, list) or len(manifest) != 1:
        raise UnreadableError("it has no manifest of one image")
    config = documents.get(manifest[0].get("Config", ""))
    if not isinstance(config, dict):
        raise UnreadableError("its configuration is missing")
    names = [_followed(name, links) for name in manifest[0].get("Layers") or []]
    made = [step for step in config.get("history") or [] if not step.get("empty_layer")]
    steps = [_step(str(step.get("created_by") or "")) for step in made]
    steps = steps if len(steps) == len(names) else [""] * len(names)
    digests = (config.get("rootfs") or {}).get("diff_ids") or names
    if len(digests) != len(names):
        raise UnreadableError(f"it lists {len(names)} layers and has {len(digests)}")
    layers, unread = [], {}
    for name, digest, step in zip(names, digests, steps, strict=True):
        found = contents.get(name, "it is not in the image that was saved")
        if isinstance(found, str):
            unread[digest] = found
            found = Layer(digest=digest, size_bytes=0)
        layers.append(replace(found, digest=digest, step=step))
    settings = config.get("config") or {}
    labels = {str(key): str(value) for key, value in (settings.get("Labels") or {}).items()}
    return SavedImage(
        layers=tuple(layers), unread=unread, findings=tuple(_findings_of_config(config, settings)), labels=labels
    )


def _followed(name: str, links: Mapping[str, str]) -> str:
    """The member that a link of the tar stands for; the links of `docker save` are relative to their folder."""
    if name not in links:
        return name
    folder = name.split("/")[:-1]
    for part in links[name].split("/"):
        folder = folder[:-1] if part == ".." else [*folder, part]
    return "/".join(folder)


def _step(text: str) -> str:
    """The instruction without what the builder puts around it, and without secrets."""
    return without_secrets(" ".join(_STEP.sub(r"\1", text.replace("# buildkit", "")).split()))


def without_secrets(text: str) -> str:
    return _TOKEN.sub(r"\1=...", _PASSWORD.sub("://...@", text))


def _findings_of_config(config: Mapping[str, Any], settings: Mapping[str, Any]) -> Iterator[Finding]:
    steps = [str(step.get("created_by") or "") for step in config.get("history") or []]
    variables = [str(text) for text in settings.get("Env") or ()]
    labels = [f"{key}={value}" for key, value in (settings.get("Labels") or {}).items()]
    for what, texts in (("step", steps), ("variable", variables), ("label", labels)):
        for text in texts:
            if names_a_secret(text):
                yield Finding(kind="secret", where=f"{what} {without_secrets(text)}")


def names_a_secret(text: str) -> bool:
    return bool(_PASSWORD.search(text) or _TOKEN.search(text))


def _layer(name: str, content: IO[bytes] | _Behind, size: int) -> Layer | str:
    """The layer, or why it cannot be looked into."""
    total, end = 0, 0
    findings: list[Finding] = []
    try:
        with tarfile.open(fileobj=content, mode="r|*") as layer:
            is_packed = getattr(layer.fileobj, "comptype", "tar") != "tar"
            while (member := layer.next()) is not None:
                layer.members.clear()  # type: ignore[attr-defined]  # a list of all files, which nobody asks for here
                total += member.size if member.isfile() else 0
                end = member.offset_data + (-(-member.size // 512) * 512 if member.isfile() else 0)
                findings += _findings_of(member, layer)
    except tarfile.ReadError as error:
        return "it is empty" if size == 0 else f"it is no tar that can be read here: {error}"
    except (EOFError, OSError) as error:
        return f"it is damaged: {error}"
    # A header that makes no sense ends a tar as its end would: what comes behind it was not looked at.
    if not is_packed and size - end > _MOST_PADDING_BYTES:
        return f"it cannot be read behind byte {end} of {size}"
    return Layer(digest=name, size_bytes=total, findings=tuple(findings))


def _findings_of(member: tarfile.TarInfo, layer: tarfile.TarFile) -> Sequence[Finding]:
    path = member.name.removeprefix("./").strip("/")
    if member.isdir() or path.rsplit("/", 1)[-1].startswith(".wh."):
        return ()
    if _SECRETS.match(path):
        return (Finding(kind="secret", where=path),)
    if _CERTIFICATES.match(path):
        return (Finding(kind="certificate", where=path),)
    if member.isfile() and member.size < _MOST_SETTINGS_BYTES and _SETTINGS.search(path):
        content = layer.extractfile(member)
        if content is not None and names_a_secret(content.read().decode("utf-8", "replace")):
            return (Finding(kind="secret", where=f"{path} (names a password)"),)
    return (Finding(kind="leftover", where=path),) if _LEFTOVERS.match(path) else ()
