"""How logits become a distribution: parameters, masks, penalties and filters, for target and drafter alike."""
