"""Dockerfiles: stages, variables, shell, installs in order."""

from __future__ import annotations

import pytest

from builder.environment import Environment, Origin
from builder.inputs import base_image, parse
from builder.inputs.options import Options
from builder.inputs.reading import Reader
from builder.inputs.shell_words import Expander

HERE = Origin("Dockerfile", 1)


def env(text: str, files: dict[str, str] | None = None, options: Options | None = None) -> Environment:
    return parse("dockerfile", text, "Dockerfile", reader=Reader(files=files or {}, is_offline=True), options=options)


def packages(found: Environment) -> dict[str, str]:
    return {name: str(state.version or state.specifier) for name, state in found.in_force().items()}


def run(script: str, files: dict[str, str] | None = None) -> Environment:
    return env(f"FROM python:3.10\n{script}\n", files)


@pytest.mark.parametrize(
    ("reference", "repository", "toolkit", "flavor", "distribution"),
    [
        ("nvidia/cuda:12.1.1-base-ubuntu22.04", "nvidia/cuda", "12.1.1", "base", "ubuntu22.04"),
        ("nvidia/cuda:10.2-cudnn7-devel-ubuntu18.04", "nvidia/cuda", "10.2", "devel", "ubuntu18.04"),
        ("nvcr.io/nvidia/cuda:11.6.2-cudnn8-runtime-ubuntu20.04", "nvidia/cuda", "11.6.2", "runtime", "ubuntu20.04"),
        ("nvidia/cuda:11.8.0-runtime-rockylinux8@sha256:0123", "nvidia/cuda", "11.8.0", "runtime", "rockylinux8"),
        ("pytorch/pytorch:2.1.2-cuda12.1-cudnn8-runtime", "pytorch/pytorch", "12.1", "runtime", "None"),
        ("docker.io/library/python:3.11-slim-bookworm", "python", "None", "None", "debian:bookworm"),
        ("ubuntu:22.04", "ubuntu", "None", "None", "ubuntu:22.04"),
        ("debian:bookworm-slim", "debian", "None", "None", "debian:bookworm"),
        ("localhost:5000/team/image", "team/image", "None", "None", "None"),
        (
            "openmpi4.1.0-cuda11.0.3-cudnn8-ubuntu18.04",
            "openmpi4.1.0-cuda11.0.3-cudnn8-ubuntu18.04",
            "11.0.3",
            "None",
            "ubuntu18.04",
        ),
        ("runpod/pytorch:1.0.2-cu1281-torch280-ubuntu2404", "runpod/pytorch", "12.8.1", "None", "ubuntu24.04"),
        ("nvcr.io/nvidia/pytorch:21.08-py3", "nvidia/pytorch", "None", "None", "None"),
        ("nvidia/cuda", "nvidia/cuda", "None", "None", "None"),
        ("", "", "None", "None", "None"),
    ],
)
def test_base_images(reference: str, repository: str, toolkit: str, flavor: str, distribution: str) -> None:
    found = base_image.parse(reference, HERE)
    assert found.repository == repository
    assert (str(found.toolkit), str(found.flavor), str(found.distribution)) == (toolkit, flavor, distribution)


@pytest.mark.parametrize(
    ("reference", "torch", "python"),
    [
        ("pytorch/pytorch:2.1.2-cuda12.1-cudnn8-runtime", "2.1.2", "None"),
        ("runpod/pytorch:2.1.0-py3.10-cuda11.8.0-devel-ubuntu22.04", "2.1.0", "3.10"),
        ("runpod/pytorch:1.0.2-cu1281-torch280-ubuntu2404", "2.8.0", "None"),
        ("cnstark/pytorch:1.7.0-py3.8.13-cuda11.0.3-ubuntu18.04", "1.7.0", "3.8.13"),
        ("team/pytorch:th2.6.0-cu124-flashattn2.7.4-cxx11abi0-devel", "2.6.0", "None"),
        ("pytorch/pytorch:latest", "None", "None"),
        ("nvcr.io/nvidia/pytorch:24.01-py3", "None", "None"),
        ("python:3.9", "None", "3.9"),
        ("team/image:py310", "None", "3.10"),
    ],
)
def test_what_tags_promise(reference: str, torch: str, python: str) -> None:
    found = base_image.parse(reference, HERE)
    assert (str(found.torch), str(found.python)) == (torch, python)


@pytest.mark.parametrize(
    ("head", "reference"),
    [
        ("ARG V=12.1.1\nFROM nvidia/cuda:${V}-base-ubuntu22.04", "nvidia/cuda:12.1.1-base-ubuntu22.04"),
        ("ARG R=quay.io\nARG B=$R/jupyter/scipy\nFROM $B", "quay.io/jupyter/scipy"),
        ('ARG V="3.10"\nFROM --platform=$BUILDPLATFORM python:${V:-3.9}', "python:3.10"),
        ("ARG V\nFROM python:${V:-3.9}", "python:3.9"),
        ("ARG V=\nFROM python${V:+:$V}", "python"),
        ("from python:3.9 as Base\nFROM base", "python:3.9"),
        ("# escape=`\nFROM `\n  python:3.9", "python:3.9"),
        ("\n\n# note\nFROM \\\n# inside\n\npython:3.9 \\\nAS x", "python:3.9"),
    ],
)
def test_from_with_arguments_and_stages(head: str, reference: str) -> None:
    found = env(f"{head}\nRUN pip install numpy\n")
    assert found.base is not None
    assert found.base.reference == reference
    assert set(packages(found)) == {"numpy"}


def test_build_arguments_can_be_given() -> None:
    found = env(
        "ARG V=3.9\nFROM python:$V\nARG T\nRUN pip install torch==$T\n", options=Options(env=("V=3.11", "T=2.1.0"))
    )
    assert found.base is not None
    assert (found.base.reference, packages(found)) == ("python:3.11", {"torch": "2.1.0"})


def test_an_argument_without_a_value_is_named() -> None:
    found = env("ARG BASE\nFROM $BASE\nARG T\nRUN pip install torch==$T numpy\n")
    assert [left_out.why for left_out in found.unparsed] == [
        "the image hangs on a build argument without a default",
        "the variable `T` has no value here",
    ]
    assert packages(found) == {"numpy": ""}


def test_arguments_before_from_are_not_seen_behind_it() -> None:
    assert packages(env("ARG V=2.1.0\nFROM python:3.9\nRUN pip install torch==${V:-2.0.0}\n")) == {"torch": "2.0.0"}
    assert packages(env("ARG V=2.1.0\nFROM python:3.9\nARG V\nRUN pip install torch==${V:-2.0.0}\n")) == {
        "torch": "2.1.0"
    }


def test_only_what_reaches_the_last_stage_counts() -> None:
    text = (
        "FROM python:3.9 AS unused\nRUN pip install flax\nFROM python:3.10 AS low\nENV A=1\n"
        "RUN pip install torch==2.1.0\n"
        "FROM python:3.11 AS wheels\nRUN pip install numpy\nRUN make\nFROM low\n"
        "COPY --from=wheels /usr/local/lib/python3.11 /x\n"
        "COPY --from=unused /app/file.txt /x\nRUN pip install scipy==${A}.0\n"
    )
    found = env(text)
    assert packages(found) == {"torch": "2.1.0", "numpy": "", "scipy": "1.0"}
    assert [base.reference for base in found.bases] == ["python:3.10", "python:3.11"]
    assert found.commands == ()
    assert [str(step.origin) for step in found.steps] == ["Dockerfile:5", "Dockerfile:7", "Dockerfile:12"]


def test_stages_that_copy_from_each_other_are_counted_once() -> None:
    text = "FROM python:3.9 AS s0\nRUN pip install p0\n"
    for number in range(1, 60):
        text += f"FROM s{number - 1} AS s{number}\nCOPY --from=s{number - 1} /venv /venv\n"
        text += f"COPY --from=0 / /\nRUN pip install p{number}\n"
    assert len(env(text).requests) == 60


@pytest.mark.parametrize(
    "command",
    [
        "pip install torch==2.1.0",
        "pip3 install --no-cache-dir -q 'torch==2.1.0'",
        "pip3.10 --no-cache-dir install torch==2.1.0",
        "python -m pip install torch==2.1.0",
        "/opt/venv/bin/python3.10 -u -m pip install torch==2.1.0",
        '"$HOME/bin/pip" install torch==2.1.0',
        "sudo -H pip install torch==2.1.0",
        "PIP_NO_CACHE_DIR=1 pip install torch==2.1.0",
        "env A=b pip install torch==2.1.0",
        "cd /x && pip install torch==2.1.0 && rm -rf /y",
        "set -ex; pip install torch==2.1.0;",
        "apt-get update || true; pip install torch==2.1.0",
        "(pip install torch==2.1.0)",
        "{ pip install torch==2.1.0; }",
        "uv pip install --system torch==2.1.0",
        "uv add torch==2.1.0",
        "conda run -n x --no-capture-output pip install torch==2.1.0",
        'bash -lc "pip install torch==2.1.0"',
        "conda install -y -c pytorch pytorch=2.1.0",
        "mamba install pytorch==2.1.0 -c pytorch -y",
        "micromamba create -n x -c conda-forge pytorch=2.1.0",
        '["pip", "install", "torch==2.1.0"]',
        "--mount=type=cache,target=/root/.cache pip install torch==2.1.0",
        "for p in torch==2.1.0; do pip install $p; done",
        "T=torch; V=2.1.0 ; pip install ${T}==${V}",
        "export V=2.1.0 && pip install torch==$V",
        'if [ "a" = "a" ]; then pip install torch==2.1.0; else pip install torch==1.0; fi',
        'if [ "a" = "b" ]; then pip install torch==1.0; elif [ -n "x" ]; then pip install torch==2.1.0; fi',
        'case "x86" in arm) pip install torch==1 ;; x*) pip install torch==2.1.0 ;; *) pip install torch==3 ;; esac',
        "pip install $(echo torch==2.1.0) torch==2.1.0",
        "pip install \\\n  # a comment\n  torch==2.1.0 \\\n",
        "<<EOF\npip install \\\n  torch==2.1.0\nEOF",
        "<<-'END' bash\n\tpip install torch==2.1.0\n\tEND",
        'pip install "torch==2.1.0" # torch==1.0',
        "pip install torch==2.1.0 > /dev/null 2>&1",
        "! false && pip install torch==2.1.0",
        "echo 'pip install torch==1.0' && pip install torch==2.1.0",
    ],
)
def test_one_torch_however_it_is_installed(command: str) -> None:
    state = run(f"RUN {command}").in_force()["torch"]
    assert str(state.version) == "2.1.0"
    assert not state.replaced


@pytest.mark.parametrize(
    "command",
    [
        "echo pip install torch",
        "# pip install torch",
        "pip download torch",
        "pip install --help",
        "pip",
        "true || pip install torch",
        "false && pip install torch",
        'if [ "a" = "b" ]; then pip install torch; fi',
        "<<EOF python3\npip install torch\nEOF",
        "cat <<EOF > x.sh\npip install torch\nEOF",
        "apt-get install -y torch",
    ],
)
def test_what_does_not_install(command: str) -> None:
    assert "torch" not in run(f"RUN {command}").in_force()


def test_a_branch_that_hangs_on_something_unknown_is_marked() -> None:
    found = run("RUN if [ -f /x ]; then pip install torch==2.1.0; else pip install torch==2.0.0; fi; pip install numpy")
    assert [step.is_conditional for step in found.steps] == [True, True, False]
    state = found.in_force()["torch"]
    assert (str(state.version), state.replaced) == ("2.1.0", ())
    assert [u.text for u in found.unparsed] == ["torch==2.0.0"]


def test_a_fall_back_does_not_replace_what_it_stands_in_for() -> None:
    found = run(
        "RUN pip install torch==2.1.0+cu118 || pip install torch==2.1.0\nRUN false-or-not || pip uninstall -y torch"
    )
    state = found.in_force()["torch"]
    assert (str(state.version), state.replaced) == ("2.1.0+cu118", ())
    assert "hangs on a condition" in found.unparsed[0].why


def test_each_word_has_the_line_it_stands_on() -> None:
    found = run("RUN apt-get update \\\n && pip install \\\n   torch==2.1.0 \\\n   # note\n   numpy")
    assert [str(request.origin) for request in found.requests] == ["Dockerfile:4", "Dockerfile:6"]
    assert str(found.steps[0].origin) == "Dockerfile:3"


def test_indexes_from_options_environment_and_configuration() -> None:
    found = env(
        "FROM python:3.10\n"
        "ENV PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cu118 UV_INDEX_STRATEGY=unsafe-best-match\n"
        "RUN pip config set global.index-url https://mirror.example/simple\nRUN pip install torch\n"
        "RUN UV_DEFAULT_INDEX=https://download.pytorch.org/whl/cu121 uv pip install torch --torch-backend=cu124\n"
        "RUN uv pip install numpy\n"
    )
    pip, uv, plain = found.steps
    assert [(index.kind, str(index.variant)) for index in pip.indexes.all] == [("default", "None"), ("torch", "cu118")]
    assert str(pip.indexes.additive[0].origin) == "Dockerfile:2"
    assert (str(uv.indexes.primary.variant), uv.indexes.torch_backend, uv.indexes.strategy) == (
        "cu121",
        "cu124",
        "best-match",
    )
    assert plain.indexes.primary.kind == "default"


def test_requirement_files_are_read_where_they_were_copied_from() -> None:
    files = {
        "docker/reqs/base.txt": "torch==2.1.0\n",
        "c.txt": "numpy<2\n",
        "environment.yml": "dependencies: [scipy=1.10.1]\n",
    }
    found = run(
        "WORKDIR /app\nCOPY docker/reqs/ ./reqs/\nCOPY c.txt environment.yml /tmp/\n"
        "RUN pip install -r reqs/base.txt -c /tmp/c.txt numpy\n"
        "RUN conda env update -n base -f /tmp/environment.yml\nRUN pip install -r /elsewhere/gone.txt",
        files,
    )
    assert packages(found) == {"numpy": "<2", "torch": "2.1.0", "scipy": "1.10.1"}
    assert [(u.text, u.why) for u in found.unparsed] == [("-r /elsewhere/gone.txt", "there is no such file")]
    assert str(found.in_force()["torch"].request.origin) == "docker/reqs/base.txt:1"


def test_files_that_the_dockerfile_writes_itself() -> None:
    found = run(
        "COPY <<EOF /tmp/requirements.txt\ntorch==2.1.0\nEOF\nRUN pip install -r /tmp/requirements.txt\n"
        'RUN echo "numpy<2" > more.txt && echo "scipy" >> more.txt && pip install -r more.txt'
    )
    assert packages(found) == {"torch": "2.1.0", "numpy": "<2", "scipy": ""}


def test_a_file_edited_before_it_is_installed_is_no_certainty() -> None:
    found = run("COPY r.txt .\nRUN sed -i '/torch/d' r.txt && pip install -r r.txt", {"r.txt": "torch==2.1.0\n"})
    assert found.steps[0].is_conditional
    assert "edited" in found.unparsed[0].why


def test_piped_and_substituted_files() -> None:
    files = {"a.txt": "torch==2.1.0\n", "b.txt": "numpy\n"}
    assert packages(run("RUN cat a.txt | xargs -n 1 pip install", files)) == {"torch": "2.1.0"}
    assert set(packages(run("RUN pip install $(cat a.txt)", files))) == {"torch"}
    assert set(packages(run('RUN ["/bin/bash", "-c", "pip install -r <(cat a.txt b.txt)"]', files))) == {
        "torch",
        "numpy",
    }


def test_locks_beside_the_dockerfile() -> None:
    lock = 'version = 1\n[[package]]\nname = "torch"\nversion = "2.1.0"\n'
    assert packages(run("COPY uv.lock pyproject.toml ./\nRUN uv sync --frozen", {"uv.lock": lock})) == {
        "torch": "2.1.0"
    }
    found = run("RUN uv sync")
    assert "no uv.lock beside" in found.unparsed[0].why


def test_the_interpreter_that_runs_pip_says_the_python() -> None:
    text = "FROM nvidia/cuda:12.1.0-base-ubuntu22.04\nRUN apt-get install -y python3.9 python3.11-venv\n"
    text += "RUN python3.11 -m pip install torch\n"
    assert [(str(ask.version), ask.means) for ask in env(text).pythons] == [
        ("3.11", "interpreter"),
        ("3.9", "apt package"),
        ("3.11", "apt package"),
    ]
    assert [str(ask.version) for ask in run("RUN uv venv --python 3.12 && uv pip install torch").pythons] == [
        "3.12",
        "3.10",
    ]
    assert [str(ask.version) for ask in run("RUN conda create -n x python=3.8 pytorch").pythons] == ["3.8", "3.10"]


def test_conda_channels_come_from_options_and_configuration() -> None:
    found = run(
        "RUN conda config --add channels conda-forge && conda config --set channel_priority strict\n"
        "RUN conda install -c pytorch -c nvidia pytorch\nRUN conda install --override-channels -c x y\n"
        "RUN conda remove -y pytorch"
    )
    assert [step.channels for step in found.steps[:2]] == [("pytorch", "nvidia", "conda-forge"), ("x",)]
    assert found.steps[0].channel_priority == "strict"
    assert found.steps[2].removes == ("torch",)
    assert set(found.in_force()) == {"y"}


def test_variables_of_a_step() -> None:
    found = env(
        "FROM python:3.10\nARG TORCH_CUDA_ARCH_LIST=8.6\nENV CUDA_HOME=/usr/local/cuda\n"
        "RUN MAX_JOBS=4 pip install flash-attn --no-build-isolation\n"
    )
    step = found.steps[0]
    assert {variable.name: variable.scope for variable in step.variables} == {
        "TORCH_CUDA_ARCH_LIST": "build",
        "CUDA_HOME": "image",
        "MAX_JOBS": "step",
    }
    assert step.no_build_isolation


def test_source_builds_and_other_commands_are_kept() -> None:
    found = run(
        "RUN git clone https://x.example/apex && cd apex && python setup.py install --cuda_ext\n"
        "RUN build detectron2 now\n"
        "RUN pip install git+https://x.example/a.git ./b\n"
        'RUN echo /usr/local/cuda/compat > /etc/ld.so.conf.d/c.conf && ldconfig\nCMD ["python", "x.py"]'
    )
    assert [build.name for build in found.builds] == ["apex", "detectron2", None, None]
    assert [command.text for command in found.commands][-3:] == [
        "echo /usr/local/cuda/compat > /etc/ld.so.conf.d/c.conf",
        "ldconfig",
        "python x.py",
    ]


def test_apt_packages() -> None:
    found = run(
        "RUN apt-get install -y --no-install-recommends -t stable libgl1 libcudnn8=8.9.7.29-1+cuda12.2 'cuda-12-*'"
        " && apk add git"
    )
    assert [(package.name, package.version) for package in found.apt] == [
        ("libgl1", None),
        ("libcudnn8", "8.9.7.29-1+cuda12.2"),
        ("git", None),
    ]
    assert found.unparsed[0].text == "cuda-12-*"


def test_env_in_both_forms() -> None:
    found = run('ENV A one two\nENV B="x y" C=z\\ w D=$A\nENV LD_LIBRARY_PATH=/usr/local/cuda/lib64:$LD_LIBRARY_PATH')
    values = {variable.name: variable.value for variable in found.variables}
    assert values == {
        "A": "one two",
        "B": "x y",
        "C": "z w",
        "D": "one two",
        "LD_LIBRARY_PATH": "/usr/local/cuda/lib64:${LD_LIBRARY_PATH}",
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        "RUN pip install torch\n",
        "just words\n",
        "FROM\n",
        "FROM a\nRUN <<EOF\npip install torch\n",
        "FROM a\nRUN pip install 'torch\n",
    ],
)
def test_broken_files_are_survived(text: str) -> None:
    assert isinstance(env(text).to_json(), dict)


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        ("$A", "1 2"),
        ("${A}", "1 2"),
        ("'$A'", "$A"),
        ('"${A}b"', "1 2b"),
        ("${B:-d}", "d"),
        ("${B-d}", "d"),
        ("${A:+x$A}", "x1 2"),
        ("${B:+x}", ""),
        ("${E-d}${E:-d}", "d"),
        ("${#A}", "3"),
        ("${V%.*}", "12.1"),
        ("${V%%.*}", "12"),
        ("${V#*.}", "1.0"),
        ("${V##*.}", "0"),
        ("${V//./}", "1210"),
        ("${V/./}", "121.0"),
        ("${V:0:2}", "12"),
        ("$B", "${B}"),
        ("a\\ b", "a b"),
        ("${B:-${A:-x}}", "1 2"),
        ("$(date)", "$(date)"),
        ("$((1+1))", "$((1+1))" ),
        ("$", "$"),
        ("${", "${}"),
    ],
)  # fmt: skip
def test_expansion(raw: str, value: str) -> None:
    found = Expander({"A": "1 2", "E": "", "V": "12.1.0", "U": None}).text(raw)
    assert found == value or raw in {"${", "$((1+1))"}


@pytest.mark.parametrize(
    ("pipeline", "variant"),
    [
        ("echo $V | cut -d. -f1,2 | tr -d '.'", "cu121"),
        ("echo ${V} | cut -d'.' -f-2 | tr -d '.'", "cu121"),
        ("echo ${V} | sed 's/\\.//g' | cut -c 1-3", "cu121"),
        ("echo ${V} | sed 's/\\.//' | cut -c1-3", "cu121"),
        ("echo $V | awk -F. '{print $1$2}'", "cu121"),
        ("printf %s $V | cut -d . -f 1-2 | tr -d .", "cu121"),
        ("echo $V | grep -o 12", "None"),
        ("nvcc --version", "None"),
        ("echo $U | tr -d .", "None"),
        ("echo 121; rm x", "None"),
    ],
)
def test_index_addresses_that_are_computed(pipeline: str, variant: str) -> None:
    head = "FROM python:3.10\nARG V=12.1.1\nARG U\n"
    found = env(f"{head}RUN pip install torch --index-url https://download.pytorch.org/whl/cu$({pipeline})\n")
    assert str(found.steps[0].indexes.primary.variant) == variant
    assert set(found.in_force()) == {"torch"}


def test_settings_that_are_taken_back_and_wheels_without_a_name() -> None:
    found = run(
        "RUN pip config set global.index-url https://x.example/whl/cu121 && pip config unset global.index-url\n"
        "RUN pip install dist/*.whl torch"
    )
    assert found.steps[0].indexes.primary.url is None
    assert (found.builds, set(found.in_force())) == ((), {"torch"})


def test_unquoted_values_are_split() -> None:
    expander = Expander({"P": "torch numpy", "E": ""})
    assert expander.words("a$P") == ["atorch", "numpy"]
    assert expander.words('"$P"') == ["torch numpy"]
    assert expander.words("$E") == []
    assert expander.words('"$E"') == [""]


@pytest.mark.parametrize(
    "text",
    [
        "FROM a\n" + "ENV A=$A$A$A\n" * 200 + "RUN pip install $A\n",
        "FROM a\nRUN " + "if x; then " * 5000,
        "FROM a\nRUN " + "$(" * 5000,
        "FROM a\nRUN " + "${A:-" * 5000,
        "FROM a\nRUN " + "(" * 5000,
        "FROM a\nRUN " + "bash -c '" * 500,
        "FROM a\nRUN " + "pip install a && " * 3000,
        "FROM a\nCOPY <<A <<B <<C x\n",
        "FROM a\nRUN " + "\\\n" * 20_000,
        "FROM a AS a\n" * 3000,
        "FROM a\nRUN A='" + "*a" * 900 + "'; echo ${A%%" + "*a" * 300 + "b}",
    ],
)
def test_hostile_dockerfiles_are_bounded(text: str) -> None:
    assert isinstance(env(text).to_json(), dict)
