"""Another machine over OpenSSH: one connection, a shell, and what is seen through them."""
