"""The checks before a start: facts that are gathered once, and a table of small checks that judge them."""
