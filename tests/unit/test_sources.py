from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from test_lockfile import LOCK, WHEEL

from builder.errors import PackageIndexError, StaleLockError, UsageError
from builder.resolution import NamedIndex
from builder.sources import Sources, read_pip_config

INDEX = "http://user:ge%2Fheim@127.0.0.1/simple"


def test_settings_of_uv_win_over_those_of_pip(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "PIP_INDEX_URL": "http://127.0.0.1/pip"}
    pip = {"index-url": "http://127.0.0.1/conf"}
    assert Sources.from_environment({"HOME": str(tmp_path)}, pip).default_index == "http://127.0.0.1/conf"
    found = Sources.from_environment(env, pip)
    assert found.default_index == "http://127.0.0.1/pip"
    assert found.environment["UV_DEFAULT_INDEX"] == "http://127.0.0.1/pip"
    assert Sources.from_environment({**env, "UV_INDEX_URL": "http://127.0.0.1/uv"}, pip).default_index == (
        "http://127.0.0.1/uv"
    )
    config = tmp_path / ".config" / "uv" / "uv.toml"
    config.parent.mkdir(parents=True)
    config.write_text('[[index]]\nname = "a"\nurl = "http://127.0.0.1/toml"\ndefault = true\n')
    found = Sources.from_environment(env, pip)
    assert found.default_index == "http://127.0.0.1/toml"
    assert "UV_DEFAULT_INDEX" not in found.environment  # uv reads its own file
    config.write_text("not toml [")
    assert Sources.from_environment(env, pip).default_index == "http://127.0.0.1/pip"


def test_what_changes_the_choice_never_reaches_uv() -> None:
    found = Sources.from_environment(
        {
            "PATH": "/bin",
            "UV_EXTRA_INDEX_URL": "http://127.0.0.1/more",
            "UV_INDEX_STRATEGY": "unsafe-best-match",
            "UV_TORCH_BACKEND": "auto",
            "UV_CONSTRAINT": "c.txt",
            "UV_INDEX_CORP_PASSWORD": "geheim",
            "UV_HTTP_TIMEOUT": "5",
            "PIP_CONSTRAINT": "c.txt",
        },
        {"extra-index-url": "http://127.0.0.1/more"},
    )
    assert dict(found.environment) == {"PATH": "/bin", "UV_INDEX_CORP_PASSWORD": "geheim", "UV_HTTP_TIMEOUT": "5"}
    assert found.ignored == ("UV_EXTRA_INDEX_URL", "extra-index-url of pip.conf")
    assert found.redact("word geheim at http://me:you@host/x") == "word *** at http://***@host/x"


def test_folders_are_existing_local_ones(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    (tmp_path / "file").touch()
    found = Sources.from_environment(
        {
            "UV_FIND_LINKS": f"{one},http://127.0.0.1/links",
            "PIP_FIND_LINKS": f"{two.as_uri()} {one} {tmp_path / 'absent'} {tmp_path / 'file'}",
        }
    )
    assert found.find_links == (one, two)
    assert found.with_folders([two]).find_links == (two, one)
    with pytest.raises(UsageError) as caught:
        found.with_folders([tmp_path / "absent"])
    assert caught.value.code == "wheelhouse-missing"


def test_bundle_proxies_and_offline(tmp_path: Path) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.write_text("certificate")
    found = Sources.from_environment(
        {
            "SSL_CERT_FILE": str(tmp_path / "absent"),
            "PIP_CERT": str(bundle),
            "https_proxy": "http://me:you@127.0.0.1:3128",
            "UV_OFFLINE": "true",
        }
    )
    assert found.ca_bundle == bundle
    assert found.environment["SSL_CERT_FILE"] == str(bundle)
    assert found.proxies == {"HTTPS_PROXY": "http://me:you@127.0.0.1:3128"}
    assert found.offline


def test_torch_index_needs_a_place_for_the_variant() -> None:
    found = Sources.from_environment({"TORCHPROOF_TORCH_INDEX": "http://127.0.0.1/{variant}/simple"})
    assert found.torch_index_for("cu113") == "http://127.0.0.1/cu113/simple"
    with pytest.raises(UsageError, match="one index for every CUDA variant"):
        Sources.from_environment({"TORCHPROOF_TORCH_INDEX": "http://127.0.0.1/cu113"})


def test_build_secrets_are_private_and_read_by_a_shell(tmp_path: Path) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.write_text("certificate")
    odd = "it's $HOME `date`"
    found = Sources.from_environment(
        {
            "UV_DEFAULT_INDEX": INDEX,
            "UV_INDEX_CORP_PASSWORD": odd,
            "HTTPS_PROXY": "http://127.0.0.1:3128",
            "TORCHPROOF_TORCH_INDEX": "http://127.0.0.1/{variant}",
            "SSL_CERT_FILE": str(bundle),
            "AWS_SECRET_ACCESS_KEY": "not for a build",
        }
    )
    index = NamedIndex(name="corp-wheels", url="http://127.0.0.1/corp", packages=("own",))
    files = found.build_secrets(tmp_path / "secrets", variant="cu113", indexes=[index])
    assert {key: path.stat().st_mode & 0o777 for key, path in files.items()} == {"index": 0o600, "ca": 0o600}
    assert files["ca"].read_text() == "certificate"
    shell = subprocess.run(
        ["sh", "-c", f". {files['index']}; env -0"],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/bin:/usr/bin"},
    )
    seen = dict(line.split("=", 1) for line in shell.stdout.split("\0") if "=" in line)
    assert seen["UV_DEFAULT_INDEX"] == INDEX
    assert seen["UV_INDEX_CORP_PASSWORD"] == odd
    assert seen["https_proxy"] == seen["HTTPS_PROXY"] == "http://127.0.0.1:3128"
    assert seen["TORCHPROOF_TORCH_INDEX"] == "http://127.0.0.1/cu113"
    assert seen["TORCHPROOF_INDEX_CORP_WHEELS"] == "http://127.0.0.1/corp"
    assert "AWS" not in files["index"].read_text()


def test_secrets_of_a_machine_without_settings(tmp_path: Path) -> None:
    files = Sources.from_environment({}).build_secrets(tmp_path)
    assert list(files) == ["index"]
    assert files["index"].read_bytes() == b""


def test_wheelhouse_holds_the_locked_files_only(tmp_path: Path) -> None:
    folder = tmp_path / "wheels"
    folder.mkdir()
    (folder / "other-1.0-py3-none-any.whl").write_bytes(b"other")
    found = Sources.from_environment({"PIP_FIND_LINKS": str(folder)})
    with pytest.raises(PackageIndexError) as absent:
        found.stage_wheelhouse(LOCK, tmp_path / "stage")
    assert absent.value.code == "wheel-missing"
    (folder / WHEEL.filename).write_bytes(b"not what was locked")
    with pytest.raises(StaleLockError) as mismatch:
        found.stage_wheelhouse(LOCK, tmp_path / "stage")
    assert (mismatch.value.code, mismatch.value.exit_status) == ("hash-mismatch", 5)
    assert list((tmp_path / "stage").iterdir()) == []


def test_pip_configuration_files(tmp_path: Path) -> None:
    user = tmp_path / ".config" / "pip" / "pip.conf"
    user.parent.mkdir(parents=True)
    user.write_text("[global]\nindex-url = http://127.0.0.1/user\nfind_links = /x%20y\n[install]\nindex-url = no\n")
    env = {"HOME": str(tmp_path)}
    assert read_pip_config(env)["index-url"] == "http://127.0.0.1/user"
    assert read_pip_config(env)["find-links"] == "/x%20y"
    own = tmp_path / "own.conf"
    own.write_text("[global]\nindex-url = http://127.0.0.1/own\n")
    assert read_pip_config({**env, "PIP_CONFIG_FILE": str(own)})["index-url"] == "http://127.0.0.1/own"
    own.write_text("index-url without a section")
    assert read_pip_config({**env, "PIP_CONFIG_FILE": str(own)})["index-url"] == "http://127.0.0.1/user"
    assert read_pip_config({**env, "PIP_CONFIG_FILE": "/dev/null"}) == {}
