"""What the text of a vLLM log says: lines, markers, tracebacks, times. Pure."""
