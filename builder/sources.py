"""Where this machine gets wheels from: package index, wheel folders, CA bundle, proxies. Handed on, never locked."""

from __future__ import annotations

import configparser
import hashlib
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from builder.errors import PackageIndexError, StaleLockError, UsageError
from builder.lockfile import ImageLock
from builder.resolution import NamedIndex

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# What a user may set for uv about reaching an index. The rest of uv's environment (constraints, dates, an additive
# index, the index strategy, a torch backend) would change what is chosen, and a lock depends on the spec alone.
_UV_ACCESS = re.compile(
    r"UV_(DEFAULT_INDEX|INDEX|INDEX_URL|INDEX_.+_(USERNAME|PASSWORD)|KEYRING_PROVIDER|CREDENTIALS_DIR|HTTP_.+|"
    r"REQUEST_TIMEOUT|SYSTEM_CERTS|NATIVE_TLS|INSECURE_HOST|OFFLINE|CONFIG_FILE|NO_CONFIG|NO_SYSTEM_CONFIG|"
    r"CACHE_DIR|CONCURRENT_.+|LOCK_TIMEOUT|NO_NETRC|PYTHON_INSTALL_MIRROR|PYTHON_DOWNLOADS_JSON_URL)"
)
# Of it, what a step of a build is told. The default index and the rest are worked out first.
_HANDED_ON = re.compile(
    r"UV_(INDEX|INDEX_.+_(USERNAME|PASSWORD)|HTTP_.+|REQUEST_TIMEOUT|INSECURE_HOST"
    r"|PYTHON_INSTALL_MIRROR|PYTHON_DOWNLOADS_JSON_URL)"
)
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_ADDITIVE = ("UV_EXTRA_INDEX_URL", "PIP_EXTRA_INDEX_URL")


@dataclass(frozen=True, kw_only=True)
class Sources:
    """`environment` is what uv is started with; `ignored` names the settings that are not used, for a notice.

    `torch_index` is a URL with `{variant}` in it, for mirrors of the PyTorch wheel index; None: uv knows the address.
    """

    environment: Mapping[str, str]
    default_index: str | None = None
    find_links: tuple[Path, ...] = ()
    ca_bundle: Path | None = None
    proxies: Mapping[str, str]
    torch_index: str | None = None
    offline: bool = False
    ignored: tuple[str, ...] = ()

    @classmethod
    def from_environment(cls, env: Mapping[str, str], pip_config: Mapping[str, str] | None = None) -> Sources:
        """`env` is the process's environment, `pip_config` the `global` section of pip.conf (see `read_pip_config`).

        uv's own settings win over pip's; of pip's, only the one index that replaces the default is used.
        """
        pip = dict(pip_config or {})
        uv_index = env.get("UV_DEFAULT_INDEX") or env.get("UV_INDEX_URL") or _uv_config_index(env)
        index = uv_index or env.get("PIP_INDEX_URL") or pip.get("index-url")
        bundle = _first_file(
            env.get("SSL_CERT_FILE"), env.get("PIP_CERT"), env.get("REQUESTS_CA_BUNDLE"), pip.get("cert")
        )
        proxies = {
            name: value
            for name in _PROXIES
            if (value := env.get(name) or env.get(name.lower()) or (pip.get("proxy") if "NO" not in name else None))
        }
        torch_index = env.get("TORCHPROOF_TORCH_INDEX") or None
        if torch_index and "{variant}" not in torch_index:
            raise UsageError(
                "torch-index-template",
                "`TORCHPROOF_TORCH_INDEX` names one index for every CUDA variant",
                because=["each variant of torch has an index of its own", "the address has no `{variant}` in it"],
                hint="put `{variant}` where the address says cu113 or cpu",
            )
        keep = {name: value for name, value in env.items() if not name.startswith(("UV_", "PIP_", "TORCHPROOF_"))}
        keep |= {name: value for name, value in env.items() if _UV_ACCESS.fullmatch(name) and value}
        keep |= proxies
        if index and not uv_index:
            keep["UV_DEFAULT_INDEX"] = index
        if bundle:
            keep["SSL_CERT_FILE"] = str(bundle)
        return cls(
            environment=keep,
            default_index=index,
            find_links=tuple(_folders(f"{env.get('UV_FIND_LINKS', '')} {env.get('PIP_FIND_LINKS', '')}")),
            ca_bundle=bundle,
            proxies=proxies,
            torch_index=torch_index,
            offline=env.get("UV_OFFLINE", "").lower() in {"1", "true", "yes", "on", "y", "t"},
            ignored=tuple(name for name in _ADDITIVE if env.get(name))
            + (("extra-index-url of pip.conf",) if pip.get("extra-index-url") else ()),
        )

    def with_folders(self, folders: Iterable[str | Path]) -> Sources:
        """The same, with the wheel folders of a spec in front; a spec that names a missing folder is an error."""
        paths = tuple(Path(folder) for folder in folders)
        for path in paths:
            if not path.is_dir():
                raise UsageError("wheelhouse-missing", f"the wheel folder `{path}` does not exist")
        return replace(self, find_links=tuple(dict.fromkeys((*paths, *self.find_links))))

    def local_files(self) -> dict[str, Path]:
        """File name -> path of every wheel and archive in the folders; the first folder wins."""
        found: dict[str, Path] = {}
        for folder in self.find_links:
            for path in sorted(folder.iterdir()):
                if path.name.endswith((".whl", ".tar.gz", ".zip")) and path.is_file():
                    found.setdefault(path.name, path)
        return found

    def local_wheels(self) -> dict[str, tuple[str, Path]]:
        """File name -> (project, path) of the wheels that have a proper name."""
        named = {filename: (_project(filename), path) for filename, path in self.local_files().items()}
        return {filename: (project, path) for filename, (project, path) in named.items() if project}

    def redact(self, text: str) -> str:
        """`text` without what stands before the host in a URL, and without the passwords that uv was given."""
        text = re.sub(r"(\w+://)[^/\s@`'\"]+@", r"\1***@", text)
        for secret in sorted(self._secrets(), key=len, reverse=True):
            text = text.replace(secret, "***")
        return text

    def _secrets(self) -> set[str]:
        urls = [self.default_index, self.torch_index, *self.proxies.values()]
        urls += [part.split("=", 1)[-1] for part in self.environment.get("UV_INDEX", "").split()]
        found = {value for name, value in self.environment.items() if re.fullmatch(r"UV_INDEX_.+_PASSWORD", name)}
        for url in filter(None, urls):
            password = urlsplit(url).password
            found |= {password, unquote(password)} if password else set()
        return {secret for secret in found if secret}

    def torch_index_for(self, variant: str) -> str | None:
        return self.torch_index.replace("{variant}", variant) if self.torch_index else None

    # --- what a build needs ---

    def build_secrets(
        self, folder: Path, *, variant: str | None = None, indexes: Iterable[NamedIndex] = ()
    ) -> dict[str, Path]:
        """Secret id -> file (mode 0600): `index`, lines that a shell reads, and `ca`, the CA bundle when there is one.

        Settings reach a build step this way alone: a build argument would stay in the history of the image.
        """
        exports = dict(self.proxies)
        exports |= {name.lower(): value for name, value in self.proxies.items()}  # tools read one or the other
        exports |= {name: value for name, value in self.environment.items() if _HANDED_ON.fullmatch(name)}
        if self.default_index:
            exports["UV_DEFAULT_INDEX"] = self.default_index
        if self.torch_index:
            exports["TORCHPROOF_TORCH_INDEX"] = (variant and self.torch_index_for(variant)) or self.torch_index
        for index in indexes:
            exports[f"TORCHPROOF_INDEX_{env_name(index.name)}"] = index.url
        folder.mkdir(parents=True, exist_ok=True)
        text = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in sorted(exports.items()))
        files = {"index": _private(folder / "index.env", text.encode())}
        if self.ca_bundle:
            files["ca"] = _private(folder / "ca.pem", self.ca_bundle.read_bytes())
        return files

    def stage_wheelhouse(self, lock: ImageLock, folder: Path) -> tuple[Path, ...]:
        """Put the locked files of local folders into `folder`, which starts empty; the files, checked by sha256."""
        folder.mkdir(parents=True, exist_ok=True)
        local = self.local_files()
        wanted = {
            package.filename: package.sha256
            for package in (*lock.packages, *lock.build_packages)
            if package.source == "wheelhouse"
        }
        for filename, sha256 in sorted(wanted.items()):
            if filename not in local:
                raise PackageIndexError(
                    "wheel-missing",
                    f"`{filename}` of `{lock.image_id}` is in no wheel folder",
                    because=["the lock took it from a local folder", _searched(self.find_links)],
                    hint="name the folder in PIP_FIND_LINKS, or renew the lock to take it from an index",
                )
            verify_file(local[filename], sha256)
            target = folder / filename
            target.unlink(missing_ok=True)
            try:
                os.link(local[filename], target)
            except OSError:  # another file system, or one without hard links
                shutil.copyfile(local[filename], target)
        return tuple(folder / filename for filename in sorted(wanted))


def _project(filename: str) -> str | None:
    try:
        return parse_wheel_filename(filename)[0]
    except InvalidWheelFilename:
        return None


def _searched(folders: tuple[Path, ...]) -> str:
    return "no wheel folder is set" if not folders else f"looked in {', '.join(f'`{folder}`' for folder in folders)}"


def verify_file(path: Path, sha256: str) -> None:
    """Raise unless the bytes of `path` are the locked ones."""
    total = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            total.update(chunk)
    if total.hexdigest() != sha256:
        raise StaleLockError(
            "hash-mismatch",
            f"`{path.name}` is not the file that was locked",
            because=[f"the lock says sha256 {sha256}", f"the file has sha256 {total.hexdigest()}"],
            hint="find out who changed the file before you renew the lock",
        )


def env_name(index: str) -> str:
    """The form of an index name in UV_INDEX_<NAME>_USERNAME and TORCHPROOF_INDEX_<NAME>."""
    return re.sub(r"[^A-Z0-9]", "_", index.upper())


def read_pip_config(env: Mapping[str, str]) -> dict[str, str]:
    """`global` of the pip.conf files, later files winning, in pip's order: site, user, environment, PIP_CONFIG_FILE."""
    home = Path(env.get("HOME") or "/nonexistent")
    config = Path(env.get("XDG_CONFIG_HOME") or home / ".config")
    chosen = env.get("PIP_CONFIG_FILE")
    files = [Path("/etc/pip.conf"), home / ".pip" / "pip.conf", config / "pip" / "pip.conf"]
    if chosen == os.devnull:
        return {}  # pip's own way to say: no file at all
    if env.get("VIRTUAL_ENV"):
        files.append(Path(env["VIRTUAL_ENV"]) / "pip.conf")
    if chosen:
        files.append(Path(chosen))
    found: dict[str, str] = {}
    for file in files:
        parser = configparser.RawConfigParser()
        try:
            parser.read_string(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, configparser.Error):
            continue  # absent, or broken: pip is not what runs here, so its broken file is no reason to stop
        if parser.has_section("global"):
            found |= {key.replace("_", "-"): value for key, value in parser.items("global")}
    return found


def _uv_config_index(env: Mapping[str, str]) -> str | None:
    """The default index of uv's own configuration file: a build in a container does not see that file."""
    config = Path(env.get("XDG_CONFIG_HOME") or Path(env.get("HOME") or "/nonexistent") / ".config")
    files = [config / "uv" / "uv.toml", Path("/etc/uv/uv.toml")]
    if env.get("UV_NO_CONFIG"):
        return None
    if env.get("UV_CONFIG_FILE"):
        files = [Path(env["UV_CONFIG_FILE"])]
    for file in files:
        try:
            table = tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
            continue  # uv reads it too, and says better what is wrong with it
        indexes = table.get("index", [])
        default = next((entry.get("url") for entry in indexes if entry.get("default")), None)
        found = default or table.get("index-url") or table.get("pip", {}).get("index-url")
        if isinstance(found, str):
            return found
    return None


def _first_file(*names: str | None) -> Path | None:
    return next((Path(name) for name in names if name and Path(name).is_file()), None)


def _folders(text: str) -> Iterable[Path]:
    """Existing folders among find-links, which may also be URLs: those are not local and are not used."""
    seen: dict[Path, None] = {}
    for word in re.split(r"[\s,]+", text):
        path = Path(unquote(urlsplit(word).path) if word.startswith("file://") else word).expanduser()
        if word and path.is_dir():
            seen[path.resolve()] = None
    return seen


def _private(path: Path, content: bytes) -> Path:
    """Written without ever being readable by others, not even for a moment."""
    path.unlink(missing_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as stream:
        stream.write(content)
    return path
