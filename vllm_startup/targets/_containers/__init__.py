"""A container of Docker or Podman: its engine, its state, its log, on this machine and on another."""
