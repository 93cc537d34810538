"""Layers around every request: guards, and the observer that counts and logs."""
