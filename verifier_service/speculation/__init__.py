"""How long drafts are, for whom, and whether they pay: measured costs, trials and the length of each session."""
