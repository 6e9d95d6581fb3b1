from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from diagnosing import cases, cause_of, feed, read
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_startup import causes
from vllm_startup._diagnosis.diagnosis import Diagnosis
from vllm_startup._log.lines import LineReader
from vllm_startup._log.triggers import Triggers

RECORDINGS = Path(__file__).parents[1] / "recordings"
EXPECTATIONS = json.loads((RECORDINGS / "expectations.json").read_text(encoding="utf-8"))

MAIN = [
    "Traceback (most recent call last):",
    '  File "/opt/vllm/bin/vllm", line 6, in <module>',
    "    sys.exit(main())",
]
TERMINATED = (
    "(EngineCore pid=7) INFO 11-30 14:34:08 [core.py:1454] [shutdown] EngineCore: "
    "trigger received signal=SIGTERM"
)
WRAPPER = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"


def engine(*lines: str, pid: int = 200, name: str = "EngineCore") -> list[str]:
    return [f"({name} pid={pid}) ERROR 11-30 14:29:21 [core.py:1510] {line}" for line in lines]


def failing(
    *lines: str, pid: int = 200, name: str = "EngineCore", headline: str = "EngineCore failed to start."
) -> list[str]:
    return engine(
        headline,
        "Traceback (most recent call last):",
        '  File "/a/b.py", line 3, in run',
        "    work()",
        *lines,
        pid=pid,
        name=name,
    )


# --- when a cause is fixed ----------------------------------------------------------------


def test_nothing_read_is_no_failure() -> None:
    diagnosis = Diagnosis()
    assert diagnosis.verdict(ended=False) is None
    assert diagnosis.verdict(ended=True) is None
    assert (diagnosis.cause, diagnosis.aftermath, diagnosis.fatal, diagnosis.busy) == (
        None,
        None,
        False,
        False,
    )


def test_a_root_exception_alone_is_not_yet_a_verdict() -> None:
    diagnosis = Diagnosis()
    feed(diagnosis, failing("ValueError: No available memory for the cache blocks.", headline="hm"))
    assert isinstance(diagnosis.cause, causes.NoKvCacheMemory)
    assert not diagnosis.fatal
    assert diagnosis.verdict(ended=False) is None
    assert isinstance(diagnosis.verdict(ended=True), causes.NoKvCacheMemory)


def test_a_root_exception_with_a_terminal_wrapper_is_a_verdict_while_the_process_lives() -> None:
    diagnosis = Diagnosis()
    feed(diagnosis, failing("ValueError: No available memory for the cache blocks."))
    assert diagnosis.fatal
    assert isinstance(diagnosis.verdict(ended=False), causes.NoKvCacheMemory)


def test_the_wrapper_alone_is_no_verdict_before_the_end() -> None:
    diagnosis = Diagnosis()
    feed(diagnosis, [*MAIN, WRAPPER])
    assert diagnosis.fatal
    assert diagnosis.verdict(ended=False) is None
    assert isinstance(diagnosis.verdict(ended=True), causes.ProcessExited)


def test_an_uncaught_exception_of_the_main_program_is_fatal() -> None:
    diagnosis = Diagnosis()
    feed(diagnosis, [*MAIN, "ValueError: invalid literal for int() with base 10: 'tcp://10.43.1.39:8000'"])
    assert diagnosis.fatal
    assert isinstance(diagnosis.verdict(ended=False), causes.ServiceEnvironmentClash)


def test_an_unknown_exception_waits_for_its_whole_message() -> None:
    diagnosis = Diagnosis()
    feed(
        diagnosis, [*MAIN, "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig"]
    )
    assert diagnosis.verdict(ended=False) is None
    feed(diagnosis, ["  Value error, Model architectures ['X'] are not supported for now."])
    assert diagnosis.verdict(ended=False) == cause_of(
        [
            *MAIN,
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
            "  Value error, Model architectures ['X'] are not supported for now.",
        ]
    )


def test_an_error_that_is_retried_is_no_cause() -> None:
    text = "Error parsing config: model type `x` but Transformers does not recognize this architecture."
    lines = [f"(APIServer pid=1) ERROR 11-30 14:28:54 [repo_utils.py:126] {text}, retrying 1 of 2"]
    assert cause_of(lines) is None


KILLED = (
    "(APIServer pid=1) Traceback (most recent call last):",
    '(APIServer pid=1)   File "/opt/vllm/bin/vllm", line 6, in <module>',
    "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core "
    "proc(s): {'EngineCore': -9}",
)


@pytest.mark.parametrize("shown", ["Segmentation fault (core dumped)", "NCCL error in: x.cpp:1", "Killed"])
@pytest.mark.parametrize(
    "form",
    [
        '    raise RuntimeError("{}")',
        "(EngineCore pid=55) ERROR 11-30 14:22:05 [x.py:10] attempt 1 of 5 failed: {}",
        "(EngineCore pid=55) ERROR 11-30 14:22:05 [x.py:10] {}, retrying (2/3)",
    ],
)
def test_a_statement_and_a_retried_attempt_are_no_cause(form: str, shown: str) -> None:
    cause = cause_of([form.format(shown), *KILLED])
    assert cause is not None
    assert (cause.kind, cause.fields["signal"]) == ("process_killed", 9)


def test_the_last_attempt_is_not_retried() -> None:
    record = (
        "(EngineCore pid=55) ERROR 11-30 14:22:05 [x.py:10] attempt 5 of 5 failed: NCCL error in: x.cpp:1"
    )
    cause = cause_of([record, *KILLED])
    assert cause is not None
    assert cause.kind == "nccl_failed"


ASIDES = (
    "Exception ignored in: <function A.__del__ at 0x7f>",
    "Exception in thread T-3 (_report_usage_worker):",
)


@pytest.mark.parametrize("said", ASIDES)
@pytest.mark.parametrize("at", range(6))
def test_what_a_finaliser_or_the_usage_thread_raises_is_no_cause(said: str, at: int) -> None:
    aside = [
        said,
        "Traceback (most recent call last):",
        '  File "/a/b.py", line 5, in f',
        "    f()",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    ]
    real = [
        "Traceback (most recent call last):",
        '  File "/opt/vllm/bin/vllm", line 6, in <module>',
        "    sys.exit(main())",
        '  File "/opt/vllm/config.py", line 7, in create_engine_config',
        "    raise ValueError(",
        "ValueError: Total number of attention heads (28) must be divisible by tensor parallel size (8).",
    ]
    cause = cause_of([*real[:at], *aside, *real[at:]])
    assert cause is not None
    assert cause.kind == "parallel_size_invalid"


def test_a_refused_argument_is_no_part_of_an_exception_before_it() -> None:
    thread = [
        ASIDES[1],
        *MAIN[:1],
        '  File "/a.py", line 5, in f',
        "OSError: [Errno 28] No space left on device",
    ]
    cause = cause_of([*thread, "vllm serve: error: unrecognized arguments: --no-such-flag"])
    assert cause is not None
    assert cause.kind == "invalid_arguments"


def test_an_exception_that_was_only_logged_is_no_cause() -> None:
    lines = failing("ZeroDivisionError: division by zero", headline="could not send usage statistics")
    assert cause_of(lines) is None


def test_an_excerpt_of_what_another_module_logged_is_no_cause() -> None:
    """vLLM's processes end in a few modules; what others log is survived."""
    prefix = "(EngineCore pid=200) ERROR 11-30 14:29:21 [repo_utils.py:98] "
    lines = [
        '  File "/a/vllm/transformers_utils/repo_utils.py", line 90, in with_retry',
        "    return func()",
        "RuntimeError: NCCL error: unhandled system error",
    ]
    assert cause_of([prefix + line for line in lines]) is not None  # it may be why it failed,
    assert not read(prefix + line for line in lines).fatal  # but does not say that it has


def test_a_headline_before_the_header_says_that_it_is_fatal() -> None:
    said = "ERROR 03-11 17:20:44 [core.py:9] EngineCore hit an exception: Traceback (most recent call last):"
    assert read([said]).fatal
    assert not read([said.replace("ERROR", "WARNING")]).fatal
    assert not read([said.replace("EngineCore hit an exception", "Could not load it")]).fatal


def test_an_exception_that_was_ignored_is_no_cause() -> None:
    lines = [
        "Exception ignored in: <function A.__del__ at 0x7f>",
        *MAIN,
        "AttributeError: 'NoneType' object has no x",
    ]
    assert cause_of(lines) is None


# --- which cause --------------------------------------------------------------------------


def test_the_worker_s_exception_beats_what_its_parents_say() -> None:
    cause = cause_of(
        [
            *failing(
                "torch.OutOfMemoryError: CUDA out of memory.",
                pid=300,
                name="Worker_TP0",
                headline="WorkerProc failed to start.",
            ),
            *failing(
                "Exception: WorkerProc initialization failed due to an exception in a background process."
            ),
            *MAIN,
            WRAPPER,
        ]
    )
    assert isinstance(cause, causes.GpuOutOfMemory)
    assert cause.evidence[0].process == "Worker_TP0"
    assert cause.evidence[0].line == 5


def test_a_lost_peer_is_not_the_cause_when_another_rank_says_why() -> None:
    lost = failing(
        "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, ncclRemoteError: remote process exited "
        "or there was a network error",
        pid=301,
        name="Worker_TP1",
        headline="WorkerProc failed to start.",
    )
    root = failing(
        "ZeroDivisionError: oh", pid=300, name="Worker_TP0", headline="WorkerProc failed to start."
    )
    for lines in ([*lost, *root], [*root, *lost]):
        cause = cause_of([*lines, *MAIN, WRAPPER])
        assert isinstance(cause, causes.UnclassifiedError)
        assert (cause.exception, cause.process) == ("ZeroDivisionError", "Worker_TP0")


def test_what_a_parent_quotes_counts_where_the_child_said_nothing() -> None:
    cause = cause_of(
        [
            *failing(
                "RuntimeError: Worker failed with error 'CUDA error: an illegal memory access was "
                "encountered', please check the stack trace above for the root cause"
            ),
            *MAIN,
            WRAPPER,
        ]
    )
    assert isinstance(cause, causes.IllegalMemoryAccess)


def test_an_unknown_error_is_told_as_itself() -> None:
    cause = cause_of([*failing("mypkg.errors.OddError: a strange thing"), *MAIN, WRAPPER])
    assert isinstance(cause, causes.UnclassifiedError)
    assert (cause.exception, cause.text, cause.process) == (
        "mypkg.errors.OddError",
        "a strange thing",
        "EngineCore",
    )
    assert cause.confidence == "likely"


@pytest.mark.parametrize(
    ("first", "connector", "second", "expected"),
    [
        (
            "KeyError: 'x'",
            "During handling of the above exception, another exception occurred:",
            "OddError: y",
            "OddError",
        ),
        (
            "OddError: x",
            "During handling of the above exception, another exception occurred:",
            "OtherError: y",
            "OddError",
        ),
        (
            "KeyError: 'x'",
            "The above exception was the direct cause of the following exception:",
            "OddError: y",
            "KeyError",
        ),
    ],
)
def test_of_an_unknown_chain_the_link_that_says_most(
    first: str, connector: str, second: str, expected: str
) -> None:
    cause = cause_of([*MAIN, first, "", connector, "", *MAIN, second])
    assert isinstance(cause, causes.UnclassifiedError)
    assert cause.exception == expected


def test_a_known_link_of_a_chain_beats_unknown_ones() -> None:
    cause = cause_of(
        [
            *MAIN,
            "OddError: x",
            "",
            "The above exception was the direct cause of the following exception:",
            "",
            *MAIN,
            "ValueError: No available memory for the cache blocks.",
        ]
    )
    assert isinstance(cause, causes.NoKvCacheMemory)


def test_a_refusal_told_in_passing_explains_why_the_model_was_not_found() -> None:
    cause = cause_of(
        [
            "INFO 07-01 10:00:07 [config.py:112] Error retrieving file list: 401 Client Error: Unauthorized "
            "for url: https://huggingface.co/api/models/acme/secret/tree/main",
            *MAIN,
            "ValueError: Invalid repository ID or local directory specified: 'acme/secret'.",
        ]
    )
    assert isinstance(cause, causes.ModelAccessDenied)
    assert cause.model == "acme/secret"
    assert [evidence.line for evidence in cause.evidence] == [1, 5]


# --- the aftermath ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("codes", "kind", "signal"),
    [
        ("{'EngineCore': -9}", "process_killed", 9),
        ("{'EngineCore_DP0': 1, 'EngineCore_DP1': -9}", "process_killed", 9),
        ("{'EngineCore': -15}", "process_killed", 15),
        ("{'EngineCore': -11}", "process_crashed", 11),
        ("{'EngineCore': -6}", "process_crashed", 6),
    ],
)
def test_an_exit_code_in_the_wrapper_tells_how_it_ended(codes: str, kind: str, signal: int) -> None:
    cause = cause_of([*MAIN, WRAPPER.replace("{}", codes)])
    assert cause is not None
    assert (cause.kind, cause.fields["signal"], cause.confidence) == (kind, signal, "certain")


def test_a_worker_that_died_by_a_signal() -> None:
    cause = cause_of(
        [
            "(EngineCore pid=2) ERROR 11-30 14:29:31 [multiproc_executor.py:315] Worker proc VllmWorker-3 "
            "died unexpectedly (exit code: -9), shutting down executor.",
            *failing("RuntimeError: cancelled"),
            *MAIN,
            WRAPPER,
        ]
    )
    assert isinstance(cause, causes.ProcessKilled)
    assert (cause.process, cause.signal) == ("VllmWorker-3", 9)


def test_a_server_that_was_up_and_asked_to_end_was_only_that() -> None:
    """Whether it had been ready by then is for the watch to say: it may wait for more than the log tells."""
    cause = cause_of(
        [
            "INFO:     Application startup complete.",
            TERMINATED,
            *failing("vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."),
        ]
    )
    assert isinstance(cause, causes.ShutdownRequested)
    assert cause.signal == 15


def test_a_stop_that_follows_a_failure_is_not_its_cause() -> None:
    stop = [*MAIN, "KeyboardInterrupt: terminated"]
    failure = failing("ZeroDivisionError: oh")
    first, later = cause_of([*failure, *stop]), cause_of([*stop, *failure])
    assert isinstance(first, causes.UnclassifiedError)
    assert isinstance(later, causes.ShutdownRequested)


def test_a_wrapper_that_was_wrapped_at_80_columns() -> None:
    lines = [
        *MAIN,
        "RuntimeError: Engine core initialization failed. See root cause above. Failed",
        "core proc(s): {'EngineCore': -9}",
    ]
    cause = cause_of(lines)
    assert isinstance(cause, causes.ProcessKilled)
    assert cause.signal == 9


def test_an_engine_that_was_told_to_end_before_it_was_ready() -> None:
    cause = cause_of(
        [
            TERMINATED,
            *MAIN,
            WRAPPER,
        ]
    )
    assert isinstance(cause, causes.ShutdownRequested)
    assert cause.signal == 15


# --- properties ---------------------------------------------------------------------------


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_lines_of_other_processes_in_between_change_nothing(case: object) -> None:
    lines = list(case.lines)  # type: ignore[attr-defined]  # a Case
    chance = random.Random(7)
    mixed = []
    for line in lines:
        mixed.append(line)
        if chance.random() < 0.4:
            mixed.append(
                f"(Worker_TP{chance.randrange(8)} pid=9{chance.randrange(8)}) INFO 11-30 14:29:18 [x.py:1] ok"
            )
    plain, told = cause_of(lines), cause_of(mixed)
    assert plain is not None
    assert told is not None
    if plain.kind != "process_vanished":  # told of the only worker that was seen
        assert (told.kind, told.fields, told.confidence) == (plain.kind, plain.fields, plain.confidence)


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_only_lines_with_a_literal_need_to_be_fed_while_it_is_not_busy(case: object) -> None:
    lines = case.lines  # type: ignore[attr-defined]  # a Case
    triggers: Triggers[None] = Triggers((clue.literal, None) for clue in Diagnosis.clues())
    diagnosis, reader = Diagnosis(), LineReader()
    for text in lines:
        for line in reader.read(text):
            if diagnosis.busy or triggers.may_hold(text):
                diagnosis.feed(line)
    diagnosis.finish()
    thrifty, whole = diagnosis.verdict(ended=True), cause_of(lines)
    assert thrifty is not None
    assert whole is not None
    assert (thrifty.kind, thrifty.fields) == (whole.kind, whole.fields)


def texts(name: str) -> list[str]:
    rows = (RECORDINGS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [
        line for row in map(json.loads, rows) if row.get("reading") == "log_lines" for line in row["lines"]
    ]


FAILED = [name for name, right in EXPECTATIONS.items() if right["expect_log"]["outcome"] == "failed"]


@pytest.mark.parametrize("name", FAILED)
def test_a_recorded_failure_gives_its_cause(name: str) -> None:
    right = EXPECTATIONS[name]["expect_log"]
    cause = cause_of(texts(name))
    assert cause is not None
    assert cause.kind in right["kinds"]
    assert {field: cause.fields[field] for field in right.get("fields", {})} == right.get("fields", {})
    assert right.get("text", "") in cause.evidence[0].text


@pytest.mark.parametrize("name", FAILED)
def test_no_prefix_of_a_recorded_failure_fixes_another_cause(name: str) -> None:
    diagnosis, fixed = Diagnosis(), set()
    for text in texts(name):
        feed(diagnosis, [text])
        cause = diagnosis.verdict(ended=False)
        fixed |= {cause.kind} if cause is not None else set()
    assert fixed <= set(EXPECTATIONS[name]["expect_log"]["kinds"])


@pytest.mark.parametrize("name", [name for name in EXPECTATIONS if name not in FAILED])
def test_no_prefix_of_a_healthy_recording_has_a_cause(name: str) -> None:
    diagnosis = Diagnosis()
    for text in texts(name):
        feed(diagnosis, [text])
        assert diagnosis.verdict(ended=False) is None
        if "trigger received signal" not in text:  # from here to the next line it may be a stop before ready
            assert diagnosis.verdict(ended=True) is None
    assert diagnosis.verdict(ended=True) is None


@settings(deadline=None, max_examples=200)
@given(
    st.lists(
        st.sampled_from([line for case in cases() for line in case.lines[-12:]]) | st.text(), max_size=40
    )
)
def test_no_text_breaks_it(lines: list[str]) -> None:
    diagnosis = Diagnosis()
    for text in lines:
        feed(diagnosis, [text.replace("\n", " ")])
        diagnosis.verdict(ended=False)
    diagnosis.finish()
    cause = diagnosis.verdict(ended=True)
    assert cause is None or cause.evidence


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=2000))
def test_no_bytes_break_it(data: bytes) -> None:
    read(data.decode("latin-1").split("\n")).verdict(ended=True)


def test_it_may_be_told_more_after_its_end() -> None:
    diagnosis = read(["INFO:     Started server process [1]"])
    assert diagnosis.verdict(ended=True) is None
    feed(diagnosis, [*MAIN, "OSError: [Errno 98] Address already in use"])
    diagnosis.finish()
    assert isinstance(diagnosis.verdict(ended=True), causes.PortInUse)


def test_it_tells_whether_a_line_mattered() -> None:
    diagnosis = Diagnosis()
    reader = LineReader()
    said = [diagnosis.feed(line) for text in ("all is well", MAIN[0], "  x") for line in reader.read(text)]
    assert said == [False, True, True]
