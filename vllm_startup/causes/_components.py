"""Install: modules and optional parts that are not installed."""

from __future__ import annotations

import attrs

from vllm_startup.causes._base import Cause
from vllm_startup.causes._install import ComponentMissing, module_missing
from vllm_startup.causes._remedies import pip
from vllm_startup.causes._rules import CauseRule, Found, compiled


def _module(found: Found) -> Cause:
    return module_missing((found.word("module") or "").rstrip("."))


def _component(found: Found) -> Cause:
    component = (found.word("component") or "").rstrip(".")
    told = compiled(r"`(pip install [^`\n]{1,200})`").search(found.text)
    return ComponentMissing(
        message=f"{component} is not installed",
        hint=told[1] if told else pip(component.removesuffix(" backend").lower()),
        component=component,
        retryable=False,
    )


RULES: tuple[CauseRule, ...] = (
    CauseRule(
        literal="No module named ",
        pattern=r"No module named '(?P<module>[\w.]{1,200})'",
        exceptions=("ModuleNotFoundError", "ImportError"),
        rank="generic",
        build=_module,
        versions="Python",
    ),
    CauseRule(
        literal="(look up to see its traceback)",
        pattern=r"No module named '(?P<module>[\w.]{1,200})'",
        rank="generic",
        build=_module,
        versions="transformers 4",
    ),
    CauseRule(
        literal="packages that were not found in your environment",
        pattern=r"not found in your environment: (?P<module>[\w.-]{1,80})",
        build=_module,
        versions="transformers 4 to 5",
    ),
    CauseRule(
        literal=" library but it was not found in your environment",
        pattern=r"requires the (?P<module>[\w.-]{1,60}) library but it was not found in your\s+environment",
        build=lambda found: attrs.evolve(_module(found), hint=pip((found.word("module") or "").lower())),
        versions="transformers 4 to 5",
    ),
    CauseRule(
        literal="Error while finding module specification for ",
        pattern=r"No module named '(?P<module>[\w.]{1,200})'",
        where="line",
        ends=True,
        build=_module,
        versions="Python",
    ),
    CauseRule(
        literal="No module named vllm",
        pattern=r"python[\d.]*: No module named (?P<module>vllm[\w.]{0,100})",
        where="line",
        ends=True,
        build=_module,
        versions="Python",
    ),
    CauseRule(
        literal="is not available",
        pattern=r"RuntimeError: (?P<component>NIXL|Mooncake|MoRIIO|FlashMLA|DeepEP"
        r"|(?:FlashInfer|DeepGEMM)(?: backend)?) is not available",
        build=_component,
        versions="0.9 to 0.33",
    ),
    CauseRule(
        literal="DeepGEMM",
        pattern=r"(?:^RuntimeError: |requires (?:a usable )?)(?P<component>DeepGEMM) "
        r"(?:backend is unavailable|support in the current vLLM environment|installation)",
        build=lambda found: attrs.evolve(_component(found), hint=None),
        versions="0.12 to 0.33",
    ),
    CauseRule(
        literal="not available. Install ",
        pattern=r"^RuntimeError: (?P<component>MoonEP|FlashInfer)[^\n]{0,60} not available\. Install ",
        build=lambda found: attrs.evolve(_component(found), confidence="likely", hint=None),
        versions="0.30 to 0.33",
    ),
    CauseRule(
        literal="punica LoRA kernels could not be imported",
        build=lambda _: ComponentMissing(
            message="this vLLM was built without the kernels for LoRA",
            hint="upgrade vLLM, or build it with VLLM_INSTALL_PUNICA_KERNELS=1",
            component="punica",
            retryable=False,
        ),
        versions="0.3 to 0.4",
    ),
    CauseRule(
        literal="Install mooncake",
        pattern=r"Install (?P<component>mooncake)[\w-]{0,30} (?:to use|with Store support)",
        build=_component,
        versions="0.30 to 0.33",
    ),
    CauseRule(
        literal="vllm.vllm_flash_attn requires the CUDA flash attention extensions",
        build=lambda _: ComponentMissing(
            message="this vLLM was built without its flash attention",
            hint="install vLLM from a wheel for CUDA, or build it for this GPU",
            component="vllm_flash_attn",
            retryable=False,
        ),
        versions="0.25 to 0.33",
    ),
    CauseRule(
        literal=" install ",
        pattern=r"(?:^(?:Import|ModuleNotFound|Value)Error: |Value error, )"
        r"(?:[^\n]{0,300}[ .])?(?:[Pp]lease|[Yy]ou (?:need to|must)) (?:pip )?install "
        r"(?:(?:it|them|the) )?(?:(?:by|via|with|using):? `?pip install )?(?P<component>[\w.-]{1,60})",
        rank="generic",
        build=_component,
        versions="0.4 to 0.33",
    ),
    CauseRule(
        literal="pip install",
        pattern=r"^(?:Import|ModuleNotFound)Error: (?:Package )?'?(?P<component>[A-Za-z][\w.-]{0,60}"
        r"(?: Inference)?)'? is (?:required|not installed)",
        rank="generic",
        build=_component,
        versions="0.14 to 0.33",
    ),
    CauseRule(
        literal="ImportError: Package ",
        pattern=r"^ImportError: Package '(?P<component>[\w.-]{1,60})' is not installed",
        build=_component,
        versions="0.10 to 0.33",
    ),
    CauseRule(
        literal="No package metadata was found for ",
        pattern=r"No package metadata was found for (?P<component>[\w.-]{1,60})",
        build=_component,
        versions="Python",
    ),
    CauseRule(
        literal="fastokens",
        pattern=r"'(?P<component>fastokens)' package \(>= [\w.]{1,20}\) is required",
        build=_component,
        versions="0.32 to 0.33",
    ),
    CauseRule(
        literal="Using Ray backend",
        pattern=r"backend requires installation of (?P<component>\w{1,40})",
        build=_component,
        versions="0.20 to 0.33",
    ),
    CauseRule(
        literal=" kernels not found",
        pattern=r"(?P<component>DeepEP|MoRI) kernels not found",
        build=_component,
        versions="0.10 to 0.33",
    ),
    CauseRule(
        literal="pplx_kernels not found",
        pattern=r"(?P<component>pplx_kernels) not found",
        build=_component,
        versions="0.10 to 0.14",
    ),
    CauseRule(
        literal="NIXL is unavailable",
        pattern=r"(?P<component>NIXL) is unavailable",
        build=_component,
        versions="0.33",
    ),
    CauseRule(
        literal="NIXL; install",
        pattern=r" requires (?P<component>NIXL); install",
        build=_component,
        versions="0.33",
    ),
    CauseRule(
        literal=" package is not ",
        pattern=r"'(?P<component>[\w.-]{1,60})' package is not (?:available in your environment|installed)",
        build=_component,
        versions="huggingface_hub 0.1x to 0.36, httpx 0.2x",
    ),
    CauseRule(
        literal="make sure you have ",
        pattern=r"make sure you have [`'](?P<module>[\w.-]{1,60})[`'] installed",
        build=_module,
        versions="transformers 4 to 5",
    ),
    CauseRule(
        literal="seems to be not installed",
        pattern=r"the package (?P<component>[\w.-]{1,60}) seems to be not installed",
        build=_component,
        versions="transformers 4",
    ),
    CauseRule(
        literal=" to be installed",
        pattern=r"\brequires? (?:both \w{1,40} and )?(?:the )?[`'\"]?(?P<component>[A-Za-z][\w-]{0,60})"
        r"[`'\"]?(?:[<>=]{1,2}[\d.]{1,20})? to be installed",
        exceptions=("ImportError", "ModuleNotFoundError", "RuntimeError", "ValueError"),
        rank="generic",
        build=_component,
        versions="transformers 4 to 5",
    ),
    CauseRule(
        literal=" is not installed",
        pattern=r"^(?:Import|ModuleNotFound|Runtime|Assertion|Value)Error: (?:The |Package )?[`'\"]?"
        r"(?P<component>[A-Za-z][\w.-]{0,60}(?: [\w.-]{1,30}){0,2}?)[`'\"]? "
        r"(?:package |library )?is not installed",
        rank="generic",
        build=_component,
        versions="many packages",
    ),
    CauseRule(
        literal="Missing dependencies for SOCKS support",
        build=lambda _: ComponentMissing(
            message="a SOCKS proxy is set, and what speaks with it is not installed",
            hint="pip install 'requests[socks]' 'httpx[socks]', or unset ALL_PROXY",
            component="PySocks",
            retryable=False,
        ),
        versions="requests 2",
    ),
    CauseRule(
        literal="distribution was not found and is required by",
        pattern=r"The '(?P<component>[A-Za-z][\w-]{0,60})[^']{0,60}' distribution was not found",
        build=_component,
        versions="setuptools, pkg_resources",
    ),
    CauseRule(
        literal="pip install ",
        # Whatever else it says, it tells what is to be installed.
        pattern=r"(?:require[sd]?|[Nn]eeds?|[Mm]issing|not (?:installed|available|found)|[Ii]nstall it)\b"
        r"[^\n]{0,300}?\bpip install (?:-\S{1,30} (?:https?://\S{1,200} )?){0,3}['\"]?"
        r"(?P<component>[A-Za-z][\w.-]{0,60})",
        exceptions=("ImportError", "ModuleNotFoundError", "ValueError", "RuntimeError"),
        rank="vague",
        build=lambda found: attrs.evolve(_component(found), confidence="likely"),
        versions="many packages",
    ),
    CauseRule(
        literal="Model Runner V2 requires Triton",
        build=lambda _: ComponentMissing(
            message="Triton is not installed", hint="pip install triton", component="triton", retryable=False
        ),
        versions="0.17 to 0.33",
    ),
    CauseRule(
        literal=" module not found. Please install/check ",
        pattern=r"Please install/check (?P<component>[\w-]{1,40})",
        build=_component,
        versions="0.11 to 0.33",
    ),
    CauseRule(
        literal="cumem allocator is not available",
        build=lambda _: ComponentMissing(
            message="this vLLM was built without the allocator that sleep mode needs",
            hint="leave --enable-sleep-mode out",
            component="cumem allocator",
            confidence="likely",
            retryable=False,
        ),
        versions="0.7 to 0.33",
    ),
    CauseRule(
        literal="OpenTelemetry",
        pattern=r"(?P<component>OpenTelemetry) (?:packages must be installed|is not available)",
        build=lambda found: attrs.evolve(
            _component(found),
            hint="pip install opentelemetry-sdk opentelemetry-api opentelemetry-exporter-otlp",
        ),
        versions="0.4 to 0.33",
    ),
)
