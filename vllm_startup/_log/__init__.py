"""What the text of a vLLM log says. Pure.

`splitter` makes lines of bytes; `lines.LineReader` takes a line apart, with `prefixes` for what stands
before vLLM's own record, `records` for the record's grammar, and `jsonlogs`; `triggers` finds the few
lines that matter; `markers` says what they mean, from the tables in ``markers_*``; `tracebacks` and
`exceptions` put exceptions together out of interleaved processes; `times` and `stamps` read the clock
on the lines.
"""
