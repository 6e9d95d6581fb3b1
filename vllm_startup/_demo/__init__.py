"""A simulated vLLM server: no model, no GPU, and yet a real process tree that is watched by the same code.

``python -m vllm_startup._demo [--scenario S] [--speed X] [--version V] vllm serve MODEL --port P`` prints
what vLLM of that version prints, binds its port at once and listens last, computes, reads a file, and
ends as the scenario says. What it serves is one constant answer.
"""
