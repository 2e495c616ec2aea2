"""A whole system on one machine: its plan, its processes and their supervision."""
