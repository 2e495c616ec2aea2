"""How many tokens to draft, and how many drafters and verifiers a load needs."""
