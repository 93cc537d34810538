"""Derivation of what follows from a pack's bytes, without any of the code that plans, lays out and writes packs."""
