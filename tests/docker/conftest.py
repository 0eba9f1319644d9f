"""An engine and a base for the tests that need them; what a test builds is removed after it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from builder.bases import ensure_debian_base
from builder.docker_engine import DockerEngine
from builder.engine import BuildPlan, BuildTarget, BuiltImage
from builder.errors import EngineError
from builder.processes import stop_group, wait_until

Build = Callable[..., BuiltImage]


@pytest.fixture(scope="session")
def engine() -> Iterator[DockerEngine]:
    try:
        engine = DockerEngine.connect(os.environ)
    except EngineError as error:
        if "docker" in os.environ.get("TORCHPROOF_REQUIRE", "").split(","):
            pytest.fail(f"TORCHPROOF_REQUIRE=docker, but {error}")
        pytest.skip(f"needs a Docker engine with buildx: {error.what}")
    yield engine
    engine.remove_leftovers(engine.run_id)
    engine.close()


@pytest.fixture(scope="session")
def debian(engine: DockerEngine, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The base of the test images; kept, since it takes 40 s to make."""
    lines: list[str] = []
    return ensure_debian_base("bookworm", engine, tmp_path_factory.mktemp("bases"), lines.append, environ=os.environ)


class Project:
    """Writes a Dockerfile and its bake file, builds it, and removes the image at the end."""

    def __init__(self, engine: DockerEngine, base: str, folder: Path) -> None:
        self.engine = engine
        self.folder = folder / "context"
        self.folder.mkdir()
        self.base = base
        self.tag = f"torchproof-test/{uuid.uuid4().hex[:12]}:one"
        self.lines: list[str] = []
        self.log_file = folder / "logs" / "build.log"

    def plan(
        self, body: str, *, secrets: Mapping[str, Path] | None = None, contexts: Mapping[str, str] | None = None
    ) -> BuildPlan:
        text = f"FROM {self.base}\nLABEL io.torchproof.test=yes\n{body}\n"
        (self.folder / "Dockerfile").write_text(text, encoding="utf-8")
        target = {"context": ".", "dockerfile": "Dockerfile", "tags": [self.tag]}
        bake = {"group": {"default": {"targets": ["one"]}}, "target": {"one": target}}
        (self.folder / "docker-bake.json").write_text(json.dumps(bake), encoding="utf-8")
        return BuildPlan(
            folder=self.folder,
            bake_file="docker-bake.json",
            targets=(BuildTarget(image_id="one", tag=self.tag),),
            secrets=secrets or {},
            contexts=contexts or {},
            log_file=self.log_file,
        )

    def build(
        self, body: str, *, secrets: Mapping[str, Path] | None = None, contexts: Mapping[str, str] | None = None
    ) -> BuiltImage:
        return self.engine.build(self.plan(body, secrets=secrets, contexts=contexts), self.lines.append)["one"]


@pytest.fixture
def project(engine: DockerEngine, debian: str, tmp_path: Path) -> Iterator[Project]:
    project = Project(engine, debian, tmp_path)
    yield project
    subprocess.run(["docker", "image", "rm", "--force", project.tag], capture_output=True, check=False)


@pytest.fixture
def project_on(engine: DockerEngine, tmp_path: Path) -> Iterator[Callable[[str], Project]]:
    """A project whose image stands on another one; removed at the end."""
    made: list[Project] = []

    def make(base: str) -> Project:
        project = Project(engine, base, tmp_path)
        made.append(project)
        return project

    yield make
    for project in made:
        subprocess.run(["docker", "image", "rm", "--force", project.tag], capture_output=True, check=False)


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """host:port of an empty registry on loopback, which engines trust without TLS."""
    command = shutil.which("docker-registry") or shutil.which("registry")
    if command is None:
        if "docker" in os.environ.get("TORCHPROOF_REQUIRE", "").split(","):
            pytest.fail("TORCHPROOF_REQUIRE=docker, but docker-registry is not installed (bin/docker-up --tools)")
        pytest.skip("needs docker-registry (a Debian package)")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    config = tmp_path / "registry.yml"
    storage = {"filesystem": {"rootdirectory": str(tmp_path / "storage")}}
    config.write_text(json.dumps({"version": 0.1, "storage": storage, "http": {"addr": address}}), encoding="utf-8")
    with (tmp_path / "registry.log").open("w") as log:
        process = subprocess.Popen([command, "serve", config], stdout=log, stderr=log, start_new_session=True)
    try:
        host, _, port = address.partition(":")
        assert wait_until(lambda: _answers(host, int(port)), limit_s=20)
        yield address
    finally:
        stop_group(process)


def _answers(host: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0
