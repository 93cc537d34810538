"""A packed dataset as one context-parallel rank reads it."""
