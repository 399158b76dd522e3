"""Fine-tuning: contrastive, with mined negatives, by distillation."""
