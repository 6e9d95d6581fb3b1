"""``python -m vllm_startup``: the same as the command ``vllm-startup``."""

from __future__ import annotations

import sys

from vllm_startup._cli import main

if __name__ == "__main__":
    sys.exit(main())
