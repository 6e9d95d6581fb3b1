"""Who stands around `vllm-startup run` and asks how its server is: systemd, Kubernetes, and others.

`standing` says how a server stands, from its first second to its end; `notify` tells it to a service
manager, `listener` to whoever asks over HTTP, `termination` to `kubectl describe pod`; `hosts` keeps
them going.
"""
