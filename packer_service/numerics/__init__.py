"""What the pure rooms compute with: loops compiled by Numba."""
