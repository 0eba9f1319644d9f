"""Images and containers through a Docker engine; the only module that imports the docker SDK."""

from __future__ import annotations

import io
import json
import logging
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Literal

import docker
from docker.constants import MINIMUM_DOCKER_API_VERSION
from docker.context import ContextAPI
from docker.errors import APIError, DockerException, NotFound
from docker.types import DeviceRequest, Ulimit
from docker.utils.socket import frames_iter

from builder.bake import BakeLog, bake_argv, base_image_error, digests_by_name, failure_error, image_ids
from builder.chunks import ChunkStream
from builder.containers import (
    OWNER_LABEL,
    RUN_LABEL,
    SCRATCH,
    SMOKE_FOLDER,
    GpuAccess,
    archive,
    cdi_kinds,
    container_options,
    gpu_access,
    is_orphan,
    owner_of_this_process,
)
from builder.docker_session import DockerSession
from builder.engine import BuildPlan, BuiltImage, EngineInfo, Limits
from builder.errors import BuildError, EngineError
from builder.nvml import read_host_gpus
from builder.processes import Redactor, hold_interrupts, sigterm_raises, stream

log = logging.getLogger(__name__)

# COPY --link came with Dockerfile frontend 1.4; the first engine that carries such a frontend is 23.0.
_FIRST_WITH_LINK = 23
_ANSWER_S = 600  # an import of a base, or a pull, answers only when it is done
_BUILD_LIMIT_S = 6 * 3600.0


@contextmanager
def _engine_errors(doing: str) -> Iterator[None]:
    """What the SDK raises, as an EngineError; OSError is what an engine that goes away in the middle looks like."""
    try:
        yield
    except APIError as error:
        raise EngineError("engine-refused", f"the Docker engine refuses to {doing}", detail=_said(error)) from error
    except (DockerException, OSError) as error:
        raise EngineError(
            "engine-lost", f"the Docker engine stopped answering while asked to {doing}", detail=str(error)
        ) from error


class DockerEngine:
    """One engine, reached through its API for containers and through `docker buildx` for builds."""

    kind: Literal["docker"] = "docker"

    def __init__(self, client: docker.DockerClient, *, builder: str, environ: Mapping[str, str], local: bool) -> None:
        self._client = client
        self._builder = builder
        self._environ = {name: value for name, value in environ.items() if name != "BUILDX_BUILDER"}
        self._local = local
        self.run_id = uuid.uuid4().hex[:12]

    @classmethod
    def connect(cls, environ: Mapping[str, str], *, timeout_s: float = 10.0) -> DockerEngine:
        """The engine that `docker` itself would use: DOCKER_HOST, or the current context; EngineError when none."""
        host, builder, tls = environ.get("DOCKER_HOST"), "default", None
        if not host:
            with suppress(Exception):  # a broken ~/.docker/config.json is docker's to explain, and it falls back too
                context = ContextAPI.get_current_context()
                host, builder, tls = context.Host, context.Name, context.TLSConfig
        shown = host or "unix:///var/run/docker.sock"
        client = _open(environ, host=shown, tls=tls, timeout_s=int(timeout_s))
        engine = cls(client, builder=builder, environ=environ, local=shown.startswith("unix://"))
        try:
            engine._check_buildx()
        except BaseException:
            client.close()
            raise
        client.api.timeout = _ANSWER_S
        return engine

    def close(self) -> None:
        self._client.close()

    def _check_buildx(self) -> None:
        if shutil.which("docker", path=self._environ.get("PATH")) is None:
            raise EngineError(
                "buildx-missing",
                "images cannot be built",
                because=("a Docker engine answers", "the command `docker`, which starts a build, is not on PATH"),
                hint="install Docker's command line with its buildx plugin",
            )
        result = subprocess.run(
            ["docker", "buildx", "version"], env=self._environ, capture_output=True, check=False, timeout=60
        )
        if result.returncode:
            raise EngineError(
                "buildx-missing",
                "images cannot be built",
                because=("a Docker engine answers", "`docker buildx version` fails"),
                hint="install the buildx plugin of Docker (Debian: docker-buildx, Docker's own: docker-buildx-plugin)",
                detail=result.stderr.decode("utf-8", "replace").strip() or None,
            )

    def info(self) -> EngineInfo:
        with _engine_errors("describe itself"):
            info: dict[str, Any] = self._client.info()
        version = str(info.get("ServerVersion", "?"))
        major = version.partition(".")[0]
        host = read_host_gpus() if self._local else None
        access = self._gpu_access(info)
        names: tuple[str, ...] = ()
        if access.route:
            names = host.names if host else ("NVIDIA GPU",)
        return EngineInfo(
            kind="docker",
            version=version,
            store=f"containerd/{info['Driver']}" if _has_containerd_store(info) else str(info.get("Driver")),
            supports_link=major.isdigit() and int(major) >= _FIRST_WITH_LINK,
            gpus=names,
            gpu_reason=access.reason,
        )

    def _gpu_access(self, info: Mapping[str, Any]) -> GpuAccess:
        host = read_host_gpus() if self._local else None
        folders = [Path(folder) for folder in info.get("CDISpecDirs") or []] if self._local else []
        has_hook = self._local and shutil.which("nvidia-container-runtime-hook") is not None
        return gpu_access(info, host, has_hook=has_hook, cdi_devices=cdi_kinds(folders))

    def build(self, plan: BuildPlan, on_line: Callable[[str], None]) -> Mapping[str, BuiltImage]:
        """Every target of the plan, in one bake; lines reach `on_line` and the log without what the secrets hold."""
        started = time.monotonic()
        redact = Redactor.of_files(plan.secrets.values())
        reader = BakeLog()
        plan.log_file.parent.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(prefix="torchproof-bake-") as temporary,
            plan.log_file.open("w", encoding="utf-8") as log_file,
        ):
            metadata_file = Path(temporary, "metadata.json")

            def note(line: str) -> None:
                text = redact(line)
                log_file.write(f"{text}\n")
                log_file.flush()
                reader.feed(text)
                on_line(text)

            argv = bake_argv(plan, builder=self._builder, metadata_file=metadata_file)
            status = stream(argv, cwd=plan.folder, env=self._environ, on_line=note, limit_s=_BUILD_LIMIT_S)
            if status is None:
                raise BuildError(
                    "build-timeout",
                    f"the build did not end within {_BUILD_LIMIT_S / 3600:g} hours",
                    hint=f"the whole log is in {plan.log_file}",
                    detail="\n".join(reader.last_lines()) or None,
                )
            if status:
                raise failure_error(reader, status=status, images=image_ids(plan), log_file=plan.log_file)
            digests = digests_by_name(json.loads(metadata_file.read_text(encoding="utf-8")))
        seconds = time.monotonic() - started
        return {
            target.image_id: self._built(
                target.image_id, target.tag, digests.get(target.tag), seconds=seconds, log_file=plan.log_file
            )
            for target in plan.targets
        }

    def image(self, reference: str) -> BuiltImage:
        """An image that is on this machine already, however it was made."""
        return self._built(reference, reference, None, seconds=0.0, log_file=None)

    def _built(
        self, image_id: str, tag: str, digest: str | None, *, seconds: float, log_file: Path | None
    ) -> BuiltImage:
        with _engine_errors(f"describe the image {tag}"):
            try:
                found = self._client.images.get(digest or tag)
            except NotFound as error:
                raise EngineError(
                    "image-not-found",
                    f"there is no image `{tag}` on this machine",
                    hint="see what there is with `docker images`, or pull it first",
                ) from error
            # Newest first; entries of size 0 are metadata such as ENV.
            layers = tuple(int(entry["Size"]) for entry in reversed(found.history()) if entry["Size"])
            in_containerd = _has_containerd_store(self._client.info())
        return BuiltImage(
            image_id=image_id,
            reference=tag,
            digest=str(found.id),
            digest_kind="manifest" if in_containerd else "image-id",
            size_bytes=int(found.attrs.get("Size", 0)),
            seconds=seconds,
            log_file=log_file,
            layers=layers,
        )

    @contextmanager
    def saved(self, image: BuiltImage) -> Iterator[IO[bytes]]:
        """The engine puts the layers together in its own folder first, so the first byte takes a while."""

        def chunks() -> Generator[bytes]:
            with _engine_errors(f"save {image.reference}"):
                yield from self._client.api.get_image(image.digest, chunk_size=2**20)

        with closing(chunks()) as found:
            yield io.BufferedReader(ChunkStream(found), 2**20)

    @contextmanager
    def session(
        self, image: BuiltImage, smoke_files: Mapping[str, bytes], limits: Limits, *, gpus: bool
    ) -> Iterator[DockerSession]:
        """A container of exactly this digest; gone when the block is left, in whatever way."""
        name = f"torchproof-{self.run_id}-{uuid.uuid4().hex[:6]}"
        with _engine_errors("describe itself"):
            access = self._gpu_access(self._client.info()) if gpus else GpuAccess(route=None)
        if gpus and access.route is None:
            raise EngineError(
                "gpu-not-passed",
                f"`{image.image_id}` cannot be started with a GPU",
                because=(access.reason or "the engine passes none through",),
            )
        options = container_options(
            name=name,
            image=image.digest,
            labels={RUN_LABEL: self.run_id, OWNER_LABEL: owner_of_this_process()},
            limits=limits,
            gpu_request=_gpu_request(access),
        )
        if access.route:
            # What NVIDIA's guide asks for: NCCL pins memory, and some kernels need a deep stack.
            options["ulimits"] = [
                Ulimit(name="memlock", soft=-1, hard=-1),
                Ulimit(name="stack", soft=2**26, hard=2**26),
            ]
        with sigterm_raises():
            try:
                with _engine_errors(f"start a container of {image.reference}"):
                    # Interrupted halfway, the engine would still finish, and nobody would know what to remove.
                    with hold_interrupts():
                        container = self._client.containers.create(**options)
                    container.put_archive("/", archive(smoke_files, folder=SMOKE_FOLDER, folder_mode=0o755))
                    container.put_archive("/", archive({}, folder=SCRATCH, folder_mode=0o1777))
                    container.start()
                    session = DockerSession(
                        container, _engine_errors, self._exec_output, has_gpu=access.route is not None
                    )
                yield session
            finally:
                self._remove_container(name)

    @contextmanager
    def _exec_output(self, exec_id: str) -> Iterator[Iterator[tuple[int, bytes]]]:
        # The SDK's own stream leaves its connection to the garbage collector; here it is closed with the block.
        pipe: Any = self._client.api.exec_start(exec_id, socket=True)
        try:
            yield frames_iter(pipe, tty=False)  # type: ignore[no-untyped-call]
        finally:
            with suppress(OSError):
                getattr(pipe, "_sock", pipe).shutdown(socket.SHUT_RDWR)  # wakes a thread that waits for more
            pipe._response.close()  # noqa: SLF001 - the SDK hands the response over in this attribute only
            pipe.close()

    def _remove_container(self, name: str) -> None:
        with hold_interrupts():
            try:
                self._client.api.remove_container(name, force=True, v=True)
            except NotFound:
                pass
            except (DockerException, OSError) as error:
                # Raising here would hide why the block was left. The labels let the next run find it.
                log.warning("container %s could not be removed: %s", name, error)

    def remove_leftovers(self, run_id: str | None = None) -> list[str]:
        """Remove the containers of one run, or of every run whose process is gone; their names."""
        removed = []
        with _engine_errors("list containers"):
            label = f"{RUN_LABEL}={run_id}" if run_id else RUN_LABEL
            for container in self._client.containers.list(all=True, filters={"label": label}, ignore_removed=True):
                owner = str(container.labels.get(OWNER_LABEL, ""))
                if run_id or is_orphan(owner, running=container.status == "running"):
                    self._remove_container(str(container.name))
                    removed.append(str(container.name))
        return removed

    def remove(self, image: BuiltImage) -> None:
        with _engine_errors(f"remove {image.reference}"), suppress(NotFound):
            self._client.images.remove(image.reference)

    def has_image(self, reference: str) -> bool:
        with _engine_errors(f"look for {reference}"):
            try:
                self._client.images.get(reference)
            except NotFound:
                return False
            return True

    def import_root(self, root: Path, reference: str, *, labels: Mapping[str, str]) -> None:
        """Make an image of one layer out of a tar of a root file system."""
        name, _, tag = reference.rpartition(":")
        changes = [f'LABEL {key}="{value}"' for key, value in sorted(labels.items())]
        with _engine_errors(f"import {reference}"):
            # The answer of an import is a stream of JSON lines: an error comes inside it, with status 200.
            answer = self._client.api.import_image_from_file(
                str(root), repository=name, tag=tag, changes=[*changes, 'CMD ["bash"]']
            )
        for line in str(answer).splitlines():
            with suppress(ValueError):
                message = json.loads(line)
                if isinstance(message, dict) and "error" in message:
                    raise EngineError(
                        "engine-refused", f"the Docker engine cannot import {reference}", detail=str(message["error"])
                    )

    def pull(self, reference: str) -> None:
        try:
            name, _, tag = reference.rpartition(":")
            self._client.images.pull(name, tag=tag)
        except (DockerException, OSError) as error:
            raise base_image_error(reference, _said(error), what=f"`{reference}` cannot be pulled") from error

    def registry_digest(self, reference: str) -> str:
        """The digest that a registry gives a tag now; asked by the engine, with its credentials."""
        try:
            return str(self._client.images.get_registry_data(reference).id)
        except (DockerException, OSError) as error:
            raise base_image_error(reference, _said(error), what=f"`{reference}` has no digest to pin") from error


def _open(environ: Mapping[str, str], *, host: str, tls: Any, timeout_s: int) -> docker.DockerClient:
    def client(version: str) -> docker.DockerClient:
        if environ.get("DOCKER_HOST"):
            return docker.from_env(environment=dict(environ), version=version, timeout=timeout_s)
        return docker.DockerClient(base_url=host, tls=tls or False, version=version, timeout=timeout_s)

    probe = None
    try:
        # Where nobody answers the SDK leaves sockets open: a refused one, and with "auto", which asks in the
        # constructor, the whole client. So both are tried out first.
        if host.startswith("unix://"):
            with socket.socket(socket.AF_UNIX) as knock:
                knock.connect(host.removeprefix("unix://"))
        probe = client(MINIMUM_DOCKER_API_VERSION)
        probe.version(api_version=False)
        return client("auto")
    except (DockerException, OSError) as error:
        raise _not_running(host, error) from error
    finally:
        if probe is not None:
            probe.close()


def _not_running(host: str, error: Exception) -> EngineError:
    because = [f"nothing answers at {host}"]
    hint = "start Docker, or set DOCKER_HOST to the engine to use; `torchproof` also builds in place without one"
    if "Permission denied" in str(error):
        because = [f"this user may not talk to {host}"]
        hint = "add the user to the group `docker` and log in again, or run as root"
    return EngineError("engine-not-running", "no Docker engine can be used", because=because, hint=hint)


def _said(error: Exception) -> str:
    """The engine's own words, without the SDK's around them."""
    return str(getattr(error, "explanation", None) or error)


def _has_containerd_store(info: Mapping[str, Any]) -> bool:
    return any("io.containerd.snapshotter" in str(value) for _, value in info.get("DriverStatus") or [])


def _gpu_request(access: GpuAccess) -> list[DeviceRequest]:
    if access.route == "cdi":
        return [DeviceRequest(driver="cdi", device_ids=["nvidia.com/gpu=all"])]
    if access.route == "runtime":
        # Without "compute" and "utility" the container gets neither libcuda nor NVML.
        return [DeviceRequest(count=-1, capabilities=[["gpu", "compute", "utility"]])]
    return []
