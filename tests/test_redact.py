"""Secrets leave command lines and log lines; everything else stays."""

from __future__ import annotations

import time

import pytest

from vllm_startup._redact import redact, redact_command

HUB_TOKEN = "hf_" + "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0eF3h"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        pytest.param(
            ["vllm", "serve", "m", "--api-key", "hunter2", "--port", "8000"],
            ("vllm", "serve", "m", "--api-key", "***", "--port", "8000"),
            id="value-of-its-own",
        ),
        pytest.param(["vllm", "--api-key=hunter2"], ("vllm", "--api-key=***"), id="after-equals"),
        pytest.param(
            ["--api-key", "one", "two", "--x"], ("--api-key", "***", "***", "--x"), id="several-keys"
        ),
        pytest.param(["--hf-token", "abc"], ("--hf-token", "***"), id="hf-token"),
        pytest.param(["--hf_token", "abc"], ("--hf_token", "***"), id="underscore"),
        pytest.param(
            ["--ssl-keyfile", "/k.pem", "--ssl-keyfile-password", "x"],
            ("--ssl-keyfile", "/k.pem", "--ssl-keyfile-password", "***"),
            id="key-file-is-a-path",
        ),
        pytest.param(["env", "HF_TOKEN=abc", "vllm"], ("env", "HF_TOKEN=***", "vllm"), id="env-command"),
        pytest.param(
            ["sh", "-c", "vllm serve m --api-key a b --port 1"],
            ("sh", "-c", "vllm serve m --api-key *** --port 1"),
            id="shell-line",
        ),
        pytest.param(
            ["--kv-transfer-config", '{"password": "x", "n": 1}'],
            ("--kv-transfer-config", '{"password": "***", "n": 1}'),
            id="json-argument",
        ),
        pytest.param(
            ["--max-num-batched-tokens", "8192", "--tokenizer", "t"],
            ("--max-num-batched-tokens", "8192", "--tokenizer", "t"),
            id="tokens-are-no-secret",
        ),
        pytest.param(
            ["--apiKey", "a", "--accessToken=b", "--ssl-passphrase", "c"],
            ("--apiKey", "***", "--accessToken=***", "--ssl-passphrase", "***"),
            id="camel-case",
        ),
        pytest.param([], (), id="empty"),
    ],
)
def test_commands(command: list[str], expected: tuple[str, ...]) -> None:
    assert redact_command(command) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "https://b.s3.amazonaws.com/m?X-Amz-Date=2026&X-Amz-Credential=AKIA/x&X-Amz-Signature=ab12",
            "https://b.s3.amazonaws.com/m?X-Amz-Date=2026&X-Amz-Credential=***&X-Amz-Signature=***",
        ),
        ("https://a.blob.core/m?sv=1&sig=ab%3D", "https://a.blob.core/m?sv=1&sig=***"),
        (
            "https://x.cloudfront.net/m?Policy=eyJ&Signature=z~&Key-Pair-Id=K1 403",
            "https://x.cloudfront.net/m?Policy=***&Signature=***&Key-Pair-Id=*** 403",
        ),
        ("proxy http://user:pass@host:80/x", "proxy http://***@host:80/x"),
        ("http://token@host/", "http://***@host/"),
        ("http://a:p@ss@host/", "http://***@host/"),
        ("GET /v1?api_key=abc&n=1", "GET /v1?api_key=***&n=1"),
        ("Authorization: Bearer abcdef.ghi", "Authorization: Bearer ***"),
        ("{'Authorization': 'Token abc'}", "{'Authorization': 'Token ***'}"),
        ("authorization: basic dXNlcjpwYXNz", "authorization: basic ***"),
        (f"login with {HUB_TOKEN} failed", "login with hf_*** failed"),
        ("Incorrect API key provided: sk-abc123def456", "Incorrect API key provided: sk-***"),
        ("{'api_key': ['a', 'b'], 'port': 8000}", "{'api_key': ***, 'port': 8000}"),
        (
            "args: Namespace(api_key=['a'], hf_token='abc', port=1)",
            "args: Namespace(api_key=***, hf_token='***', port=1)",
        ),
        (
            r'{"message": "{\"api_key\": \"abc\", \"n\": 1}"}',
            r'{"message": "{\"api_key\": \"***\", \"n\": 1}"}',
        ),
        (
            "AWS_SECRET_ACCESS_KEY=abc AWS_ACCESS_KEY_ID=AKIA REGION=eu",
            "AWS_SECRET_ACCESS_KEY=*** AWS_ACCESS_KEY_ID=*** REGION=eu",
        ),
        ("VLLM_API_KEY=abc", "VLLM_API_KEY=***"),
        ("DB_PASSWORD='a b' HOST=x", "DB_PASSWORD='***' HOST=x"),
        ("Password: abc", "Password: ***"),
        ("token='unfinished", "token='***'"),
        ("--api-key abc", "--api-key ***"),
        (
            "run ['vllm', 'serve', '--api-key', 'abc', 'def', '--port', '1']",
            "run ['vllm', 'serve', '--api-key', '***', '--port', '1']",
        ),
        (r'{"args": "[\"--hf-token\", \"abc\"]"}', r'{"args": "[\"--hf-token\", \"***\"]"}'),
        ("hf_token=SecretStr('abc'), n=1", "hf_token=***), n=1"),
        ("api_key=b'abc', n=1", "api_key=***, n=1"),
    ],
)
def test_secrets_are_hidden(text: str, expected: str) -> None:
    assert redact(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "INFO 07-01 12:00:01 [gpu_model_runner.py:123] Model loading took 3.2 GiB",
        "max_num_batched_tokens=8192, tokenizer='/m', tokenizer_mode=auto, skip_tokenizer_init=False",
        "KeyError: 'model.layers.0.weight'",
        "GPU KV cache size: 123,456 tokens",
        "api_key=None, hf_token=None, token: True, 'api_key': []",
        "eos_token_id=2, eos_token: 151645",
        "hf_overrides={}, hf_config_path=None, hf_hub_resolver, hf_quantizer, HF_ColBERT",
        "plugin lora_hf_hub_resolver -> vllm.plugins.lora_resolvers.hf_hub_resolver:register",
        "disk-sleep risk-free task-based",
        "distributed_init_method=tcp://127.0.0.1:41234 backend=nccl",
        "Started server process, see http://0.0.0.0:8000/docs and a@b.c",
        "TOKENIZERS_PARALLELISM=false VLLM_MAX_TOKENS=16384",
        "key_cache shape: [2, 16], routing key: x",
        "unrecognized arguments: ['--api-key', '--port', '1']",
        "vllm serve: error: argument --api-key: expected at least one argument",
        "Failed to determine user credentials: No such process",
        "basic configuration; bearer of news; authorization: user is unknown",
    ],
)
def test_harmless_text_stays_the_same_object(text: str) -> None:
    assert redact(text) == text


def test_what_was_redacted_stays_as_it_is() -> None:
    once = redact(f"--api-key a {HUB_TOKEN} http://u:p@h/ Bearer abcdefgh TOKEN='x' sk-abcdefgh")
    assert redact(once) == once


HOSTILE = [
    "KEY",
    "token",
    "token=[",
    "token='",
    "api_key",
    "hf_",
    "hf_a",
    "hf_aaaaaaaa",
    "sk-",
    "://",
    "://@",
    "--",
    "--api-key ",
    "Bearer ",
    "authorization: ",
    "token \t",
    'aaaaaaa\\"',
]


@pytest.mark.parametrize("unit", HOSTILE)
def test_the_time_is_linear_in_the_length_of_a_hostile_line(unit: str) -> None:
    line = "token " + unit * (100_000 // len(unit))
    began = time.process_time()
    redact(line)
    assert time.process_time() - began < 0.5
