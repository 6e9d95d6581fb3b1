"""Install: packages that lack what another one uses."""

from __future__ import annotations

from typing import Final

import attrs

from vllm_startup.causes._base import Cause
from vllm_startup.causes._install import DependencyApiMismatch
from vllm_startup.causes._rules import CauseRule, Found

_OF_VLLM: Final = frozenset(
    {f"{part}Config" for part in ("Vllm", "Model", "Cache", "Parallel", "Scheduler", "Load", "Compilation")}
)
_GONE_IN_TRANSFORMERS_5: Final = frozenset({"all_special_tokens_extended", "no_init_weights"})


def _api(found: Found) -> Cause:
    module = found.word("module")
    return _lacking(module, (module or "a package").partition(".")[0], found.word("name"))


def _lacking(module: str | None, package: str, name: str | None) -> DependencyApiMismatch:
    return DependencyApiMismatch(
        message=f"{module or package} has no {name}: the installed {package} is not the release that is "
        f"needed",
        hint="pip install 'transformers<5'" if name in _GONE_IN_TRANSFORMERS_5 else None,
        module=module,
        name=name,
        retryable=False,
    )


def _of_a_class(found: Found) -> Cause:
    """What an object lacks; its class may be a model's own, so this is likely at most."""
    module = found.word("module")
    package = "vllm" if module in _OF_VLLM else "transformers"
    return attrs.evolve(_lacking(module, package, found.word("name")), confidence="likely")


def _signature(found: Found) -> Cause:
    module, name = found.word("module"), found.word("name")
    return DependencyApiMismatch(
        message=f"{module}() does not take {name} as it is called: the packages do not go together",
        confidence="likely",
        module=module,
        name=name,
        retryable=False,
    )


RULES: tuple[CauseRule, ...] = (
    CauseRule(
        literal="cannot import name",
        pattern=r"cannot import name(?: '(?P<name>\w{1,100})' from (?:partially initialized module )?"
        r"'(?P<module>[\w.]{1,200})')?",
        rank="generic",
        build=_api,
        versions="Python",
    ),
    CauseRule(
        literal="has no attribute",
        pattern=r"^AttributeError: (?:partially initialized )?module '(?P<module>[\w.]{1,200})' "
        r"has no attribute '(?P<name>\w{1,100})'",
        rank="generic",
        build=_api,
        versions="Python",
    ),
    CauseRule(
        literal="has no attribute",
        pattern=r"^AttributeError: '?(?P<module>\w{0,100}(?:Tokenizer|Config"
        r"|Processor)\w{0,20})'?(?: object)? "
        r"has no attribute '?(?P<name>\w{1,100})",
        rank="generic",
        build=_of_a_class,
        versions="Python",
    ),
    CauseRule(
        literal="TypeError: ",
        pattern=r"^TypeError: (?P<module>[\w.]{1,200})\(\) got (?:an unexpected keyword argument"
        r"|multiple values for argument) '(?P<name>\w{1,100})'",
        exceptions=("TypeError",),
        rank="vague",
        build=_signature,
        versions="Python",
    ),
    CauseRule(
        literal="PydanticImportError",
        pattern=r"PydanticImportError: `(?P<name>[^`]{1,200})` has been (?:moved|removed)",
        build=lambda found: DependencyApiMismatch(
            message=f"pydantic has no {found.word('name')}: another release of it is needed",
            module="pydantic",
            name=found.word("name"),
            retryable=False,
        ),
        versions="pydantic 2",
    ),
    CauseRule(
        literal="infer_schema(func): ",
        pattern=r"infer_schema\(func\): (?P<name>Parameter \w{1,60} has unsupported type)",
        build=lambda found: DependencyApiMismatch(
            message="torch cannot read how an operator is declared: another release of it is needed",
            confidence="likely",
            module="torch.library",
            name="infer_schema",
            retryable=False,
        ),
        versions="torch 2.4 to 2.9",
    ),
    CauseRule(
        literal="Are this object's requirements defined correctly?",
        pattern=r"Could not import module '(?P<name>\w{1,100})'",
        rank="vague",
        build=lambda found: DependencyApiMismatch(
            message=f"transformers could not import {found.word('name')}, for what it needs",
            confidence="likely",
            module="transformers",
            name=found.word("name"),
            retryable=False,
        ),
        versions="transformers 4.52 to 5",
    ),
)
