"""Which of many literals a line holds, told fast for the lines that hold none.

Every literal is filed under one of its words. A line is cut into words with
``bytes.translate`` and ``split``, both in C, and asked with ``frozenset.isdisjoint`` whether any
filed word is among them; only then are literals searched for.

Measured on one core of a shared 2-core machine, Python 3.11, lines of 57 to 120 characters, 400
literals (``benchmarks/flood.py`` measures the first and the last again):

=========================================  ============
words by ``bytes.translate`` (this)        0.6 to 1.1 us
words by ``str.translate``                 1.4 to 2.5 us
words by ``re.findall``                    1.0 to 2.2 us
``literal in line`` for each literal       20 to 40 us
one ``re.search`` of all as alternatives   50 to 85 us
=========================================  ============
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from operator import itemgetter
from typing import TYPE_CHECKING, Generic, TypeVar

from vllm_startup._log.records import plain

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T")

_WORD = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_"
_TABLE = bytes(byte if byte in _WORD else 32 for byte in range(256))

# What the lines of recorded starts and failures consist of, the commonest first: a literal is filed under
# the rarest of its words, and one that is not here is rarer than all of these.
_COMMON = b"""
    py pid INFO APIServer vllm in lib python3 line File opt ERROR Worker site packages launcher EngineCore
    v1 to multiproc_executor Route Methods is core WARNING model leaked shutdown GET POST engine utils
    return for the self torch type Triton entrypoints args api_utils models with be __init__ HTTP installed
    backend of health triton OK usr launchers cpu set function not s kwargs _C libtriton Disabling CPU
    kernel run on but process compilation server will instead mode model_executor name cache found and
    api_server none This entry ir disabled completions are core_client uvloop V1 False ompmultiprocessing
    using setting Loading t await doesn please runner include docs inductor cpu_worker safetensors chat a
    config active True Using cudagraph_mode manager errors failed tiny by binding HEAD func up API https can
    main wrapper Process complete force checkpoint sync_wrapper tracing otel native expected Model load
    cause executor appear resource_tracker There warmup rms_norm Runner V2 requires MPClient size
    fused_add_rms_norm gelu_and_mul_sparse error number was peer connected ranks Expected shards Completed
    IrOpPriorityConfig version Gloo Rank worker took that latest en kernel_config enable_jit_warmup
    distributed nanobind system_utils disabling local user start parallel_state DP Inductor during ignored
    only optimizations settings rank responses render KV dispatcher triton_utils most equivalent warn For
    Enforce CUDAGraphs eager compile killing call contextlib world_size Traceback recent last serve gen
    cpu_model_runner raise VllmWorker runtime auto async_llm maximum None multiprocessing override use
    instance attribute importing increasing cli run_server run_until_complete ai op Errno OSError exit
    Starting seconds value like current open run_server_worker Initializing after loaded n from at priority
    IR custom default automatically increase Too many Consider exceeds limit Found ulimit fd files
    build_async_engine_client cpp local_rank weights Waiting platform CPUs ReduceOp reduce_op FutureWarning
    deprecated performance follow setup required best libraries installation pre LD_PRELOAD getting_started
    section port len this local_world_size timeout or non LlamaForCausalLM startup defaults messages async
    __aenter__ anext architecture max super Final loop vLLM JIT No
    build_async_engine_client_from_engine_args Resolved request Available application Application remaining
    vllm_config as model_loader weight_utils GiB down count it if all memory template serving dtype
    processes GPU NUMA available thread Warning Memory world hf file enabled CUDA tokens tokenizer waiting
    skipped you code node node_rank because string Maximum create format routes received info out prefill
    cls library nccl check tensor list weight layer shape invalid running requests token when which been
    should must may than used does did could while
"""
_RANKS = {word: rank for rank, word in enumerate(reversed(_COMMON.split()), start=1)}

# They end longer words: "Error: " is meant to be found in "ValueError: ".
_ENDINGS = frozenset({b"Error", b"Exception", b"Warning", b"error"})


def words(text: str) -> list[bytes]:
    """The line's words: letters, digits and underscores of ASCII."""
    return text.encode("utf-8", "replace").translate(_TABLE).split()


class Triggers(Generic[T]):
    """Literals with payloads, found by their words.

    Case counts, and so do whole words: a literal begins where a word of the line begins, and a
    literal that is a single word is that whole word (``OOM`` is not in ``OOMKilled``). Of several
    words, the last may go on (``unrecognized argument``). Those whose first word is a mere ending
    (``Error: ``) and those given as ``anywhere`` are looked for in every line, inside words too;
    each costs about 0.1 us a line, as much as all others together.

    Args:
        pairs: Literals and what `find` gives for each.
        anywhere: Those of the literals that may stand inside words.

    Raises:
        ValueError: If a literal is empty.
    """

    def __init__(self, pairs: Iterable[tuple[str, T]], *, anywhere: Iterable[str] = ()) -> None:
        known = list(pairs)
        inside = frozenset(anywhere)
        self._by_word: dict[bytes, list[tuple[int, str, T]]] = {}
        self._loose: list[tuple[int, str, T]] = []
        shared = Counter(word for literal, _ in known for word in set(words(literal)))
        for number, (literal, payload) in enumerate(known):
            if not literal:
                raise ValueError("literal must not be empty")
            word = None if literal in inside else _characteristic(literal, shared)
            if word is None:
                self._loose.append((number, literal, payload))
            else:
                self._by_word.setdefault(word, []).append((number, literal, payload))
        self._loose_literals = tuple(dict.fromkeys(literal for _, literal, _ in self._loose))
        self._words = frozenset(self._by_word)

    def may_hold(self, text: str) -> bool:
        """Whether the line holds any literal."""
        if self._words_hold(text):
            return True
        return bool(self._loose_literals) and any(map(text.__contains__, self._loose_literals))

    def _words_hold(self, text: str) -> bool:
        found = words(text)
        if self._words.isdisjoint(found):
            return False
        return any(
            literal in text
            for word in self._words.intersection(found)
            for _, literal, _ in self._by_word[word]
        )

    def find(self, text: str) -> list[T]:
        """The payloads of all literals in the text, in the order in which they were given."""
        said = self._words.intersection(text.encode("utf-8", "replace").translate(_TABLE).split())
        found = [entry for word in said for entry in self._by_word[word] if entry[1] in text] if said else []
        if any(map(text.__contains__, self._loose_literals)):
            found += [entry for entry in self._loose if entry[1] in text]
        if not found:
            return []
        if len(found) > 1:
            # Sets have no order that lasts, and a replay has to give the same report.
            found.sort(key=itemgetter(0))
        return [entry[2] for entry in found]


def searchable(text: str) -> str:
    """A line as it was written, changed so that what is found in it once it is parsed is found now."""
    if "\x1b" in text:
        text = plain(text)
    if "\\" in text:
        text = _unescaped(text)
    if _BYTES in text:
        text = f"{text}\n{_spelled(text)}"
    return text


# How the journal writes a message that is not clean UTF-8: as its bytes' numbers.
_BYTES = '"MESSAGE":['


def _spelled(text: str) -> str:
    numbers, _, _ = text.partition(_BYTES)[2].partition("]")
    try:
        message = bytes(map(int, numbers.split(",")))
    except ValueError:
        return ""
    return searchable(message.decode("utf-8", "replace"))


def _unescaped(text: str) -> str:
    """JSON's escapes as what they stand for, so that no letter of theirs sticks to a word."""
    while "\\\\" in text:  # JSON in JSON
        text = text.replace("\\\\", "\\")
    for escape, meant in _ESCAPES:
        text = text.replace(escape, meant)
    if "\\u" in text:
        text = _code_point().sub(lambda found: chr(int(found[1], 16)), text)
        text = plain(text) if "\x1b" in text else text
    return text


_ESCAPES = (("\\n", "\n"), ('\\"', '"'), ("\\r", "\r"), ("\\t", "\t"), ("\\/", "/"))


@cache
def _code_point() -> re.Pattern[str]:
    return re.compile(r"\\u([0-9A-Fa-f]{4})")


def _characteristic(literal: str, shared: Counter[bytes]) -> bytes | None:
    """The word to file a literal under; None if a line may hold it without any whole word."""
    found = words(literal)
    raw = literal.encode("utf-8", "replace")
    starts, ends = raw[0] in _WORD, raw[-1] in _WORD
    if starts and found[0] in _ENDINGS:
        found = found[1:]
    if ends and (len(found) > 1 or not starts):
        # The last word may go on in the line: "argument" is in "arguments", "*** SIG" in "*** SIGSEGV".
        found = found[:-1]
    if not found:
        return None
    return min(found, key=lambda word: (_rank(word), len(word) < 4, shared[word]))


def _rank(word: bytes) -> int:
    """How common a word is; 0 for the rare ones."""
    return len(_RANKS) if word.isdigit() else _RANKS.get(word, 0)
