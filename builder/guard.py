"""What keeps a later install from replacing the proven torch in an environment in place; images have it by template.

    share/torchproof/constraints.txt    the versions that hold
    pip.conf                            pip reads the one at the root of its environment, whoever starts it
    bin/activate                        uv reads no pip.conf: in an activated environment UV_CONSTRAINT holds it
    conda-meta/state                    the same for a conda prefix, where conda or mamba activate it

Not held: `uv pip install --python PREFIX` without activation, `conda install` of another torch,
pip with PIP_CONFIG_FILE=/dev/null.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from builder.atomic import write_whole

CONSTRAINTS = "share/torchproof/constraints.txt"
_MARK = "# torchproof: "

# In the form of the script around it, which has to run in any POSIX shell.
_ACTIVATE = f"""export VIRTUAL_ENV
{_MARK}uv reads no pip.conf; this holds torch in its version. A path with a blank cannot stand in this variable.
case "$VIRTUAL_ENV" in
    *[[:space:]]*) ;;
    *)
        _OLD_VIRTUAL_UV_CONSTRAINT="${{UV_CONSTRAINT-}}"
        UV_CONSTRAINT="$VIRTUAL_ENV/{CONSTRAINTS}"
        export UV_CONSTRAINT
        ;;
esac
"""
_DEACTIVATE = """    if ! [ -z "${_OLD_VIRTUAL_UV_CONSTRAINT+_}" ] ; then
        UV_CONSTRAINT="$_OLD_VIRTUAL_UV_CONSTRAINT"
        [ -n "$UV_CONSTRAINT" ] || unset UV_CONSTRAINT
        unset _OLD_VIRTUAL_UV_CONSTRAINT
    fi

    unset VIRTUAL_ENV
"""


def install(prefix: Path, constraints: Path) -> None:
    """Put the guard into an environment; nothing changes where it is already."""
    if not constraints.is_file():
        return
    own = prefix / CONSTRAINTS
    own.parent.mkdir(parents=True, exist_ok=True)
    _write(own, constraints.read_text(encoding="utf-8"))
    # pip splits the value at blanks; an address has none.
    place = own.as_uri() if any(char.isspace() for char in str(own)) else str(own)
    _write(prefix / "pip.conf", f"[global]\nconstraint = {place}\n")
    activate = prefix / "bin" / "activate"
    if (prefix / "conda-meta").is_dir():
        _remember_in_conda(prefix / "conda-meta" / "state", own)
    elif activate.is_file():
        text = activate.read_text(encoding="utf-8")
        if _MARK not in text:
            text = text.replace("    unset VIRTUAL_ENV\n", _DEACTIVATE, 1).replace("export VIRTUAL_ENV\n", _ACTIVATE, 1)
            write_whole(activate, text)


def _remember_in_conda(state: Path, own: Path) -> None:
    found: dict[str, Any] = json.loads(state.read_text(encoding="utf-8")) if state.is_file() else {"version": 1}
    variables = {**found.get("env_vars", {}), "UV_CONSTRAINT": str(own)}
    if not any(char.isspace() for char in str(own)):
        _write(state, json.dumps({**found, "env_vars": variables}) + "\n")


def _write(path: Path, text: str) -> None:
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        write_whole(path, text)
