"""From an attempt's text to the first cause across its processes."""
