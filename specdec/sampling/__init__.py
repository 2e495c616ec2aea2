"""From logits to a distribution: parameters, masks, penalties and filters, shared by target and drafter."""
