"""Hugging Face models on packs."""
