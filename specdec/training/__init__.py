"""Training of a drafter for a target: answers of the target, distillation, measurement and model card."""
