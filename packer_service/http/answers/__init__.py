"""What several answers are made of, worked out from a dataset."""
