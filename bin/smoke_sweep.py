"""Runs the smoke scripts on real stacks of the past and of today, one after another, and writes what came out.

    python bin/smoke_sweep.py                     all stacks
    python bin/smoke_sweep.py torch-1.12 newest   some of them
    python bin/smoke_sweep.py --folder DIR        where environments are made; default: a temporary folder

Each stack is a virtual environment made by uv from the package index, in a folder that is deleted after its run: 1 to
7 GB while it runs. Results go to docs/measurements/smoke-sweep.json, one entry a stack (an entry that was not run
again is kept), and as a page beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SMOKE_TESTS = ROOT / "smoke_tests"
FOLDER = ROOT / "docs" / "measurements"
TIME_LIMIT_S = 300.0
COLUMNS = ["stack", "date", "commit", "Python", "torch", "transformers", "onnxruntime", "numpy", "load", "seconds"]
COLUMNS += ["passed", "outcome"]

sys.path[:0] = [str(ROOT), str(SMOKE_TESTS)]

from smoke_stacks import STACKS, Stack  # noqa: E402 - the folders are on the path only now

from builder.scripts import BY_NAME, SENT  # noqa: E402
from builder.verdict import NOT_APPLICABLE  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stacks", nargs="*", metavar="STACK", help=", ".join(stack.name for stack in STACKS))
    parser.add_argument("--folder", type=Path, help="where environments are made")
    parser.add_argument(
        "--package-index", action="store_true", help="torch from the package index, too: CUDA builds, larger"
    )
    options = parser.parse_args()
    unknown = set(options.stacks) - {stack.name for stack in STACKS}
    if unknown:
        parser.error(f"no such stack: {', '.join(sorted(unknown))}")
    FOLDER.mkdir(exist_ok=True)
    file = FOLDER / "smoke-sweep.json"
    kept = {}
    if file.is_file():
        kept = {entry["name"]: entry for entry in json.loads(file.read_text(encoding="utf-8"))["stacks"]}
    for stack in STACKS:
        if options.stacks and stack.name not in options.stacks:
            continue
        print(f"{stack.name}: installing", flush=True)
        with tempfile.TemporaryDirectory(prefix="torchproof-sweep-", dir=options.folder) as made:
            kept[stack.name] = entry = measured(stack, Path(made), from_package_index=options.package_index)
        print(f"{stack.name}: {entry['outcome']}", flush=True)
        ordered = [kept[one.name] for one in STACKS if one.name in kept]
        file.write_text(json.dumps({"schema_version": 1, "stacks": ordered}, indent=1) + "\n", encoding="utf-8")
        (FOLDER / "smoke-sweep.md").write_text(page(ordered), encoding="utf-8")


def measured(stack: Stack, folder: Path, *, from_package_index: bool) -> dict[str, Any]:
    """One entry: what was installed, and what each script said of it."""
    entry: dict[str, Any] = {
        "name": stack.name,
        "date": datetime.now(tz=timezone.utc).date().isoformat(),
        "machine": f"{os.cpu_count()} CPU cores, {platform.machine()}",
        "commit": last_commit(),
    }
    started = time.monotonic()
    try:
        python = installed(stack, folder, from_package_index=from_package_index)
    except subprocess.CalledProcessError as error:
        last = error.stderr.strip().splitlines()[-3:] if error.stderr else []
        reason = " ".join(" ".join(last).split())[:300]
        return {**entry, "outcome": f"not installed: {reason}", "scripts": [], "seconds_by_check": {}}
    entry["install_seconds"] = round(time.monotonic() - started, 1)
    entry["packages"] = versions = locked(python)
    entry["python"] = told(python, "import platform; print(platform.python_version())")
    entry["load_before"] = round(os.getloadavg()[0], 1)
    documents = []
    variant = told(
        python, "import torch; print('cu' + torch.version.cuda.replace('.', '') if torch.version.cuda else 'cpu')"
    )
    for script in SENT:
        if BY_NAME[script].concerns(versions):
            documents.append(ran(python, script, folder, entry["python"], variant, versions))
    checks = [check for document in documents for check in document["checks"]]
    for check in checks:
        check["message"] = check["message"].replace(f"{folder}{os.sep}", "")  # a name that nobody knows afterwards
    bad = [check for check in checks if check["status"] in ("failed", "errored")]
    entry["scripts"] = [
        {"script": document["script"], "seconds": round(document["seconds"], 1)} for document in documents
    ]
    counted = {status: sum(check["status"] == status for check in checks) for status in ("passed", "failed", "errored")}
    unproven = [
        check
        for check in checks
        if check["status"] == "not-checked" and check["level"] != "L3" and check["code"] != NOT_APPLICABLE
    ]
    counted = {status: sum(check["status"] == status for check in checks) for status in ("passed", "failed", "errored")}
    entry["counts"] = {**counted, "not-checked": len(checks) - sum(counted.values())}
    entry["failures"] = [{key: check[key] for key in ("id", "status", "code", "message")} for check in bad]
    entry["not_checked"] = [{key: check[key] for key in ("id", "message")} for check in unproven]
    entry["seconds_by_check"] = {check["id"]: round(check["seconds"], 2) for check in checks if check.get("seconds")}
    entry["outcome"] = outcome(stack, bad, unproven)
    return entry


def outcome(stack: Stack, bad: list[dict[str, Any]], unproven: list[dict[str, Any]]) -> str:
    """What a reader of the table is told: passed only where nothing that concerns the stack is left open up to L2."""
    known = sorted({check["code"] for check in bad} & set(stack.expected))
    told = f"told as broken, as it is: {', '.join(known)}; " if known else ""
    if bad:
        statuses = " or ".join(sorted({check["status"] for check in bad}, reverse=True))
        return f"{told}{len(bad)} {statuses}: {', '.join(check['id'] for check in bad)}"
    if stack.expected:
        return f"passed, and should have failed with {', '.join(stack.expected)}"
    if unproven:
        return f"none failed, {len(unproven)} not checked: {', '.join(check['id'] for check in unproven)}"
    return "all passed"


def installed(stack: Stack, folder: Path, *, from_package_index: bool) -> Path:
    uv = (
        shutil.which("uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])) or "uv"
    )
    python = folder / "env" / "bin" / "python"
    subprocess.run(
        [uv, "venv", "--quiet", "--python", stack.python, str(folder / "env")],
        check=True,
        capture_output=True,
        text=True,
    )
    command = [uv, "pip", "install", "--quiet", "--no-cache", "--python", str(python), *stack.packages]
    if stack.until is not None:
        command += ["--exclude-newer", stack.until]
    if stack.backend is not None and not from_package_index:
        command += ["--torch-backend", stack.backend]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return python


def last_commit() -> str | None:
    """Of the scripts; an entry that was kept from an earlier run may be of other ones."""
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%h", "--", "smoke_tests"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def told(python: Path, code: str) -> str:
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def locked(python: Path) -> dict[str, str]:
    code = (
        f"import sys; sys.path.insert(0, {str(SMOKE_TESTS)!r}); sys.dont_write_bytecode = True\n"
        "import _installed, json; print(json.dumps(_installed.first_of_each(_installed.packages())))"
    )
    found: dict[str, str] = json.loads(told(python, code))
    return found


def ran(
    python: Path, script: str, folder: Path, version: str, variant: str, packages: dict[str, str]
) -> dict[str, Any]:
    request = {
        "schema_version": 1,
        "python": version,
        "packages": packages,
        "variant": variant or None,
        "scratch": str(folder / "scratch"),
        "time_limit_s": TIME_LIMIT_S,
    }
    file = folder / "request.json"
    file.write_text(json.dumps(request), encoding="utf-8")
    command = [str(python), str(SMOKE_TESTS / f"{script}.py"), "--request", str(file)]
    # As in an image: what the first script compiles, the others find.
    env = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder / "pyc"), "PYTHONDONTWRITEBYTECODE": ""}
    started = time.monotonic()
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=TIME_LIMIT_S + 60)
        document: dict[str, Any] = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, json.JSONDecodeError) as error:
        lost = {
            "id": f"{script}.ran",
            "level": BY_NAME[script].level.value,
            "status": "errored",
            "code": "no-result",
            "message": " ".join(str(error).split())[:300],
        }
        document = {"script": script, "seconds": time.monotonic() - started, "checks": [lost]}
    print(f"  {script}: {document['seconds']:.1f} s", flush=True)
    return document


def page(stacks: list[dict[str, Any]]) -> str:
    lines = [
        "# The smoke scripts on stacks of the past and of today",
        "",
        "Written by `bin/smoke_sweep.py`; the whole results are in smoke-sweep.json beside this page. Virtual",
        "environments on a machine without a GPU, so L3 is not checked. Seconds are as measured; `load` is the load",
        "average when the scripts started: a busy machine takes two to eight times as long as a quiet one. `commit` is",
        "the last change to the scripts that were run; `passed` counts checks.",
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|---" * len(COLUMNS) + "|",
    ]
    for entry in stacks:
        packages = entry.get("packages", {})
        runtime = packages.get("onnxruntime", "")
        if "onnxruntime-gpu" in packages:
            runtime = f"{packages['onnxruntime-gpu']} (gpu)"
        seconds = sum(script["seconds"] for script in entry["scripts"])
        cells = [entry["name"], entry["date"], entry.get("commit") or "", entry.get("python", "")]
        cells += [packages.get("torch", ""), packages.get("transformers", ""), runtime, packages.get("numpy", "")]
        cells += [entry.get("load_before", "")]
        cells += [f"{seconds:.0f}", entry.get("counts", {}).get("passed", 0), entry["outcome"]]
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    lines += [
        "",
        "## Seconds by script",
        "",
        "| stack | " + " | ".join(SENT) + " |",
        "|---" * (len(SENT) + 1) + "|",
    ]
    for entry in stacks:
        took = {script["script"]: f"{script['seconds']:.1f}" for script in entry["scripts"]}
        lines.append(f"| {entry['name']} | " + " | ".join(took.get(name, "") for name in SENT) + " |")
    notes = {stack.name: stack.note for stack in STACKS}
    for title, key in (("What failed", "failures"), ("What was not checked, up to L2", "not_checked")):
        rows = [(entry["name"], row) for entry in stacks for row in entry.get(key, [])]
        if rows:
            lines += ["", f"## {title}", ""]
        for name, row in rows:
            code = f" [{row['code']}]" if row.get("code") else ""
            lines.append(f"- {name}: `{row['id']}`{code} {row['message']}")
        if key == "failures":
            told = [name for name in dict.fromkeys(name for name, _ in rows) if notes.get(name)]
            lines += [part for name in told for part in ("", f"{name}: {notes[name]}")]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
