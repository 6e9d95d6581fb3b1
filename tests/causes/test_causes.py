from __future__ import annotations

import pickle
import subprocess
import sys

import attrs
import pytest

from vllm_startup import causes
from vllm_startup.causes import Cause, Evidence

# The contract: every family with its kinds and their fields.
CONTRACT: dict[str, dict[str, tuple[str, ...]]] = {
    "GpuMemory": {
        "gpu_out_of_memory": ("device", "tried_bytes", "free_bytes", "total_bytes"),
        "gpu_memory_not_free": ("device", "free_bytes", "total_bytes", "wanted_bytes", "utilization"),
        "gpu_memory_changed": (),
        "no_kv_cache_memory": (),
        "kv_cache_too_small": ("max_model_len", "needed_bytes", "available_bytes", "fits_len"),
    },
    "HostResource": {
        "host_out_of_memory": ("process",),
        "shared_memory_too_small": (),
        "disk_full": ("path",),
        "path_not_writable": ("path", "errno"),
        "path_not_readable": ("path", "errno"),
        "port_in_use": ("address", "purpose"),
        "too_many_open_files": (),
        "user_not_found": ("uid",),
        "cpu_resource_insufficient": (),
    },
    "LaunchArguments": {
        "invalid_arguments": ("argument",),
        "parallel_size_invalid": ("what", "size", "allowed"),
        "max_model_len_too_large": ("requested", "allowed"),
        "quantization_mismatch": ("method",),
        "file_missing": ("path",),
        "service_environment_clash": ("variable",),
        "engine_config_mismatch": (),
        "cuda_fork_reinit": (),
    },
    "Install": {
        "dependency_version_mismatch": ("package", "version", "other", "other_version"),
        "dependency_api_mismatch": ("module", "name"),
        "binary_incompatible": ("library", "symbol"),
        "shared_library_missing": ("library",),
        "module_missing": ("module",),
        "program_missing": ("program",),
        "component_missing": ("component",),
        "platform_unsupported": (),
        "model_inspection_failed": (),
    },
    "ModelAccess": {
        "model_not_found": ("model",),
        "model_access_denied": ("model",),
        "hub_unreachable": (),
        "model_not_cached": ("model",),
        "remote_code_not_trusted": ("model",),
    },
    "ModelSupport": {
        "architecture_unsupported": ("architectures",),
        "model_type_unknown": ("model_type",),
        "model_config_invalid": ("path",),
        "tokenizer_invalid": (),
        "chat_template_invalid": (),
        "multimodal_processor_failed": (),
        "attention_backend_unsupported": (),
    },
    "Checkpoint": {
        "checkpoint_corrupt": ("file",),
        "checkpoint_mismatch": ("parameter",),
        "weights_missing": ("model", "files"),
        "adapter_invalid": ("adapter",),
    },
    "Hardware": {
        "gpu_architecture_unsupported": (),
        "dtype_unsupported": ("dtype",),
        "quantization_unsupported": ("method", "needed", "capability"),
        "kernel_resource_limit": (),
    },
    "Devices": {
        "no_gpu_detected": (),
        "not_enough_gpus": ("needed", "available"),
        "invalid_device": ("device",),
        "device_id_unsupported": ("value",),
        "gpu_busy": (),
    },
    "Driver": {
        "driver_too_old": (),
        "driver_mismatch": (),
        "driver_call_not_permitted": (),
        "fabric_manager_not_running": (),
    },
    "Distributed": {
        "nccl_failed": (),
        "gloo_failed": (),
        "rendezvous_timed_out": (),
        "placement_group_pending": (),
        "handshake_timed_out": (),
        "engine_ready_timeout": (),
        "frontend_died": (),
    },
    "Compile": {"compiler_missing": ("tool",), "jit_build_failed": ()},
    "Crash": {
        "process_killed": ("signal", "process"),
        "process_crashed": ("signal", "process"),
        "process_vanished": ("process", "pid"),
        "illegal_memory_access": (),
        "gpu_hardware_fault": (),
    },
    "Server": {
        "unhealthy": ("status",),
        "foreign_server": ("pid",),
        "restart_loop": ("restarts", "causes"),
        "shutdown_requested": ("signal",),
    },
    "Limit": {
        "stalled": ("phase", "silent_s", "suspect"),
        "phase_timed_out": ("phase", "limit_s", "suspect"),
        "timed_out": ("phase", "limit_s", "suspect"),
    },
    "Unknown": {"process_exited": ("exit_code",), "unclassified_error": ("exception", "text", "process")},
}
KINDS = {kind: (family, fields) for family, kinds in CONTRACT.items() for kind, fields in kinds.items()}


def class_of(kind: str) -> type[Cause]:
    found: type[Cause] = getattr(causes, "".join(word.title() for word in kind.split("_")))
    return found


def test_there_are_83_kinds() -> None:
    assert len(KINDS) == 83


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_as_the_contract_says(kind: str) -> None:
    family, fields = KINDS[kind]
    cause = class_of(kind)(message="it failed")
    assert (cause.kind, cause.family) == (kind, family)
    assert cause.fields == dict.fromkeys(fields)
    assert isinstance(cause, getattr(causes, family))
    assert (cause.confidence, cause.hint, cause.retryable, cause.evidence) == ("certain", None, None, ())


@pytest.mark.parametrize("kind", KINDS)
def test_a_cause_pickles_compares_and_hashes(kind: str) -> None:
    cause = class_of(kind)(message="it failed", hint="mend it", evidence=(Evidence(text="a", line=1),))
    copy = pickle.loads(pickle.dumps(cause))
    assert copy == cause
    assert hash(copy) == hash(cause)
    assert copy != attrs.evolve(cause, message="otherwise")
    assert repr(cause).startswith(f"{type(cause).__name__}(message='it failed'")


@pytest.mark.parametrize("kind", KINDS)
def test_a_cause_is_frozen(kind: str) -> None:
    cause = class_of(kind)(message="it failed")
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        cause.message = "changed"  # type: ignore[misc]  # that is the test


def test_causes_of_two_kinds_differ() -> None:
    assert causes.TimedOut(message="m") != causes.PhaseTimedOut(message="m")
    assert causes.TimedOut(message="m") != "m"


def test_a_family_matches_its_kinds() -> None:
    match causes.KvCacheTooSmall(message="m", fits_len=7):
        case causes.KvCacheTooSmall(fits_len=int(n)):
            assert n == 7
        case _:
            pytest.fail("the kind did not match")
    match causes.KvCacheTooSmall(message="m"):
        case causes.GpuMemory():
            pass
        case _:
            pytest.fail("the family did not match")


def test_every_name_that_is_listed_exists_and_the_list_is_sorted() -> None:
    assert list(causes.__all__) == sorted(causes.__all__)
    for name in causes.__all__:
        assert getattr(causes, name) is not None
    assert set(causes.__all__) <= set(dir(causes))


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="NoSuchCause"):
        causes.NoSuchCause  # noqa: B018  # type: ignore[attr-defined]


def test_families_are_imported_when_they_are_used() -> None:
    script = (
        "import sys, vllm_startup.causes as c\n"
        "assert 'vllm_startup.causes._gpu_memory' not in sys.modules\n"
        "c.GpuMemory\n"
        "assert 'vllm_startup.causes._gpu_memory' in sys.modules\n"
        "assert 'vllm_startup.causes._host' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_users_make_kinds_of_their_own() -> None:
    @attrs.frozen(kw_only=True)
    class LicenceExpired(causes.LaunchArguments):
        customer: str | None = None

    cause = LicenceExpired(message="too late", customer="acme")
    assert (cause.kind, cause.family, cause.fields) == (
        "licence_expired",
        "LaunchArguments",
        {"customer": "acme"},
    )
    assert cause == LicenceExpired(message="too late", customer="acme")
