"""Draft lengths, and the number of drafters and verifiers that a load needs."""
