"""Passes on a CPU: slabs of keys and values, operators in C++, compiled layers and threads."""
