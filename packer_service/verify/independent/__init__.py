"""What follows from a pack's bytes, derived without any of the code that plans, lays out and writes packs."""
