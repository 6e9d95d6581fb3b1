"""Its folder is on the path of the tests: they share helpers that stand beside it."""
