"""Choice of draft lengths: measured costs of passes, trials of drafting, and γ of each session."""
