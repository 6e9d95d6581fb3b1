"""A systemd unit: its state, its journal, and the end of each of its starts."""
