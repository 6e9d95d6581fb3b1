"""The state machine of a wait: readings in, events out. Pure."""
