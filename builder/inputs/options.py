"""Options of `check` -> the part of an Environment that they say, and their effect on the steps of files."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import date

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from builder.environment import (
    DateAsk,
    DriverAsk,
    Environment,
    GpuAsk,
    Index,
    IndexSettings,
    OperatingSystem,
    Origin,
    PythonAsk,
    Source,
    Variable,
)
from builder.inputs import indexes, pip_options, requirements
from builder.inputs.draft import Draft, default_index
from builder.inputs.reading import Reader
from builder.versions import ComputeCapability, DriverVersion, GlibcVersion, InvalidVersionError, PythonVersion

_MIG = re.compile(r",?\s*(?:(\d+)\s*x\s*)?MIG\s*(\d+g\.\d+gb(?:\+me)?)?\s*", re.IGNORECASE)
_COUNT = re.compile(r"^(\d{1,2})\s*[x×]\s*(?=\S)|\s*[x×]\s*(\d{1,2})$", re.IGNORECASE)
_ARCHS = {
    **dict.fromkeys(("x86_64", "amd64", "x64", "x86-64"), "x86_64"),
    **dict.fromkeys(("aarch64", "arm64", "sbsa", "armv8"), "aarch64"),
}
# Compiled when they are asked for: most runs name no system.
_OS = (
    (r"(?:ubuntu|pop!?_?os)[\s:_-]*(\d\d\.\d\d)", "ubuntu{}"),
    (r"debian[\s:_-]*(?:gnu/linux[\s:_-]*)?(\d+|[a-z]+)", "debian:{}"),
    (r"(?:amazon\s*linux|amzn|al)[\s:_-]*(2023|2)\b", "amazonlinux{}"),
    (
        (
            r"(?:centos|rhel|red\s*hat[a-z ]*|(?:rocky|alma|oracle|scientific)\s*(?:linux)?|oraclelinux|ubi)"
            r"[\s:_-]*(?:linux|stream|server)?[\s:_-]*v?(\d+)"
        ),
        "rhel{}",
    ),
    (r"opensuse[\s:_/-]*(?:leap)?[\s:_-]*(15\.\d)", "opensuse{}"),
    (r"(?:sles|suse linux[a-z ]*)[\s:_-]*15[\s_-]*sp(\d)", "opensuse15.{}"),
    (r"openeuler[\s:_-]*(\d\d\.\d\d)", "openeuler{}"),
    (r"(alpine)", "{}"),
    (r"\b(trusty|jessie|xenial|bionic|focal|jammy|noble|stretch|buster|bullseye|bookworm|trixie)\b", "{}"),
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """As typed; nothing is checked yet. Fields are named after the options of `check`."""

    pins: tuple[str, ...] = ()
    python: str | None = None
    gpus: tuple[str, ...] = ()
    driver: str | None = None
    os: str | None = None
    glibc: str | None = None
    indexes: tuple[str, ...] = ()
    arch: str | None = None
    date: str | None = None
    env: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ()
    opset: int | None = None

    @property
    def variables(self) -> dict[str, str]:
        """`--env` as a mapping; what has no `=` is left out here and named by `parse`."""
        pairs = (text.partition("=") for text in self.env)
        return {name: value for name, equals, value in pairs if equals and name}


def parse(options: Options) -> Environment:
    """What cannot be read is in `unparsed`, with the option's name as its origin."""
    draft = Draft()
    if options.pins:
        _pins(options, draft)
    for text in options.env:
        name, equals, value = text.partition("=")
        if not equals or re.fullmatch(r"[A-Za-z_]\w*", name) is None:
            draft.left_out(Origin("--env"), text, "it is not KEY=VALUE")
        else:
            draft.variables.append(Variable(name=name, value=value, origin=Origin("--env"), scope="option"))
    pythons: list[PythonAsk] = []
    if options.python is not None:
        ask = _python(options.python)
        if isinstance(ask, PythonAsk):
            pythons.append(ask)
        else:
            draft.left_out(Origin("--python"), options.python, ask)
    arch = _ARCHS.get((options.arch or "").strip().lower().removeprefix("linux-").removeprefix("linux/"))
    if options.arch is not None and arch is None:
        draft.left_out(Origin("--arch"), options.arch, "it is neither x86_64 nor aarch64")
    glibc = None
    if options.glibc is not None:
        try:
            digits = re.search(r"[0-9]+\.[0-9]+", options.glibc)  # `glibc 2.17`, `2.31-0ubuntu9`
            glibc = GlibcVersion.parse(digits[0] if digits else options.glibc)
        except InvalidVersionError as error:
            draft.left_out(Origin("--glibc"), options.glibc, _why(error))
    driver = None if options.driver is None else _driver(options.driver, draft)
    day = None if options.date is None else _date(options.date, draft)
    return replace(
        draft.environment(),
        pythons=tuple(pythons),
        arch=arch,  # type: ignore[arg-type]
        arch_origin=None if arch is None else Origin("--arch"),
        os=None if options.os is None else operating_system(options.os, Origin("--os")),
        glibc=glibc,
        glibc_origin=None if glibc is None else Origin("--glibc"),
        driver=driver,
        gpus=tuple(gpu(name, Origin("--gpu")) for name in options.gpus if name.strip()),
        precisions=tuple((_precision(name), Origin("--precision")) for name in options.precisions),
        opset=options.opset,
        opset_origin=None if options.opset is None else Origin("--opset"),
        date=day,
    )


def _why(error: InvalidVersionError) -> str:
    return f"it is not a {error.kind}: expected {error.expected}"


def _pins(options: Options, draft: Draft) -> None:
    origin = Origin("--pin")
    settings = IndexSettings(primary=Index(kind="unspecified", origin=origin))
    draft.sources.append(Source(file="--pin", kind="options"))
    step = draft.open_step("pip", origin, f"pip install {' '.join(options.pins)}", settings)
    context = requirements.Context(draft, Reader(is_offline=True), step, variables=options.variables)
    for pin in options.pins:
        line = pin.strip()
        if line:
            requirements.read_line(line, origin, context)


def applied(env: Environment, options: Options) -> Environment:
    """`--index` and `--env` act on the steps: an index of the option takes the place of one that nobody named."""
    if not options.indexes and not options.env:
        return env
    origin = Origin("--index")
    primary: Index | None = None
    additive: list[Index] = []
    pages: list[Index] = []
    for number, word in enumerate(options.indexes):
        index = indexes.of_word(word, origin)
        if indexes.is_page(index):
            pages.append(index)
        elif number == 0:
            primary = index
        else:
            additive.append(index)
    if options.indexes and primary is None:
        primary = default_index(origin)
    chosen = pip_options.PipOptions(additive=additive, find_links=pages)
    from builder.inputs import pip_commands  # noqa: PLC0415 - needed with these options alone

    variables = tuple(each for each in env.variables if each.scope == "option")
    steps = []
    for step in env.steps:
        settings = step.indexes
        if step.installer in {"pip", "uv"}:
            is_open = settings.primary.url is None and settings.primary.variant is None
            if primary is not None and is_open:
                settings = replace(settings, primary=primary)
            settings = chosen.settings(settings)
            settings = pip_commands.from_variables(options.variables, settings, variables, step.installer)
        steps.append(replace(step, indexes=settings, variables=(*step.variables, *variables)))
    return replace(env, steps=tuple(steps))


def _driver(text: str, draft: Draft) -> DriverAsk | None:
    # `535.129.03`, `R535`, `nvidia-driver-535`, `535.x`, `Driver Version: 551.61 (Windows)`
    match = re.search(r"(?<![0-9.])([0-9]{3}(?:\.[0-9]+){0,2})(?![0-9])", text)
    try:
        version = DriverVersion.parse(match[1] if match else text)
    except InvalidVersionError as error:
        draft.left_out(Origin("--driver"), text, _why(error))
        return None
    return DriverAsk(version=version, origin=Origin("--driver"), is_windows="windows" in text.lower())


def _python(text: str) -> PythonAsk | str:
    """`3.10`, `3.10.12`, `Python 3.10`, `py310`, `>=3.9,<3.12`; what is none of these is told in words."""
    origin, means = Origin("--python"), "--python"
    joined = re.fullmatch(r"\s*(?:cp|py|python)[ -]?([23])([0-9]{1,2})\s*", text, re.IGNORECASE)
    plain = re.sub(r"^\s*(?:c?python|py)\s*", "", text, flags=re.IGNORECASE)
    try:
        version = PythonVersion.parse(f"{joined[1]}.{joined[2]}" if joined else plain)
    except InvalidVersionError as error:
        try:
            return PythonAsk(origin=origin, means=means, specifier=SpecifierSet(plain))
        except InvalidSpecifier:
            return _why(error)
    return PythonAsk(origin=origin, means=means, version=version)


_PRECISION = (
    r"(?:mixed[-_ ]?)?(bf16|bfloat16|fp16|float16|fp8|float8|tf32|fp32|float32|half|16|32)(?:[-_ ].*)?"  # `bf16-mixed`
)


def _precision(text: str) -> str:
    """As the rules name them: `bf16-mixed` is bf16, `16-mixed` and `half` are fp16; an unknown word stays."""
    word = text.strip().lower().removeprefix("torch.")
    match = re.fullmatch(_PRECISION, word)
    names = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "16": "fp16", "float8": "fp8"}
    return word if match is None else names.get(match[1], match[1])


def _date(text: str, draft: Draft) -> DateAsk | None:
    match = re.search(r"\d{4}-\d{2}-\d{2}", text)
    month = re.fullmatch(r"\s*(\d{4}-\d{2})\s*", text)
    try:
        day = date.fromisoformat(match[0] if match else f"{month[1]}-28" if month else text)
    except ValueError:
        draft.left_out(Origin("--date"), text, "it is not a date such as 2024-06-30")
        return None
    return DateAsk(day=day, origin=Origin("--date"), after="after" in text.lower())


def operating_system(text: str, origin: Origin) -> OperatingSystem:
    """`Ubuntu 22.04`, `debian:12`, `CentOS 7.9`, `Windows 11 + WSL2`; any other text is kept as it is."""
    lowered = text.lower()
    family = "wsl" if "wsl" in lowered else "windows" if "windows" in lowered else "linux"
    if re.search(r"mac\s*os|darwin", lowered):
        family = "macos"
    found = None
    for pattern, form in _OS:
        match = re.search(pattern, text, re.IGNORECASE)
        if match is not None:
            found = form.format(match[1].lower())
            break
    return OperatingSystem(text=text, origin=origin, family=family, distribution=found)  # type: ignore[arg-type]


def gpu(text: str, origin: Origin) -> GpuAsk:
    """`2 x RTX 3090`, `A100 80GB, 2 x MIG 3g.40gb`, `sm_86`, `8.6`; the name is left to the facts."""
    name, count, profile = text.strip(), 1, None
    mig = _MIG.search(name)
    if mig is not None:
        count, profile = int((mig[1] or "1")[:3]), (mig[2] or "unknown").lower()
        name = (name[: mig.start()] + name[mig.end() :]).strip(" ,")
    elif (times := _COUNT.search(name)) is not None:
        count = int(times[1] or times[2])
        name = (name[: times.start()] + name[times.end() :]).strip()
    try:
        capability = ComputeCapability.parse(name)
    except InvalidVersionError:
        capability = None
    return GpuAsk(name=name or text, origin=origin, capability=capability, mig=profile, count=count)
